"""What every store does with the names of custom classes and traits."""

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
    NameInUse,
    RenameClass,
    SetInventories,
    SetTraits,
    UnknownClass,
    UnknownTrait,
)
from bus.messages.placement import NotAllowed
from tests.contracts.clerk import Clerk, a_clerk
from tests.contracts.placement_orders import HOST, a_provider, a_report, inventories
from tests.contracts.stores import STORES

pytestmark = pytest.mark.asyncio

GOLD = "CUSTOM_GOLD"


@pytest_asyncio.fixture(params=STORES)
async def clerk(request: pytest.FixtureRequest) -> AsyncIterator[Clerk]:
    async with a_clerk(request.param) as one:
        yield one


async def classes(clerk: Clerk) -> tuple[str, ...]:
    return await clerk.store.custom_names("classes", "", 100)


async def traits(clerk: Clerk) -> tuple[str, ...]:
    return await clerk.store.custom_names("traits", "", 100)


async def test_a_name_is_made_once(clerk: Clerk) -> None:
    assert await clerk.write(CreateClass(name=GOLD)) == Done()
    assert await clerk.write(CreateClass(name=GOLD)) == AlreadyThere(name=GOLD)
    assert await clerk.write(CreateTrait(name=GOLD)) == Done()
    assert await clerk.write(CreateTrait(name=GOLD)) == AlreadyThere(name=GOLD)
    assert (await classes(clerk), await traits(clerk)) == ((GOLD,), (GOLD,))


async def test_a_name_goes_and_comes_back(clerk: Clerk) -> None:
    await clerk.write(CreateClass(name=GOLD))
    await clerk.write(CreateTrait(name=GOLD))

    assert await clerk.write(DeleteClass(name=GOLD)) == Done()
    assert await clerk.write(DeleteTrait(name=GOLD)) == Done()
    assert await clerk.write(DeleteClass(name=GOLD)) == UnknownClass(names=(GOLD,))
    assert await clerk.write(DeleteTrait(name=GOLD)) == UnknownTrait(names=(GOLD,))
    assert (await classes(clerk), await traits(clerk)) == ((), ())
    assert await clerk.write(CreateClass(name=GOLD)) == Done()
    assert await clerk.write(CreateTrait(name=GOLD)) == Done()
    await clerk.plant("host-1", CUSTOM_GOLD=4)
    await clerk.write(SetTraits(provider=HOST, generation=None, traits=(GOLD,)))
    assert (await clerk.provider(HOST)).traits == (GOLD,)


async def test_a_name_that_went_is_unknown_until_somebody_brings_it_along_again(clerk: Clerk) -> None:
    """Reports bring names along; who writes by name must know them."""
    await clerk.report_one(a_report(a_provider("host-1", holds=inventories(CUSTOM_GOLD=1), traits=(GOLD,))))
    await clerk.report_one(a_report(a_provider("host-1", holds={}, traits=())))
    await clerk.write(DeleteClass(name=GOLD))
    await clerk.write(DeleteTrait(name=GOLD))

    assert await clerk.write(
        SetInventories(provider=HOST, generation=None, inventories=inventories(CUSTOM_GOLD=1))
    ) == UnknownClass(names=(GOLD,))
    assert await clerk.write(SetTraits(provider=HOST, generation=None, traits=(GOLD,))) == UnknownTrait(
        names=(GOLD,)
    )
    await clerk.report_one(a_report(a_provider("host-1", holds=inventories(CUSTOM_GOLD=2), traits=(GOLD,))))
    state = await clerk.provider(HOST)
    assert (state.inventories[GOLD].total, state.traits) == (2, (GOLD,))
    assert (await classes(clerk), await traits(clerk)) == ((GOLD,), (GOLD,))


async def test_a_name_that_is_in_use_stays(clerk: Clerk) -> None:
    await clerk.write(CreateClass(name=GOLD))
    await clerk.write(CreateTrait(name=GOLD))
    await clerk.plant("host-1", CUSTOM_GOLD=4)
    await clerk.write(SetTraits(provider=HOST, generation=None, traits=(GOLD,)))
    in_use = NameInUse(name=GOLD, provider=HOST)

    assert await clerk.write(DeleteClass(name=GOLD)) == in_use
    assert await clerk.write(DeleteTrait(name=GOLD)) == in_use
    assert await clerk.write(RenameClass(name=GOLD, to="CUSTOM_IRON")) == in_use
    await clerk.write(SetInventories(provider=HOST, generation=None, inventories={}))
    await clerk.write(SetTraits(provider=HOST, generation=None, traits=()))
    assert await clerk.write(DeleteClass(name=GOLD)) == Done()
    assert await clerk.write(DeleteTrait(name=GOLD)) == Done()


async def test_a_standard_name_stays(clerk: Clerk) -> None:
    stays = NotAllowed(field="name", reason="'VCPU' is a standard name, which stays")

    assert await clerk.write(DeleteClass(name="VCPU")) == stays
    assert await clerk.write(RenameClass(name="VCPU", to=GOLD)) == stays
    assert isinstance(await clerk.write(DeleteTrait(name="STORAGE_DISK_SSD")), NotAllowed)


async def test_a_class_that_nobody_has_takes_another_name(clerk: Clerk) -> None:
    await clerk.write(CreateClass(name=GOLD))
    await clerk.write(CreateClass(name="CUSTOM_TIN"))

    assert await clerk.write(RenameClass(name=GOLD, to="CUSTOM_TIN")) == AlreadyThere(name="CUSTOM_TIN")
    assert await clerk.write(RenameClass(name=GOLD, to=GOLD)) == Done()
    assert await clerk.write(RenameClass(name=GOLD, to="CUSTOM_IRON")) == Done()
    assert await clerk.write(RenameClass(name=GOLD, to="CUSTOM_LEAD")) == UnknownClass(names=(GOLD,))
    assert await classes(clerk) == ("CUSTOM_IRON", "CUSTOM_TIN")


async def test_names_are_paged_in_the_order_of_the_alphabet(clerk: Clerk) -> None:
    for name in ("CUSTOM_B", "CUSTOM_A_", "CUSTOM_A", "CUSTOM_A1"):
        await clerk.write(CreateTrait(name=name))

    first = await clerk.store.custom_names("traits", "", 3)

    assert first == ("CUSTOM_A", "CUSTOM_A1", "CUSTOM_A_")
    assert await clerk.store.custom_names("traits", first[-1], 3) == ("CUSTOM_B",)


async def test_of_many_who_make_a_name_at_once_one_does(clerk: Clerk) -> None:
    others = Clerk(clerk.store)

    verdicts = await asyncio.gather(
        *[one.write(CreateTrait(name=GOLD)) for _ in range(5) for one in (clerk, others)]
    )

    assert verdicts.count(Done()) == 1
    assert verdicts.count(AlreadyThere(name=GOLD)) == 9


async def test_a_name_is_either_deleted_or_used(clerk: Clerk) -> None:
    """Whoever comes first."""
    other = Clerk(clerk.store)
    for number in range(8):
        host = await clerk.plant(f"h{number}")
        name = f"CUSTOM_{number}"
        await clerk.write(CreateTrait(name=name))
        await clerk.write(CreateClass(name=name))
        no_trait, has_trait, no_class, has_class = await asyncio.gather(
            clerk.write(DeleteTrait(name=name)),
            other.write(SetTraits(provider=host, generation=None, traits=(name,))),
            clerk.write(DeleteClass(name=name)),
            other.write(SetInventories(provider=host, generation=None, inventories=inventories(**{name: 1}))),
        )
        state = await clerk.provider(host)
        assert (no_trait == Done()) == (state.traits == ()), (no_trait, has_trait)
        assert (no_class == Done()) == (state.inventories == {}), (no_class, has_class)
