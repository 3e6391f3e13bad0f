"""Contract of all stores: reports of inventory, batch by batch."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio
from msgspec import structs

from bus.messages.placement import (
    InventoryInUse,
    ReportAccepted,
    ReportInventory,
    ReportOutdated,
    ReportVerdict,
)
from engine.inventories import InventoryState, ProviderId, ReportedInventory, ReportedProvider
from engine.refusals import NotAllowed, ShapeMoved
from placement_worker.core.ledger import Sent
from placement_worker.core.reports import decide_reports, keys_of_reports
from tests.contracts.placement_orders import (
    HOST,
    OTHER_HOST,
    VOCABULARY,
    WEB,
    a_claim,
    a_host,
    a_provider,
    a_release,
    a_report,
    a_share,
    aggregate,
    amounts,
    inventories,
    provider,
)
from tests.contracts.store_client import StoreClient
from tests.contracts.stores import STORES, open_store

pytestmark = pytest.mark.asyncio

NUMA = provider("numa-1")
PCI = provider("pci-1")
WHOLE = ReportedInventory(total=64, reserved=3, min_unit=2, max_unit=32, step_size=2, allocation_ratio=1.1)
BEFORE_EVERYTHING = datetime(2000, 1, 1, tzinfo=UTC)
AFTER_EVERYTHING = datetime(2100, 1, 1, tzinfo=UTC)
SSD = ("STORAGE_DISK_SSD",)


@pytest_asyncio.fixture(params=STORES)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[StoreClient]:
    """An empty store. At the end of each test the audit must find nothing."""
    async with open_store(request.param) as store:
        yield StoreClient(store)
        assert await store.audit() == ()


def deleted(epoch: int = 0, sequence: int = 0) -> ReportInventory:
    return a_report(removed=(HOST,), epoch=epoch, sequence=sequence)


def named(which: str, name: str, parent: ProviderId | None = None) -> ReportedProvider:
    return ReportedProvider(id=provider(which), name=name, parent=parent)


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


async def test_an_identical_report_moves_nothing(client: StoreClient) -> None:
    report = a_report(
        a_provider("host-1", None, {"VCPU": WHOLE}, SSD, (aggregate("rack"),)),
        a_provider("numa-1", HOST, inventories(VGPU=1)),
        removed=(PCI,),
    )
    await client.report(report)
    await client.ask(a_claim(a_share(HOST, amounts(HOST, VCPU=2))))
    before = await client.providers()

    assert await client.report_one(report) == ReportAccepted(shape=1, shape_moved=False)
    assert await client.providers() == before


async def test_what_a_report_does_not_tell_stays_as_it_is(client: StoreClient) -> None:
    await client.report(
        a_report(
            a_provider("host-1", None, {"VCPU": WHOLE}, SSD, (aggregate("rack"),)),
            a_provider("numa-1", HOST, inventories(VGPU=1)),
        )
    )
    before = await client.providers()

    await client.report(a_report(a_provider("host-1", traits=("CUSTOM_OTHER",))))

    after = await client.providers()
    assert after[HOST].inventories == before[HOST].inventories
    assert after[HOST].aggregates == before[HOST].aggregates
    assert after[HOST].traits == ("CUSTOM_OTHER",)
    assert after[NUMA].revision == before[NUMA].revision


async def test_what_is_in_use_stays_in_use_when_its_inventory_changes(client: StoreClient) -> None:
    await client.report(a_host("host-1", VCPU=4, MEMORY_MB=512))
    await client.ask(a_claim(a_share(HOST, amounts(HOST, VCPU=3))))

    await client.report(a_host("host-1", VCPU=2))

    assert (await client.provider(HOST)).inventories == {"VCPU": InventoryState(total=2, used=3)}


async def test_what_is_in_use_cannot_be_taken_away(client: StoreClient) -> None:
    await client.report(
        a_report(
            a_provider("host-1", None, inventories(VCPU=4, MEMORY_MB=512)),
            a_provider("numa-1", HOST, inventories(VGPU=1)),
        )
    )
    share = a_share(HOST, (*amounts(HOST, VCPU=3), *amounts(NUMA, VGPU=1)))
    await client.ask(a_claim(share))
    before = await client.providers()

    assert await client.report_one(a_host("host-1", MEMORY_MB=512)) == InventoryInUse(
        provider=HOST, resource="VCPU", used=3
    )
    assert await client.report_one(
        a_report(a_provider("host-1", traits=SSD), removed=(NUMA,))
    ) == InventoryInUse(provider=NUMA, resource="VGPU", used=1)
    assert await client.providers() == before

    await client.ask(a_release(WEB))
    assert await client.report_one(a_report(removed=(NUMA,))) == ReportAccepted(shape=2, shape_moved=True)
    assert list(await client.providers()) == [HOST]


async def test_a_refused_report_changes_nothing(client: StoreClient) -> None:
    await client.report(a_host("host-1"), a_host("host-2"))
    before = await client.providers()

    verdict = await client.report_one(
        a_report(
            a_provider("host-1", traits=SSD),
            a_provider("numa-1", HOST, inventories(VCPU=1)),
            a_provider("pci-1", provider("nobody")),
        )
    )

    assert isinstance(verdict, NotAllowed)
    assert verdict.field == "providers[2].parent"
    assert await client.providers() == before


async def test_a_child_may_move_inside_its_tree(client: StoreClient) -> None:
    tree = (a_provider("host-1"), a_provider("numa-1", HOST), a_provider("pci-1", NUMA))
    await client.report(a_report(*tree))

    # The child leaves a parent that the same report removes.
    moved = a_report(a_provider("pci-1", HOST), removed=(NUMA,))

    assert await client.report_one(moved) == ReportAccepted(shape=2, shape_moved=True)
    states = await client.providers()
    assert {state.id: state.parent for state in states.values()} == {HOST: None, PCI: HOST}


async def test_parent_and_child_may_change_places(client: StoreClient) -> None:
    tree = (a_provider("host-1"), a_provider("numa-1", HOST), a_provider("pci-1", NUMA))
    await client.report(a_report(*tree))

    await client.report(a_report(a_provider("numa-1", PCI), a_provider("pci-1", HOST)))

    assert {state.id: state.parent for state in (await client.providers()).values()} == {
        HOST: None,
        PCI: HOST,
        NUMA: PCI,
    }


async def test_a_tree_goes_with_its_root(client: StoreClient) -> None:
    tree = (a_provider("host-1"), a_provider("numa-1", HOST), a_provider("pci-1", NUMA))
    await client.report(a_report(*tree), a_host("host-2"))

    gone = a_report(removed=(HOST, NUMA, PCI))

    assert await client.report_one(gone) == ReportAccepted(shape=2, shape_moved=True)
    assert list(await client.providers()) == [OTHER_HOST]
    assert await client.report_one(gone) == ReportAccepted(shape=2, shape_moved=False)
    assert list(await client.providers()) == [OTHER_HOST]


async def test_what_never_stood_leaves_nothing_when_it_is_removed(client: StoreClient) -> None:
    gone = a_report(removed=(HOST,), epoch=3, sequence=7)

    assert await client.report_one(gone) == ReportAccepted(shape=0, shape_moved=False)

    assert await client.store.prune(AFTER_EVERYTHING, BEFORE_EVERYTHING) == 0
    assert await client.report_one(a_host()) == ReportAccepted(shape=1, shape_moved=True)


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


async def test_a_claim_that_saw_the_deleted_tree_is_told_that_the_shape_moved(
    client: StoreClient,
) -> None:
    await client.report(a_host())
    seen = (await client.provider(HOST)).shape
    await client.report(deleted())
    await client.report(a_host())

    verdict = await client.ask_one(a_claim(a_share(HOST, shapes={HOST: seen})))

    assert verdict == ShapeMoved(roots=(HOST,))
    assert await client.used(HOST) == {"VCPU": 0, "MEMORY_MB": 0}


async def test_a_tombstone_is_not_shown(client: StoreClient) -> None:
    await client.report(a_host())
    await client.report(deleted())

    async with client.store.transaction() as tx:
        assert await tx.read_trees([HOST]) == ()
    assert await client.providers() == {}
    assert await client.ask_one(a_claim()) == ShapeMoved(gone=(HOST,))


async def test_a_late_report_does_not_recreate_a_deleted_tree(client: StoreClient) -> None:
    def numbered(epoch: int, sequence: int) -> ReportInventory:
        return structs.replace(a_host(), epoch=epoch, sequence=sequence)

    await client.report(numbered(2, 5))
    await client.report(deleted(epoch=2, sequence=7))

    for late in (numbered(2, 6), numbered(2, 7), numbered(1, 9), deleted(epoch=2, sequence=7)):
        assert await client.report_one(late) == ReportOutdated(epoch=2, sequence=7)
    assert await client.providers() == {}
    # Reports about a tree that does not exist count, too.
    await client.report(deleted(epoch=2, sequence=9))
    assert await client.report_one(numbered(2, 8)) == ReportOutdated(epoch=2, sequence=9)
    assert await client.report_one(numbered(2, 10)) == ReportAccepted(shape=3, shape_moved=True)
    assert await client.report_one(numbered(2, 9)) == ReportOutdated(epoch=2, sequence=10)


async def test_a_host_may_come_back_in_another_cell(client: StoreClient) -> None:
    await client.report(a_host(), deleted(epoch=4, sequence=9))

    back = structs.replace(a_host(cell="c2"), epoch=1, sequence=1)

    assert await client.report_one(back) == ReportAccepted(shape=3, shape_moved=True)
    host = await client.provider(HOST)
    assert (host.cell, host.shape) == ("c2", 3)


async def test_a_late_report_of_a_ring_brings_back_nothing_in_any_cell(client: StoreClient) -> None:
    """A node was reported, then went to another cell, and was deleted there before it was ever offered."""

    def of_a_ring(report: ReportInventory, sequence: int) -> ReportInventory:
        return structs.replace(report, epoch=2, sequence=sequence, foreign="leave")

    await client.report(of_a_ring(a_host(), 1), of_a_ring(deleted(), 4))
    elsewhere = structs.replace(deleted(), cell="c2")
    assert isinstance(await client.report_one(of_a_ring(elsewhere, 8)), ReportAccepted)

    for late in (of_a_ring(a_host(cell="c2"), 7), of_a_ring(a_host(), 3)):
        assert await client.report_one(late) == ReportOutdated(epoch=2, sequence=8)
    # A node that placement never had is deleted: its first report comes late.
    unknown = a_report(root=OTHER_HOST, removed=(OTHER_HOST,))
    assert isinstance(await client.report_one(of_a_ring(unknown, 4)), ReportAccepted)
    late = of_a_ring(a_host("host-2"), 3)
    assert await client.report_one(late) == ReportOutdated(epoch=2, sequence=4)
    assert await client.providers() == {}
    assert isinstance(await client.report_one(of_a_ring(a_host("host-2"), 5)), ReportAccepted)


async def test_the_root_of_a_deleted_tree_may_be_in_another_tree(client: StoreClient) -> None:
    await client.report(a_host(), a_host("host-2"))

    # In one batch, so that the tombstone and the provider with its id are written together.
    below = a_report(a_provider("host-1", OTHER_HOST), root=OTHER_HOST)
    await client.report(deleted(epoch=2, sequence=7), below)
    states = await client.providers()
    assert {state.id: (state.root, state.shape) for state in states.values()} == {
        HOST: (OTHER_HOST, 2),
        OTHER_HOST: (OTHER_HOST, 2),
    }
    await client.report(a_report(root=OTHER_HOST, removed=(HOST,)))

    again = structs.replace(a_host(), epoch=2, sequence=8)
    assert await client.report_one(again) == ReportAccepted(shape=3, shape_moved=True)


async def test_pruning_deletes_old_tombstones(client: StoreClient) -> None:
    before = datetime.now(UTC)
    await client.report(a_host(), a_host("host-2"))
    await client.report(deleted(epoch=2, sequence=7))

    assert await client.store.prune(before, BEFORE_EVERYTHING) == 0
    assert await client.report_one(a_host()) == ReportOutdated(epoch=2, sequence=7)
    assert await client.store.prune(datetime.now(UTC) + timedelta(seconds=1), BEFORE_EVERYTHING) == 1
    assert await client.report_one(a_host()) == ReportAccepted(shape=1, shape_moved=True)


async def test_a_tree_that_exists_again_has_no_tombstone(client: StoreClient) -> None:
    await client.report(a_host())
    await client.report(deleted())
    await client.report(a_host())

    assert await client.store.prune(AFTER_EVERYTHING, BEFORE_EVERYTHING) == 0


async def test_a_rolled_back_delete_leaves_no_tombstone(client: StoreClient) -> None:
    await client.report(a_host())

    async def cancelled() -> None:
        async with client.store.transaction() as tx:
            forest = await tx.lock_trees(keys_of_reports([deleted()]))
            await tx.write_trees(decide_reports(forest, [Sent(deleted())], VOCABULARY).changes)
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await cancelled()

    assert await client.store.prune(AFTER_EVERYTHING, BEFORE_EVERYTHING) == 0
    assert (await client.provider(HOST)).shape == 1


async def test_an_internal_id_is_never_used_again(client: StoreClient) -> None:
    seen = []
    for _ in range(3):
        await client.report(a_host("host-1"))
        seen.append((await client.provider(HOST)).internal)
        await client.report(a_report(removed=(HOST,)))
    await client.report(a_host("host-2"))
    seen.append((await client.provider(OTHER_HOST)).internal)

    assert seen == sorted(set(seen))


async def test_a_tree_that_goes_and_comes_in_one_batch_is_a_new_one(client: StoreClient) -> None:
    await client.report(a_host("host-1", VCPU=4))
    before = await client.provider(HOST)

    # Even if the new tree looks the same.
    await client.report(a_report(removed=(HOST,)), a_host("host-1", VCPU=4))

    after = await client.provider(HOST)
    assert after.internal > before.internal
    assert after.inventories == before.inventories


async def test_a_name_may_be_handed_on(client: StoreClient) -> None:
    await client.report(a_report(a_provider("host-1"), a_provider("numa-1", HOST), a_provider("pci-1", HOST)))

    # Within one report, in a circle; within one batch, from a removed provider to a new one.
    await client.report(
        a_report(
            named("numa-1", "pci-1", HOST),
            named("pci-1", "numa-1", HOST),
        )
    )
    await client.report(a_report(removed=(PCI,)), a_report(named("host-2", "numa-1"), root=OTHER_HOST))

    assert {state.id: state.name for state in (await client.providers()).values()} == {
        HOST: "host-1",
        NUMA: "pci-1",
        OTHER_HOST: "numa-1",
    }


async def test_a_name_that_another_provider_bears_is_refused(client: StoreClient) -> None:
    await client.report(a_host("host-1"))

    verdict = await client.report_one(a_report(named("host-2", "host-1"), root=OTHER_HOST))

    assert isinstance(verdict, NotAllowed)
    assert verdict.field == "providers[0].name"
    assert list(await client.providers()) == [HOST]


async def test_a_name_in_another_cell_keeps_no_host_out(client: StoreClient) -> None:
    """Placement's API knows no cells, and its names are unique."""
    there = a_report(named("host-2", "h1"), root=OTHER_HOST, cell="c9", sequence=1)
    await client.report(a_report(named("host-1", "h1")))

    first = await client.report_one(there)
    again = await client.report_one(structs.replace(there, sequence=2))

    assert isinstance(first, ReportAccepted)
    assert again == structs.replace(first, shape_moved=False)
    assert await names_of(client) == {HOST: "h1", OTHER_HOST: f"h1/{OTHER_HOST}"}
    same_cell = await client.report_one(a_report(named("third", "h1"), root=provider("third")))
    assert isinstance(same_cell, NotAllowed)
    # The name is free again.
    await client.report(a_report(named("host-1", "h2")))
    await client.report(structs.replace(there, sequence=3))
    assert await names_of(client) == {HOST: "h2", OTHER_HOST: "h1"}


async def test_two_cells_may_report_one_name_in_one_batch(client: StoreClient) -> None:
    there = a_report(named("host-2", "h1"), root=OTHER_HOST, cell="c9")

    verdicts = await client.report(a_report(named("host-1", "h1")), there)

    assert all(isinstance(each, ReportAccepted) for each in verdicts)
    assert await names_of(client) == {HOST: "h1", OTHER_HOST: f"h1/{OTHER_HOST}"}


async def names_of(client: StoreClient) -> dict[ProviderId, str]:
    return {state.id: state.name for state in (await client.providers()).values()}


async def test_a_provider_of_another_tree_is_left_alone(client: StoreClient) -> None:
    await client.report(a_report(a_provider("host-1"), a_provider("numa-1", HOST)))

    stolen = a_report(a_provider("host-2"), a_provider("numa-1", OTHER_HOST), root=OTHER_HOST)
    verdict = await client.report_one(stolen)

    assert isinstance(verdict, NotAllowed)
    assert verdict.field == "providers[1].id"
    assert set(await client.providers()) == {HOST, NUMA}


async def test_a_later_report_is_not_undone_by_an_earlier_one(client: StoreClient) -> None:
    async def numbered(epoch: int, sequence: int, vcpus: int) -> ReportVerdict:
        return await client.report_one(
            a_report(a_provider("host-1", holds=inventories(VCPU=vcpus)), epoch=epoch, sequence=sequence)
        )

    assert await numbered(1, 5, 4) == ReportAccepted(shape=1, shape_moved=True)
    assert await numbered(1, 5, 4) == ReportOutdated(epoch=1, sequence=5)
    assert await numbered(1, 4, 2) == ReportOutdated(epoch=1, sequence=5)
    assert await numbered(0, 9, 2) == ReportOutdated(epoch=1, sequence=5)
    assert await numbered(1, 0, 5) == ReportAccepted(shape=2, shape_moved=True)
    assert await numbered(1, 5, 2) == ReportOutdated(epoch=1, sequence=5)
    assert await numbered(2, 1, 6) == ReportAccepted(shape=3, shape_moved=True)
    assert (await client.provider(HOST)).inventories == {"VCPU": InventoryState(total=6)}


async def test_only_what_claims_name_moves_the_shape(client: StoreClient) -> None:
    await client.report(a_report(a_provider("host-1", None, inventories(VCPU=4)), a_provider("numa-1", HOST)))
    moves = []
    for report in (
        a_report(named("host-1", "renamed")),
        a_report(a_provider("numa-1", HOST, inventories(VGPU=1))),
        a_report(a_provider("numa-1", HOST, traits=("CUSTOM_A",))),
        a_report(a_provider("numa-1", HOST, aggregates=(aggregate("rack"),))),
        a_report(a_provider("pci-1", HOST)),
        a_report(a_provider("pci-1", NUMA)),
        a_report(removed=(PCI,)),
        a_report(epoch=4, sequence=7),
    ):
        before = await client.providers()
        verdict = await client.report_one(report)
        after = await client.providers()
        assert isinstance(verdict, ReportAccepted)
        assert verdict.shape == after[HOST].shape == before[HOST].shape + verdict.shape_moved
        # The shape is in the root's row: when it moves, the root's revision moves.
        assert (after[HOST].revision > before[HOST].revision) == (after[HOST] != before[HOST])
        moves.append(verdict.shape_moved)

    assert moves == [False, True, True, True, True, True, True, False]


async def test_a_host_alone_in_its_tree_becomes_what_is_reported_and_keeps_the_rest(
    client: StoreClient,
) -> None:
    """Most reports are of this kind: a node becomes reserved, or free."""
    await client.report(
        a_report(a_provider("host-1", None, inventories(VCPU=4, MEMORY_MB=2), SSD, (aggregate("rack"),))),
        a_host("host-2"),
    )
    await client.ask(a_claim(a_share(HOST, amounts(HOST, VCPU=1), {HOST: 1}), WEB))
    before = await client.providers()
    reserved = {"VCPU": structs.replace(WHOLE, total=8), "MEMORY_MB": ReportedInventory(total=2)}

    verdicts = await client.report(
        a_report(a_provider("host-1", None, reserved, ("CUSTOM_A",)), epoch=2, sequence=7),
        a_report(a_provider("host-2"), root=OTHER_HOST, epoch=3, sequence=1),
    )

    assert verdicts == (
        ReportAccepted(shape=2, shape_moved=True),
        ReportAccepted(shape=1, shape_moved=False),
    )
    after = await client.providers()
    host = before[HOST]
    assert after[HOST] == structs.replace(
        host,
        shape=2,
        revision=host.revision + 1,
        generation=host.generation + 1,
        inventories={
            "VCPU": InventoryState(
                total=8, reserved=3, min_unit=2, max_unit=32, step_size=2, allocation_ratio=1.1, used=1
            ),
            "MEMORY_MB": InventoryState(total=2),
        },
        traits=("CUSTOM_A",),
    )
    # Only the number of its report changed, so the feed does not name it.
    assert after[OTHER_HOST] == before[OTHER_HOST]
    late = a_report(a_provider("host-2"), root=OTHER_HOST, epoch=3, sequence=1)
    assert await client.report_one(late) == ReportOutdated(epoch=3, sequence=1)


async def test_generations_move_with_what_really_changed(client: StoreClient) -> None:
    await client.report(a_report(a_provider("host-1"), a_provider("numa-1", HOST, inventories(VCPU=4))))
    before = await client.providers()

    await client.report(
        a_report(a_provider("host-1"), a_provider("numa-1", HOST, inventories(VCPU=8), ("CUSTOM_A",)))
    )

    after = await client.providers()
    assert after[HOST].generation == before[HOST].generation
    assert after[NUMA].generation == before[NUMA].generation + 1
    assert after[NUMA].revision == before[NUMA].revision + 1


async def test_reports_of_one_batch_end_as_if_they_came_one_by_one(client: StoreClient) -> None:
    verdicts = await client.report(
        a_host("host-1", VCPU=4),
        a_report(a_provider("numa-1", HOST)),
        a_report(a_provider("host-2"), a_provider("numa-1", OTHER_HOST), root=OTHER_HOST),
        a_report(removed=(NUMA,)),
        a_report(a_provider("host-2"), a_provider("numa-1", OTHER_HOST), root=OTHER_HOST),
    )

    assert [getattr(verdict, "shape", None) for verdict in verdicts] == [1, 2, None, 3, 1]
    states = await client.providers()
    assert {state.id: state.root for state in states.values()} == {
        HOST: HOST,
        OTHER_HOST: OTHER_HOST,
        NUMA: OTHER_HOST,
    }
