"""Requests with several errors at once: our server and the real openstack-placement answer with the same status and
code.

Both have the same rows at each request, because each request changes both. Differences listed in docs/placement-api.md
are left out.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import pytest

from tests.api.whole_app import Server, server_over
from tests.conformance.requests_asked import Asked, Told
from tests.conformance.wrong_requests import HOST, NEW, NIC, OTHER, WEB, WrongRequests
from tests.contracts.stores import open_store

SEEDS: Final = pytest.mark.parametrize(
    "seeds", [range(1, 7), range(7, 31)], ids=["a few seeds", "the other seeds"]
)
REQUESTS: Final = 50
# At least this share of all requests must be refused, and this share must succeed.
REFUSED_MIN, DONE_MIN = 0.53, 0.16
_DONE: Final = 300
# What to expect of an error's detail: in general, nothing, in particular.
LINES: Final = 3
_HEADERS: Final = (
    ("x-auth-token", "admin"),
    ("openstack-api-version", "placement 1.39"),
    ("content-type", "application/json"),
)


class Upstream:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def ask(self, *asked: Asked) -> list[Told]:
        return msgspec.json.decode(self._answer(msgspec.json.encode(asked).decode()), type=list[Told])

    def wipe(self) -> None:
        self._answer("")

    def _answer(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the real placement has ended: its output is above"
        return answer


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    command = [sys.executable, "-m", "tests.conformance.upstream_requests"]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Upstream(process)
        process.terminate()


@pytest.mark.timeout(900)
@SEEDS
def test_both_report_the_same_one_of_several_errors(upstream: Upstream, seeds: range) -> None:
    count = refused = done = 0
    differences: list[str] = []
    for seed in seeds:
        for asked, theirs, ours in asyncio.run(both_asked(upstream, seed)):
            count += 1
            refused += theirs.status >= HTTPStatus.BAD_REQUEST
            done += theirs.status < _DONE
            if not is_alike(theirs, ours) and not is_listed(asked, theirs, ours):
                differences.append(f"seed {seed}: {asked}\n  theirs: {theirs}\n  ours: {ours}")

    assert not differences, f"{len(differences)}:\n" + "\n".join(differences[:5])
    assert refused >= REFUSED_MIN * count
    assert done >= DONE_MIN * count
    assert count >= len(seeds) * REQUESTS / 2


def test_before_trees_a_limit_leaves_the_summaries_of_the_same_trees(upstream: Upstream) -> None:
    upstream.wipe()
    upstream.ask(*FIXTURES)
    stocked = _fixture(
        "PUT",
        f"/resource_providers/{NIC}/inventories",
        {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8}}},
    )
    # Which of two trees it leaves out is chance.
    emptied = _fixture("DELETE", f"/resource_providers/{OTHER}/inventories")
    upstream.ask(stocked, emptied)
    asked = Asked("GET", "/allocation_candidates?resources=VCPU:1&limit=1", old_version("1.28"))
    (theirs,) = upstream.ask(asked)

    async def ask_ours() -> Told:
        async with ours() as server:
            for one in (*FIXTURES, stocked, emptied):
                await our_answer(server, one)
            return await our_answer(server, asked)

    said = json.loads(asyncio.run(ask_ours()).body)
    assert len(said["allocation_requests"]) == 1
    assert set(said["provider_summaries"]) == set(json.loads(theirs.body)["provider_summaries"])
    assert set(said["provider_summaries"]) == {HOST, NIC}


def old_version(version: str) -> tuple[tuple[str, str], ...]:
    return ("x-auth-token", "admin"), ("openstack-api-version", f"placement {version}")


async def both_asked(upstream: Upstream, seed: int) -> list[tuple[Asked, Told, Told]]:
    """Ask until one of them does what the other does not: from then on their rows would differ."""
    upstream.wipe()
    upstream.ask(*FIXTURES)
    answered = []
    wrongs = WrongRequests(seed)
    async with ours() as server:
        for one in FIXTURES:
            assert (await our_answer(server, one)).status < _DONE
        await note_generations(server, wrongs)
        for _ in range(REQUESTS):
            asked = wrongs.request()
            (theirs,) = upstream.ask(asked)
            answer = await our_answer(server, asked)
            answered.append((asked, theirs, answer))
            if (theirs.status < _DONE) != (answer.status < _DONE):
                break
            if answer.status < _DONE and asked.method != "GET":
                await note_generations(server, wrongs)
    return answered


@asynccontextmanager
async def ours() -> AsyncIterator[Server]:
    async with open_store("memory") as store, server_over(store, policy="legacy") as server:
        server.client.headers.clear()
        yield server


async def our_answer(server: Server, asked: Asked) -> Told:
    content = None if asked.body is None else asked.body.encode()
    request = httpx.Request(
        asked.method, f"http://localhost{asked.target}", headers=list(asked.headers), content=content
    )
    answer = await server.client.send(request)
    return Told(
        status=answer.status_code,
        media=answer.headers.get("content-type", "").partition(";")[0],
        body=answer.text,
        headers={name.lower(): value for name, value in answer.headers.items()},
    )


async def note_generations(server: Server, wrongs: WrongRequests) -> None:
    providers: dict[str, int] = {}
    consumers: dict[str, int] = {}
    for provider in (HOST, NIC, OTHER):
        found = await server.ask("GET", f"/resource_providers/{provider}")
        if found.is_success:
            providers[provider] = found.json()["generation"]
    for consumer in (WEB, NEW):
        found = await server.ask("GET", f"/allocations/{consumer}")
        if "consumer_generation" in found.json():
            consumers[consumer] = found.json()["consumer_generation"]
    wrongs.generations, wrongs.consumer_generations = providers, consumers


def is_alike(theirs: Told, ours: Told) -> bool:
    if theirs.status != ours.status:
        return False
    if theirs.status < HTTPStatus.BAD_REQUEST:
        return True
    their_error, our_error = error_in(theirs), error_in(ours)
    if their_error is None or our_error is None:
        return True
    # The `openstack` client prints the last line of the error.
    said = our_error["detail"].split("\n")
    return their_error.get("code") == our_error.get("code") and len(said) == LINES and bool(said[-1])


def error_in(told: Told) -> dict[str, Any] | None:
    if told.media != "application/json":
        return None
    errors = json.loads(told.body).get("errors")
    # Its 401 has another form.
    return None if errors is None else dict(errors[0])


def is_listed(asked: Asked, theirs: Told, ours: Told) -> bool:
    """The differences that docs/placement-api.md lists."""
    statuses = (theirs.status, ours.status)
    path, _, query = asked.target.partition("?")
    return (
        theirs.status == HTTPStatus.INTERNAL_SERVER_ERROR
        # After a refused write Placement keeps a consumer without allocations, at generation 0.
        or "expected 0 but got None" in theirs.body
        # For an aggregate without members, Placement does not check whether the class exists.
        or (statuses == (200, 400) and "NONE" in query and "member_of" in query)
        # For a version without the path, Placement checks the type of the body first, on this path alone.
        or (statuses == (415, 404) and path.endswith("/aggregates"))
        # Inventories of a reshape that could never give anything.
        or (path == "/reshaper" and statuses == (204, 400) and "more than the total" in ours.body)
    )


def _fixture(method: str, target: str, body: object = None) -> Asked:
    return Asked(method, target, _HEADERS, None if body is None else json.dumps(body))


FIXTURES: Final = (
    _fixture("POST", "/resource_providers", {"name": "host", "uuid": HOST}),
    _fixture("POST", "/resource_providers", {"name": "nic", "uuid": NIC, "parent_provider_uuid": HOST}),
    _fixture("POST", "/resource_providers", {"name": "other", "uuid": OTHER}),
    _fixture("PUT", "/resource_classes/CUSTOM_RARE"),
    _fixture("PUT", "/traits/CUSTOM_FAST"),
    _fixture(
        "PUT",
        f"/resource_providers/{HOST}/inventories",
        {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8}, "DISK_GB": {"total": 9}}},
    ),
    _fixture(
        "PUT",
        f"/resource_providers/{OTHER}/inventories",
        {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8}}},
    ),
    _fixture(
        "PUT",
        f"/resource_providers/{HOST}/traits",
        {"resource_provider_generation": 1, "traits": ["CUSTOM_FAST"]},
    ),
    _fixture(
        "PUT",
        f"/allocations/{WEB}",
        {
            "allocations": {HOST: {"resources": {"VCPU": 2}}},
            "project_id": "shop",
            "user_id": "ann",
            "consumer_generation": None,
            "consumer_type": "INSTANCE",
        },
    ),
)
