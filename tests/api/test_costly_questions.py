"""Queries and bodies that would cost too much are refused with the limit, and other requests are answered meanwhile."""

import asyncio
import json
from collections.abc import Mapping
from uuid import uuid5

import httpx
import pytest

from engine.candidates.budget import SearchLimits
from engine.inventories import ProviderState
from placement_worker.api.values import BODY_VALUES_MAX, TOO_COSTLY
from tests.api.whole_app import HOST, NOBODY, Server, a_server, an_allocation
from tests.contracts.placement_orders import provider
from tests.hostile_requests import target
from tests.unit.placement.candidate_worlds import World
from tests.unit.placement.hard_questions import (
    a_tight_packing,
    eleven_over_half_of_ten_nodes,
    pairs_on_a_chain,
    uneven_trees,
)

pytestmark = pytest.mark.asyncio

SOME_STEPS = SearchLimits(steps_max=1_000_000)


async def tell(server: Server, world: World) -> None:
    """Report all its providers, parents first."""
    index = world.index
    states = [index.state(row) for row in range(index.rows)]
    for trait in sorted({trait for state in states for trait in state.traits}):
        await server.done("PUT", f"/traits/{trait}")
    for state in states:
        await tell_provider(server, state)


async def tell_provider(server: Server, state: ProviderState) -> None:
    parent = {} if state.parent is None else {"parent_provider_uuid": str(state.parent)}
    name = f"{state.name}-of-the-world"
    await server.done("POST", "/resource_providers", {"name": name, "uuid": str(state.id), **parent})
    inventories = {resource: {"total": each.total} for resource, each in state.inventories.items()}
    await server.done(
        "PUT",
        f"/resource_providers/{state.id}/inventories",
        {"resource_provider_generation": 0, "inventories": inventories},
    )
    if state.traits:
        await server.done(
            "PUT",
            f"/resource_providers/{state.id}/traits",
            {"resource_provider_generation": 1, "traits": list(state.traits)},
        )


async def test_what_cannot_be_is_seen_at_once_where_it_kept_a_server_for_minutes() -> None:
    world, query = eleven_over_half_of_ten_nodes()
    async with a_server("memory", SOME_STEPS) as server:
        await tell(server, world)

        found = await server.done("GET", target(query))

        assert found == {"allocation_requests": [], "provider_summaries": {}}


async def test_forty_groups_in_pairs_on_a_chain_of_sixty_are_placed() -> None:
    world, query = pairs_on_a_chain()
    async with a_server("memory", SOME_STEPS) as server:
        await tell(server, world)

        found = await server.done("GET", target(query))

        assert len(found["allocation_requests"]) == 1
        assert len(found["allocation_requests"][0]["mappings"]) == 40


async def test_beside_a_question_that_is_cut_in_the_end_others_are_answered_before() -> None:
    world, query = a_tight_packing()
    async with a_server("memory", SOME_STEPS) as server:
        await tell(server, world)
        hard = asyncio.ensure_future(server.ask("GET", target(query)))
        answers = []
        for generation in range(5):
            answers.append(await server.ask("GET", "/"))
            claim = an_allocation(generation or None, VCPU=1 + generation)
            answers.append(await server.ask("PUT", f"/allocations/{NOBODY}", claim))
            answers.append(await server.ask("GET", "/allocation_candidates?resources=VCPU:1"))
        assert not hard.done(), "others waited for the whole search"
        refused = await hard

        assert [answer.status_code for answer in answers] == [200, 204, 200] * 5
        error = too_costly(refused)
        assert "stopped after 1000" in error["detail"]
        assert "at most 1000000 are allowed" in error["detail"]


async def test_beside_thirty_searches_of_forty_uneven_trees_others_are_answered() -> None:
    world, query = uneven_trees()
    async with a_server("memory", SOME_STEPS) as server:
        await tell(server, world)
        hard = [asyncio.ensure_future(server.ask("GET", target(query))) for _ in range(30)]
        answers = []
        for generation in range(5):
            answers.append(await server.ask("GET", "/"))
            claim = an_allocation(generation or None, VCPU=1 + generation)
            answers.append(await server.ask("PUT", f"/allocations/{NOBODY}", claim))
        assert not any(each.done() and each.result().status_code == 400 for each in hard)
        refused = await asyncio.gather(*hard)

        assert [answer.status_code for answer in answers] == [200, 204] * 5
        assert {answer.status_code for answer in refused} <= {400, 503}
        first = next(answer for answer in refused if answer.status_code == 400)
        assert "at most 1000000 are allowed" in too_costly(first)["detail"]


async def test_what_a_search_holds_is_bounded_too() -> None:
    world, query = a_tight_packing()
    async with a_server("memory", SearchLimits(bytes_max=20_000)) as server:
        await tell(server, world)

        assert "at most 20000 are allowed" in too_costly(await server.ask("GET", target(query)))["detail"]


async def test_an_answer_that_is_too_long_is_refused_with_its_length_before_it_is_written() -> None:
    """Nine hundred groups, all of which one host can meet."""
    async with a_server("memory", SearchLimits(answer_bytes_max=40_000)) as server:
        await server.done(
            "PUT",
            f"/resource_providers/{HOST}/inventories",
            {"resource_provider_generation": 2, "inventories": {"VCPU": {"total": 2_000}}},
        )
        groups = "&".join(f"resources{number}=VCPU:1" for number in range(1, 901))

        refused = too_costly(
            await server.ask("GET", f"/allocation_candidates?{groups}&group_policy=none", version=(1, 39))
        )

        assert "at most 40000 are allowed" in refused["detail"]
        assert await server.done("GET", "/allocation_candidates?resources=VCPU:1")


def too_costly(answer: httpx.Response) -> Mapping[str, str]:
    (error,) = answer.json()["errors"]
    assert (answer.status_code, error["code"]) == (400, TOO_COSTLY), error
    told: Mapping[str, str] = error
    return told


# Bodies


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", f"/resource_providers/{HOST}/traits"),
        ("PUT", f"/resource_providers/{HOST}/aggregates"),
        ("PUT", f"/resource_providers/{HOST}/inventories"),
        ("PUT", f"/allocations/{NOBODY}"),
        ("POST", "/allocations"),
        ("POST", "/reshaper"),
        ("POST", "/resource_providers"),
        ("POST", "/resource_classes"),
    ],
)
async def test_values_are_counted_before_anybody_reads_them(method: str, path: str) -> None:
    body = {"traits": ["CUSTOM_A"] * (BODY_VALUES_MAX + 5), "resource_provider_generation": 1}
    async with a_server("memory") as server:
        status, detail = await server.reason(method, path, body)

        assert status == 413
        assert (
            detail == f"The body has {BODY_VALUES_MAX + 6} values, and at most {BODY_VALUES_MAX} are allowed"
        )


async def test_what_is_wrong_with_a_large_body_is_said_with_its_place_and_number() -> None:
    async with a_server("memory") as server:
        path = f"/resource_providers/{HOST}/traits"
        many = {"traits": [f"CUSTOM_{number}" for number in range(40_000)], "resource_provider_generation": 1}
        wrong = {"traits": [*["CUSTOM_A"] * 399, "x" * 9_000], "resource_provider_generation": 1}
        unknown = {"traits": [], "resource_provider_generation": 1, **{f"k{n}": 1 for n in range(5_000)}}

        assert (await server.reason("PUT", path, many))[1] == (
            "JSON does not validate: data.traits must contain less than or equal to 400 items. Got: 40000 of them"
        )
        assert (
            "data.traits[399] must be shorter than or equal to 255"
            in (await server.reason("PUT", path, wrong))[1]
        )
        assert (await server.reason("PUT", path, unknown))[1] == (
            "JSON does not validate: data has properties that are not allowed"
        )


async def test_a_host_is_moved_with_a_thousand_instances() -> None:
    """What real clients send stays far below the limits."""
    instance = {
        "allocations": {HOST: {"resources": {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 5}}},
        "project_id": "shop",
        "user_id": "ann",
        "consumer_generation": None,
        "consumer_type": "INSTANCE",
    }
    consumers = {str(uuid5(provider("any"), str(number))): instance for number in range(1_000)}
    body = {
        "inventories": {HOST: {"resource_provider_generation": 9, "inventories": {}}},
        "allocations": consumers,
    }
    async with a_server("memory") as server:
        status, _ = await server.reason("POST", "/reshaper", body)

        assert status != 413
        assert json.dumps(body).count(",") < BODY_VALUES_MAX // 4
