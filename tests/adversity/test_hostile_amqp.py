"""Hostile parcels on the real broker, sent without a library: whatever RabbitMQ accepts and delivers, its reader
survives.
"""

import asyncio
import random

import aio_pika
import pytest

from bus.message import LINES, PLACEMENT
from bus.queues import DEAD_QUEUE
from bus.topology import objects_of, retry_exchange_of
from bus.workers.dead_letters import open_dead_letters
from tests.adversity.hostile import hostile_line
from tests.adversity.raw_amqp import RawChannel, RawParcel, hostile_properties
from tests.adversity.test_hostile_parcels import HASTY, READ, Goods, until_read
from tests.contracts.rabbitmq_under_test import RabbitMQUnderTest
from tests.contracts.stage import PATIENCE_S, working
from tests.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.rabbitmq, pytest.mark.usefixtures("quiet")]

HOSTILE = 300
NEIGHBOURS = 60
# Sent to its proper place by the user that reads it, whatever that user's name.
SAID = {b"moor-exchange": PLACEMENT.encode(), b"moor-key": b"release.c1", b"moor-sender": b"guest"}


async def say(under_test: RabbitMQUnderTest, parcels: list[RawParcel]) -> None:
    """Send all of them. The broker has accepted them when it answers a later request."""
    connection = await aio_pika.connect(under_test.url())
    channel = await connection.channel(publisher_confirms=False)
    underlay = await channel.get_underlay_channel()
    await RawChannel(connection, underlay.number).send(parcels)
    await channel.declare_queue(DEAD_QUEUE, passive=True)
    await connection.close()


def drawn(
    chance: random.Random, exchange: bytes, routing_key: bytes, goods: Goods, queue: str
) -> list[RawParcel]:
    parcels = [
        RawParcel(exchange, routing_key, hostile_properties(chance), hostile_line(chance))
        for _ in range(HOSTILE)
    ]
    for _ in range(NEIGHBOURS):
        body = b"\n".join((*goods.lines(1), hostile_line(chance).replace(b"\n", b" ")))
        properties = hostile_properties(chance, content_type=LINES.encode(), said=SAID)
        parcels.append(RawParcel(retry_exchange_of(queue).encode(), queue.encode(), properties, body))
    chance.shuffle(parcels)
    return parcels


async def test_whatever_comes_by_any_queue_of_the_real_broker_its_worker_and_its_connection_live() -> None:
    chance, under_test = random.Random("raw"), await RabbitMQUnderTest.start()
    try:
        broker = under_test.broker()
        connection = await broker.connect()
        await connection.declare(objects_of(("c1",)))
        for queue in READ:
            goods = Goods()
            await say(under_test, drawn(chance, b"", queue.encode(), goods, queue))
            async with working(broker, goods.memory, settings=HASTY, queue=queue) as worker:
                await until(goods.were_handled_once_each, f"the good of {queue} are handled")
                await until_read(connection, queue, worker)
                assert worker.intake.interruptions == 0
        # A key of any bytes, where a binding pattern matches it.
        goods = Goods()
        await say(
            under_test, drawn(chance, b"moor.placement", b"release." + b"\xff" * 247, goods, "placement.work")
        )
        async with working(broker, goods.memory, settings=HASTY) as worker:
            await until(goods.were_handled_once_each, "the good by an odd key are handled")
            await until_read(connection, "placement.work", worker)
            assert worker.intake.interruptions == 0

        await say(under_test, drawn(chance, b"moor.dead", b"\xff\xfe", Goods(), "placement.work"))
        there = await connection.depth(DEAD_QUEUE)
        assert there > HOSTILE * len(READ) / 2
        letters = 0
        # For a moment after many were dropped, RabbitMQ reports that none are left.
        async with asyncio.timeout(PATIENCE_S):
            while letters < there:
                async with open_dead_letters(connection, letters_max=1_000) as opened:
                    assert len({letter.handle for letter in opened.letters.values()}) == len(opened.letters)
                    assert all(letter.reason for letter in opened.letters.values())
                    letters += len(opened.letters)
                    await opened.drop([*opened.letters])
                await asyncio.sleep(0.05)
        await connection.close()
    finally:
        await under_test.close()
