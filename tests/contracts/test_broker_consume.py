"""Contract of consumers: they hold a bounded number, unfinished deliveries come back counted, and nothing is lost."""

import asyncio

import pytest

from bus import message
from bus.broker import PREFETCH_MAX, Connection, Receipt
from bus.topology import DEAD, DEAD_QUEUE, DELIVERIES_MAX_LEAST, Limits, Queue
from kit.errors import ConsumerCancelled, NotFound
from tests.contracts.broker_under_test import BrokerUnderTest
from tests.contracts.small_world import (
    DEAD_LETTERS,
    QUESTIONS,
    WORK,
    bodies,
    connected,
    drain,
    parcel,
    publish,
    publish_bodies,
    receive,
    until_depth,
    within_patience,
    world,
)
from tests.waiting import until


async def test_the_consumers_of_a_queue_are_counted_over_all_connections(under_test: BrokerUnderTest) -> None:
    async with connected(under_test.broker(), world()) as one, connected(under_test.broker()) as other:
        assert await one.consumers(WORK.name) == 0
        await one.open_consuming(WORK.name, prefetch=1)
        consuming = await other.open_consuming(WORK.name, prefetch=1)
        assert await one.consumers(WORK.name) == 2

        await consuming.close()
        await until(lambda: one.consumers(WORK.name), "the other one has left", lambda found: found == 1)
        with pytest.raises(NotFound):
            await one.consumers("town.nothing")


async def test_prefetch_bounds_what_a_consumer_holds(connection: Connection) -> None:
    await publish_bodies(connection, *range(10))
    consuming = await connection.open_consuming(WORK.name, prefetch=3)

    held = await receive(consuming, 3)
    await until_depth(connection, WORK.name, 7)
    await consuming.acknowledge(held[0].tag)
    (fourth,) = await receive(consuming, 1)
    await until_depth(connection, WORK.name, 6)

    assert bodies([*held, fourth]) == [0, 1, 2, 3]


@pytest.mark.parametrize("prefetch", [0, PREFETCH_MAX + 1])
async def test_a_prefetch_that_amqp_cannot_say_is_refused(connection: Connection, prefetch: int) -> None:
    with pytest.raises(ValueError, match=f"prefetch is {prefetch}, must be at least 1 and at most 65535"):
        await connection.open_consuming(WORK.name, prefetch)
    await publish_bodies(connection, 1)
    consuming = await connection.open_consuming(WORK.name, PREFETCH_MAX)
    assert bodies(await receive(consuming, 1)) == [1]


async def test_a_multiple_acknowledgement_covers_all_up_to_it_and_no_more(connection: Connection) -> None:
    await publish_bodies(connection, *range(5))
    consuming = await connection.open_consuming(WORK.name, prefetch=5)
    held = await receive(consuming, 5)

    await consuming.acknowledge(held[2].tag, multiple=True)
    await consuming.close()

    assert sorted(bodies(await drain(connection, WORK.name, 2))) == [3, 4]
    assert await connection.depth(WORK.name) == 0


@pytest.mark.parametrize("end", ["consumer", "connection"])
async def test_of_many_acknowledged_at_once_none_comes_back_when_all_is_closed(
    under_test: BrokerUnderTest, connection: Connection, end: str
) -> None:
    numbers = range(300)
    await publish_bodies(connection, *numbers)
    async with connected(under_test.broker()) as other:
        consuming = await other.open_consuming(WORK.name, prefetch=len(numbers))
        held = await receive(consuming, len(numbers))
        # Not in order, so that each is acknowledged by itself.
        for delivery in held[1::2] + held[::2]:
            await consuming.acknowledge(delivery.tag)
        if end == "consumer":
            await consuming.close()
    await publish_bodies(connection, 999)

    assert bodies(await drain(connection, WORK.name, 1)) == [999]


async def test_acknowledgements_of_many_tasks_reach_the_broker_in_the_order_of_the_calls(
    connection: Connection,
) -> None:
    """One for all up to a delivery must not pass that of an earlier one, which the broker would not know any more."""
    numbers = range(600)
    await publish_bodies(connection, *numbers)
    consuming = await connection.open_consuming(WORK.name, prefetch=len(numbers))
    tags = [each.tag for each in await receive(consuming, len(numbers))]
    telling = []
    for first in range(0, len(tags), 30):
        some = tags[first : first + 30]
        # The first one is acknowledged last, together with the last.
        telling += [asyncio.create_task(consuming.acknowledge(tag)) for tag in some[1:-1]]
        await asyncio.sleep(0)
        telling.append(asyncio.create_task(consuming.acknowledge(some[-1], multiple=True)))
        await asyncio.sleep(0)
    await asyncio.gather(*telling)
    await publish_bodies(connection, 999)

    assert bodies(await receive(consuming, 1)) == [999]
    await consuming.close()
    assert await connection.depth(WORK.name) == 1


async def test_what_a_closed_consumer_held_goes_to_another_and_is_counted(connection: Connection) -> None:
    await publish_bodies(connection, 1, 2, 3)
    for returns in range(3):
        consuming = await connection.open_consuming(WORK.name, prefetch=3)
        held = await receive(consuming, 3)
        assert sorted(bodies(held)) == [1, 2, 3]
        assert [delivery.returns for delivery in held] == [returns] * 3
        await consuming.close()


async def test_a_delivery_that_is_given_back_comes_again_and_is_counted(connection: Connection) -> None:
    await publish_bodies(connection, 1, 2)
    consuming = await connection.open_consuming(WORK.name, prefetch=2)
    first, second = await receive(consuming, 2)

    returns = []
    for _ in range(3):
        await consuming.give_back(first.tag)
        (first,) = await receive(consuming, 1)
        returns.append(first.returns)
    await consuming.acknowledge(first.tag)
    await consuming.acknowledge(second.tag)
    await consuming.close()

    assert returns == [1, 2, 3]
    assert await connection.depth(WORK.name) == 0


async def test_a_question_that_comes_back_is_known_as_such(under_test: BrokerUnderTest) -> None:
    async with connected(under_test.broker(), world(QUESTIONS)) as connection:
        await publish_bodies(connection, 1, routing_key="question")
        consuming = await connection.open_consuming(QUESTIONS.name, prefetch=1)
        (asked,) = await receive(consuming, 1)
        assert asked.returns == 0

        for _ in range(3):
            await consuming.give_back(asked.tag)
            (asked,) = await receive(consuming, 1)

            # Its queue does not count deliveries, it only marks a return.
            assert asked.returns == 1


async def test_what_comes_back_too_often_is_a_dead_letter_that_says_why_and_from_where(
    under_test: BrokerUnderTest,
) -> None:
    limits = Limits(deliveries_max=DELIVERIES_MAX_LEAST)
    sender = under_test.broker().user
    async with connected(under_test.broker(), world(WORK, DEAD_LETTERS, limits=limits)) as connection:
        await publish(connection, parcel(b"666"))
        consuming = await connection.open_consuming(WORK.name, prefetch=10)
        returns = []
        for _ in range(DELIVERIES_MAX_LEAST + 1):
            (delivery,) = await receive(consuming, 1)
            returns.append(delivery.returns)
            await consuming.give_back(delivery.tag)

        (dead,) = await drain(connection, DEAD_QUEUE, 1)
        await until_depth(connection, WORK.name, 0)

    assert returns == [*range(DELIVERIES_MAX_LEAST + 1)]
    assert (dead.parcel.exchange, dead.parcel.routing_key, dead.parcel.body) == (DEAD, WORK.name, b"666")
    assert dead.parcel.headers[message.BROKER_REASON] == message.DELIVERY_LIMIT
    assert dead.parcel.headers[message.BROKER_QUEUE] == WORK.name
    assert dead.sender == sender


async def test_a_consumer_that_stops_waiting_misses_nothing(connection: Connection) -> None:
    consuming = await connection.open_consuming(WORK.name, prefetch=10)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await consuming.receive()

    await publish_bodies(connection, 1)

    assert bodies(await receive(consuming, 1)) == [1]


@pytest.mark.parametrize("queue", [WORK, QUESTIONS], ids=lambda queue: queue.kind.value)
async def test_the_end_of_its_queue_cancels_a_consumer_and_nothing_else(
    under_test: BrokerUnderTest, queue: Queue
) -> None:
    async with connected(under_test.broker(), world(queue)) as connection:
        consuming = await connection.open_consuming(queue.name, prefetch=10)

        await under_test.delete_queue(queue.name)

        with pytest.raises(ConsumerCancelled):
            await within_patience(consuming.receive())
        await consuming.close()
        await connection.declare(world(queue))
        await publish_bodies(connection, 1, routing_key=queue.bindings[0].pattern)
        assert bodies(await drain(connection, queue.name, 1)) == [1]


async def test_a_delivery_held_too_long_cancels_its_consumer_and_goes_to_another(
    under_test: BrokerUnderTest, connection: Connection
) -> None:
    await under_test.set_consumer_timeout_s(0.2)
    consuming = await connection.open_consuming(WORK.name, prefetch=10)
    await publish_bodies(connection, 1)

    async def hold_it() -> None:
        """On a slow machine the consumer is cancelled before the test has seen the delivery."""
        while True:
            assert bodies([*await consuming.receive()]) == [1]

    with pytest.raises(ConsumerCancelled):
        async with asyncio.timeout(120):
            await hold_it()
    await under_test.set_consumer_timeout_s(1800)

    (again,) = await drain(connection, WORK.name, 1)
    assert (bodies([again]), again.returns) == ([1], 1)
    assert await publish(connection, parcel(b"the connection stands")) == [Receipt.CONFIRMED]
