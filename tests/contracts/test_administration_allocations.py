"""Contract of all stores: administrators' writes of allocations."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bus.messages.administration import (
    ConsumerState,
    DeleteAllocations,
    DeleteProvider,
    Done,
    SetAllocations,
    SetInventories,
)
from tests.contracts.admin_client import AdminClient, allocations, an_admin_client, holding
from tests.contracts.placement_orders import (
    HOST,
    OTHER_HOST,
    WEB,
    amounts,
    consumer,
    inventories,
    provider,
)
from tests.contracts.stores import STORES

pytestmark = pytest.mark.asyncio

NUMA = provider("numa-1")


@pytest_asyncio.fixture(params=STORES)
async def admin(request: pytest.FixtureRequest) -> AsyncIterator[AdminClient]:
    async with an_admin_client(request.param) as one:
        yield one


# Questions


async def test_holders_of_a_provider_are_paged_each_with_all_that_it_holds(admin: AdminClient) -> None:
    await admin.add_provider("host-1", VCPU=40)
    await admin.add_provider("host-2", VCPU=40)
    who = sorted(consumer(f"c{n}") for n in range(5))
    await admin.write(
        allocations(*[holding(one, *amounts(HOST, VCPU=1), *amounts(OTHER_HOST, VCPU=2)) for one in who])
    )
    await admin.write(allocations(holding(WEB, *amounts(OTHER_HOST, VCPU=1))))
    await admin.write(DeleteAllocations(consumer=who.pop()))

    found: list[ConsumerState] = []
    after = None
    while page := await admin.store.holders_of(HOST, after, 3):
        found += page
        after = page[-1].id

    assert [state.id for state in found] == who
    assert {frozenset(state.held) for state in found} == {
        frozenset((*amounts(HOST, VCPU=1), *amounts(OTHER_HOST, VCPU=2)))
    }
    assert await admin.store.holders_of(NUMA, None, 3) == ()


# Together with orders from the bus


async def test_many_at_once_never_take_more_than_there_is(admin: AdminClient) -> None:
    """Several clients at a few providers, with claims and releases between them, and inventories that shrink and grow."""
    hosts = [await admin.add_provider(f"h{n}", VCPU=20) for n in range(3)]
    clerks = [admin, *[AdminClient(admin.store) for _ in range(3)]]

    async def life(number: int) -> list[str]:
        one, who = clerks[number % len(clerks)], consumer(f"c{number}")
        here, there = hosts[number % 3], hosts[(number + 1) % 3]
        wishes: list[SetAllocations | DeleteAllocations] = [
            allocations(holding(who, *amounts(here, VCPU=2))),
            allocations(holding(who, *amounts(here, VCPU=1), *amounts(there, VCPU=1), generation=1)),
            allocations(holding(who, *amounts(there, VCPU=2), judges_generation=False)),
        ]
        if number % 2:
            wishes.append(DeleteAllocations(consumer=who))
        return [type(await one.write(wish)).__name__ for wish in wishes]

    async def shrink(one: AdminClient) -> None:
        for total in (18, 10, 20):
            for host in hosts:
                stock = inventories(VCPU=total)
                await one.write(SetInventories(provider=host, generation=None, inventories=stock))

    outcomes = await asyncio.gather(
        *[life(number) for number in range(60)], *[shrink(each) for each in clerks[:2]]
    )

    verdicts = {verdict for life_of_one in outcomes[:60] for verdict in life_of_one or ()}
    assert verdicts >= {"Done", "DoesNotFit"}
    assert verdicts <= {"Done", "DoesNotFit", "ConsumerMoved", "UnknownConsumer"}
    for host in hosts:
        assert (await admin.used(host))["VCPU"] <= 20


async def test_a_provider_is_either_deleted_or_held(admin: AdminClient) -> None:
    """Either the delete or the claim comes first."""
    other = AdminClient(admin.store)
    for number in range(12):
        host = await admin.add_provider(f"h{number}", VCPU=1)
        who = consumer(f"c{number}")
        deleted, held = await asyncio.gather(
            admin.write(DeleteProvider(id=host)),
            other.write(allocations(holding(who, *amounts(host, VCPU=1)))),
        )
        assert (deleted == Done()) != (held == Done()), (deleted, held)
