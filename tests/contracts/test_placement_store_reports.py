"""Contract of all stores: reports of inventory, batch by batch."""

from datetime import UTC, datetime, timedelta

import pytest

from bus.messages.placement import (
    ReportAccepted,
    ReportInventory,
    ReportOutdated,
)
from engine.inventories import InventoryState, ReportedInventory, ReportedProvider
from kit.errors import Transient
from placement_worker.core.ledger import Sent
from placement_worker.core.reports import decide_reports, keys_of_reports
from tests.contracts.admin_client import AdminClient
from tests.contracts.placement_orders import (
    HOST,
    OTHER_HOST,
    VOCABULARY,
    a_host,
    a_provider,
    a_report,
    aggregate,
    inventories,
    provider,
)
from tests.contracts.store_client import StoreClient
from tests.contracts.stores import undone

NUMA = provider("numa-1")
WHOLE = ReportedInventory(total=64, reserved=3, min_unit=2, max_unit=32, step_size=2, allocation_ratio=1.1)
BEFORE_EVERYTHING = datetime(2000, 1, 1, tzinfo=UTC)
SSD = ("STORAGE_DISK_SSD",)


@pytest.fixture
def client(admin: AdminClient) -> StoreClient:
    """An empty store."""
    return admin


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


async def test_a_name_that_came_with_a_report_that_was_rolled_back_is_made_again(client: StoreClient) -> None:
    report = a_report(a_provider("host-1", traits=("CUSTOM_NEW",)))
    async with undone(client.store.transaction()) as tx:
        forest = await tx.lock_trees(keys_of_reports([report]))
        await tx.write_trees(decide_reports(forest, [Sent(report)], VOCABULARY).changes)

    await client.report(report)
    assert (await client.provider(HOST)).traits == ("CUSTOM_NEW",)


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


# Reports of trees that do not exist yet, handled at the same time: there is no row that the later one could wait for

ON_POSTGRESQL = pytest.mark.parametrize(
    "admin", [pytest.param("postgresql", marks=pytest.mark.postgresql)], indirect=True
)
PLANTED = a_host()
GROWN = a_host(VCPU=8)
FELLED = a_report(removed=(HOST,))


BELOW = a_report(a_provider("host-1"), a_provider("numa-1", HOST))
BELOW_OTHER = a_report(a_provider("host-2"), a_provider("numa-1", OTHER_HOST), root=OTHER_HOST)
NAMESAKE = a_report(ReportedProvider(id=OTHER_HOST, name="host-1"), root=OTHER_HOST)
WRITTEN = "has just written the same provider"


@ON_POSTGRESQL
@pytest.mark.parametrize(
    ("late", "meanwhile", "why", "shape"),
    [
        (PLANTED, (PLANTED, GROWN), WRITTEN, 2),
        (BELOW_OTHER, (BELOW,), WRITTEN, 1),
        (NAMESAKE, (PLANTED,), WRITTEN, 1),
        # With what is left of it, its shapes go on where they were.
        (PLANTED, (PLANTED, FELLED), "has just deleted the tree", 3),
    ],
    ids=["a tree", "a provider of another tree", "a name", "a tombstone"],
)
async def test_what_somebody_else_has_just_written_is_not_written_over(
    client: StoreClient, late: ReportInventory, meanwhile: tuple[ReportInventory, ...], why: str, shape: int
) -> None:
    with pytest.raises(Transient, match=why):
        await _report_late(client, late, meanwhile=meanwhile)

    left = meanwhile[-1] is not FELLED
    assert {each.root for each in (await client.providers()).values()} == ({HOST} if left else set())
    again = meanwhile[-1] if left else PLANTED
    assert await client.report_one(again) == ReportAccepted(shape=shape, shape_moved=not left)


@ON_POSTGRESQL
async def test_a_tombstone_that_was_not_seen_is_not_set_back(client: StoreClient) -> None:
    await _report_late(client, PLANTED, FELLED, meanwhile=(PLANTED, FELLED, PLANTED, FELLED))

    assert await client.report_one(PLANTED) == ReportAccepted(shape=5, shape_moved=True)


async def _report_late(
    client: StoreClient, *reports: ReportInventory, meanwhile: tuple[ReportInventory, ...]
) -> None:
    """Other reports are written between the reading and the writing of this one."""
    async with client.store.transaction() as late:
        forest = await late.lock_trees(keys_of_reports(reports))
        for report in meanwhile:
            assert isinstance(await client.report_one(report), ReportAccepted)
        decision = decide_reports(forest, [Sent(report) for report in reports], VOCABULARY)
        await late.write_trees(decision.changes)
