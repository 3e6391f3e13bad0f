"""The waiting times of other clients during costly questions: for `GET /` and for claims, over HTTP and over the bus.

Each costly question is repeated without pause, over HTTP by processes of their own. A client asks every few
milliseconds, and its waits are measured. CPU per question is not shown: it would include the costly ones.
"""

import asyncio
import itertools
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from bus.message import Message
from bus.messages.books import Candidates, CandidatesFound
from bus.messages.placement import ClaimAnswered
from bus.settings import BusSettings
from bus.workers.connections import Station
from engine.refusals import Claimed, TooCostly
from kit.clock import now
from tests.contracts.placement_orders import a_claim, a_share, amounts, consumer, provider
from tests.hostile_requests import (
    Hostile,
    claim_body,
    hard_messages,
    hard_searches,
    hard_worlds,
    large_bodies,
    many_hosts,
)
from tests.placement_servers import PlacementServer, our_server
from tests.varied import varied
from tools.benchmarks.books import WrongBooksError, filled, new_database, postgres_server
from tools.benchmarks.brokers import Bus, rabbitmq_bus, unix_bus
from tools.benchmarks.cpu import OneProcess
from tools.benchmarks.http_client import HttpConnection, request
from tools.benchmarks.http_load import GRANTED, OK
from tools.benchmarks.measuring import GENERATOR, Details, Effort, Result, Work, measured, waits_of
from tools.benchmarks.messages import CELL
from tools.benchmarks.remote_role import remote_role
from tools.benchmarks.roles import asker

SECTION = "waits beside hard questions"
HOSTS = 5_000
NOTHING, ALL_AT_ONCE = "nothing", "all of them at once"
ASKED_EVERY_S = 0.01
# How long a costly question runs before the first measurement.
HEAD_START_S = 0.5
WAITS = 300
# The promised limit.
WAIT_MS_MAX = 200.0
# No question is repeated.
_PATIENT = varied(BusSettings(), ask_again_ms=600_000, answer_timeout_ms=600_000)
_ROOT = Path(__file__).parents[2]
_consumers = itertools.count(1)

Ask = Callable[[], Awaitable[None]]


async def beside_section(effort: Effort) -> list[Result]:
    results: list[Result] = []
    async with AsyncExitStack() as stack:
        postgres = await stack.enter_async_context(postgres_server()) if effort.servers else None
        hosts = many_hosts(HOSTS if effort.servers else 50, CELL)
        for kind in (None, postgres) if postgres else (None,):
            async with new_database(kind) as url, filled(url, (*hard_worlds(CELL), *hosts)):
                results += await _over_http(url, effort)
                bus = await stack.enter_async_context(rabbitmq_bus() if kind else unix_bus())
                results += await _over_the_bus(bus, url, effort)
    return results


# Over HTTP


async def _over_http(url: str, effort: Effort) -> list[Result]:
    hard = {**hard_searches(), **large_bodies(provider("many-1"))}
    beside: dict[str, Sequence[Hostile]] = {name: (each,) for name, each in hard.items()}
    some = effort.some({NOTHING: (), **beside, ALL_AT_ONCE: (*hard.values(),)})
    results = []
    with our_server(url) as server:
        # The first question makes the server read all providers.
        async with HttpConnection(server) as connection:
            await _ask(connection, request("GET", "/resource_providers"), OK)
        for name, questions in some.items():
            async with asked_over_http(server, questions), HttpConnection(server) as connection:
                for asked, ask in (
                    ("GET /", partial(_ask, connection, request("GET", "/"), OK)),
                    ("claim", partial(_claim_over_http, connection)),
                ):
                    results.append(await _waits(_what(url, "HTTP", asked, name), ask, effort))
    return results


async def _ask(connection: HttpConnection, order: bytes, wanted: int) -> None:
    if (answer := await connection.ask(order)).status != wanted:
        raise WrongBooksError(f"{order[:60]!r} was answered {answer.status}: {answer.body[:500]!r}")


async def _claim_over_http(connection: HttpConnection) -> None:
    target = f"/allocations/{provider(f'consumer-{next(_consumers)}')}"
    await _ask(connection, request("PUT", target, claim_body("many-1")), GRANTED)


@asynccontextmanager
async def asked_over_http(
    server: PlacementServer, questions: Sequence[Hostile]
) -> AsyncIterator[Sequence[asyncio.subprocess.Process]]:
    """Each by a process of its own, repeated without pause."""
    processes = []
    try:
        for question in questions:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tools.benchmarks.hard_asker"),
                *(server.host, str(server.port), str(question.status)),
                cwd=_ROOT,
                stdin=asyncio.subprocess.PIPE,
            )
            processes.append(process)
            assert process.stdin is not None
            process.stdin.write(question.text)
            process.stdin.write_eof()
        await asyncio.sleep(HEAD_START_S if questions else 0)
        yield processes
        ended = [process.returncode for process in processes if process.returncode is not None]
        if ended:
            raise WrongBooksError(f"{len(ended)} clients that ask costly questions have ended: see above")
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


# Over the bus


async def _over_the_bus(bus: Bus, url: str, effort: Effort) -> list[Result]:
    hard = hard_messages()
    beside: dict[str, Sequence[Message]] = {name: (each,) for name, each in hard.items()}
    some = effort.some({NOTHING: (), **beside, ALL_AT_ONCE: (*hard.values(),)})
    results = []
    async with (
        remote_role("placement", bus.url, url),
        asker(bus.broker, settings=_PATIENT) as client,
        asker(bus.broker, settings=_PATIENT) as other,
    ):
        for name, questions in some.items():
            async with _asked_over_the_bus(other, questions):
                results.append(
                    await _waits(
                        _what(url, bus.name, "claim", name), partial(_claim_over_the_bus, client), effort
                    )
                )
    return results


async def _claim_over_the_bus(client: Station) -> None:
    host = provider("many-1")
    order = a_claim(
        a_share(host, asked=amounts(host, VCPU=1)),
        who=consumer(f"bus-{next(_consumers)}"),
        cell=CELL,
        issued_at=now(),
    )
    answer = await client.ask(order)
    if not (isinstance(answer, ClaimAnswered) and isinstance(answer.verdict, Claimed)):
        raise WrongBooksError(f"a claim was answered {answer}")


@asynccontextmanager
async def _asked_over_the_bus(client: Station, questions: Sequence[Message]) -> AsyncIterator[None]:
    async def ask(question: Message) -> None:
        while True:
            found = await client.ask(question)
            if not (isinstance(found, CandidatesFound) and isinstance(found.verdict, Candidates | TooCostly)):
                raise WrongBooksError(f"a hard question was answered {found}")

    asking = [asyncio.create_task(ask(question)) for question in questions]
    await asyncio.sleep(HEAD_START_S if questions else 0)
    try:
        yield
    finally:
        for task in asking:
            task.cancel()
        await asyncio.wait(asking) if asking else None
    for task in asking:
        if not task.cancelled():
            task.result()


# Waits


async def _waits(what: dict[str, str | int], ask: Ask, effort: Effort) -> Result:
    return await measured(
        SECTION,
        what,
        {GENERATOR: OneProcess(os.getpid())},
        operations=effort.operations(WAITS, 1),
        effort=effort,
        prepare=partial(_asking, ask),
    )


def _asking(ask: Ask, count: int) -> Work:
    async def work() -> Details:
        waits_s = []
        for _ in range(count):
            began = time.perf_counter()
            await ask()
            waits_s.append(time.perf_counter() - began)
            await asyncio.sleep(max(0.0, ASKED_EVERY_S - waits_s[-1]))
        return waits_of(waits_s)

    return work


def _what(url: str, over: str, asked: str, beside: str) -> dict[str, str | int]:
    store = url.partition(":")[0].partition("+")[0]
    return {"store": store, "over": over, "asked": asked, "beside": beside}


def longest_waits(results: Sequence[Result]) -> Iterator[str]:
    """The longest wait of each run, and of the runs the best: other processes only make waits longer."""
    seen: Mapping[str, float] = {
        ", ".join(map(str, result.what.values())): min(run.details["longest wait ms"] for run in result.runs)
        for result in results
        if result.section == SECTION
    }
    if seen:
        worst = max(seen, key=lambda what: seen[what])
        verdict = "kept" if seen[worst] <= WAIT_MS_MAX else "EXCEEDED"
        yield (
            f"{SECTION}: nobody waits for more than {WAIT_MS_MAX:g} ms; the longest, of each one's best run, was "
            f"{seen[worst]:.0f} ms ({worst}): {verdict}"
        )
