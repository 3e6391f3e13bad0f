"""The write batcher: writes that wait together share a transaction, and a failing write harms only itself."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from bus.messages.books import Done, SetAllocations
from kit.errors import Transient
from placement_worker.admin_writes import WriteBatcher
from placement_worker.core.ledger import ClaimChanges
from placement_worker.store_sql import PlacementTransaction
from tests.contracts.admin_client import AdminClient, allocations, holding
from tests.contracts.placement_orders import HOST, NOON, VOCABULARY, WEB, amounts, consumer
from tests.stores_in_memory import MemoryPlacementStore


class Troubled:
    """A store on which something happens before each commit."""

    def __init__(self, admin: AdminClient, happens: Callable[[ClaimChanges], None]) -> None:
        self._store = admin.store
        self._happens = happens
        self.begun = 0

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PlacementTransaction]:
        self.begun += 1
        async with self._store.transaction() as tx:
            write_claims = tx.write_claims

            async def troubled(changes: ClaimChanges) -> None:
                await write_claims(changes)
                self._happens(changes)

            tx.write_claims = troubled
            yield tx


@pytest.fixture
async def admin() -> AdminClient:
    one = AdminClient(MemoryPlacementStore())
    await one.add_provider("host-1", VCPU=1000)
    return one


def one_each(number: int) -> SetAllocations:
    return allocations(holding(consumer(f"c{number}"), *amounts(HOST, VCPU=1)))


def batcher_with(
    admin: AdminClient, happens: Callable[[ClaimChanges], None], tries_max: int = 3
) -> tuple[WriteBatcher, Troubled]:
    way = Troubled(admin, happens)
    return WriteBatcher(way, VOCABULARY, lambda: NOON, tries_max=tries_max), way


async def test_a_write_that_always_fails_harms_only_itself(admin: AdminClient) -> None:
    def refuse(changes: ClaimChanges) -> None:
        if any(row.id == WEB for row in changes.consumers):
            raise ValueError("nobody can write this")

    batcher, _ = batcher_with(admin, refuse)

    poison = allocations(holding(WEB, *amounts(HOST, VCPU=1)))
    asked = [batcher.ask(one_each(1)), batcher.ask(poison), batcher.ask(one_each(2))]
    verdicts = await asyncio.gather(*asked, return_exceptions=True)

    assert [verdicts[0], verdicts[2]] == [Done(), Done()]
    assert isinstance(verdicts[1], ValueError)
    assert await admin.used(HOST) == {"VCPU": 2}
    assert await batcher.ask(one_each(3)) == Done()


async def test_if_the_database_stays_away_all_callers_get_the_error_and_nothing_is_written(
    admin: AdminClient,
) -> None:
    def fail(_: ClaimChanges) -> None:
        raise Transient("no books")

    batcher, way = batcher_with(admin, fail)

    verdicts = await asyncio.gather(
        *[batcher.ask(one_each(number)) for number in range(3)], return_exceptions=True
    )

    assert [type(verdict) for verdict in verdicts] == [Transient] * 3
    assert way.begun == 3
    assert await admin.used(HOST) == {"VCPU": 0}


async def test_a_write_whose_caller_has_given_up_is_not_written(admin: AdminClient) -> None:
    batcher, _ = batcher_with(admin, lambda _: None)

    gone = asyncio.create_task(batcher.ask(one_each(1)))
    stays = asyncio.create_task(batcher.ask(one_each(2)))
    # Both are handed in, and nothing is written yet.
    await asyncio.sleep(0)
    gone.cancel()

    assert await stays == Done()
    assert await admin.store.consumer(consumer("c1")) is None
    assert gone.cancelled()
