"""A channel that refuses for ever what another channel of the same broker takes: then the publisher opens another."""

import asyncio

import pytest

from bus.memory import MemoryAccess, MemoryBroker
from bus.message import PLACEMENT
from bus.queues import Limits
from bus.topology import objects_of
from kit.errors import NotTaken
from tests.contracts.small_world import connected, drain
from tests.contracts.small_world import within_patience as within
from tests.contracts.stage import CELLS, SETTINGS, WORK, line, order, parcel, station, until
from tests.stories.breakable import BreakableBroker, Faults

pytestmark = pytest.mark.asyncio


async def test_what_one_channel_refuses_for_ever_leaves_on_another() -> None:
    memory, faults = MemoryAccess(MemoryBroker(), ""), Faults()
    async with (
        connected(memory, objects_of(CELLS)) as connection,
        station(BreakableBroker(memory, faults), settings=SETTINGS) as client,
    ):
        await within(client.publisher.send(order(1)))
        faults.stick(PLACEMENT)
        for number in (2, 3, 4):
            await within(client.publisher.send(order(number)))

        assert len(await drain(connection, WORK, 4)) == 4
    assert faults.channels == 3, "one to find out, and one in place of the old one for all that follows"


async def test_a_finished_parcel_leaves_on_another_channel_too() -> None:
    memory, faults = MemoryAccess(MemoryBroker(), ""), Faults()
    async with (
        connected(memory, objects_of(CELLS)) as connection,
        station(BreakableBroker(memory, faults), settings=SETTINGS) as client,
    ):
        await within(client.publisher.send(order(1)))
        faults.stick(PLACEMENT)
        await within(client.publisher.offer(parcel(line(order(2)))))

        assert len(await drain(connection, WORK, 2)) == 2


async def test_a_full_queue_leaves_the_channel_as_it_is() -> None:
    memory, faults = MemoryAccess(MemoryBroker(), ""), Faults()
    async with (
        connected(memory, objects_of(CELLS, limits=Limits(work_length_max=1))) as connection,
        station(BreakableBroker(memory, faults), settings=SETTINGS) as client,
    ):
        await within(client.publisher.send(order(1)))
        with pytest.raises(NotTaken, match="is full"):
            await within(client.publisher.offer(parcel(line(order(2)))))
        waiting = asyncio.ensure_future(client.publisher.send(order(3)))
        await until(lambda: client.publisher.held_back > 12)

        await drain(connection, WORK, 1)
        await within(waiting)
        used = faults.channels
        await drain(connection, WORK, 1)
        await within(client.publisher.send(order(4)))
        assert faults.channels == used


async def test_a_queue_that_is_full_now_and_then_does_not_replace_the_channel_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory, faults = MemoryAccess(MemoryBroker(), ""), Faults()
    async with (
        connected(memory, objects_of(CELLS)) as connection,
        station(BreakableBroker(memory, faults), settings=SETTINGS) as client,
    ):
        await within(client.publisher.send(order(1)))
        for number in (2, 3, 4, 5, 6, 7):
            # What is refused once, and taken on the next channel, is all that the publisher can see of such a queue.
            faults.stick(PLACEMENT)
            await within(client.publisher.offer(parcel(line(order(number)))))

        assert len(await drain(connection, WORK, 7)) == 7
    assert sum("the first is replaced" in each.message for each in caplog.records) == 1
