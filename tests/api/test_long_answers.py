"""No request blocks the process for long, and none is kept in memory after its answer."""

import asyncio
import gc
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import httpx
import pytest
from fastjsonschema import JsonSchemaValueException

from placement_worker.api.auth import NoAuthentication
from placement_worker.api.policy import policy_named
from placement_worker.api.routing import HttpRoute
from placement_worker.api.service import PlacementApp, PlacementService, ServiceOptions
from placement_worker.api.values import (
    DETAIL_CHARACTERS_MAX,
    NEWEST,
    PIECE_BYTES,
    Pieces,
    Reply,
    Request,
    pieces_of,
    rows_in_turns,
    with_commas,
)
from placement_worker.settings import PlacementSettings
from tests.api.asking_app import LIST
from tests.api.loop_turns import check_turns
from tests.api.test_server import ANY_PORT
from tests.api.whole_app import HOST, Sent, a_server
from tests.contracts.placement_orders import provider
from tests.contracts.store_client import StoreClient
from tests.hostile_requests import (
    GROUPS,
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

TRAITS = f"/resource_providers/{HOST}/traits"
# With 900 groups each, this many candidates make an answer of 85 MB.
HOSTS = 2_000
# Other requests wait for less than this, on a machine that is not slow.
TURN_S_MAX = 0.2
SLOWEST, LONGEST = "a tight packing", "900 groups"
ROOT = b"GET / HTTP/1.1\r\n\r\n"


# Pieces


def test_short_parts_are_joined_and_long_ones_go_out_by_themselves() -> None:
    assert pieces_of((b"ab", b"c", b"defg", b"h"), size=3) == Pieces((b"abc", b"defg", b"h"))
    assert pieces_of(()) == Pieces((b"",))
    assert [*with_commas((b"a", b"b", b"c"))] == [b"a", b",", b"b", b",", b"c"]
    assert [*with_commas(())] == []


@pytest.mark.asyncio
@pytest.mark.parametrize("count", [0, 1, 200, 201, 5_000])
async def test_others_run_while_a_long_list_is_written(count: int) -> None:
    turns = 0
    writing = asyncio.ensure_future(rows_in_turns(b"[", [*range(count)], lambda row: {"is": row}, b"]"))
    while not writing.done():
        turns += 1
        await asyncio.sleep(0)

    assert json.loads(b"".join((await writing).of)) == [{"is": row} for row in range(count)]
    assert turns >= count // 200


@pytest.mark.asyncio
async def test_a_long_answer_is_whole() -> None:
    async with a_server("memory") as server:
        inventories = {"VCPU": {"total": 2_000}}
        await server.done(
            "PUT",
            f"/resource_providers/{HOST}/inventories",
            {"resource_provider_generation": 2, "inventories": inventories},
        )
        for number in range(20):
            there = str(provider(f"h{number}"))
            await server.done("POST", "/resource_providers", {"name": f"h{number}", "uuid": there})
            await server.done(
                "PUT",
                f"/resource_providers/{there}/inventories",
                {"resource_provider_generation": 0, "inventories": inventories},
            )

        answer = await server.ask("GET", f"/allocation_candidates?{GROUPS}&group_policy=none")

        assert len(answer.content) == int(answer.headers["content-length"]) > 3 * PIECE_BYTES
        told = answer.json()
        assert len(told["allocation_requests"]) == len(told["provider_summaries"]) - 1 == 21
        assert {len(each["mappings"]) for each in told["allocation_requests"]} == {900}


@pytest.mark.asyncio
async def test_others_run_between_two_pieces_however_fast_the_client_reads() -> None:
    """This client reads everything at once."""
    turns = []

    async def show(count: int) -> None:
        async def pieces(_: Request) -> Reply:
            return Reply(body=Pieces((b"[1", *[b",1"] * count, b"]")))

        routes = (HttpRoute("GET", "/long", pieces, LIST),)
        app = PlacementApp(routes, NoAuthentication(), policy_named("open"))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://placement") as client:
            asking = asyncio.ensure_future(client.get("/long"))
            turns.append(0)
            while not asking.done():
                turns[-1] += 1
                await asyncio.sleep(0)
            assert (await asking).json() == [1] * (count + 1)

    await show(0)
    await show(500)

    assert turns[1] - turns[0] >= 500


# Bodies


@pytest.mark.asyncio
async def test_names_that_are_not_known_are_told_as_far_as_there_is_room() -> None:
    async with a_server("memory") as server:
        names = ",".join(f"CUSTOM_{number}" for number in range(2_000))

        status, detail = await server.reason(
            "GET", f"/allocation_candidates?resources=VCPU:1&required={names}"
        )

        assert (status, detail.startswith("No such trait(s): CUSTOM_0, "), detail.endswith(" ...")) == (
            400,
            True,
            True,
        ), detail[:99]
        assert len(detail) <= DETAIL_CHARACTERS_MAX + 10


@pytest.mark.asyncio
async def test_a_body_that_goes_too_deep_is_refused_wherever_that_is_noticed() -> None:
    async with a_server("memory") as server:
        for depth in range(600, 1_000):
            body = b"[" * depth + b'"\\u0000"' + b"]" * depth
            assert (await server.answer(Sent("PUT", TRAITS, NEWEST, body))).status_code == 400, depth


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"traits": ["A" * 300] * 500, "resource_provider_generation": 1}),
        json.dumps({"traits": ["a"], "resource_provider_generation": 1}),
        json.dumps({"traits": ["A"], "resource_provider_generation": 1, "more": "x" * 20_000}),
        '{"traits": ["A\\u0000"], "resource_provider_generation": 1}',
        '{"traits": ["CUSTOM_NOBODY_MADE"], "resource_provider_generation": 2}',
        '{"traits": ["A"',
        "[" * 20_000,
    ],
)
async def test_a_body_that_is_refused_is_not_kept_until_the_collector_comes(text: str) -> None:
    async with a_server("memory") as server:
        gc.collect()
        gc.disable()
        try:
            answer = await server.answer(Sent("PUT", TRAITS, NEWEST, text.encode()))
            left = [each for each in gc.get_objects() if isinstance(each, Request | JsonSchemaValueException)]
        finally:
            gc.enable()

        assert answer.is_error
        assert left == []


# All of it together


def hostile() -> dict[str, Hostile]:
    return {
        **hard_searches(),
        **large_bodies(provider("many-1")),
        "all providers": Hostile(get("/resource_providers"), 200),
    }


@asynccontextmanager
async def serving() -> AsyncIterator[PlacementService]:
    store = MemoryPlacementStore()
    told = (*hard_worlds(), *many_hosts(HOSTS))
    for start in range(0, len(told), 200):
        await StoreClient(store).report(*told[start : start + 200])
    settings = PlacementSettings(search_steps_max=8_000_000)
    service = PlacementService(
        store, ServiceOptions(ANY_PORT, NoAuthentication(), policy_named("open"), settings)
    )
    running = asyncio.create_task(service.run())
    try:
        yield service
    finally:
        await service.stop()
        await running


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


@pytest.mark.asyncio
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
