"""Preferred traits over HTTP: only for a client that asks for Moorage's own version, and everything else is as at 1.39."""

from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import pytest
import pytest_asyncio

from placement_worker.api.values.versions import NEWEST, PREFERRED_TRAITS, Version, version_text
from tests.api.whole_app import HOST, NIC, WEB, Server, server_over
from tests.contracts.stores import open_store

pytestmark = pytest.mark.asyncio

PLAIN, FAST, OLD = (f"6f4ca9ef-4a3c-4ba4-9a1f-1d2b5c3a010{number}" for number in range(3))
CPU = "/allocation_candidates?resources=VCPU:1"
ORDER = "preferred=CUSTOM_FAST:2.5,CUSTOM_OLD:-1"


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    async with open_store("memory") as store, server_over(store, policy="legacy") as server:
        yield server


async def add_hosts(server: Server) -> None:
    for trait in ("CUSTOM_FAST", "CUSTOM_OLD"):
        await server.done("PUT", f"/traits/{trait}")
    for name, host, traits in (
        ("plain", PLAIN, []),
        ("old", OLD, ["CUSTOM_OLD"]),
        ("fast", FAST, ["CUSTOM_FAST"]),
    ):
        await server.done("POST", "/resource_providers", {"name": name, "uuid": host})
        await server.done(
            "PUT",
            f"/resource_providers/{host}/inventories",
            {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8}, "PGPU": {"total": 1}}},
        )
        body = {"resource_provider_generation": 1, "traits": traits}
        await server.done("PUT", f"/resource_providers/{host}/traits", body)


async def hosts(server: Server, target: str) -> list[str]:
    found = await server.done("GET", target, version=PREFERRED_TRAITS)
    return [host for request in found["allocation_requests"] for host in request["allocations"]]


async def test_candidates_with_preferred_traits_come_first_and_a_limit_keeps_these(server: Server) -> None:
    await add_hosts(server)

    assert await hosts(server, f"{CPU}&{ORDER}") == [FAST, PLAIN, OLD]
    assert await hosts(server, f"{CPU}&{ORDER}&limit=2") == [FAST, PLAIN]
    # Without a weight it is 1, and a key may be repeated.
    assert await hosts(server, f"{CPU}&preferred=CUSTOM_OLD&preferred=CUSTOM_FAST:0.5&limit=1") == [OLD]
    assert await hosts(server, f"{CPU}&preferred=CUSTOM_OLD,CUSTOM_FAST:3") == [FAST, OLD, PLAIN]


async def test_each_group_has_its_own_preferences(server: Server) -> None:
    await add_hosts(server)

    found = await hosts(server, f"{CPU}&resources_GPU=PGPU:1&preferred_GPU=CUSTOM_OLD&group_policy=none")

    assert found[0] == OLD
    assert sorted(found) == sorted((PLAIN, FAST, OLD))


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("preferred=CUSTOM_NONE", "CUSTOM_NONE"),
        ("preferred=CUSTOM_FAST:fast", "form: HW_CPU_X86_VMX:2.5,CUSTOM_MAGIC"),
        ("preferred=CUSTOM_FAST:", "form: HW_CPU_X86_VMX:2.5,CUSTOM_MAGIC"),
        ("preferred=CUSTOM_FAST:1e9", "form: HW_CPU_X86_VMX:2.5,CUSTOM_MAGIC"),
        ("preferred=CUSTOM_FAST:2000000000", "is not between -1000000000 and 1000000000"),
        ("preferred=", "form: HW_CPU_X86_VMX:2.5,CUSTOM_MAGIC"),
        ("preferred=:2", "form: HW_CPU_X86_VMX:2.5,CUSTOM_MAGIC"),
        ("preferred_GPU=CUSTOM_FAST", "Resourceless suffixed group"),
    ],
)
async def test_a_preference_that_cannot_be_read_is_refused(server: Server, query: str, reason: str) -> None:
    await add_hosts(server)

    status, said = await server.reason("GET", f"{CPU}&{query}", version=PREFERRED_TRAITS)

    assert status == HTTPStatus.BAD_REQUEST
    assert reason in said


@pytest.mark.parametrize("version", ["1.10", "1.33", "1.39", "latest"])
async def test_clients_of_placement_have_no_such_key(server: Server, version: str) -> None:
    await add_hosts(server)
    headers = {"x-auth-token": "admin", "openstack-api-version": f"placement {version}"}

    answer = await server.client.get(f"{CPU}&preferred=CUSTOM_FAST", headers=headers)

    assert answer.status_code == HTTPStatus.BAD_REQUEST
    assert answer.headers["openstack-api-version"] == f"placement {version.replace('latest', '1.39')}"


@pytest.mark.parametrize("version", [(1, 40), (1, 1038), (1, 1040), (2, 1039)])
async def test_only_the_exact_version_is_served_and_the_newest_is_still_that_of_placement(
    server: Server, version: Version
) -> None:
    refused = await server.ask("GET", CPU, version=version)

    assert refused.status_code == HTTPStatus.NOT_ACCEPTABLE
    assert refused.json()["errors"][0]["max_version"] == version_text(NEWEST) == "1.39"
    (said,) = (await server.done("GET", "/", version=PREFERRED_TRAITS))["versions"]
    assert said["max_version"] == "1.39"


async def test_everything_else_is_as_at_the_newest_version(server: Server) -> None:
    await server.fill()
    targets = [
        *("/", "/resource_providers", "/resource_classes", "/traits", "/usages?project_id=shop"),
        *(
            f"/resource_providers/{HOST}{what}"
            for what in ("", "/inventories", "/aggregates", "/traits", "/usages")
        ),
        *(f"/allocations/{WEB}", f"{CPU}&limit=5", f"/resource_providers/{NIC}/allocations", "/nothing"),
    ]

    async def told(version: Version) -> list[tuple[int, Any]]:
        answers = [await server.ask("GET", target, version=version) for target in targets]
        assert {each.headers["openstack-api-version"] for each in answers} == {
            f"placement {version_text(version)}"
        }
        return [(each.status_code, each.json() if each.is_success else None) for each in answers]

    assert await told(PREFERRED_TRAITS) == await told(NEWEST)
    body = {
        "allocations": {HOST: {"resources": {"VCPU": 1}}},
        "project_id": "shop",
        "user_id": "ann",
        "consumer_generation": None,
        "consumer_type": "INSTANCE",
    }
    written = await server.ask("PUT", f"/allocations/{PLAIN}", body, PREFERRED_TRAITS)
    assert written.status_code == HTTPStatus.NO_CONTENT
    document = await server.done("GET", "/openapi.json", version=PREFERRED_TRAITS)
    assert document["info"]["version"] == "1.1039"
