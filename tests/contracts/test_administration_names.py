"""Contract of all stores: names of custom classes and traits."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bus.messages.administration import (
    AlreadyThere,
    CreateClass,
    CreateTrait,
    DeleteClass,
    DeleteTrait,
    Done,
    SetInventories,
    SetTraits,
    UnknownClass,
    UnknownTrait,
)
from tests.contracts.admin_client import AdminClient, an_admin_client
from tests.contracts.placement_orders import HOST, a_provider, a_report, inventories
from tests.contracts.stores import STORES

pytestmark = pytest.mark.asyncio

GOLD = "CUSTOM_GOLD"


@pytest_asyncio.fixture(params=STORES)
async def admin(request: pytest.FixtureRequest) -> AsyncIterator[AdminClient]:
    async with an_admin_client(request.param) as one:
        yield one


async def classes(admin: AdminClient) -> tuple[str, ...]:
    return await admin.store.custom_names("classes", "", 100)


async def traits(admin: AdminClient) -> tuple[str, ...]:
    return await admin.store.custom_names("traits", "", 100)


async def test_a_name_that_went_is_unknown_until_somebody_brings_it_along_again(admin: AdminClient) -> None:
    """Reports create the names they use; administrators' writes need existing ones."""
    await admin.report_one(a_report(a_provider("host-1", holds=inventories(CUSTOM_GOLD=1), traits=(GOLD,))))
    await admin.report_one(a_report(a_provider("host-1", holds={}, traits=())))
    await admin.write(DeleteClass(name=GOLD))
    await admin.write(DeleteTrait(name=GOLD))

    assert await admin.write(
        SetInventories(provider=HOST, generation=None, inventories=inventories(CUSTOM_GOLD=1))
    ) == UnknownClass(names=(GOLD,))
    assert await admin.write(SetTraits(provider=HOST, generation=None, traits=(GOLD,))) == UnknownTrait(
        names=(GOLD,)
    )
    await admin.report_one(a_report(a_provider("host-1", holds=inventories(CUSTOM_GOLD=2), traits=(GOLD,))))
    state = await admin.provider(HOST)
    assert (state.inventories[GOLD].total, state.traits) == (2, (GOLD,))
    assert (await classes(admin), await traits(admin)) == ((GOLD,), (GOLD,))


async def test_names_are_paged_in_the_order_of_the_alphabet(admin: AdminClient) -> None:
    for name in ("CUSTOM_B", "CUSTOM_A_", "CUSTOM_A", "CUSTOM_A1"):
        await admin.write(CreateTrait(name=name))

    first = await admin.store.custom_names("traits", "", 3)

    assert first == ("CUSTOM_A", "CUSTOM_A1", "CUSTOM_A_")
    assert await admin.store.custom_names("traits", first[-1], 3) == ("CUSTOM_B",)


async def test_of_many_who_make_a_name_at_once_one_does(admin: AdminClient) -> None:
    others = AdminClient(admin.store)

    verdicts = await asyncio.gather(
        *[one.write(CreateTrait(name=GOLD)) for _ in range(5) for one in (admin, others)]
    )

    assert verdicts.count(Done()) == 1
    assert verdicts.count(AlreadyThere(name=GOLD)) == 9


async def test_a_name_is_either_deleted_or_used(admin: AdminClient) -> None:
    """Either the delete or the use comes first."""
    other = AdminClient(admin.store)
    for number in range(8):
        host = await admin.add_provider(f"h{number}")
        name = f"CUSTOM_{number}"
        await admin.write(CreateTrait(name=name))
        await admin.write(CreateClass(name=name))
        no_trait, has_trait, no_class, has_class = await asyncio.gather(
            admin.write(DeleteTrait(name=name)),
            other.write(SetTraits(provider=host, generation=None, traits=(name,))),
            admin.write(DeleteClass(name=name)),
            other.write(SetInventories(provider=host, generation=None, inventories=inventories(**{name: 1}))),
        )
        state = await admin.provider(host)
        assert (no_trait == Done()) == (state.traits == ()), (no_trait, has_trait)
        assert (no_class == Done()) == (state.inventories == {}), (no_class, has_class)
