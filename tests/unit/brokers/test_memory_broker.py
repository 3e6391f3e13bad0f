"""Behaviour of the memory broker only: moments that tests cannot hit on a real broker, and a clock that can be moved."""

import asyncio

import pytest

from bus import message
from bus.broker import Receipt
from bus.memory import MemoryBroker
from bus.message import Parcel
from bus.queues import matches
from bus.topology import (
    DEAD,
    DEAD_QUEUE,
    DELIVERIES_MAX_LEAST,
    Binding,
    Exchange,
    Limits,
    Objects,
    Queue,
    QueueKind,
)
from kit.errors import ConnectionLost, ConsumerCancelled
from tests.simulation.loop import simulated
from tests.when_stored import when_stored

TOWN = "moor.town"
WORK = Queue("work", QueueKind.WORK, (Binding(TOWN, "work"),))
FEED = Queue("feed", QueueKind.FEED, (Binding(TOWN, "news"),))
DEAD_LETTERS = Queue(DEAD_QUEUE, QueueKind.DEAD, (Binding(DEAD, "#"),))
WORLD = Objects((Exchange(TOWN), Exchange(DEAD)), (WORK, FEED), Limits(deliveries_max=DELIVERIES_MAX_LEAST))
ORDER = Parcel(TOWN, "work", b"{}")


async def publish(broker: MemoryBroker, parcel: Parcel = ORDER) -> Receipt:
    connection = await broker.as_user().connect()
    publishing = await connection.open_publishing()
    return await publishing.publish(parcel)


async def standing(*queues: Queue, limits: Limits | None = None) -> MemoryBroker:
    broker = MemoryBroker()
    connection = await broker.as_user().connect()
    await connection.declare(WORLD)
    await connection.declare(Objects(queues=queues, limits=limits or Limits()))
    return broker


async def depth(broker: MemoryBroker, queue: str) -> int:
    return await (await broker.as_user().connect()).depth(queue)


async def test_a_cut_between_storing_and_confirming_loses_the_confirm_and_not_the_parcel() -> None:
    broker = await standing()
    when_stored(broker, lambda _: broker.cut_connections())

    with pytest.raises(ConnectionLost):
        await publish(broker)

    assert await depth(broker, "work") == 1


async def test_a_cut_before_storing_loses_both() -> None:
    broker = await standing()
    broker.block("low on memory")
    publishing = asyncio.create_task(publish(broker))
    await asyncio.sleep(0)

    broker.cut_connections()
    broker.block("")

    with pytest.raises(ConnectionLost):
        await publishing
    assert await depth(broker, "work") == 0


async def test_a_dead_letter_waits_in_its_queue_until_its_target_has_room() -> None:
    # RabbitMQ does so too, but waits three minutes before it tries again.
    broker = await standing()
    connection = await broker.as_user().connect()
    await publish(broker)
    consuming = await connection.open_consuming("work", prefetch=1)
    for _ in range(DELIVERIES_MAX_LEAST + 1):
        (delivery,) = await consuming.receive()
        await consuming.give_back(delivery.tag)

    await connection.declare(Objects(queues=(DEAD_LETTERS,)))

    (dead,) = await (await connection.open_consuming(DEAD_QUEUE, prefetch=1)).receive()
    assert dead.parcel.headers[message.BROKER_QUEUE] == "work"
    assert dead.parcel.headers[message.BROKER_EXCHANGE] == TOWN


@simulated
async def test_a_consumer_is_as_late_as_its_oldest_delivery() -> None:
    broker = await standing()
    connection = await broker.as_user().connect()
    consuming = await connection.open_consuming("work", prefetch=2)
    await publish(broker)
    (first,) = await consuming.receive()
    await asyncio.sleep(1000)
    await publish(broker)
    await consuming.receive()
    await consuming.acknowledge(first.tag)
    with pytest.raises(ConsumerCancelled):
        await consuming.receive()
    assert asyncio.get_running_loop().time() == pytest.approx(2800)


@pytest.mark.parametrize("trap", ["#.#", "#.a.#.a.#.a.#", "#.*.#.*.#.*.#"])
def test_no_pattern_takes_long_to_match(trap: str) -> None:
    assert matches(trap, ".".join("a" * 300))
