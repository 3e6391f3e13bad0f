"""Contract of declaring: it can be repeated, contradictions are refused, and some objects are deleted automatically."""

from contextlib import suppress

import pytest

from bus.broker import Consuming, Receipt
from bus.message import Parcel
from bus.topology import Binding, Exchange, Limits, Objects, Queue, QueueKind, objects_of
from kit.errors import NotFound, Refusal
from tests.contracts.broker_under_test import BrokerUnderTest
from tests.contracts.small_world import (
    ANSWERS,
    FEED,
    TOWN,
    WORK,
    bodies,
    connected,
    drain,
    parcel,
    publish,
    publish_bodies,
    receive,
    world,
)
from tests.waiting import until

pytestmark = pytest.mark.asyncio


async def test_the_whole_topology_can_be_declared_again_and_again(under_test: BrokerUnderTest) -> None:
    objects = objects_of(("c1", "c2"))
    async with connected(under_test.broker(), objects) as connection:
        await connection.declare(objects)

        for queue in objects.queues:
            assert await connection.depth(queue.name) == 0


@pytest.mark.parametrize(
    "other",
    [
        Objects(queues=(Queue(WORK.name, QueueKind.QUESTIONS),)),
        Objects(queues=(WORK,), limits=Limits(work_length_max=7)),
        Objects(queues=(WORK,), limits=Limits(deliveries_max=77)),
        Objects(exchanges=(Exchange(TOWN, durable=False),)),
    ],
    ids=["another kind", "another length", "another limit of deliveries", "another durability"],
)
async def test_what_stands_otherwise_is_not_declared_over(
    under_test: BrokerUnderTest, other: Objects
) -> None:
    async with connected(under_test.broker(), world()) as connection:
        with pytest.raises(Refusal):
            await connection.declare(other)

        # Only the declaration is refused; the connection goes on.
        await publish_bodies(connection, 1)
        assert bodies(await drain(connection, WORK.name, 1)) == [1]


FOREIGN = Exchange("not.ours", durable=False, foreign=True)
HEARS_FOREIGN = Queue("town.foreign", QueueKind.WORK, (Binding(FOREIGN.name, "#"), Binding(TOWN, "work")))


async def test_a_foreign_exchange_is_bound_to_where_it_exists(under_test: BrokerUnderTest) -> None:
    theirs = Objects((Exchange(FOREIGN.name, durable=False),))
    async with connected(under_test.broker(), theirs) as connection:
        await connection.declare(Objects((Exchange(TOWN), FOREIGN), (HEARS_FOREIGN,)))

        receipts = await publish(connection, Parcel(FOREIGN.name, "any", b"1", mandatory=True))

        assert receipts == [Receipt.CONFIRMED]
        assert bodies(await drain(connection, HEARS_FOREIGN.name, 1)) == [1]


async def test_what_is_not_there_is_not_found(under_test: BrokerUnderTest) -> None:
    nowhere = Queue("town.lost", QueueKind.WORK, (Binding("moor.nowhere", "#"),))
    async with connected(under_test.broker(), world()) as connection:
        with pytest.raises(NotFound):
            await connection.depth("town.nobody")
        with pytest.raises(NotFound):
            await connection.open_consuming("town.nobody", prefetch=1)
        with pytest.raises(NotFound):
            await connection.declare(Objects(queues=(nowhere,)))


async def test_an_answer_queue_belongs_to_its_connection_alone(under_test: BrokerUnderTest) -> None:
    async with (
        connected(under_test.broker(), world(ANSWERS)) as owner,
        connected(under_test.broker()) as other,
    ):
        consuming = await owner.open_consuming(ANSWERS.name, prefetch=1)
        await owner.declare(world(ANSWERS))
        with pytest.raises(Refusal):
            await other.open_consuming(ANSWERS.name, prefetch=1)
        with pytest.raises(Refusal):
            await other.depth(ANSWERS.name)

        await publish_bodies(other, 1, routing_key="answer")

        assert bodies(await receive(consuming, 1)) == [1]


async def test_a_feed_that_nobody_reads_ends_and_one_that_is_read_does_not(
    under_test: BrokerUnderTest,
) -> None:
    read = Queue("town.read", QueueKind.FEED, (Binding(TOWN, "read"),))
    objects = world(FEED, read, limits=Limits(unused_expires_ms=100))
    async with connected(under_test.broker()) as connection:

        async def opened(queue: Queue) -> Consuming:
            """On a slow machine the queue may end before it is read."""
            while True:
                await connection.declare(objects)
                with suppress(NotFound):
                    return await connection.open_consuming(queue.name, prefetch=10)

        reading, unread = await opened(read), await opened(FEED)
        await unread.close()
        await until(
            lambda: publish(connection, Parcel(TOWN, "news", b"", mandatory=True)),
            "the unread feed is gone",
            lambda found: found == [Receipt.UNROUTABLE],
        )
        assert await publish(connection, parcel(1, "read")) == [Receipt.CONFIRMED]
        assert bodies(await receive(reading, 1)) == [1]
