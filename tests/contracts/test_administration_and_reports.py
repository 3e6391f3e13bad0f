"""Contract of all stores: a reporter owns the inventories of its providers, whatever an administrator has written of them."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bus.messages.administration import (
    SetInventories,
)
from bus.messages.placement import InventoryInUse, ReportAccepted, ReportInventory, ReportVerdict
from engine.inventories import ReportedProvider
from tests.contracts.admin_client import AdminClient, allocations, an_admin_client, holding
from tests.contracts.placement_orders import CELL, HOST, WEB, amounts, inventories, provider
from tests.contracts.stores import STORES

pytestmark = pytest.mark.asyncio

CHILD = provider("child")


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


async def test_a_report_replaces_what_was_written_of_its_providers_by_name(admin: AdminClient) -> None:
    extra = inventories(VCPU=64, DISK_GB=5)
    await admin.write(SetInventories(provider=CHILD, generation=None, inventories=inventories(VGPU=1)))
    await admin.write(SetInventories(provider=HOST, generation=None, inventories=extra))
    assert await totals(admin) == {"host-1": {"DISK_GB": 5, "VCPU": 64}, "child": {"VGPU": 1}}

    verdict = await report(admin)

    assert isinstance(verdict, ReportAccepted)
    assert verdict.shape_moved
    # The child is not the reporter's.
    assert await totals(admin) == {"host-1": {"MEMORY_MB": 512, "VCPU": 128}, "child": {"VGPU": 1}}
    states = await admin.providers()
    assert (states[HOST].made_by_name, states[CHILD].made_by_name) == (False, True)
    assert await admin.store.audit() == ()


async def test_a_report_does_not_take_away_what_was_written_by_name_and_is_in_use(admin: AdminClient) -> None:
    with_disk = inventories(VCPU=128, MEMORY_MB=512, DISK_GB=5)
    await admin.write(SetInventories(provider=HOST, generation=None, inventories=with_disk))
    await admin.write(allocations(holding(WEB, *amounts(HOST, VCPU=2, DISK_GB=3), generation=1)))

    assert await report(admin) == InventoryInUse(provider=HOST, resource="DISK_GB", used=3)


async def test_a_host_that_was_written_before_its_first_report_is_its_reporters_then(
    admin: AdminClient,
) -> None:
    new = provider("new")
    await admin.add_provider("new", cell=CELL, VCPU=16)
    assert (await admin.provider(new)).made_by_name

    await admin.report_one(
        ReportInventory(
            cell=CELL,
            root=new,
            providers=(ReportedProvider(id=new, name="new", inventories=inventories(VCPU=32, DISK_GB=4)),),
        )
    )

    assert (await totals(admin))["new"] == {"VCPU": 32, "DISK_GB": 4}
    assert not (await admin.provider(new)).made_by_name


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
    assert not (await admin.provider(node)).made_by_name
