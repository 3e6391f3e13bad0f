"""A provider that gives one class at a time, over HTTP: its candidates, its filter, and allocations that mix classes."""

from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import pytest
import pytest_asyncio

from bus.messages.placement import ONE_CLASS_AT_A_TIME
from tests.api.whole_app import Server, server_over
from tests.contracts.stores import open_store

pytestmark = pytest.mark.asyncio

CARD, ONE, OTHER = (f"6f4ca9ef-4a3c-4ba4-9a1f-1d2b5c3a020{number}" for number in range(3))
WHOLE, PART = "CUSTOM_PCI_8086_1572", "SRIOV_NET_VF"
PARTS = {"resource_provider_generation": 0, "inventories": {WHOLE: {"total": 1}, PART: {"total": 8}}}


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    async with open_store("memory") as store, server_over(store, policy="legacy") as server:
        await server.done("PUT", f"/traits/{ONE_CLASS_AT_A_TIME}")
        await server.done("PUT", f"/resource_classes/{WHOLE}")
        await server.done("POST", "/resource_providers", {"name": "card", "uuid": CARD})
        await server.done("PUT", f"/resource_providers/{CARD}/inventories", PARTS)
        body = {"resource_provider_generation": 1, "traits": [ONE_CLASS_AT_A_TIME]}
        await server.done("PUT", f"/resource_providers/{CARD}/traits", body)
        yield server


def allocations(**amounts: int) -> dict[str, Any]:
    return {
        "allocations": {CARD: {"resources": amounts}},
        "project_id": "p",
        "user_id": "u",
        "consumer_generation": None,
        "consumer_type": "INSTANCE",
    }


async def test_a_write_that_mixes_classes_is_a_409_that_names_them(server: Server) -> None:
    await server.done("PUT", f"/allocations/{ONE}", allocations(**{PART: 2}))

    refused = await server.ask("PUT", f"/allocations/{OTHER}", allocations(**{WHOLE: 1}))
    both = await server.ask("PUT", f"/allocations/{OTHER}", allocations(**{WHOLE: 1, PART: 1}))

    for answer in (refused, both):
        assert answer.status_code == HTTPStatus.CONFLICT
        said = answer.json()["errors"][0]["detail"]
        assert f"{WHOLE} on resource provider '{CARD}': asked 1" in said
        assert (
            f"gives one class at a time (trait {ONE_CLASS_AT_A_TIME}): {PART} would be in use beside it"
            in said
        )
    await server.done("PUT", f"/allocations/{OTHER}", allocations(**{PART: 1}))


async def test_candidates_and_the_filter_leave_out_what_cannot_be_claimed(server: Server) -> None:
    async def found(*classes: str) -> tuple[int, int]:
        asked = ",".join(f"{each}:1" for each in classes)
        groups = "&".join(f"resources{number}={each}:1" for number, each in enumerate(classes, 1))
        candidates = await server.done("GET", f"/allocation_candidates?{groups}&group_policy=none")
        providers = await server.done("GET", f"/resource_providers?resources={asked}")
        return len(candidates["allocation_requests"]), len(providers["resource_providers"])

    assert await found(WHOLE) == await found(PART) == (1, 1)
    assert await found(WHOLE, PART) == (0, 0)

    await server.done("PUT", f"/allocations/{ONE}", allocations(**{PART: 2}))

    assert await found(WHOLE) == (0, 0)
    assert await found(PART) == (1, 1)
