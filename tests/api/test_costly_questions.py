"""What would cost too much is refused with the limit; no request blocks the process for long."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from placement_worker import candidates
from placement_worker.api.auth import NoAuthentication
from placement_worker.settings import PlacementSettings
from tests.api.loop_turns import check_turns
from tests.api.whole_app import HOST, NEWEST, NOBODY, Sent, Server, a_server, server_over
from tests.contracts.placement_orders import provider
from tests.contracts.store_client import StoreClient
from tests.hostile_requests import (
    Hostile,
    claim_body,
    get,
    hard_searches,
    hard_worlds,
    large_bodies,
    many_hosts,
    put,
)
from tests.stores_in_memory import MemoryPlacementStore

OF_HOST = f"/resource_providers/{HOST}"
TRAITS = f"{OF_HOST}/traits"
# With 900 groups each, this many candidates make an answer of 85 MB.
HOSTS = 2_000
# Other requests wait for less than this, on a machine that is not slow.
TURN_S_MAX = 0.2
SLOWEST, LONGEST = "a tight packing", "900 groups"
ROOT = b"GET / HTTP/1.1\r\n\r\n"


def traits(*names: str, **more: int) -> dict[str, Any]:
    return {"traits": names, "resource_provider_generation": 1, **more}


TOO_MANY = "The body has 50006 values, and at most 50000 are allowed"
LONG = traits(*["CUSTOM_A"] * 50_005)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        *[
            ("PUT", f"{OF_HOST}/{each}", LONG, 413, TOO_MANY)
            for each in ("traits", "aggregates", "inventories")
        ],
        ("PUT", f"/allocations/{NOBODY}", LONG, 413, TOO_MANY),
        *[
            ("POST", f"/{each}", LONG, 413, TOO_MANY)
            for each in ("allocations", "reshaper", "resource_classes")
        ],
        ("PUT", TRAITS, traits(*["A"] * 40_000), 400, "less than or equal to 400 items. Got: 40000 of them"),
        ("PUT", TRAITS, traits(*["A"] * 399, "x" * 9_000), 400, "data.traits[399] must be shorter than"),
        ("PUT", TRAITS, traits(**{f"k{n}": 1 for n in range(5_000)}), 400, "properties that are not allowed"),
        (
            "GET",
            f"/allocation_candidates?resources=VCPU:1&required={','.join(f'CUSTOM_{n}' for n in range(2_000))}",
            None,
            400,
            "No such trait(s): CUSTOM_0, ",
        ),
    ],
    ids=itertools.count(),
)
async def test_what_is_too_large_is_refused_with_its_place_and_number(
    method: str, path: str, body: Any, status: int, said: str
) -> None:
    async with a_server() as server:
        answer = await server.reason(method, path, body)

    assert (answer[0], said in answer[1], len(answer[1]) < 4_100) == (status, True, True), answer[1][:200]


async def test_a_body_that_goes_too_deep_is_refused_wherever_that_is_noticed() -> None:
    async with a_server() as server:
        for depth in range(600, 1_000, 10):
            body = b"[" * depth + b'"\\u0000"' + b"]" * depth
            assert (await server.answer(Sent("PUT", TRAITS, NEWEST, body))).status_code == 400, depth


def hostile() -> dict[str, Hostile]:
    return {
        **hard_searches(),
        **large_bodies(provider("many-1")),
        "all providers": Hostile(get("/resource_providers"), 200),
    }


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    store = MemoryPlacementStore()
    told = (*hard_worlds(), *many_hosts(HOSTS))
    for start in range(0, len(told), 200):
        await StoreClient(store).report(*told[start : start + 200])
    settings = PlacementSettings(search_steps_max=8_000_000)
    async with server_over(store, auth=NoAuthentication(), settings=settings) as server:
        yield server


async def asked(url: str, text: bytes) -> int:
    """The status; the rest of the answer is read and dropped."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(text)
        head = await reader.readuntil(b"\r\n\r\n")
        lengths = [line for line in head.split(b"\r\n") if line.startswith(b"content-length: ")]
        left = int(lengths[0].split()[1]) if lengths else 0
        while left:
            left -= len(await reader.readexactly(min(left, 60_000)))
        return int(head.split()[1])
    finally:
        writer.close()


async def test_a_search_that_would_cost_too_much_is_refused_with_its_own_code() -> None:
    async with a_server(settings=PlacementSettings(search_steps_max=1)) as server:
        answer = await server.ask("GET", "/allocation_candidates?resources=VCPU:1")
    (error,) = answer.json()["errors"]
    assert (answer.status_code, error["code"]) == (400, "placement.query.too_costly")
    assert "at most 1 are allowed" in error["detail"]


@pytest.mark.hits("a search is refused: too many long ones wait")
async def test_of_more_long_searches_than_may_wait_one_is_refused_for_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(candidates, "WAITING_MAX", 1)
    async with serving() as here:
        target = hard_searches()[SLOWEST].text.split()[1].decode()
        answers = await asyncio.gather(
            *[here.ask("GET", target) for _ in range(candidates.TAKING_TURNS_MAX + 2)]
        )

    refused = [each for each in answers if each.status_code != 400]
    assert [(each.status_code, each.headers["retry-after"]) for each in refused] == [(503, "1")]


async def test_beside_any_question_others_are_answered_and_no_turn_of_the_loop_takes_long() -> None:
    async with serving() as here:
        assert await asked(here.url, get("/resource_providers?name=many-1")) == 200
        numbers = itertools.count(1)

        async def ask_beside(what: str, each: Hostile) -> None:
            at_once = 1 if what == SLOWEST else 2
            hard = [asyncio.ensure_future(asked(here.url, each.text)) for _ in range(at_once)]
            answered = 0
            while not all(one.done() for one in hard):
                assert await asked(here.url, ROOT) == 200
                assert await asked(here.url, a_claim(next(numbers))) == 204
                answered += 1

            assert [await one for one in hard] == [each.status] * at_once, what
            assert answered >= (20 if what in (SLOWEST, LONGEST) else 1), what

        for what, each in hostile().items():
            await check_turns(what, TURN_S_MAX, partial(ask_beside, what, each))


def a_claim(number: int) -> bytes:
    """In version 1.36, the newest one without a consumer type."""
    order = put(f"/allocations/{provider(f'consumer-{number}')}", claim_body(f"many-{number}"))
    return order.replace(b"placement 1.39", b"placement 1.36", 1)
