"""Endpoints, on both databases, where upstream's suite has no test."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from tests.api.whole_app import HOST, NIC, NOBODY, RACK, WEB, Server, a_server, an_allocation

# So many are read from the store at once.
PAGE = 1_000
OTHER = "6f4ca9ef-4a3c-4ba4-9a1f-1d2b5c3a0006"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    async with a_server(request.param) as server:
        yield server


async def test_a_refused_claim_tells_what_is_short_in_numbers_and_leaves_nothing_behind(
    server: Server,
) -> None:
    status, why = await server.reason("PUT", f"/allocations/{OTHER}", an_allocation(VCPU=8, DISK_GB=10))

    assert status == 409
    assert f"VCPU on resource provider '{HOST}': asked 8, free 7" in why
    assert f"DISK_GB on resource provider '{HOST}': asked 10, free 9" in why
    # If the refused write had left a consumer, this one would have to name its generation.
    await server.done("PUT", f"/allocations/{OTHER}", an_allocation(VCPU=7))


async def test_conflicts_are_told_apart_by_their_codes(server: Server) -> None:
    """Clients repeat a write after a concurrent update, and after nothing else."""
    of_host = f"/resource_providers/{HOST}"
    without_vcpu = {"resource_provider_generation": 2, "inventories": {"DISK_GB": {"total": 9}}}
    with_an_old_view = without_vcpu | {"resource_provider_generation": 1}
    for *asked, code in (
        ("PUT", f"/allocations/{OTHER}", an_allocation(VCPU=8), "placement.undefined_code"),
        ("PUT", f"/allocations/{WEB}", an_allocation(generation=7, VCPU=1), "placement.concurrent_update"),
        ("POST", "/resource_providers", {"name": "host"}, "placement.duplicate_name"),
        ("PUT", f"{of_host}/inventories", without_vcpu, "placement.inventory.inuse"),
        ("PUT", f"{of_host}/inventories", with_an_old_view, "placement.concurrent_update"),
        ("DELETE", of_host, None, "placement.resource_provider.cannot_delete_parent"),
    ):
        (error,) = (await server.ask(*asked)).json()["errors"]
        assert (error["status"], error["code"]) == (409, code), asked


async def test_of_several_consumers_all_are_written_or_none(server: Server) -> None:
    both = {WEB: an_allocation(generation=7, VCPU=2), OTHER: an_allocation(VCPU=1)}
    assert await server.reason("POST", "/allocations", both) == (
        409,
        f"Unable to allocate inventory: {WEB}: consumer generation conflict - expected 1 but got 7",
    )

    both[WEB] = an_allocation(generation=1, VCPU=2)
    await server.done("POST", "/allocations", both)

    usages = await server.done("GET", f"/resource_providers/{HOST}/usages")
    assert usages["usages"] == {"VCPU": 3, "DISK_GB": 0}


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        ("POST", "/resource_providers", {"name": ""}, "minLength"),
        (
            "PUT",
            "/resource_providers/HOST/traits",
            {"resource_provider_generation": 2, "traits": ["A"] * 401},
            "too long",
        ),
        (
            "PUT",
            "/resource_providers/HOST/inventories/VCPU",
            {"resource_provider_generation": 2, "total": 1, "allocation_ratio": 0},
            "0 is less than or equal to the minimum of 0",
        ),
        (
            "PUT",
            "/allocations/WEB",
            an_allocation(generation=1, VCPU=2**31),
            "greater than the maximum of 2147483647",
        ),
        (
            "POST",
            "/allocations",
            {WEB: an_allocation(1), WEB.upper(): an_allocation(1)},
            "two are the same consumer",
        ),
        (
            "PUT",
            "/allocations/WEB",
            {
                **an_allocation(generation=1),
                "allocations": {one: {"resources": {"VCPU": 1}} for one in (HOST, HOST.upper())},
            },
            "is named twice",
        ),
        ("POST", "/allocations", {"-" * 36: an_allocation()}, "is not a 'uuid'"),
        ("GET", "/traits?name=like:CUSTOM", None, "startswith:"),
        ("GET", "/allocation_candidates?resources=VCPU:1&limit=x&limit=1", None, "'x'"),
    ],
)
async def test_what_upstream_takes_or_fails_at_is_refused_with_the_reason(
    server: Server, method: str, path: str, body: Any, said: str
) -> None:
    status, why = await server.reason(method, path.replace("HOST", HOST).replace("WEB", WEB), body)

    assert status == 400
    assert said in why


async def test_whatever_is_wrong_with_a_body_a_provider_that_is_not_there_is_told_first(
    server: Server,
) -> None:
    for path in ("", "/inventories", "/inventories/VCPU", "/aggregates"):
        status, why = await server.reason("PUT", f"/resource_providers/{NOBODY}{path}", {"nonsense": 1})
        assert (status, why) == (404, f"No resource provider with uuid {NOBODY} found")
    # This endpoint is the exception, as in Placement.
    status, why = await server.reason("PUT", f"/resource_providers/{NOBODY}/traits", {"nonsense": 1})
    assert (status, why[:22]) == (400, "JSON does not validate")


async def test_a_name_is_known_while_somebody_bears_it_and_while_it_stands_in_the_books(
    server: Server,
) -> None:
    ask = "/allocation_candidates?resources=VCPU:1&required=CUSTOM_GOLD"
    assert await server.reason("GET", ask) == (400, "No such trait(s): CUSTOM_GOLD.")

    await server.done("PUT", "/traits/CUSTOM_GOLD")
    assert (await server.done("GET", ask))["allocation_requests"] == []

    wanted = {"resource_provider_generation": 2, "traits": ["CUSTOM_GOLD"]}
    await server.done("PUT", f"/resource_providers/{HOST}/traits", wanted)
    assert len((await server.done("GET", ask))["allocation_requests"]) == 1

    await server.done("DELETE", f"/resource_providers/{HOST}/traits")
    await server.done("DELETE", "/traits/CUSTOM_GOLD")
    assert await server.reason("GET", ask) == (400, "No such trait(s): CUSTOM_GOLD.")


@pytest.mark.parametrize("kind", ["traits", "resource_classes"])
async def test_a_name_that_exists_already_is_not_told_as_created(server: Server, kind: str) -> None:
    answers = [await server.ask("PUT", f"/{kind}/CUSTOM_GOLD") for _ in range(2)]

    assert [each.status_code for each in answers] == [201, 204]


async def test_candidates_can_be_claimed_as_they_are_told(server: Server) -> None:
    query = "/allocation_candidates?resources=VCPU:2,DISK_GB:3&limit=1"
    found = await server.done("GET", query)
    (request,) = found["allocation_requests"]

    await server.done("PUT", f"/allocations/{OTHER}", {**an_allocation(), **request})

    held = await server.done("GET", f"/allocations/{OTHER}")
    assert held["allocations"][HOST]["resources"] == {"VCPU": 2, "DISK_GB": 3}
    assert found["provider_summaries"].keys() == {HOST, NIC}
    later = (await server.done("GET", query))["provider_summaries"]
    assert [each[HOST]["resources"]["VCPU"]["used"] for each in (found["provider_summaries"], later)] == [
        1,
        3,
    ]


async def test_the_usage_of_a_user_is_a_part_of_the_usage_of_the_project(server: Server) -> None:
    await server.done("PUT", f"/allocations/{OTHER}", {**an_allocation(VCPU=2), "user_id": "bob"})

    async def used(query: str) -> int:
        usages = await server.done("GET", f"/usages?project_id=shop{query}", version=(1, 37))
        return int(usages["usages"]["VCPU"])

    assert [await used(query) for query in ("", "&user_id=ann", "&user_id=bob")] == [3, 1, 2]


@pytest.mark.parametrize("more", [0, 1])
async def test_a_provider_shows_all_that_hold_something_of_it_however_many(server: Server, more: int) -> None:
    """They are read from the store in pages: the last one is full, or has one."""
    amounts = {"VCPU": {"total": 2 * PAGE + 1, "allocation_ratio": 4.0}}
    inventories = {"resource_provider_generation": 2, "inventories": amounts}
    of_host = f"/resource_providers/{HOST}"
    await server.done("PUT", f"{of_host}/inventories", inventories)
    # Another one holds something already.
    others = [str(UUID(int=number)) for number in range(1, 2 * PAGE + more)]
    for some in (others[:PAGE], others[PAGE:]):
        await server.done("POST", "/allocations", {each: an_allocation(VCPU=1) for each in some})

    held = await server.done("GET", f"{of_host}/allocations")

    assert held["allocations"].keys() == {*others, WEB}


async def test_providers_are_listed_by_all_that_is_asked_for_at_once(server: Server) -> None:
    await server.done(
        "PUT",
        f"/resource_providers/{NIC}/aggregates",
        {"resource_provider_generation": 0, "aggregates": [RACK]},
    )

    async def listed(query: str) -> list[str]:
        rows = (await server.done("GET", f"/resource_providers?{query}"))["resource_providers"]
        return [row["name"] for row in rows]

    wanted: dict[str, list[str]] = {
        f"in_tree={NIC}": ["host", "nic"],
        f"in_tree={NIC}&resources=VCPU:7": ["host"],
        "resources=VCPU:8": [],
        "resources=PCPU:1": [],
        f"member_of={RACK}&in_tree={HOST}": ["nic"],
        f"member_of=!{RACK}": ["host"],
        f"name=nic&uuid={HOST}": [],
        f"name=nic&in_tree={NOBODY}": [],
    }
    assert {query: await listed(query) for query in wanted} == wanted
