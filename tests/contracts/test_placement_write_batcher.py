"""The write batcher: writes that wait together share a transaction, and a failing write harms only itself."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from bus.messages.administration import CreateProvider, CreateTrait, Done, ProviderWritten, SetAllocations
from engine.inventories import ConsumerId
from kit.errors import Transient
from placement_worker.admin_writes import BATCH_MAX, WriteBatcher
from placement_worker.core.ledger import ClaimChanges
from placement_worker.store import PlacementTransaction
from tests.contracts.admin_client import AdminClient, allocations, an_admin_client, holding
from tests.contracts.placement_orders import HOST, NOON, VOCABULARY, WEB, amounts, consumer

pytestmark = pytest.mark.asyncio


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

            tx.write_claims = troubled  # type: ignore[method-assign]
            yield tx


@pytest_asyncio.fixture
async def admin() -> AsyncIterator[AdminClient]:
    async with an_admin_client("memory") as one:
        await one.add_provider("host-1", VCPU=1000)
        yield one


def one_each(number: int) -> SetAllocations:
    return allocations(holding(consumer(f"c{number}"), *amounts(HOST, VCPU=1)))


def batcher_with(
    admin: AdminClient, happens: Callable[[ClaimChanges], None], tries_max: int = 3
) -> tuple[WriteBatcher, Troubled]:
    way = Troubled(admin, happens)
    return WriteBatcher(way, VOCABULARY, lambda: NOON, tries_max=tries_max), way


async def test_writes_that_arrive_together_are_written_together(admin: AdminClient) -> None:
    batcher, way = batcher_with(admin, lambda _: None)

    verdicts = await asyncio.gather(*[batcher.ask(one_each(number)) for number in range(BATCH_MAX + 1)])

    assert verdicts == [Done()] * (BATCH_MAX + 1)
    assert (batcher.batches, way.begun) == (2, 2)


async def test_writes_that_arrive_during_a_batch_form_the_next_one(admin: AdminClient) -> None:
    later: list[asyncio.Task[object]] = []

    def come(_: ClaimChanges) -> None:
        if not later:
            later.extend(asyncio.ensure_future(batcher.ask(one_each(number))) for number in range(1, 6))

    batcher, way = batcher_with(admin, come)

    assert await batcher.ask(one_each(0)) == Done()
    assert await asyncio.gather(*later) == [Done()] * 5
    assert way.begun == 2


async def test_each_kind_has_its_own_batches(admin: AdminClient) -> None:
    batcher, way = batcher_with(admin, lambda _: None)

    verdicts = await asyncio.gather(
        batcher.ask(one_each(1)),
        batcher.ask(CreateTrait(name="CUSTOM_A")),
        batcher.ask(CreateProvider(id=consumer("x"), name="x")),  # type: ignore[arg-type]
        batcher.ask(one_each(2)),
    )

    assert [type(verdict) for verdict in verdicts] == [Done, Done, ProviderWritten, Done]
    assert way.begun == 3


async def test_a_write_that_always_fails_harms_only_itself(admin: AdminClient) -> None:
    def refuse(changes: ClaimChanges) -> None:
        if names(changes) & {WEB}:
            raise ValueError("nobody can write this")

    batcher, _ = batcher_with(admin, refuse)

    poison = allocations(holding(WEB, *amounts(HOST, VCPU=1)))
    asked = [batcher.ask(one_each(1)), batcher.ask(poison), batcher.ask(one_each(2))]
    verdicts = await asyncio.gather(*asked, return_exceptions=True)

    assert [verdicts[0], verdicts[2]] == [Done(), Done()]
    assert isinstance(verdicts[1], ValueError)
    assert await admin.used(HOST) == {"VCPU": 2}
    assert await batcher.ask(one_each(3)) == Done()


async def test_a_transient_error_is_retried(admin: AdminClient) -> None:
    left = [Transient("deadlock"), Transient("deadlock")]

    def fail(_: ClaimChanges) -> None:
        if left:
            raise left.pop()

    batcher, way = batcher_with(admin, fail)

    verdicts = await asyncio.gather(*[batcher.ask(one_each(number)) for number in range(3)])

    assert verdicts == [Done()] * 3
    assert (way.begun, batcher.batches) == (3, 1)


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


async def test_a_batcher_closes_when_all_writes_are_answered(admin: AdminClient) -> None:
    batcher, _ = batcher_with(admin, lambda _: None)
    asked = [asyncio.create_task(batcher.ask(one_each(number))) for number in range(3)]
    await asyncio.sleep(0)

    await batcher.close()
    await asyncio.sleep(0)

    assert all(task.done() for task in asked)


def names(changes: ClaimChanges) -> set[ConsumerId]:
    return {row.id for row in changes.consumers}
