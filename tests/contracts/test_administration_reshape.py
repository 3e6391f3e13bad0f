"""Contract of all stores: reshapes, which move inventories and allocations together."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bus.messages.administration import (
    ConsumerAllocations,
    Done,
    ProviderInventories,
    Reshape,
)
from engine.inventories import InventoryState, ProviderId
from tests.contracts.admin_client import AdminClient, allocations, an_admin_client, holding
from tests.contracts.placement_orders import (
    DB,
    HOST,
    WEB,
    amounts,
    inventories,
    provider,
)
from tests.contracts.stores import STORES

pytestmark = pytest.mark.asyncio

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
