"""Small helpers for contracts of the bare broker: a queue of each kind, publish, receive, and wait for a condition."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

from bus.broker import Broker, Connection, Consuming, Delivery, Receipt
from bus.message import Parcel
from bus.topology import DEAD, DEAD_QUEUE, Binding, Exchange, Limits, Objects, Queue, QueueKind
from tests.running import closing
from tests.waiting import PATIENCE_S, at_most, until

T = TypeVar("T")

TOWN = "moor.town"

WORK = Queue("town.work", QueueKind.WORK, (Binding(TOWN, "work"),))
QUESTIONS = Queue("town.questions", QueueKind.QUESTIONS, (Binding(TOWN, "question"),))
ANSWERS = Queue("town.answers", QueueKind.ANSWERS, (Binding(TOWN, "answer"),))
FEED = Queue("town.feed", QueueKind.FEED, (Binding(TOWN, "news"),))
DEAD_LETTERS = Queue(DEAD_QUEUE, QueueKind.DEAD, (Binding(DEAD, "#"),))


def world(*queues: Queue, limits: Limits | None = None) -> Objects:
    """These queues and what they need. Without any, a work queue and the dead letters."""
    return Objects(
        (Exchange(TOWN), Exchange(DEAD)),
        queues or (WORK, DEAD_LETTERS),
        limits or Limits(questions_length_max=100),
    )


def parcel(body: bytes | int, routing_key: str = "work") -> Parcel:
    """An order for the work queue, recognised by its body."""
    return Parcel(TOWN, routing_key, body if isinstance(body, bytes) else str(body).encode())


@asynccontextmanager
async def connected(broker: Broker, objects: Objects | None = None) -> AsyncIterator[Connection]:
    async with closing(await broker.connect()) as (connection,):
        if objects is not None:
            await connection.declare(objects)
        yield connection


async def publish(connection: Connection, *parcels: Parcel) -> list[Receipt]:
    """Publish all at once on a channel of their own; returns the broker's answer to each."""
    publishing = await connection.open_publishing()
    receipts = await within_patience(asyncio.gather(*map(publishing.publish, parcels)))
    await publishing.close()
    return receipts


async def publish_bodies(connection: Connection, *bodies: int, routing_key: str = "work") -> None:
    receipts = await publish(connection, *(parcel(body, routing_key) for body in bodies))
    assert receipts == [Receipt.CONFIRMED] * len(bodies)


async def receive(consuming: Consuming, count: int) -> list[Delivery]:
    """Receive exactly this many deliveries."""
    deliveries: list[Delivery] = []
    while len(deliveries) < count:
        deliveries += await within_patience(consuming.receive())
    assert len(deliveries) == count
    return deliveries


async def drain(connection: Connection, queue: str, count: int) -> list[Delivery]:
    """Consume and acknowledge this many."""
    consuming = await connection.open_consuming(queue, prefetch=count)
    deliveries = await receive(consuming, count)
    await consuming.acknowledge(deliveries[-1].tag, multiple=True)
    await consuming.close()
    return deliveries


def bodies(deliveries: list[Delivery]) -> list[int]:
    return [int(delivery.parcel.body) for delivery in deliveries]


async def until_depth(connection: Connection, queue: str, depth: int) -> None:
    await until(
        lambda: connection.depth(queue), f"{depth} parcels wait in {queue}", lambda found: found == depth
    )


async def within_patience(doing: Awaitable[T]) -> T:
    async with asyncio.timeout(at_most(PATIENCE_S)):
        return await doing
