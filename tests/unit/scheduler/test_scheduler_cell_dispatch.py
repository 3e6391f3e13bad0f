"""How much may be under way to a cell's own broker, and what happens to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.build import BuildInstance
from bus.messages.cell import RemoveFromCell
from bus.messages.hosts import AskHosts
from bus.topology import Site, objects_of
from bus.workers.handling import OutboxKey, Received
from bus.workers.publisher import Outgoing
from bus.workers.station import Station
from engine.flavors import InstanceId, RequestId
from engine.inventories import ConsumerId
from scheduler_worker.core.instances.rows import DELETING, accepted
from scheduler_worker.outbox import CellDispatch, Outbox, OutboxNotes
from scheduler_worker.store import NewRequest, SchedulerStore
from tests.contracts.memory_under_test import MemoryUnderTest
from tests.contracts.stage import SETTINGS, until
from tests.stores_in_memory import MemorySchedulerStore

pytestmark = pytest.mark.asyncio

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=1)
SOON = timedelta(seconds=5)
WORK = "conductor.c1.work"
CAUSE = Received(message=AskHosts(), id="1", trace="", sender="", reply_to="", attempts=0)


def under_way(dispatch: CellDispatch) -> int:
    return len(dispatch._under_way)  # noqa: SLF001 - nothing else tells it


def a_row(number: int) -> tuple[OutboxKey, tuple[Outgoing, ...]]:
    order = RemoveFromCell(
        cell="c1",
        instance=ConsumerId(UUID(int=number)),
        request_id=RequestId(UUID(int=number)),
        sequence=3,
        issued_at=NOON,
    )
    return OutboxKey(number), (Outgoing(order),)


def an_ended(number: int, cell: str) -> NewRequest:
    """A request whose instance must be removed from that cell."""
    build = BuildInstance(request_id=RequestId(UUID(int=100 + number)))
    (row,) = accepted(build, [InstanceId(ConsumerId(UUID(int=number)))], NOON, NOON)
    told = structs.replace(row.told, state=DELETING, cell=cell)
    return NewRequest(told.request_id, b"", (structs.replace(row, told=told, unsaid=True),))


@asynccontextmanager
async def a_dispatch(
    there: MemoryUnderTest, *, under_way_max: int, store: SchedulerStore | None = None
) -> AsyncIterator[CellDispatch]:
    settings = structs.replace(SETTINGS, drain_ms_max=100)
    api = Station(MemoryUnderTest().broker(), "api", settings=settings)
    down = Station(there.broker(), "down", settings=settings)
    notes = OutboxNotes(store or MemorySchedulerStore(), SOON, lambda: LATER)
    try:
        yield CellDispatch(("c1",), down, api.publisher, notes, under_way_max=under_way_max)
    finally:
        await asyncio.gather(api.close(), down.close())


async def declared(cell: MemoryUnderTest) -> None:
    connection = await cell.broker().connect()
    await connection.declare(objects_of(("c1",), (Site.CELL,)))
    await connection.close()


async def test_the_messages_under_way_to_an_absent_broker_are_bounded() -> None:
    cell = MemoryUnderTest()
    await declared(cell)
    await cell.unplug()
    async with a_dispatch(cell, under_way_max=3) as dispatch:
        dispatch.send([a_row(number) for number in range(10)])
        dispatch.send([a_row(number) for number in range(5, 15)])
        assert under_way(dispatch) == 3
        assert dispatch.confirmed == ()

        await cell.plug_in()
        await until(lambda: len(dispatch.confirmed) == 3)
        assert under_way(dispatch) == 0


async def test_messages_under_way_or_confirmed_are_not_sent_twice() -> None:
    cell = MemoryUnderTest()
    await declared(cell)
    async with a_dispatch(cell, under_way_max=10) as dispatch:
        dispatch.send([a_row(1), a_row(2)])
        dispatch.send([a_row(1)])
        await until(lambda: len(dispatch.confirmed) == 2)
        dispatch.send([a_row(2)])

        connection = await cell.broker().connect()
        assert under_way(dispatch) == 0
        # Both left in one parcel, and no other.
        assert await connection.depth(WORK) == 1
        dispatch.cleared(dispatch.confirmed)
        assert dispatch.confirmed == ()


async def test_messages_that_a_broker_refuses_stay_on_their_row() -> None:
    """The exchange does not exist: the broker has lost its topology, or never had it."""
    async with a_dispatch(MemoryUnderTest(), under_way_max=10) as dispatch:
        dispatch.send([a_row(1)])
        assert under_way(dispatch) == 1
        await until(lambda: under_way(dispatch) == 0)
        assert dispatch.confirmed == ()


async def test_what_goes_down_is_noted_one_by_one_and_the_rest_together() -> None:
    store = MemorySchedulerStore()
    async with a_dispatch(MemoryUnderTest(), under_way_max=10, store=store) as dispatch:
        outbox = Outbox(store, OutboxNotes(store, SOON, lambda: LATER), [dispatch])
        new = [an_ended(number, cell) for number, cell in enumerate(("c1", "c2", "c1", "c2"), start=1)]
        async with outbox.transaction() as transaction:
            await (await transaction.begun()).accept(new)
            await transaction.note([row for each in new for row in each.rows])
            said = [tell for each in new for row in each.rows for tell in transaction.tells(row, CAUSE)]
            leaving = [kept for rows in transaction.leaving.values() for kept, _ in rows]

        together = {each.kept for each in said}
        assert len(said) == 2
        assert len(together) == 1
        assert len({*leaving}) == 2
        assert {each for each, _ in await outbox.pending()} == together


async def test_what_was_noted_together_before_a_cell_had_a_broker_of_its_own_goes_its_way() -> None:
    store, cell = MemorySchedulerStore(), MemoryUnderTest()
    await declared(cell)
    new = [an_ended(number, name) for number, name in enumerate(("c1", "c2", "c1"), start=1)]
    async with store.transaction() as transaction:
        await transaction.accept(new)
        (together,) = await transaction.note([[row for each in new for row in each.rows]])
    async with a_dispatch(cell, under_way_max=10, store=store) as dispatch:
        outbox = Outbox(store, OutboxNotes(store, SOON, lambda: LATER), [dispatch])

        said = await outbox.pending()
        assert [message.instance.int for _, message in said if isinstance(message, RemoveFromCell)] == [2]
        noted = await store.unconfirmed(LATER, None, 10)
        assert together not in {note.kept for note in noted}
        assert sorted([row.id.int for row in note.rows] for note in noted) == [[1], [2], [3]]

        sweep = asyncio.create_task(dispatch.run())
        await until(lambda: len(dispatch.confirmed) == 2)
        await dispatch.stop()
        await sweep
        assert {note.kept for note in noted} == {*dispatch.confirmed, *(kept for kept, _ in said)}
