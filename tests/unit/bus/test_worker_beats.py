"""The heartbeats of a worker's process: what they say of it, and its farewell."""

import asyncio

import pytest

from bus.broker import Broker
from bus.memory import MemoryBroker
from bus.message import EVENTS
from bus.messages.cloud import WorkerAlive
from bus.queues import Grant
from bus.topology import objects_of
from bus.workers.running import WorkerBeats
from bus.workers.station import FeedListener, Station
from kit.errors import Unavailable
from kit.health import About, Health
from kit.parts import Supervised

pytestmark = pytest.mark.asyncio


async def a_station() -> tuple[Station, Broker]:
    broker = MemoryBroker().as_user()
    connection = await broker.connect()
    await connection.declare(objects_of(("c1",)))
    await connection.close()
    return Station(broker, "conductor-1"), broker


def beats_of(station: Station, *parts: object, cell: str = "c1") -> WorkerBeats:
    return WorkerBeats(Health(About("conductor", "0.1.0", cell), parts), station)


async def test_a_beat_names_what_fails_and_what_is_awaited() -> None:
    async def fail() -> None:
        raise Unavailable("it is away")

    station, _ = await a_station()
    part = Supervised("database", fail, is_needed=True)
    running = asyncio.create_task(part.run())
    while not part.status.failures:
        await asyncio.sleep(0)

    beat = beats_of(station, part).beat()

    assert (beat.awaits, beat.fails) == 2 * ("database: Unavailable: it is away",)
    await part.stop()
    await running
    await station.close()


async def test_a_worker_of_the_api_level_speaks_for_cell0_and_says_farewell() -> None:
    station, broker = await a_station()
    heard: list[WorkerAlive] = []
    ear = Station(broker, "ear")
    listener = FeedListener(
        "listen",
        ear,
        (Grant(EVENTS, ("worker.beat.*",)),),
        lambda batch: heard.extend(each.message for each in batch if isinstance(each.message, WorkerAlive)),
    )
    listening = asyncio.create_task(listener.run())
    await asyncio.sleep(0.05)
    beats = beats_of(station, cell="")
    beating = asyncio.create_task(beats.run())
    async with asyncio.timeout(10):
        while not heard:
            await asyncio.sleep(0.01)
    await beats.stop()
    await beating
    await beats.say_farewell()
    async with asyncio.timeout(10):
        while len(heard) < 2:
            await asyncio.sleep(0.01)

    assert [(each.cell, each.has_ended) for each in heard] == [("cell0", False), ("cell0", True)]
    await listener.stop()
    await listening
    await ear.close()
    await station.close()
