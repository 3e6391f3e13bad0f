"""Requests with several errors at once: our server and the real openstack-placement answer with the same status and
code.

Both have the same rows at each request, because each request changes both. Differences listed in docs/placement-api.md
are left out.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

import httpx
import pytest

from tests.api.whole_app import Server, server_over
from tests.conformance.upstream import Asked, Upstream, ask, media_of
from tests.conformance.wrong_requests import HOST, NEW, NIC, OTHER, WEB, WrongRequests
from tests.contracts.stores import open_store

SEEDS: Final = pytest.mark.parametrize(
    "seeds", [range(1, 4), range(4, 31)], ids=["a few seeds", "the other seeds"]
)
REQUESTS: Final = 50
# At least this share of all requests must be refused, and this share must succeed.
REFUSED_MIN, DONE_MIN = 0.53, 0.16
_DONE: Final = 300
# What to expect of an error's detail: in general, nothing, in particular.
LINES: Final = 3


@pytest.mark.timeout(900)
@SEEDS
def test_both_report_the_same_one_of_several_errors(upstream: Upstream, seeds: range) -> None:
    count = refused = done = 0
    differences: list[str] = []
    for seed in seeds:
        for asked, theirs, ours in asyncio.run(both_asked(upstream, seed)):
            count += 1
            refused += theirs.status_code >= HTTPStatus.BAD_REQUEST
            done += theirs.status_code < _DONE
            if not is_alike(theirs, ours) and not is_listed(asked, theirs, ours):
                differences.append(
                    f"seed {seed}: {asked}\n  theirs: {theirs} {theirs.text}\n  ours: {ours} {ours.text}"
                )

    assert not differences, f"{len(differences)}:\n" + "\n".join(differences[:5])
    assert refused >= REFUSED_MIN * count
    assert done >= DONE_MIN * count
    assert count >= len(seeds) * REQUESTS / 2


def test_before_trees_a_limit_leaves_the_summaries_of_the_same_trees(upstream: Upstream) -> None:
    stock = {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8}}}
    asked = (
        ask("PUT", f"/resource_providers/{NIC}/inventories", stock),
        # Which of two trees it leaves out is chance.
        ask("DELETE", f"/resource_providers/{OTHER}/inventories"),
        ask("GET", "/allocation_candidates?resources=VCPU:1&limit=1", version="1.28"),
    )
    *_, answers = asyncio.run(both_ask(upstream, *asked))

    theirs, said = (each.json() for each in answers)
    assert len(said["allocation_requests"]) == 1
    assert set(said["provider_summaries"]) == set(theirs["provider_summaries"]) == {HOST, NIC}


@asynccontextmanager
async def both(upstream: Upstream) -> AsyncIterator[Server]:
    """Ours, with the same rows as the real one."""
    upstream.wipe()
    upstream.ask(*FIXTURES)
    async with open_store("memory") as store, server_over(store, policy="legacy") as server:
        server.client.headers.clear()
        for one in FIXTURES:
            assert (await our_answer(server, one)).status_code < _DONE
        yield server


async def both_ask(upstream: Upstream, *asked: Asked) -> list[tuple[httpx.Response, httpx.Response]]:
    async with both(upstream) as server:
        return [(upstream.ask(one)[0], await our_answer(server, one)) for one in asked]


async def both_asked(upstream: Upstream, seed: int) -> list[tuple[Asked, httpx.Response, httpx.Response]]:
    """Ask until one of them does what the other does not: from then on their rows would differ."""
    answered = []
    wrongs = WrongRequests(seed)
    async with both(upstream) as server:
        await note_generations(server, wrongs)
        for _ in range(REQUESTS):
            asked = wrongs.request()
            (theirs,) = upstream.ask(asked)
            answer = await our_answer(server, asked)
            answered.append((asked, theirs, answer))
            if (theirs.status_code < _DONE) != (answer.status_code < _DONE):
                break
            if answer.status_code < _DONE and asked.method != "GET":
                await note_generations(server, wrongs)
    return answered


async def our_answer(server: Server, asked: Asked) -> httpx.Response:
    return await server.client.send(asked.at("http://localhost"))


async def note_generations(server: Server, wrongs: WrongRequests) -> None:
    wrongs.generations = {
        each: found["generation"]
        for each in (HOST, NIC, OTHER)
        if "generation" in (found := (await server.ask("GET", f"/resource_providers/{each}")).json())
    } | {
        each: found["consumer_generation"]
        for each in (WEB, NEW)
        if "consumer_generation" in (found := (await server.ask("GET", f"/allocations/{each}")).json())
    }


def is_alike(theirs: httpx.Response, ours: httpx.Response) -> bool:
    if theirs.status_code != ours.status_code:
        return False
    if theirs.status_code < HTTPStatus.BAD_REQUEST:
        return True
    their_error, our_error = error_in(theirs), error_in(ours)
    if their_error is None or our_error is None:
        return True
    # The `openstack` client prints the last line of the error.
    said = our_error["detail"].split("\n")
    return their_error.get("code") == our_error.get("code") and len(said) == LINES and bool(said[-1])


def error_in(told: httpx.Response) -> dict[str, Any] | None:
    if media_of(told) != "application/json":
        return None
    errors = told.json().get("errors")
    # Its 401 has another form.
    return None if errors is None else dict(errors[0])


def is_listed(asked: Asked, theirs: httpx.Response, ours: httpx.Response) -> bool:
    """The differences that docs/placement-api.md lists."""
    statuses = (theirs.status_code, ours.status_code)
    path, _, query = asked.target.partition("?")
    return (
        theirs.status_code == HTTPStatus.INTERNAL_SERVER_ERROR
        # After a refused write Placement keeps a consumer without allocations, at generation 0.
        or "expected 0 but got None" in theirs.text
        # For an aggregate without members, Placement does not check whether the class exists.
        or (statuses == (200, 400) and "NONE" in query and "member_of" in query)
        # For a version without the path, Placement checks the type of the body first, on this path alone.
        or (statuses == (415, 404) and path.endswith("/aggregates"))
        # Inventories of a reshape that could never give anything.
        or (path == "/reshaper" and statuses == (204, 400) and "more than the total" in ours.text)
    )


FIXTURES: Final = (
    ask("POST", "/resource_providers", {"name": "host", "uuid": HOST}),
    ask("POST", "/resource_providers", {"name": "nic", "uuid": NIC, "parent_provider_uuid": HOST}),
    ask("POST", "/resource_providers", {"name": "other", "uuid": OTHER}),
    ask("PUT", "/resource_classes/CUSTOM_RARE"),
    ask("PUT", "/traits/CUSTOM_FAST"),
    ask(
        "PUT",
        f"/resource_providers/{HOST}/inventories",
        {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8}, "DISK_GB": {"total": 9}}},
    ),
    ask(
        "PUT",
        f"/resource_providers/{OTHER}/inventories",
        {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8}}},
    ),
    ask(
        "PUT",
        f"/resource_providers/{HOST}/traits",
        {"resource_provider_generation": 1, "traits": ["CUSTOM_FAST"]},
    ),
    ask(
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
