"""Nothing that is asked or sent keeps the process from others for long, and nothing of it is kept in memory afterwards."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from fastjsonschema import JsonSchemaValueException

from bus.messages.placement import ReportedInventory, ReportedProvider, ReportInventory
from placement_worker.api.auth.nobody import NoAuthentication
from placement_worker.api.pieces import PIECE_BYTES, Pieces, pieces_of, rows_in_turns, with_commas
from placement_worker.api.policy import policy_named
from placement_worker.api.problems import DETAIL_CHARACTERS_MAX
from placement_worker.api.request import Request
from placement_worker.api.settings import ApiSettings
from placement_worker.api.versions import NEWEST
from placement_worker.serving import PlacementService, Serving
from placement_worker.store_memory import MemoryPlacementStore
from tests.api.loop_turns import turns_measured
from tests.api.test_costly_questions import target
from tests.api.test_server import ANY_PORT
from tests.api.whole_app import HOST, Sent, a_server
from tests.contracts.desk import Desk
from tests.contracts.placement_orders import provider
from tests.unit.candidate_worlds import World
from tests.unit.hard_questions import a_tight_packing, eleven_over_half_of_ten_nodes, pairs_on_a_chain

GROUPS = "&".join(f"resources{number}=VCPU:1" for number in range(1, 901))
TRAITS = f"/resource_providers/{HOST}/traits"
# Of 900 groups each, so many candidates make an answer of 85 MB.
HOSTS = 2_000
# The promise is that others wait for less than this.
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


# Bodies


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"name": "%s\\u0000"}' % ("a" * 1_000_000), "$.name is 'aaaa"),
        ('{"%s": ["a", {"b": "\\u0000"}]}' % ("k" * 1_000_000), "$.kkkk"),
        ('{"%s\\u0000": 1}' % ("k" * 1_000_000), "a key of $ is 'kkkk"),
        ("[" * 700 + '"\\u0000"' + "]" * 700, "$[0][0]"),
    ],
)
async def test_a_refusal_is_short_however_long_what_it_is_about_is(text: str, where: str) -> None:
    async with a_server("memory") as server:
        answer = await server.answer(Sent("PUT", TRAITS, NEWEST, text.encode()))

        assert answer.status_code == 400
        detail = answer.json()["errors"][0]["detail"]
        assert where in detail
        assert len(detail) < DETAIL_CHARACTERS_MAX + 200
        await server.ask("GET", "/")


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


def reports() -> list[ReportInventory]:
    """The worlds of the hard questions, each with a class of resources of its own, and many hosts."""
    told = []
    for number, (world, resource) in enumerate(
        ((eleven_over_half_of_ten_nodes()[0], "PGPU"), (a_tight_packing()[0], "VGPU"))
    ):
        told.append(report(world, f"of {number}", resource))
    told.append(report(pairs_on_a_chain()[0], "of a chain", "MEMORY_MB"))
    return told + [a_host(f"many-{number}") for number in range(HOSTS)]


def a_host(name: str) -> ReportInventory:
    inventories = {"VCPU": ReportedInventory(total=10_000)}
    host = ReportedProvider(id=provider(name), name=name, inventories=inventories)
    return ReportInventory(cell="c1", root=host.id, providers=(host,))


def report(world: World, name: str, resource: str) -> ReportInventory:
    woods = world.woods
    states = [woods.state(row) for row in range(woods.rows)]
    return ReportInventory(
        cell="c1",
        root=provider(f"{states[0].name} {name}"),
        providers=tuple(
            ReportedProvider(
                id=provider(f"{state.name} {name}"),
                name=f"{state.name} {name}",
                parent=None
                if state.parent is None
                else provider(f"{next(each.name for each in states if each.id == state.parent)} {name}"),
                inventories={
                    resource: ReportedInventory(total=sum(each.total for each in state.inventories.values()))
                },
                traits=state.traits,
            )
            for state in states
        ),
    )


VERSION = "openstack-api-version: placement 1.39\r\n"


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\n{VERSION}\r\n".encode()


def put(path: str, body: bytes) -> bytes:
    about = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return f"PUT {path} HTTP/1.1\r\n{VERSION}{about}\r\n".encode() + body


def hostile() -> dict[str, tuple[bytes, int]]:
    """What is asked, and how it ends."""
    long_names = json.dumps(["A" * 275] * 49_000).encode()
    return {
        "eleven over half": (get(target(eleven_over_half_of_ten_nodes()[1])), 200),
        "pairs on a chain": (
            get(target(pairs_on_a_chain()[1]).replace("VCPU", "MEMORY_MB")),
            200,
        ),
        SLOWEST: (get(target(a_tight_packing()[1]).replace("PGPU", "VGPU")), 400),
        LONGEST: (get(f"/allocation_candidates?{GROUPS}&group_policy=none"), 200),
        "all providers": (get("/resource_providers"), 200),
        "14 MB of traits": (put(TRAITS, b'{"resource_provider_generation":1,"traits":%b}' % long_names), 400),
        "14 MB of one": (put(TRAITS, b'{"traits":["%b"]}' % (b"A" * 14_000_000)), 400),
        "14 MB of NUL": (put(TRAITS, b'{"traits":["%b"]}' % (b"\\u0000" * 2_300_000)), 400),
        "14 MB of keys": (put(TRAITS, b'{"%b":[%b"\\u0000"]}' % (b"k" * 8_000_000, b"0," * 40_000)), 400),
        "50,000 lists": (put(TRAITS, b"[%b0]" % (b"[]," * 49_000)), 400),
    }


@asynccontextmanager
async def serving() -> AsyncIterator[PlacementService]:
    store = MemoryPlacementStore()
    for start in range(0, len(told := reports()), 200):
        await Desk(store).report(*told[start : start + 200])
    settings = ApiSettings(search_steps_max=8_000_000)
    service = PlacementService(store, Serving(ANY_PORT, NoAuthentication(), policy_named("open"), settings))
    running = asyncio.create_task(service.run())
    try:
        yield service
    finally:
        await service.stop()
        await running


async def asked(url: str, text: bytes) -> int:
    """The status; the answer is read whole, and thrown away."""
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
        claims = 0
        for what, (text, status) in hostile().items():
            gc.collect()
            with turns_measured() as turns:
                at_once = 1 if what == SLOWEST else 2
                hard = [asyncio.ensure_future(asked(here.url, text)) for _ in range(at_once)]
                answered = 0
                while not all(each.done() for each in hard):
                    assert await asked(here.url, ROOT) == 200
                    claims += 1
                    assert await asked(here.url, a_claim(claims)) == 204
                    answered += 1

            assert [await each for each in hard] == [status] * at_once, what
            assert answered >= (20 if what in (SLOWEST, LONGEST) else 1), what
            assert turns.longest_s < TURN_S_MAX, (what, turns.longest)


def a_claim(number: int) -> bytes:
    body = {
        "allocations": {str(provider(f"many-{number}")): {"resources": {"VCPU": 1}}},
        "project_id": "shop",
        "user_id": "ann",
        "consumer_generation": None,
        "consumer_type": "INSTANCE",
    }
    consumer = str(provider(f"consumer-{number}"))
    return put(f"/allocations/{consumer}", json.dumps(body).encode())
