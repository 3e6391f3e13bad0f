"""Contract of all stores: what an administrator writes of a reported provider stays, whatever is reported afterwards."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bus.message import ProviderId
from bus.messages.administration import (
    DeleteProvider,
    Done,
    DropInventory,
    ProviderInventories,
    ProviderWritten,
    PutInventory,
    Reshape,
    SetInventories,
)
from bus.messages.placement import (
    InventoryInUse,
    KeptInventory,
    NotAllowed,
    ReportAccepted,
    ReportedInventory,
    ReportedProvider,
    ReportInventory,
    ReportVerdict,
)
from tests.contracts.admin_client import AdminClient, allocations, an_admin_client, holding
from tests.contracts.placement_orders import CELL, HOST, WEB, amounts, inventories, provider
from tests.contracts.stores import STORES

pytestmark = pytest.mark.asyncio

CHILD, NUMA = provider("child"), provider("numa-1")
ALL = ReportedInventory(total=128)


@pytest_asyncio.fixture(params=STORES)
async def admin(request: pytest.FixtureRequest) -> AsyncIterator[AdminClient]:
    """A reported host with 128 VCPU, of which 2 are held, and an empty child that was created by name."""
    async with an_admin_client(request.param) as one:
        await report(one)
        await one.add_provider("child", HOST)
        await one.write(allocations(holding(WEB, *amounts(HOST, VCPU=2))))
        yield one


async def report(admin: AdminClient, *others: ReportedProvider, **totals: int) -> ReportVerdict:
    """What the host's compute reports after each start: the whole tree as its driver knows it."""
    return await admin.report_one(
        ReportInventory(
            cell=CELL,
            root=HOST,
            providers=(
                ReportedProvider(
                    id=HOST,
                    name="host-1",
                    inventories=inventories(**(totals or {"VCPU": 128, "MEMORY_MB": 512})),
                ),
                *others,
            ),
        )
    )


async def totals(admin: AdminClient) -> dict[str, dict[str, int]]:
    return {
        state.name: {name: stock.total for name, stock in sorted(state.inventories.items())}
        for state in (await admin.providers()).values()
    }


async def move_to_child(admin: AdminClient) -> None:
    """Move VCPU from the host to its child, with what is held of it."""
    states = await admin.providers()
    reshape = Reshape(
        inventories=(
            ProviderInventories(
                provider=HOST, generation=states[HOST].generation, inventories=inventories(MEMORY_MB=512)
            ),
            ProviderInventories(
                provider=CHILD, generation=states[CHILD].generation, inventories=inventories(VCPU=128)
            ),
        ),
        allocations=(holding(WEB, *amounts(CHILD, VCPU=2), generation=1),),
    )
    assert await admin.write(reshape) == Done()


async def test_a_reshape_is_not_undone_by_the_next_report_which_names_what_it_left(
    admin: AdminClient,
) -> None:
    await move_to_child(admin)
    reshaped = await admin.providers()

    verdict = await report(admin)

    assert isinstance(verdict, ReportAccepted)
    assert verdict.kept == (KeptInventory(provider=HOST, resource="VCPU", reported=ALL, kept=None),)
    assert not verdict.shape_moved
    states = await admin.providers()
    assert states[HOST].inventories == reshaped[HOST].inventories
    assert states[HOST].reported == {"VCPU": ALL}
    assert states[CHILD].inventories["VCPU"].total == 128
    assert states[CHILD].reported is None
    assert await admin.store.audit() == ()


async def test_other_classes_of_a_reshaped_provider_are_still_reported(admin: AdminClient) -> None:
    await move_to_child(admin)

    await report(admin, VCPU=64, MEMORY_MB=1024, DISK_GB=10)

    assert await totals(admin) == {"host-1": {"MEMORY_MB": 1024, "DISK_GB": 10}, "child": {"VCPU": 128}}
    assert (await admin.provider(HOST)).reported == {"VCPU": ReportedInventory(total=64)}


async def test_a_class_that_was_moved_by_name_is_added_to_no_further_provider_of_the_tree(
    admin: AdminClient,
) -> None:
    await move_to_child(admin)
    numa = ReportedProvider(id=NUMA, name="numa-1", parent=HOST, inventories=inventories(VCPU=128, VGPU=1))

    verdict = await report(admin, numa, MEMORY_MB=512)

    # The reporter no longer has VCPU on the host: there both agree. On the NUMA node it would be there twice.
    assert isinstance(verdict, ReportAccepted)
    assert verdict.kept == (KeptInventory(provider=NUMA, resource="VCPU", reported=ALL, kept=None),)
    assert await totals(admin) == {
        "host-1": {"MEMORY_MB": 512},
        "child": {"VCPU": 128},
        "numa-1": {"VGPU": 1},
    }


async def test_a_class_moved_up_from_deleted_children_does_not_come_back_with_them(
    admin: AdminClient,
) -> None:
    numa = ReportedProvider(id=NUMA, name="numa-1", parent=HOST, inventories=inventories(VGPU=4))
    await report(admin, numa)
    await admin.write(
        SetInventories(
            provider=HOST, generation=None, inventories=inventories(VCPU=128, MEMORY_MB=512, VGPU=4)
        )
    )
    await admin.write(DeleteProvider(id=NUMA))

    await report(admin, numa)

    assert await totals(admin) == {
        "host-1": {"MEMORY_MB": 512, "VCPU": 128, "VGPU": 4},
        "child": {},
        "numa-1": {},
    }


async def test_only_what_a_write_by_name_changed_is_kept(admin: AdminClient) -> None:
    lower = ReportedInventory(total=128, reserved=8, allocation_ratio=2.0)
    await admin.write(PutInventory(provider=HOST, generation=None, resource="VCPU", inventory=lower))

    verdict = await report(admin, VCPU=256, MEMORY_MB=1024)

    assert isinstance(verdict, ReportAccepted)
    assert verdict.kept == (
        KeptInventory(provider=HOST, resource="VCPU", reported=ReportedInventory(total=256), kept=lower),
    )
    assert await totals(admin) == {"host-1": {"MEMORY_MB": 1024, "VCPU": 128}, "child": {}}


async def test_a_class_is_the_reporters_again_once_both_say_the_same(admin: AdminClient) -> None:
    await admin.write(DropInventory(provider=HOST, resource="MEMORY_MB"))
    assert (await admin.provider(HOST)).reported == {"MEMORY_MB": ReportedInventory(total=512)}

    await report(admin, VCPU=128)
    assert (await admin.provider(HOST)).reported == {}
    await report(admin, VCPU=128, MEMORY_MB=256)

    assert await totals(admin) == {"host-1": {"MEMORY_MB": 256, "VCPU": 128}, "child": {}}


async def test_a_write_of_what_is_reported_gives_the_class_back(admin: AdminClient) -> None:
    for total in (64, 128):
        await admin.write(
            PutInventory(
                provider=HOST, generation=None, resource="VCPU", inventory=ReportedInventory(total=total)
            )
        )

    await report(admin, VCPU=256, MEMORY_MB=512)

    assert (await totals(admin))["host-1"]["VCPU"] == 256


async def test_an_operator_gives_a_provider_back_to_its_reporter(admin: AdminClient) -> None:
    extra = inventories(VCPU=64, MEMORY_MB=512, DISK_GB=5)
    await admin.write(SetInventories(provider=HOST, generation=None, inventories=extra))
    await report(admin, VCPU=120, MEMORY_MB=512)
    assert await totals(admin) == {"host-1": {"DISK_GB": 5, "MEMORY_MB": 512, "VCPU": 64}, "child": {}}

    back = await admin.write(SetInventories(provider=HOST, generation=None, as_reported=True))

    assert isinstance(back, ProviderWritten)
    assert await totals(admin) == {"host-1": {"MEMORY_MB": 512, "VCPU": 120}, "child": {}}
    assert (await admin.provider(HOST)).reported == {}


@pytest.mark.parametrize(
    ("which", "field"), [(HOST, "as_reported"), (CHILD, "as_reported")], ids=["twice", "never reported"]
)
async def test_nothing_is_given_back_that_would_be_there_twice_or_was_never_reported(
    admin: AdminClient, which: ProviderId, field: str
) -> None:
    await move_to_child(admin)
    before = await admin.providers()

    refused = await admin.write(SetInventories(provider=which, generation=None, as_reported=True))

    assert isinstance(refused, NotAllowed)
    assert refused.field == field
    assert str(which) in refused.reason or "VCPU" in refused.reason
    assert await admin.providers() == before


async def test_an_inventory_in_use_is_not_given_back(admin: AdminClient) -> None:
    with_disk = inventories(VCPU=128, MEMORY_MB=512, DISK_GB=5)
    await admin.write(SetInventories(provider=HOST, generation=None, inventories=with_disk))
    await admin.write(allocations(holding(WEB, *amounts(HOST, VCPU=2, DISK_GB=3), generation=1)))

    refused = await admin.write(SetInventories(provider=HOST, generation=None, as_reported=True))

    assert refused == InventoryInUse(provider=HOST, resource="DISK_GB", used=3)


@pytest.mark.parametrize("both", [True, False])
async def test_a_write_needs_inventories_or_as_reported(admin: AdminClient, both: bool) -> None:  # noqa: FBT001
    before = await admin.providers()

    refused = await admin.write(
        SetInventories(
            provider=HOST, generation=None, inventories=inventories() if both else None, as_reported=both
        )
    )

    assert isinstance(refused, NotAllowed)
    assert refused.field == "inventories"
    assert await admin.providers() == before


async def test_what_was_written_of_a_host_before_its_first_report_stays(admin: AdminClient) -> None:
    new = provider("new")
    await admin.add_provider("new", cell=CELL, VCPU=16)

    verdict = await admin.report_one(
        ReportInventory(
            cell=CELL,
            root=new,
            providers=(ReportedProvider(id=new, name="new", inventories=inventories(VCPU=32, DISK_GB=4)),),
        )
    )

    assert isinstance(verdict, ReportAccepted)
    assert [(one.resource, one.reported) for one in verdict.kept] == [("VCPU", ReportedInventory(total=32))]
    assert (await totals(admin))["new"] == {"VCPU": 16, "DISK_GB": 4}


async def test_a_reporter_that_takes_a_tree_over_takes_what_was_written_of_it(admin: AdminClient) -> None:
    node = provider("node")
    await admin.add_provider("node", cell=CELL, VGPU=2)

    await admin.report_one(
        ReportInventory(
            cell=CELL,
            root=node,
            providers=(ReportedProvider(id=node, name="node", inventories=inventories(VGPU=1)),),
            epoch=1,
            sequence=1,
            foreign="take",
        )
    )

    assert (await totals(admin))["node"] == {"VGPU": 1}
    assert (await admin.provider(node)).reported == {}
