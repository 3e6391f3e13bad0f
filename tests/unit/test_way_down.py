"""How much may be under way to a cell's own broker, and what becomes of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.handling import Kept
from bus.message import ConsumerId
from bus.messages.build import RequestId
from bus.messages.cell import RemoveFromCell
from bus.publisher import Outgoing
from bus.station import Station
from bus.topology import Site, objects_of
from scheduler_worker.downward import Row, WayDown
from scheduler_worker.late import LateTransactions
from scheduler_worker.store_memory import MemorySchedulerStore
from tests.contracts.memory_under_test import MemoryUnderTest
from tests.contracts.stage import SETTINGS, until

pytestmark = pytest.mark.asyncio

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
WORK = "conductor.c1.work"


def a_row(number: int) -> Row:
    order = RemoveFromCell(
        cell="c1",
        instance=ConsumerId(UUID(int=number)),
        request_id=RequestId(UUID(int=number)),
        issued_at=NOON,
    )
    return Kept(str(order.instance), 1), (Outgoing(order),)


@asynccontextmanager
async def a_way_down(there: MemoryUnderTest, *, under_way_max: int) -> AsyncIterator[WayDown]:
    settings = structs.replace(SETTINGS, drain_ms_max=100)
    api = Station(MemoryUnderTest().broker(), "api", settings=settings)
    down = Station(there.broker(), "down", settings=settings)
    rows = LateTransactions(MemorySchedulerStore(), timedelta(seconds=5), lambda: NOON)
    try:
        yield WayDown(("c1",), down, api.publisher, rows, under_way_max=under_way_max)
    finally:
        await asyncio.gather(api.close(), down.close())


async def declared(cell: MemoryUnderTest) -> None:
    connection = await cell.broker().connect()
    await connection.declare(objects_of(("c1",), (Site.CELL,)))
    await connection.close()


async def test_no_more_is_under_way_to_a_broker_that_is_away_than_may_be() -> None:
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


async def test_what_is_under_way_or_confirmed_is_not_said_twice() -> None:
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


async def test_what_a_broker_does_not_take_stays_on_its_row() -> None:
    """The exchange is not there: it has lost its topology, or never had it."""
    async with a_way_down(MemoryUnderTest(), under_way_max=10) as way:
        way.say([a_row(1)])
        assert way.under_way == 1
        await until(lambda: way.under_way == 0)
        assert way.confirmed == ()
