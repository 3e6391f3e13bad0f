"""Contract of all brokers: cut connections, lost confirms, restarts and alarms. Every confirmed parcel survives all of them."""

import asyncio

import pytest
from msgspec import structs

from bus.broker import Connection, Receipt
from bus.message import Parcel
from bus.topology import Exchange, Objects
from kit.errors import ConnectionLost, NotFound
from tests.contracts.broker_under_test import BrokerUnderTest, Short
from tests.contracts.small_world import (
    ANSWERS,
    FEED,
    QUESTIONS,
    TOWN,
    WORK,
    bodies,
    connected,
    drain,
    parcel,
    publish,
    publish_bodies,
    receive,
    within_patience,
    world,
)
from tests.waiting import until


async def test_what_was_held_when_the_connection_was_cut_is_delivered_again(
    under_test: BrokerUnderTest, connection: Connection
) -> None:
    await publish_bodies(connection, *range(5))
    consuming = await connection.open_consuming(WORK.name, prefetch=5)
    held = await receive(consuming, 5)
    await consuming.acknowledge(held[0].tag)
    # A round trip on the same connection: the broker has processed the acknowledgements before it.
    await connection.depth(WORK.name)

    await under_test.cut_connections()

    async with connected(under_test.broker()) as other:
        returned = await drain(other, WORK.name, 4)
    assert sorted(bodies(returned)) == [1, 2, 3, 4]
    assert [delivery.returns for delivery in returned] == [1] * 4


async def test_a_confirm_that_is_lost_is_said_to_be_lost(
    under_test: BrokerUnderTest, connection: Connection
) -> None:
    publishing = await connection.open_publishing()
    sent = [asyncio.create_task(publishing.publish(parcel(number))) for number in range(300)]
    await within_patience(sent[0])

    await under_test.cut_connections()
    outcomes = await within_patience(asyncio.gather(*sent, return_exceptions=True))

    confirmed = [number for number, outcome in enumerate(outcomes) if outcome is Receipt.CONFIRMED]
    lost = [outcome for outcome in outcomes if isinstance(outcome, ConnectionLost)]
    assert len(confirmed) + len(lost) == 300
    assert confirmed
    async with connected(under_test.broker()) as other:
        # More may have arrived than was confirmed: that is the meaning of a lost confirm.
        stored = await all_bodies(other)
    assert {*confirmed} <= {*stored}


async def all_bodies(connection: Connection) -> list[int]:
    """All parcels in the work queue, up to a marker that is put behind them."""
    await publish_bodies(connection, 999_999)
    consuming = await connection.open_consuming(WORK.name, prefetch=1000)
    found: list[int] = []
    while 999_999 not in found:
        found += bodies([*await within_patience(consuming.receive())])
    return found


@pytest.mark.parametrize("of", ["memory", "disk"])
async def test_a_blocked_broker_lets_publishers_wait_and_consumers_go_on(
    under_test: BrokerUnderTest, of: Short
) -> None:
    async with (
        connected(under_test.broker(), world()) as connection,
        connected(under_test.broker()) as consumer,
    ):
        await publish_bodies(connection, 1, 2, 3)
        publishing = await connection.open_publishing()
        assert not connection.blocked
        await under_test.set_alarm(on=True, of=of)
        waiting = [asyncio.create_task(publishing.publish(parcel(number))) for number in (4, 5, 6)]
        await until(lambda: connection.blocked, "the broker says why it takes nothing")

        assert bodies(await drain(consumer, WORK.name, 3)) == [1, 2, 3]
        assert not any(publish.done() for publish in waiting)

        await under_test.set_alarm(on=False, of=of)
        assert await within_patience(asyncio.gather(*waiting)) == [Receipt.CONFIRMED] * 3
        await within_patience(connection.until_unblocked())
        assert bodies(await drain(consumer, WORK.name, 3)) == [4, 5, 6]


async def test_a_restart_keeps_what_is_durable_and_nothing_else(under_test: BrokerUnderTest) -> None:
    passing = Objects((Exchange("moor.passing", durable=False),))
    async with connected(under_test.broker(), world(WORK, QUESTIONS, FEED, ANSWERS)) as connection:
        await connection.declare(passing)
        await publish_bodies(connection, 99)
        await drain(connection, WORK.name, 1)
        await publish_bodies(connection, 100)
        # A queue that is declared in place of a deleted one has none of its messages.
        await under_test.delete_queue(WORK.name)
        await connection.declare(world(WORK))
        await publish(connection, *[structs.replace(parcel(n), headers={"number": n}) for n in range(50)])
        await publish(connection, structs.replace(parcel(b"a question", "question"), persistent=False))
        waiting = await connection.open_consuming(QUESTIONS.name, prefetch=1)
        publishing = await connection.open_publishing()
        working = await connection.open_consuming(WORK.name, prefetch=10)
        assert bodies(await receive(working, 10)) == [*range(10)]

        await under_test.restart()

        for use in (waiting.receive(), publishing.publish(parcel(b"too late"))):
            with pytest.raises(ConnectionLost):
                await within_patience(use)

    async with connected(under_test.broker()) as connection:
        for queue in (FEED, ANSWERS):
            with pytest.raises(NotFound):
                await connection.depth(queue.name)
        # The queue of questions exists, for users that may not declare it; its questions are lost and asked again.
        assert await connection.depth(QUESTIONS.name) == 0
        with pytest.raises(NotFound):
            await publish(connection, Parcel("moor.passing", "any", b""))
        kept = await drain(connection, WORK.name, 50)
        # Its binding is there, too.
        assert await publish(connection, structs.replace(parcel(b"7"), mandatory=True)) == [Receipt.CONFIRMED]
    assert sorted(bodies(kept)) == [*range(50)]
    assert all(each.parcel.headers == {"number": int(each.parcel.body)} for each in kept)
    assert {delivery.parcel.body for delivery in kept if delivery.returns} == {b"%d" % n for n in range(10)}

    # What arrives after one restart is new after the next one.
    await under_test.restart()
    async with connected(under_test.broker()) as connection:
        (new,) = await drain(connection, WORK.name, 1)
    assert (new.parcel.body, new.returns) == (b"7", 0)


async def test_an_answer_queue_goes_with_its_connection(under_test: BrokerUnderTest) -> None:
    answer = Parcel(TOWN, "answer", b"", mandatory=True)
    async with connected(under_test.broker(), world(WORK)) as connection:
        async with connected(under_test.broker(), world(ANSWERS)):
            assert await publish(connection, answer) == [Receipt.CONFIRMED]
        await until(
            lambda: publish(connection, answer),
            "the answer queue is gone",
            lambda found: found == [Receipt.UNROUTABLE],
        )


async def test_a_feed_outlives_the_connections_of_its_process(under_test: BrokerUnderTest) -> None:
    broker = under_test.broker()
    async with connected(broker, world(FEED)):
        pass
    async with connected(under_test.broker()) as other:
        assert await publish(other, parcel(1, "news")) == [Receipt.CONFIRMED]

    async with connected(broker, world(FEED)) as connection:
        assert bodies(await drain(connection, FEED.name, 1)) == [1]
