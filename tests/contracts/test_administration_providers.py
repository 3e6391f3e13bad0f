"""Contract of all stores: administrators' writes of providers."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bus.messages.administration import (
    CreateClass,
    CreateProvider,
    CreateTrait,
    DeleteProvider,
    Done,
    DropInventory,
    GenerationMoved,
    HasChildren,
    IdTaken,
    InventoryAbsent,
    InventoryPresent,
    NameTaken,
    ProviderWritten,
    PutInventory,
    SetAggregates,
    SetInventories,
    SetTraits,
    UnknownClass,
    UnknownProvider,
    UnknownTrait,
    UpdateProvider,
)
from bus.messages.placement import InventoryInUse, ReportAccepted
from engine.inventories import InventoryState, ReportedInventory
from engine.refusals import AlreadyClaimed, Claimed, NotAllowed, ShapeMoved
from tests.contracts.admin_client import AdminClient, allocations, an_admin_client, holding
from tests.contracts.placement_orders import (
    CELL,
    DB,
    HOST,
    OTHER_HOST,
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
from tests.contracts.stores import STORES

pytestmark = pytest.mark.asyncio

NUMA = provider("numa-1")
PCI = provider("pci-1")
FOUR = ReportedInventory(total=4)
SSD = ("STORAGE_DISK_SSD",)


@pytest_asyncio.fixture(params=STORES)
async def admin(request: pytest.FixtureRequest) -> AsyncIterator[AdminClient]:
    async with an_admin_client(request.param) as one:
        yield one


# Providers


async def test_a_new_provider_is_the_empty_root_of_a_tree_of_its_own(admin: AdminClient) -> None:
    written = await admin.write(CreateProvider(id=HOST, name="host-1"))

    assert written == ProviderWritten(provider=HOST, name="host-1", generation=0, root=HOST)
    state = await admin.provider(HOST)
    assert (state.name, state.root, state.parent, state.generation) == ("host-1", HOST, None, 0)
    assert (state.inventories, state.traits, state.aggregates) == ({}, (), ())


async def test_a_child_stands_in_the_tree_and_the_cell_of_its_parent(admin: AdminClient) -> None:
    await admin.add_provider("host-1", cell=CELL)
    await admin.add_provider("numa-1", HOST)
    shape = await admin.shape(HOST)

    written = await admin.write(CreateProvider(id=PCI, name="pci-1", parent=NUMA))

    assert written == ProviderWritten(provider=PCI, name="pci-1", generation=0, root=HOST, parent=NUMA)
    state = await admin.provider(PCI)
    assert (state.root, state.parent, state.cell) == (HOST, NUMA, CELL)
    assert await admin.shape(HOST) == shape + 1
    assert await admin.generation(HOST) == 0


async def test_a_child_of_nobody_of_itself_or_of_another_cell_is_refused(admin: AdminClient) -> None:
    await admin.add_provider("host-1", cell=CELL)
    orphan = CreateProvider(id=NUMA, name="numa-1", parent=OTHER_HOST)
    own_child = CreateProvider(id=NUMA, name="numa-1", parent=NUMA)
    stranger = CreateProvider(id=NUMA, name="numa-1", parent=HOST, of_cell="c2")

    assert await admin.write(orphan) == UnknownProvider(provider=OTHER_HOST, field="parent")
    assert await admin.write(own_child) == NotAllowed(
        field="parent", reason=f"provider {NUMA} cannot be its own parent"
    )
    assert await admin.write(stranger) == NotAllowed(
        field="of_cell", reason=f"the tree of {HOST} is of cell 'c1', not of 'c2'"
    )
    assert NUMA not in await admin.providers()


async def test_an_id_and_a_name_belong_to_one_provider(admin: AdminClient) -> None:
    await admin.add_provider("host-1")
    await admin.add_provider("host-2")

    assert await admin.write(CreateProvider(id=HOST, name="another")) == IdTaken(provider=HOST)
    taken = NameTaken(name="host-1", provider=HOST)
    assert await admin.write(CreateProvider(id=NUMA, name="host-1")) == taken
    assert await admin.write(UpdateProvider(id=OTHER_HOST, name="host-1")) == taken


async def test_of_many_who_create_the_same_at_once_one_does(admin: AdminClient) -> None:
    others = AdminClient(admin.store)
    by_id = [one.write(CreateProvider(id=HOST, name=f"h{n}")) for n in range(8) for one in (admin, others)]
    by_name = [
        one.write(CreateProvider(id=provider(f"p{n}-{one is admin}"), name="numa-1"))
        for n in range(8)
        for one in (admin, others)
    ]

    first, second = await asyncio.gather(asyncio.gather(*by_id), asyncio.gather(*by_name))

    assert sorted(type(verdict).__name__ for verdict in first) == ["IdTaken"] * 15 + ["ProviderWritten"]
    assert sorted(type(verdict).__name__ for verdict in second) == ["NameTaken"] * 15 + ["ProviderWritten"]
    assert len(await admin.providers()) == 2


async def test_a_new_name_moves_neither_generation_nor_shape(admin: AdminClient) -> None:
    await admin.add_provider("host-1", VCPU=4)
    before = await admin.provider(HOST)

    written = await admin.write(UpdateProvider(id=HOST, name="renamed"))

    assert written == ProviderWritten(provider=HOST, name="renamed", generation=1, root=HOST)
    after = await admin.provider(HOST)
    assert (after.generation, after.shape) == (before.generation, before.shape)
    assert after.revision > before.revision
    assert await admin.write(UpdateProvider(id=NUMA, name="x")) == UnknownProvider(provider=NUMA, field="id")


async def test_a_root_goes_below_another_one_with_all_that_stands_below_it(admin: AdminClient) -> None:
    await admin.add_provider("host-1", cell=CELL)
    await admin.add_provider("host-2")
    await admin.add_provider("numa-1", OTHER_HOST, VCPU=4)
    await admin.write(allocations(holding(WEB, *amounts(NUMA, VCPU=3))))
    before = await admin.providers()

    written = await admin.write(UpdateProvider(id=OTHER_HOST, name="host-2", parent=HOST, reparents=False))

    assert written == ProviderWritten(
        provider=OTHER_HOST, name="host-2", generation=0, root=HOST, parent=HOST
    )
    after = await admin.providers()
    assert {state.root for state in after.values()} == {HOST}
    assert (after[OTHER_HOST].parent, after[NUMA].parent) == (HOST, OTHER_HOST)
    assert {state.cell for state in after.values()} == {CELL}
    assert after[NUMA].internal == before[NUMA].internal
    assert after[NUMA].inventories["VCPU"].used == 3
    assert after[NUMA].generation == before[NUMA].generation
    assert after[NUMA].revision > before[NUMA].revision
    assert after[HOST].shape > before[HOST].shape


async def test_a_child_becomes_a_root_and_comes_back_at_shapes_that_never_were(admin: AdminClient) -> None:
    await admin.add_provider("host-1")
    await admin.add_provider("numa-1", HOST, VCPU=4)
    shapes = [await admin.shape(NUMA)]
    for parent in (None, HOST, None):
        written = await admin.write(UpdateProvider(id=NUMA, name="numa-1", parent=parent))
        assert written == ProviderWritten(
            provider=NUMA, name="numa-1", generation=1, root=parent or NUMA, parent=parent
        )
        shapes.append(await admin.shape(NUMA))

    # Shapes of the host's tree and of its own tree take turns here.
    assert shapes[0] < shapes[2]
    assert shapes[1] < shapes[3]


async def test_a_subtree_moves_between_two_trees(admin: AdminClient) -> None:
    await admin.add_provider("host-1")
    await admin.add_provider("host-2")
    await admin.add_provider("numa-1", HOST)
    await admin.add_provider("pci-1", NUMA, VGPU=2)
    shapes = await admin.shape(HOST), await admin.shape(OTHER_HOST)

    await admin.write(UpdateProvider(id=NUMA, name="numa-2", parent=OTHER_HOST))

    states = await admin.providers()
    assert (states[NUMA].root, states[PCI].root) == (OTHER_HOST, OTHER_HOST)
    assert states[NUMA].name == "numa-2"
    assert (await admin.shape(HOST), await admin.shape(OTHER_HOST)) == (shapes[0] + 1, shapes[1] + 1)


async def test_no_provider_comes_to_stand_below_itself(admin: AdminClient) -> None:
    await admin.add_provider("host-1")
    await admin.add_provider("numa-1", HOST)
    await admin.add_provider("pci-1", NUMA)
    moves = [UpdateProvider(id=HOST, name="host-1", parent=parent) for parent in (PCI, HOST)]

    for move in moves:
        refused = await admin.write(move)
        assert isinstance(refused, NotAllowed)
        assert (refused.field, f"provider {HOST} would be below itself" in refused.reason) == (
            "parent",
            True,
        )
    assert (await admin.provider(HOST)).root == HOST


async def test_where_it_may_not_be_moved_a_child_keeps_its_parent(admin: AdminClient) -> None:
    await admin.add_provider("host-1")
    await admin.add_provider("host-2")
    await admin.add_provider("numa-1", HOST)
    moves = [
        UpdateProvider(id=NUMA, name="numa-1", parent=OTHER_HOST, reparents=False),
        UpdateProvider(id=NUMA, name="numa-1", parent=None, reparents=False),
    ]
    same = UpdateProvider(id=NUMA, name="numa-1", parent=HOST, reparents=False)
    lost = UpdateProvider(id=NUMA, name="numa-1", parent=PCI)

    for move in moves:
        assert isinstance(await admin.write(move), NotAllowed)
    assert isinstance(await admin.write(same), ProviderWritten)
    assert await admin.write(lost) == UnknownProvider(provider=PCI, field="parent")
    assert (await admin.provider(NUMA)).parent == HOST


async def test_of_two_who_would_stand_below_each_other_one_does(admin: AdminClient) -> None:
    other = AdminClient(admin.store)
    for number in range(6):
        one, two = await admin.add_provider(f"a{number}"), await admin.add_provider(f"b{number}")

        verdicts = await asyncio.gather(
            admin.write(UpdateProvider(id=one, name=f"a{number}", parent=two)),
            other.write(UpdateProvider(id=two, name=f"b{number}", parent=one)),
        )

        assert sorted(type(verdict).__name__ for verdict in verdicts) == ["NotAllowed", "ProviderWritten"]
        states = await admin.providers()
        assert states[one].root == states[two].root


async def test_nobody_comes_to_stand_below_who_is_deleted(admin: AdminClient) -> None:
    """One of these comes first: a new child, a child that moves there, or the delete of the parent."""
    other, third = AdminClient(admin.store), AdminClient(admin.store)
    for number in range(6):
        parent, moved = await admin.add_provider(f"a{number}"), await admin.add_provider(f"b{number}")
        child = provider(f"c{number}")

        await asyncio.gather(
            admin.write(DeleteProvider(id=parent)),
            other.write(CreateProvider(id=child, name=f"c{number}", parent=parent)),
            third.write(UpdateProvider(id=moved, name=f"b{number}", parent=parent)),
        )

        states = await admin.providers()
        below = [one for one in (child, moved) if one in states and states[one].parent is not None]
        assert (parent in states) == bool(below)


async def test_a_parent_is_not_deleted_before_its_children(admin: AdminClient) -> None:
    await admin.add_provider("host-1")
    await admin.add_provider("numa-1", HOST)

    assert await admin.write(DeleteProvider(id=HOST)) == HasChildren(provider=HOST, child=NUMA)
    assert await admin.write(DeleteProvider(id=NUMA)) == Done()
    assert await admin.write(DeleteProvider(id=HOST)) == Done()
    assert await admin.write(DeleteProvider(id=HOST)) == UnknownProvider(provider=HOST, field="id")
    assert await admin.providers() == {}


async def test_what_is_held_is_not_deleted(admin: AdminClient) -> None:
    await admin.add_provider("host-1", VCPU=4)
    await admin.write(allocations(holding(WEB, *amounts(HOST, VCPU=3))))

    assert await admin.write(DeleteProvider(id=HOST)) == InventoryInUse(
        provider=HOST, resource="VCPU", used=3
    )


async def test_one_that_comes_again_is_another_one_at_a_shape_that_never_was(admin: AdminClient) -> None:
    await admin.add_provider("host-1", VCPU=4)
    before = await admin.provider(HOST)
    await admin.write(DeleteProvider(id=HOST))

    await admin.add_provider("host-1", VCPU=4)

    after = await admin.provider(HOST)
    assert after.internal > before.internal
    assert after.shape > before.shape
    assert after.generation == before.generation


async def test_all_of_a_batch_is_judged_as_if_it_came_one_by_one(admin: AdminClient) -> None:
    verdicts = await asyncio.gather(
        admin.write(CreateProvider(id=HOST, name="host-1")),
        admin.write(CreateProvider(id=NUMA, name="numa-1", parent=HOST)),
        admin.write(DeleteProvider(id=HOST)),
        admin.write(DeleteProvider(id=NUMA)),
        admin.write(CreateProvider(id=OTHER_HOST, name="numa-1")),
        admin.write(DeleteProvider(id=HOST)),
        admin.write(CreateProvider(id=HOST, name="host-1", parent=OTHER_HOST)),
    )

    assert admin.batcher.batches == 1
    assert [type(verdict).__name__ for verdict in verdicts] == [
        "ProviderWritten",
        "ProviderWritten",
        "HasChildren",
        "Done",
        "ProviderWritten",
        "Done",
        "ProviderWritten",
    ]
    assert {state.root for state in (await admin.providers()).values()} == {OTHER_HOST}


# Inventories


async def test_inventories_are_replaced_whole_and_move_the_generation_each_time(admin: AdminClient) -> None:
    await admin.add_provider("host-1", VCPU=4, DISK_GB=10)
    wanted = SetInventories(provider=HOST, generation=None, inventories=inventories(VCPU=4, MEMORY_MB=8))
    shape = await admin.shape(HOST)

    assert await admin.write(wanted) == ProviderWritten(provider=HOST, name="host-1", generation=2, root=HOST)
    assert (await admin.provider(HOST)).inventories == {
        "VCPU": InventoryState(total=4),
        "MEMORY_MB": InventoryState(total=8),
    }
    assert await admin.shape(HOST) == shape + 1
    await admin.write(wanted)
    assert (await admin.generation(HOST), await admin.shape(HOST)) == (3, shape + 1)


async def test_inventories_are_judged_by_the_generation_that_was_seen(admin: AdminClient) -> None:
    await admin.add_provider("host-1", VCPU=4)
    late = SetInventories(provider=HOST, generation=0, inventories=inventories(VCPU=8))

    assert await admin.write(late) == GenerationMoved(provider=HOST, seen=0, current=1)
    assert await admin.write(SetTraits(provider=HOST, generation=7, traits=())) == GenerationMoved(
        provider=HOST, seen=7, current=1
    )
    stale = PutInventory(provider=HOST, generation=0, resource="VCPU", inventory=FOUR)
    assert await admin.write(stale) == GenerationMoved(provider=HOST, seen=0, current=1)
    unknown = SetInventories(provider=NUMA, generation=0, inventories={})
    assert await admin.write(unknown) == UnknownProvider(provider=NUMA, field="provider")


async def test_an_inventory_that_is_held_stays_though_it_may_shrink(admin: AdminClient) -> None:
    await admin.add_provider("host-1", VCPU=4, DISK_GB=10)
    await admin.write(allocations(holding(WEB, *amounts(HOST, VCPU=3))))
    held = InventoryInUse(provider=HOST, resource="VCPU", used=3)
    gone = SetInventories(provider=HOST, generation=None, inventories=inventories(DISK_GB=1))
    less = SetInventories(provider=HOST, generation=None, inventories=inventories(VCPU=1))

    assert await admin.write(gone) == held
    assert await admin.write(DropInventory(provider=HOST, resource="VCPU")) == held
    assert isinstance(await admin.write(less), ProviderWritten)
    assert (await admin.provider(HOST)).inventories == {"VCPU": InventoryState(total=1, used=3)}


async def test_one_inventory_is_added_changed_and_dropped_by_itself(admin: AdminClient) -> None:
    await admin.add_provider("host-1", VCPU=4)
    disk = PutInventory(provider=HOST, generation=None, resource="DISK_GB", inventory=FOUR, is_new=True)
    more = PutInventory(
        provider=HOST, generation=2, resource="DISK_GB", inventory=ReportedInventory(total=40)
    )

    assert isinstance(await admin.write(disk), ProviderWritten)
    assert await admin.write(disk) == InventoryPresent(provider=HOST, resource="DISK_GB")
    assert isinstance(await admin.write(more), ProviderWritten)
    assert (await admin.provider(HOST)).inventories["DISK_GB"].total == 40
    assert await admin.write(
        PutInventory(provider=HOST, generation=None, resource="VGPU", inventory=FOUR)
    ) == InventoryAbsent(provider=HOST, resource="VGPU")
    drop = DropInventory(provider=HOST, resource="DISK_GB")
    assert await admin.write(drop) == ProviderWritten(provider=HOST, name="host-1", generation=4, root=HOST)
    assert await admin.write(drop) == InventoryAbsent(provider=HOST, resource="DISK_GB")
    assert await admin.write(DropInventory(provider=HOST, resource="CUSTOM_X")) == UnknownClass(
        names=("CUSTOM_X",)
    )


async def test_an_inventory_of_a_class_that_does_not_exist_is_refused(admin: AdminClient) -> None:
    await admin.add_provider("host-1")
    ask = SetInventories(
        provider=HOST, generation=0, inventories=inventories(VCPU=1, CUSTOM_GOLD=1, NOTHING=1)
    )

    assert await admin.write(ask) == UnknownClass(names=("CUSTOM_GOLD", "NOTHING"))
    await admin.write(CreateClass(name="CUSTOM_GOLD"))
    gold = SetInventories(provider=HOST, generation=0, inventories=inventories(CUSTOM_GOLD=1))
    assert isinstance(await admin.write(gold), ProviderWritten)
    assert (await admin.provider(HOST)).inventories == {"CUSTOM_GOLD": InventoryState(total=1)}


async def test_more_reserved_than_there_is_is_nonsense(admin: AdminClient) -> None:
    await admin.add_provider("host-1")
    wanted = {"VCPU": ReportedInventory(total=4, reserved=5)}

    assert await admin.write(SetInventories(provider=HOST, generation=0, inventories=wanted)) == NotAllowed(
        field="inventories.VCPU", reason="reserved is 5, more than the total of 4"
    )


# Traits and aggregates


async def test_traits_move_the_generation_only_if_they_change(admin: AdminClient) -> None:
    await admin.add_provider("host-1")
    shape = await admin.shape(HOST)
    traits = SetTraits(provider=HOST, generation=None, traits=SSD)

    await admin.write(traits)
    assert (await admin.provider(HOST)).traits == SSD
    written = await admin.write(traits)

    assert written == ProviderWritten(provider=HOST, name="host-1", generation=1, root=HOST)
    assert await admin.shape(HOST) == shape + 1
    await admin.write(SetTraits(provider=HOST, generation=1, traits=()))
    assert ((await admin.provider(HOST)).traits, await admin.generation(HOST)) == ((), 2)


async def test_a_trait_that_does_not_exist_is_refused(admin: AdminClient) -> None:
    await admin.add_provider("host-1")
    traits = SetTraits(provider=HOST, generation=0, traits=("CUSTOM_B", *SSD, "CUSTOM_A"))

    assert await admin.write(traits) == UnknownTrait(names=("CUSTOM_A", "CUSTOM_B"))
    for name in ("CUSTOM_A", "CUSTOM_B"):
        await admin.write(CreateTrait(name=name))
    assert isinstance(await admin.write(traits), ProviderWritten)
    assert (await admin.provider(HOST)).traits == ("CUSTOM_A", "CUSTOM_B", *SSD)


async def test_traits_that_were_set_by_name_outlive_reports_and_others_stay_the_reporters(
    admin: AdminClient,
) -> None:
    await admin.write(CreateTrait(name="CUSTOM_GOLD"))
    await admin.report_one(a_report(a_provider("host-1", traits=SSD)))

    await admin.write(SetTraits(provider=HOST, generation=None, traits=(*SSD, "CUSTOM_GOLD")))
    await admin.report_one(a_report(a_provider("host-1", traits=("HW_CPU_X86_VMX",))))
    assert (await admin.provider(HOST)).traits == ("CUSTOM_GOLD", "HW_CPU_X86_VMX")
    await admin.write(SetTraits(provider=HOST, generation=None, traits=()))
    assert (await admin.provider(HOST)).traits == ()


async def test_aggregates_move_the_generation_where_they_are_asked_to(admin: AdminClient) -> None:
    await admin.add_provider("host-1")
    rack = (aggregate("rack"),)

    await admin.write(SetAggregates(provider=HOST, generation=None, aggregates=rack, moves_generation=False))
    assert ((await admin.provider(HOST)).aggregates, await admin.generation(HOST)) == (rack, 0)
    shape = await admin.shape(HOST)
    await admin.write(SetAggregates(provider=HOST, generation=0, aggregates=rack))
    assert (await admin.generation(HOST), await admin.shape(HOST)) == (1, shape)
    assert await admin.write(SetAggregates(provider=HOST, generation=0, aggregates=())) == GenerationMoved(
        provider=HOST, seen=0, current=1
    )


# Together with orders from the bus


async def test_a_claim_that_saw_the_tree_before_it_was_written_is_told_that_it_moved(
    admin: AdminClient,
) -> None:
    await admin.report_one(a_host())
    await admin.write(SetTraits(provider=HOST, generation=None, traits=SSD))

    assert await admin.ask_one(a_claim()) == ShapeMoved(roots=(HOST,))
    assert await admin.ask_one(a_claim(a_share(shapes={HOST: 2}))) == Claimed()


async def test_a_claim_is_told_in_which_tree_its_host_stands_now(admin: AdminClient) -> None:
    await admin.report_one(a_host())
    await admin.report_one(a_host("host-2"))
    await admin.ask_one(a_claim())
    await admin.write(UpdateProvider(id=HOST, name="host-1", parent=OTHER_HOST))

    assert await admin.ask_one(a_claim(who=DB)) == ShapeMoved(roots=(OTHER_HOST,))
    # A repeated claim is answered with the tree of now, too.
    share = a_share(OTHER_HOST, amounts(HOST, VCPU=1), {})
    assert await admin.ask_one(a_claim()) == AlreadyClaimed(attempt=1, share=share)
    await admin.ask_one(a_release())
    assert (await admin.used(HOST))["VCPU"] == 0


async def test_a_reporter_is_told_that_its_root_stands_elsewhere_now(admin: AdminClient) -> None:
    await admin.report_one(a_host())
    await admin.report_one(a_host("host-2"))
    await admin.write(UpdateProvider(id=HOST, name="host-1", parent=OTHER_HOST))

    verdict = await admin.report_one(a_host())

    assert verdict == NotAllowed(field="root", reason=f"provider {HOST} is in the tree of {OTHER_HOST}")


async def test_a_provider_that_was_created_for_a_cell_is_reported_by_it(admin: AdminClient) -> None:
    await admin.add_provider("host-1", cell=CELL)

    assert isinstance(await admin.report_one(a_host()), ReportAccepted)


async def test_the_log_tells_whole_providers_that_were_written_and_those_that_are_gone(
    admin: AdminClient,
) -> None:
    await admin.add_provider("host-1")
    await admin.add_provider("numa-1", HOST)
    before = await admin.store.snapshot_page(0, 10)
    await admin.write(DeleteProvider(id=NUMA))
    await admin.write(UpdateProvider(id=HOST, name="renamed"))

    page = await admin.store.changes_page(before.cursor, 0, 10)

    assert page is not None
    assert [state.name for state in page.providers] == ["renamed"]
    assert [gone.id for gone in page.gone] == [NUMA]
