"""The benchmarks of placement over HTTP fail when a server answers wrongly, and report when ours costs too much."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.placement_servers import PlacementServer
from tools.benchmarks.books import WrongBooksError
from tools.benchmarks.clouds import hosts_alone
from tools.benchmarks.comparison_targets import targets_of
from tools.benchmarks.http_load import Claiming, Claims, Searching
from tools.benchmarks.measuring import Result, Run
from tools.benchmarks.section_api import without_claims

CLOUD = hosts_alone(3)


@asynccontextmanager
async def a_server_that_says(*answers: tuple[int, Any]) -> AsyncIterator[PlacementServer]:
    """Sends these answers in turn, then repeats the last one; it closes each second connection, and announces that."""
    left = list(answers)
    ends = False

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal ends
        ends = not ends
        closing = "Connection: close\r\n" if ends else ""
        while head := await _head(reader):
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length or b"0"))
            status, said = left.pop(0) if len(left) > 1 else left[0]
            body = json.dumps(said).encode()
            told = f"HTTP/1.1 {status} Said\r\n{closing}Content-Length: {len(body)}\r\n\r\n"
            writer.write(told.encode() + body)
            if closing:
                break
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield PlacementServer(host, port, eldest=0)


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


def candidates(count: int, used: int) -> dict[str, Any]:
    summaries = {str(n): {"resources": {"VCPU": {"used": used if n == 0 else 0}}} for n in range(count)}
    return {"allocation_requests": [{}] * count, "provider_summaries": summaries}


def a_result(server: str, *totals_us: float, limit: str = "1,000") -> Result:
    runs = tuple(Run(operations=1, wall_s=1, cpu_us={"server": us}, ours=0.5, others=0) for us in totals_us)
    return Result("candidates over HTTP", {"cloud": "10,000 hosts", "limit": limit, "server": server}, runs)


@pytest.mark.asyncio
async def test_a_claim_that_does_not_fit_fails_a_benchmark() -> None:
    async with a_server_that_says((409, {"errors": [{"code": "placement.undefined_code"}]})) as server:
        claiming = Claiming(server, Claims(server, CLOUD), CLOUD.claimable)

        with pytest.RaisesGroup(pytest.RaisesExc(WrongBooksError, match="unexpected answer to a claim: 409")):
            await claiming.prepare(1)()


@pytest.mark.asyncio
async def test_claims_that_are_not_on_the_books_fail_a_benchmark() -> None:
    async with a_server_that_says((204, None), (200, {"usages": {}})) as server:
        claims = Claims(server, CLOUD)
        await Claiming(server, claims, CLOUD.claimable).prepare(1)()

        with pytest.raises(WrongBooksError, match="1 claims were granted"):
            await claims.check()


@pytest.mark.asyncio
async def test_too_few_candidates_fail_a_benchmark() -> None:
    async with a_server_that_says((200, candidates(2, used=0))) as server:
        searching = Searching(server, CLOUD, None, Claims(server, CLOUD))

        with pytest.RaisesGroup(
            pytest.RaisesExc(WrongBooksError, match="3 candidates expected, but the answer has 2")
        ):
            await searching.prepare(1)()


@pytest.mark.asyncio
async def test_candidates_from_before_the_last_claim_fail_a_benchmark() -> None:
    async with a_server_that_says(
        (204, None), (200, candidates(3, used=2)), (200, candidates(3, used=0))
    ) as server:
        claims = Claims(server, CLOUD)
        await Claiming(server, claims, CLOUD.claimable).prepare(1)()
        searching = Searching(server, CLOUD, None, claims)
        await searching.prepare(1)()

        with pytest.RaisesGroup(pytest.RaisesExc(WrongBooksError, match="1 claims were granted before")):
            await searching.prepare(1)()


def test_the_cost_of_concurrent_claims_is_subtracted_from_a_search() -> None:
    run = Run(
        operations=10,
        wall_s=2,
        cpu_us={"generator": 7, "server": 100, "database": 10},
        ours=0.5,
        others=0,
        details={"claims beside": 20},
    )
    claims = Run(
        operations=1, wall_s=1, cpu_us={"generator": 1, "server": 30, "database": 4}, ours=0, others=0
    )

    (left,) = without_claims(Result("", {}, (run,)), Result("", {}, (claims,))).runs

    assert left.cpu_us == {"generator": 7, "server": 40, "database": 2}
    assert (left.details["claims beside µs"], left.details["claims beside a second"]) == (68, 10)


def test_the_minimum_of_ours_is_compared_with_the_minimum_of_theirs() -> None:
    ours, theirs = a_result("moorage", 11_000, 30_000), a_result("openstack", 1_100_000, 5_000_000)

    ratio, most = targets_of([theirs, ours])

    assert "100.0 times as many" in ratio
    assert ratio.endswith("at least 100 wanted: kept")
    assert most.endswith("at most 12 ms, seen 11.0 (minimum of its runs): kept")


def test_measurements_that_the_other_server_lacks_are_not_compared() -> None:
    assert list(targets_of([a_result("moorage", 13_000, limit="50"), a_result("openstack", 1_000)])) == []
