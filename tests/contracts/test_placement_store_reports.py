"""Contract of all stores: reports of inventory, batch by batch."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

from bus.messages.placement import (
    ReportAccepted,
    ReportInventory,
    ReportOutdated,
)
from engine.inventories import InventoryState, ReportedInventory
from tests.contracts.placement_orders import (
    HOST,
    OTHER_HOST,
    a_host,
    a_provider,
    a_report,
    aggregate,
    inventories,
    provider,
)
from tests.contracts.store_client import StoreClient
from tests.contracts.stores import STORES, open_store

pytestmark = pytest.mark.asyncio

NUMA = provider("numa-1")
WHOLE = ReportedInventory(total=64, reserved=3, min_unit=2, max_unit=32, step_size=2, allocation_ratio=1.1)
BEFORE_EVERYTHING = datetime(2000, 1, 1, tzinfo=UTC)
SSD = ("STORAGE_DISK_SSD",)


@pytest_asyncio.fixture(params=STORES)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[StoreClient]:
    """An empty store. At the end of each test the audit must find nothing."""
    async with open_store(request.param) as store:
        yield StoreClient(store)
        assert await store.audit() == ()


def deleted(epoch: int = 0, sequence: int = 0) -> ReportInventory:
    return a_report(removed=(HOST,), epoch=epoch, sequence=sequence)


async def test_a_new_tree_is_kept_whole(client: StoreClient) -> None:
    rack, row = aggregate("rack"), aggregate("row")
    report = a_report(
        # In any order: a parent may come after its child.
        a_provider("pci-1", NUMA, inventories(VGPU=2)),
        a_provider("numa-1", HOST, {"VCPU": WHOLE}, ("CUSTOM_NUMA",)),
        a_provider("host-1", None, inventories(MEMORY_MB=512), SSD, (rack, row)),
    )

    assert await client.report_one(report) == ReportAccepted(shape=1, shape_moved=True)

    states = await client.providers()
    assert {state.name: state.parent for state in states.values()} == {
        "host-1": None,
        "numa-1": HOST,
        "pci-1": NUMA,
    }
    assert {(state.root, state.cell, state.shape) for state in states.values()} == {(HOST, "c1", 1)}
    assert states[NUMA].inventories == {
        "VCPU": InventoryState(
            total=64, reserved=3, min_unit=2, max_unit=32, step_size=2, allocation_ratio=1.1
        )
    }
    assert states[NUMA].traits == ("CUSTOM_NUMA",)
    assert states[HOST].traits == SSD
    assert set(states[HOST].aggregates) == {rack, row}


async def test_a_tree_that_is_deleted_and_recreated_never_shows_an_old_shape(client: StoreClient) -> None:
    shapes = []
    for _ in range(3):
        await client.report(a_host())
        shapes.append((await client.provider(HOST)).shape)
        await client.report(a_host(VCPU=2))
        shapes.append((await client.provider(HOST)).shape)
        await client.report(deleted())
        # Both reports are in one batch.
        await client.report(a_host(), deleted(), a_host())
        shapes.append((await client.provider(HOST)).shape)
        await client.report(deleted())

    assert shapes == sorted(set(shapes))


async def test_pruning_deletes_old_tombstones(client: StoreClient) -> None:
    before = datetime.now(UTC)
    await client.report(a_host(), a_host("host-2"))
    await client.report(deleted(epoch=2, sequence=7))

    assert await client.store.prune(before, BEFORE_EVERYTHING) == 0
    assert await client.report_one(a_host()) == ReportOutdated(epoch=2, sequence=7)
    assert await client.store.prune(datetime.now(UTC) + timedelta(seconds=1), BEFORE_EVERYTHING) == 1
    assert await client.report_one(a_host()) == ReportAccepted(shape=1, shape_moved=True)


async def test_an_internal_id_is_never_used_again(client: StoreClient) -> None:
    seen = []
    for _ in range(3):
        await client.report(a_host("host-1"))
        seen.append((await client.provider(HOST)).internal)
        await client.report(a_report(removed=(HOST,)))
    await client.report(a_host("host-2"))
    seen.append((await client.provider(OTHER_HOST)).internal)

    assert seen == sorted(set(seen))
