"""A client that follows instances learns their states from events, and not only when it asks again."""

import asyncio

import pytest
from msgspec import structs

from bus.memory import MemoryBroker
from bus.messages.build import InstanceActive, InstanceEvent
from bus.topology import objects_of
from moor.client import Client, InstanceFollower, during, station_on
from tests.unit.examples.values import STATE


@pytest.mark.asyncio
async def test_events_of_other_projects_do_not_look_like_an_interruption() -> None:
    broker = MemoryBroker().as_user()
    connection = await broker.connect()
    await connection.declare(objects_of(("c1",)))
    ours = InstanceActive(cell="c1", instance=STATE)
    async with station_on(broker, "moor") as (station, task):
        heard = Client(station, task).listen("instance.#", project="p")
        assert await anext(heard) == []
        waiting = asyncio.ensure_future(anext(heard))
        await station.send(InstanceActive(cell="c1", instance=structs.replace(STATE, project="another")))
        await station.send(ours)
        assert await waiting == [ours]
        await heard.aclose()
    await connection.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", InstanceEvent.__subclasses__(), ids=lambda kind: kind.__name__)
async def test_every_event_about_an_instance_tells_its_state(kind: type[InstanceEvent]) -> None:
    broker = MemoryBroker().as_user()
    connection = await broker.connect()
    await connection.declare(objects_of(("c1",)))
    async with station_on(broker, "moor") as (station, task):
        # No scheduler runs here that could answer a question about the instance.
        follower = InstanceFollower(Client(station, task), (STATE.id,))

        async def say_again() -> None:
            while True:
                await station.send(kind(cell="c1", instance=STATE))
                await asyncio.sleep(0.01)

        by_s = asyncio.get_running_loop().time() + 5
        assert await during(follower.until(lambda _: True, lambda _: None, by_s), say_again())
    assert follower.states == {STATE.id: STATE}
    await connection.close()
