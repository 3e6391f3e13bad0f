"""A channel that refuses for ever what another channel of the same broker takes: then the publisher opens another."""

import pytest

from bus.memory import MemoryAccess, MemoryBroker
from bus.message import PLACEMENT
from bus.topology import objects_of
from tests.contracts.small_world import connected, drain
from tests.contracts.small_world import within_patience as within
from tests.contracts.stage import CELLS, SETTINGS, WORK, line, order, parcel, station
from tests.stories.breakable import BreakableBroker, Faults


@pytest.mark.hits("the broker refused a parcel on one channel and took it on another: the first is replaced")
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
