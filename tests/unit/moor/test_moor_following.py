"""A client that follows instances learns their states from events, and not only when it asks again."""

import asyncio

import pytest
from msgspec import structs

from bus.memory import MemoryBroker
from bus.messages.build import InstanceActive, InstanceEvent
from bus.topology import objects_of
from moor.asking import CommandClient
from moor.client.bus_client import InstanceFollower, during, station_on
from tests.unit.examples.values import STATE


@pytest.mark.asyncio
async def test_events_of_other_projects_do_not_look_like_an_interruption() -> None:
    broker = MemoryBroker().as_user()
    connection = await broker.connect()
    await connection.declare(objects_of(("c1",)))
    ours = InstanceActive(cell="c1", instance=STATE)
    async with station_on(broker, "moor") as (station, task):
        heard = CommandClient(station, task).listen("instance.#", project="p")
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
        follower = InstanceFollower(CommandClient(station, task), (STATE.id,))

        async def say_again() -> None:
            while True:
                await station.send(kind(cell="c1", instance=STATE))
                await asyncio.sleep(0.01)

        by_s = asyncio.get_running_loop().time() + 5
        assert await during(follower.until(lambda _: True, lambda _: None, by_s), say_again())
    assert follower.states == {STATE.id: STATE}
    await connection.close()


def test_an_event_of_another_cell_than_the_instances_does_not_count() -> None:
    at_api = structs.replace(STATE, cell="c1", state="placed", sequence=7)
    forged = structs.replace(STATE, cell="c2", state="active", sequence=2**61)
    active = structs.replace(at_api, state="active", sequence=8)
    follower = InstanceFollower(None, (STATE.id,))  # type: ignore[arg-type]

    # Before anything is known, any event counts: the API level's state then corrects it.
    follower.hear(InstanceActive(cell="c2", instance=forged))
    follower.take((at_api,))
    assert follower.states == {STATE.id: at_api}
    follower.hear(InstanceActive(cell="c2", instance=forged))
    assert follower.states == {STATE.id: at_api}
    follower.hear(InstanceActive(cell="c1", instance=active))
    assert follower.states == {STATE.id: active}
