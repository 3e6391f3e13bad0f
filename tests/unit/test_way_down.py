"""How much may be under way to a cell's own broker, and what happens to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.handling import Kept
from bus.message import ConsumerId
from bus.messages.build import BuildInstance, InstanceId, RequestId
from bus.messages.cell import RemoveFromCell
from bus.publisher import Outgoing
from bus.station import Station
from bus.topology import Site, objects_of
from scheduler_worker.core.instances.lifecycle import DELETING, accepted
from scheduler_worker.outbox.cell_dispatch import Parting, Row, WayDown
from scheduler_worker.outbox.lazy_transaction import LateTransactions
from scheduler_worker.store import NewRequest, SchedulerStore
from scheduler_worker.store_memory import MemorySchedulerStore
from tests.contracts.memory_under_test import MemoryUnderTest
from tests.contracts.stage import SETTINGS, until

pytestmark = pytest.mark.asyncio

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=1)
SOON = timedelta(seconds=5)
WORK = "conductor.c1.work"


def a_row(number: int) -> Row:
    order = RemoveFromCell(
        cell="c1",
        instance=ConsumerId(UUID(int=number)),
        request_id=RequestId(UUID(int=number)),
        issued_at=NOON,
    )
    return Kept(str(order.instance), 1), (Outgoing(order),)


def an_ended(number: int, cell: str) -> NewRequest:
    """A request whose instance must be removed from that cell."""
    build = BuildInstance(request_id=RequestId(UUID(int=100 + number)))
    (row,) = accepted(build, [InstanceId(ConsumerId(UUID(int=number)))], NOON, NOON)
    told = structs.replace(row.told, state=DELETING, cell=cell)
    return NewRequest(told.request_id, b"", (structs.replace(row, told=told, unsaid=True),))


@asynccontextmanager
async def a_way_down(
    there: MemoryUnderTest, *, under_way_max: int, store: SchedulerStore | None = None
) -> AsyncIterator[WayDown]:
    settings = structs.replace(SETTINGS, drain_ms_max=100)
    api = Station(MemoryUnderTest().broker(), "api", settings=settings)
    down = Station(there.broker(), "down", settings=settings)
    rows = LateTransactions(store or MemorySchedulerStore(), SOON, lambda: LATER)
    try:
        yield WayDown(("c1",), down, api.publisher, rows, under_way_max=under_way_max)
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
    async with a_way_down(cell, under_way_max=3) as way:
        way.say([a_row(number) for number in range(10)])
        way.say([a_row(number) for number in range(5, 15)])
        assert way.under_way == 3
        assert way.confirmed == ()

        await cell.plug_in()
        await until(lambda: len(way.confirmed) == 3)
        assert way.under_way == 0


async def test_messages_under_way_or_confirmed_are_not_sent_twice() -> None:
    cell = MemoryUnderTest()
    await declared(cell)
    async with a_way_down(cell, under_way_max=10) as way:
        way.say([a_row(1), a_row(2)])
        way.say([a_row(1)])
        await until(lambda: len(way.confirmed) == 2)
        way.say([a_row(2)])

        connection = await cell.broker().connect()
        assert way.under_way == 0
        # Both left in one parcel, and no other.
        assert await connection.depth(WORK) == 1
        way.cleared(way.confirmed)
        assert way.confirmed == ()


async def test_messages_that_a_broker_refuses_stay_on_their_row() -> None:
    """The exchange does not exist: the broker has lost its topology, or never had it."""
    async with a_way_down(MemoryUnderTest(), under_way_max=10) as way:
        way.say([a_row(1)])
        assert way.under_way == 1
        await until(lambda: way.under_way == 0)
        assert way.confirmed == ()


async def test_what_goes_down_is_noted_one_by_one_and_the_rest_together() -> None:
    store = MemorySchedulerStore()
    async with a_way_down(MemoryUnderTest(), under_way_max=10, store=store) as way:
        parting = Parting(store, SOON, lambda: LATER, [way])
        new = [an_ended(number, cell) for number, cell in enumerate(("c1", "c2", "c1", "c2"), start=1)]
        async with parting.transaction() as parted:
            await (await parted.begun()).accept(new)
            names = await parted.note([row for each in new for row in each.rows])

        kept = [kept for each in new for row in each.rows for kept, _ in names.kept_messages(row)]
        assert kept[1] == kept[3]
        assert len({*kept}) == 3
        assert {each for each, _ in await parting.pending()} == {kept[1]}


async def test_what_was_noted_together_before_a_cell_had_a_broker_of_its_own_goes_its_way() -> None:
    store, cell = MemorySchedulerStore(), MemoryUnderTest()
    await declared(cell)
    new = [an_ended(number, name) for number, name in enumerate(("c1", "c2", "c1"), start=1)]
    async with store.transaction() as transaction:
        await transaction.accept(new)
        (together,) = await transaction.note([[row for each in new for row in each.rows]])
    async with a_way_down(cell, under_way_max=10, store=store) as way:
        parting = Parting(store, SOON, lambda: LATER, [way])

        said = await parting.pending()
        assert [message.instance.int for _, message in said if isinstance(message, RemoveFromCell)] == [2]
        noted = await store.unsaid(LATER, None, 10)
        assert together not in {note.kept for note in noted}
        assert sorted([row.id.int for row in note.rows] for note in noted) == [[1], [2], [3]]

        sweep = asyncio.create_task(way.run())
        await until(lambda: len(way.confirmed) == 2)
        await way.stop()
        await sweep
        assert {note.kept for note in noted} == {*way.confirmed, *(kept for kept, _ in said)}
