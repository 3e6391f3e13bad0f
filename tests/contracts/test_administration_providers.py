"""Contract of all stores: administrators' writes of providers."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bus.messages.administration import (
    CreateProvider,
    CreateTrait,
    DeleteProvider,
    IdTaken,
    NameTaken,
    SetTraits,
    UpdateProvider,
)
from tests.contracts.admin_client import AdminClient, an_admin_client
from tests.contracts.placement_orders import (
    HOST,
    OTHER_HOST,
    a_provider,
    a_report,
    provider,
)
from tests.contracts.stores import STORES

pytestmark = pytest.mark.asyncio

NUMA = provider("numa-1")
SSD = ("STORAGE_DISK_SSD",)


@pytest_asyncio.fixture(params=STORES)
async def admin(request: pytest.FixtureRequest) -> AsyncIterator[AdminClient]:
    async with an_admin_client(request.param) as one:
        yield one


# Providers


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


# Inventories


# Traits and aggregates


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


# Together with orders from the bus


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
