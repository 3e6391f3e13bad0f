"""Who hands in what at a desk is written together with whoever waits, and harmed by nobody else."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from bus.errors import Transient
from bus.message import ConsumerId
from bus.messages.administration import CreateProvider, CreateTrait, Done, ProviderWritten, SetAllocations
from placement_worker.core.ledger import ClaimChanges
from placement_worker.store import PlacementTransaction
from placement_worker.write_batcher import BATCH_MAX, WriteBatcher
from tests.contracts.admin_client import AdminClient, allocations, an_admin_client, holding
from tests.contracts.placement_orders import HOST, NOON, VOCABULARY, WEB, amounts, consumer

pytestmark = pytest.mark.asyncio


class Troubled:
    """A way to the books on which something may happen before a batch is committed."""

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


def desk_with(
    admin: AdminClient, happens: Callable[[ClaimChanges], None], tries_max: int = 3
) -> tuple[WriteBatcher, Troubled]:
    way = Troubled(admin, happens)
    return WriteBatcher(way, VOCABULARY, lambda: NOON, tries_max=tries_max), way


async def test_who_comes_together_is_written_together(admin: AdminClient) -> None:
    desk, way = desk_with(admin, lambda _: None)

    verdicts = await asyncio.gather(*[desk.ask(one_each(number)) for number in range(BATCH_MAX + 1)])

    assert verdicts == [Done()] * (BATCH_MAX + 1)
    assert (desk.asked, desk.batches, way.begun) == (BATCH_MAX + 1, 2, 2)


async def test_who_comes_while_a_batch_is_written_makes_up_the_next(admin: AdminClient) -> None:
    later: list[asyncio.Task[object]] = []

    def come(_: ClaimChanges) -> None:
        if not later:
            later.extend(asyncio.ensure_future(desk.ask(one_each(number))) for number in range(1, 6))

    desk, way = desk_with(admin, come)

    assert await desk.ask(one_each(0)) == Done()
    assert await asyncio.gather(*later) == [Done()] * 5
    assert way.begun == 2


async def test_each_kind_has_its_own_batches(admin: AdminClient) -> None:
    desk, way = desk_with(admin, lambda _: None)

    verdicts = await asyncio.gather(
        desk.ask(one_each(1)),
        desk.ask(CreateTrait(name="CUSTOM_A")),
        desk.ask(CreateProvider(id=consumer("x"), name="x")),  # type: ignore[arg-type]
        desk.ask(one_each(2)),
    )

    assert [type(verdict) for verdict in verdicts] == [Done, Done, ProviderWritten, Done]
    assert way.begun == 3


async def test_one_that_never_will_work_harms_only_itself(admin: AdminClient) -> None:
    def refuse(changes: ClaimChanges) -> None:
        if names(changes) & {WEB}:
            raise ValueError("nobody can write this")

    desk, _ = desk_with(admin, refuse)

    poison = allocations(holding(WEB, *amounts(HOST, VCPU=1)))
    asked = [desk.ask(one_each(1)), desk.ask(poison), desk.ask(one_each(2))]
    verdicts = await asyncio.gather(*asked, return_exceptions=True)

    assert [verdicts[0], verdicts[2]] == [Done(), Done()]
    assert isinstance(verdicts[1], ValueError)
    assert await admin.used(HOST) == {"VCPU": 2}
    assert await desk.ask(one_each(3)) == Done()


async def test_what_is_nobodys_fault_is_tried_again(admin: AdminClient) -> None:
    left = [Transient("deadlock"), Transient("deadlock")]

    def fail(_: ClaimChanges) -> None:
        if left:
            raise left.pop()

    desk, way = desk_with(admin, fail)

    verdicts = await asyncio.gather(*[desk.ask(one_each(number)) for number in range(3)])

    assert verdicts == [Done()] * 3
    assert (way.begun, desk.batches) == (3, 1)


async def test_where_the_books_stay_away_all_are_told_and_nothing_is_written(admin: AdminClient) -> None:
    def fail(_: ClaimChanges) -> None:
        raise Transient("no books")

    desk, way = desk_with(admin, fail)

    verdicts = await asyncio.gather(
        *[desk.ask(one_each(number)) for number in range(3)], return_exceptions=True
    )

    assert [type(verdict) for verdict in verdicts] == [Transient] * 3
    assert way.begun == 3
    assert await admin.used(HOST) == {"VCPU": 0}


async def test_who_has_gone_before_its_turn_is_not_written(admin: AdminClient) -> None:
    desk, _ = desk_with(admin, lambda _: None)

    gone = asyncio.create_task(desk.ask(one_each(1)))
    stays = asyncio.create_task(desk.ask(one_each(2)))
    # Both have handed in what they want, and nothing was written yet.
    await asyncio.sleep(0)
    gone.cancel()

    assert await stays == Done()
    assert await admin.store.consumer(consumer("c1")) is None
    assert gone.cancelled()


async def test_a_desk_closes_when_all_are_answered(admin: AdminClient) -> None:
    desk, _ = desk_with(admin, lambda _: None)
    asked = [asyncio.create_task(desk.ask(one_each(number))) for number in range(3)]
    await asyncio.sleep(0)

    await desk.close()
    await asyncio.sleep(0)

    assert all(task.done() for task in asked)


def names(changes: ClaimChanges) -> set[ConsumerId]:
    return {row.id for row in changes.consumers}
