"""Contract of all stores: reshapes, which move inventories and allocations together."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bus.messages.administration import (
    ConsumerAllocations,
    ConsumerMoved,
    Done,
    GenerationMoved,
    ProviderInventories,
    Reshape,
    UnknownClass,
    UnknownProvider,
)
from bus.messages.placement import InventoryInUse
from engine.inventories import InventoryState, ProviderId
from engine.refusals import Claimed, DoesNotFit, NotAllowed, Shortfall
from tests.contracts.admin_client import AdminClient, allocations, an_admin_client, holding
from tests.contracts.placement_orders import (
    DB,
    HOST,
    MIGRATION,
    OTHER_HOST,
    WEB,
    a_claim,
    a_share,
    a_swap,
    amounts,
    consumer,
    inventories,
    provider,
)
from tests.contracts.stores import STORES

pytestmark = pytest.mark.asyncio

MOVING = consumer("moving")
LEFT, RIGHT = provider("numa-1"), provider("numa-2")


@pytest_asyncio.fixture(params=STORES)
async def admin(request: pytest.FixtureRequest) -> AsyncIterator[AdminClient]:
    """A host with 8 VCPU of which 5 are held, and two NUMA nodes without inventories."""
    async with an_admin_client(request.param) as one:
        await one.add_provider("host-1", VCPU=8, MEMORY_MB=64)
        await one.add_provider("numa-1", HOST)
        await one.add_provider("numa-2", HOST)
        await one.write(
            allocations(
                holding(WEB, *amounts(HOST, VCPU=3, MEMORY_MB=32)), holding(DB, *amounts(HOST, VCPU=2))
            )
        )
        yield one


def stocks(which: ProviderId, generation: int, **totals: int) -> ProviderInventories:
    return ProviderInventories(provider=which, generation=generation, inventories=inventories(**totals))


def split(*moved: ConsumerAllocations, host_generation: int = 2) -> Reshape:
    return Reshape(
        inventories=(
            stocks(HOST, host_generation, MEMORY_MB=64),
            stocks(LEFT, 0, VCPU=4),
            stocks(RIGHT, 0, VCPU=4),
        ),
        allocations=moved,
    )


WEB_MOVED = holding(
    WEB, *amounts(LEFT, VCPU=2), *amounts(RIGHT, VCPU=1), *amounts(HOST, MEMORY_MB=32), generation=1
)
DB_MOVED = holding(DB, *amounts(RIGHT, VCPU=2), generation=1)


async def test_what_is_held_moves_with_the_inventory(admin: AdminClient) -> None:
    shape = await admin.shape(HOST)

    assert await admin.write(split(WEB_MOVED, DB_MOVED)) == Done()

    states = await admin.providers()
    assert states[HOST].inventories == {"MEMORY_MB": InventoryState(total=64, used=32)}
    assert states[LEFT].inventories == {"VCPU": InventoryState(total=4, used=2)}
    assert states[RIGHT].inventories == {"VCPU": InventoryState(total=4, used=3)}
    assert await admin.shape(HOST) > shape
    # Twice for the inventories, once for the allocations.
    assert (states[HOST].generation, states[LEFT].generation) == (5, 3)
    found = await admin.store.consumer(WEB)
    assert found is not None
    assert (found.generation, set(found.held)) == (2, set(WEB_MOVED.amounts))


async def test_afterwards_it_is_claimed_and_freed_as_ever(admin: AdminClient) -> None:
    await admin.write(split(WEB_MOVED, DB_MOVED))

    assert isinstance(
        await admin.write(allocations(holding(DB, *amounts(RIGHT, VCPU=4), generation=2))), DoesNotFit
    )
    assert await admin.write(allocations(holding(WEB, *amounts(LEFT, VCPU=4), generation=2))) == Done()
    assert (await admin.used(LEFT), await admin.used(RIGHT)) == ({"VCPU": 4}, {"VCPU": 2})
    assert await admin.used(HOST) == {"MEMORY_MB": 0}


async def test_a_move_comes_back_to_where_its_inventory_is_now(admin: AdminClient) -> None:
    await admin.add_provider("host-2", VCPU=4)
    here = a_share(HOST, amounts(HOST, VCPU=3), {HOST: await admin.shape(HOST)})
    there = a_share(OTHER_HOST, amounts(OTHER_HOST, VCPU=3), {OTHER_HOST: await admin.shape(OTHER_HOST)})
    await admin.ask(a_claim(here, MOVING), a_swap(there, MOVING, migration=MIGRATION))
    moved = (*amounts(LEFT, VCPU=2), *amounts(RIGHT, VCPU=1))
    rest = holding(MIGRATION, *moved, generation=1, type="MIGRATION")
    assert (
        await admin.write(split(WEB_MOVED, DB_MOVED, rest, host_generation=await admin.generation(HOST)))
        == Done()
    )

    assert await admin.ask_one(a_swap(here, MOVING, held=2, attempt=3, returns=MIGRATION)) == Claimed()

    assert (await admin.held(MOVING), await admin.held(MIGRATION)) == (frozenset(moved), frozenset())
    assert (await admin.used(LEFT), await admin.used(RIGHT)) == ({"VCPU": 4}, {"VCPU": 4})
    assert await admin.used(OTHER_HOST) == {"VCPU": 0}
    # An audit sees by this that a reshape has moved what it holds.
    assert (await admin.row(MOVING)).generation > 3


async def test_who_is_not_moved_keeps_the_inventory_where_it_is(admin: AdminClient) -> None:
    before = await admin.providers()

    assert await admin.write(split(WEB_MOVED)) == InventoryInUse(provider=HOST, resource="VCPU", used=2)

    assert await admin.providers() == before
    found = await admin.store.consumer(WEB)
    assert found is not None
    assert found.generation == 1


async def test_what_does_not_fit_the_new_inventories_is_refused(admin: AdminClient) -> None:
    before = await admin.providers()
    crowded = holding(DB, *amounts(LEFT, VCPU=3), generation=1)

    assert await admin.write(split(WEB_MOVED, crowded)) == DoesNotFit(
        shortfalls=(Shortfall(provider=LEFT, resource="VCPU", asked=5, free=4),)
    )
    assert await admin.providers() == before


async def test_generations_of_providers_and_consumers_are_judged(admin: AdminClient) -> None:
    stale = holding(DB, *amounts(RIGHT, VCPU=2), generation=7)

    assert await admin.write(split(WEB_MOVED, DB_MOVED, host_generation=1)) == GenerationMoved(
        provider=HOST, seen=1, current=2
    )
    assert await admin.write(split(WEB_MOVED, stale)) == ConsumerMoved(consumer=DB, seen=7, current=1)


async def test_what_it_names_must_exist(admin: AdminClient) -> None:
    nowhere = Reshape(inventories=(stocks(OTHER_HOST, 0),))
    nothing = Reshape(inventories=(stocks(LEFT, 0, CUSTOM_NO=1),))
    for_nobody = Reshape(
        inventories=(), allocations=(holding(WEB, *amounts(OTHER_HOST, VCPU=1), generation=1),)
    )
    twice = Reshape(inventories=(stocks(LEFT, 0), stocks(LEFT, 0)))

    assert await admin.write(nowhere) == UnknownProvider(provider=OTHER_HOST, field="inventories")
    assert await admin.write(nothing) == UnknownClass(names=("CUSTOM_NO",))
    assert await admin.write(for_nobody) == UnknownProvider(provider=OTHER_HOST, field="allocations")
    assert await admin.write(twice) == NotAllowed(
        field="inventories[1].provider", reason=f"provider {LEFT} is named twice"
    )


async def test_inventories_alone_are_replaced_as_ever(admin: AdminClient) -> None:
    assert await admin.write(Reshape(inventories=(stocks(LEFT, 0), stocks(RIGHT, 0, VCPU=1)))) == Done()
    assert (await admin.generation(LEFT), await admin.generation(RIGHT)) == (1, 2)


async def test_what_is_held_elsewhere_moves_with_it(admin: AdminClient) -> None:
    """Also of providers whose inventories stay, and of trees that the reshape does not name otherwise."""
    await admin.add_provider("host-2", MEMORY_MB=64)
    moved = holding(WEB, *amounts(LEFT, VCPU=3), *amounts(OTHER_HOST, MEMORY_MB=32), generation=1)

    assert await admin.write(split(moved, DB_MOVED)) == Done()

    assert (await admin.used(HOST), await admin.used(OTHER_HOST)) == ({"MEMORY_MB": 0}, {"MEMORY_MB": 32})


async def test_a_reshape_leaves_no_new_consumer_where_it_is_refused(admin: AdminClient) -> None:
    new = holding(consumer("new"), *amounts(LEFT, VCPU=9))

    assert isinstance(await admin.write(split(WEB_MOVED, DB_MOVED, new)), DoesNotFit)
