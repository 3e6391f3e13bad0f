"""Contract of publishing and declaring: bytes arrive as they were sent, and the broker's answer to each parcel is true."""

import asyncio
from contextlib import suppress

import pytest
from msgspec import structs

from bus.broker import Connection, Consuming, Receipt
from bus.message import LINES, PARCEL_BYTES_MAX, Parcel
from bus.topology import Binding, Exchange, Limits, Objects, Queue, QueueKind, objects_of
from kit.errors import Interrupted, NotFound, OneWasRefused, Refusal
from tests.contracts.broker_under_test import BrokerUnderTest
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

EVERY_BYTE = bytes(range(256)) * 4


@pytest.mark.parametrize(
    "sent",
    [
        parcel(EVERY_BYTE),
        parcel(b""),
        Parcel(
            TOWN,
            "work",
            b'{"a":1}\n{"b":"\xc3\xa4"}',
            content_type=LINES,
            mandatory=True,
            reply_to="answers.moor-client.p1",
            headers={"moor-reason": "it is ä", "moor-attempts": 3},
        ),
        structs.replace(parcel(b"for the moment"), persistent=False),
        parcel(b"x" * (PARCEL_BYTES_MAX * 4 + 1)),
    ],
    ids=["every byte", "empty", "everything set", "transient", "oversized"],
)
async def test_a_parcel_arrives_as_it_was_sent(
    under_test: BrokerUnderTest, connection: Connection, sent: Parcel
) -> None:
    assert await publish(connection, sent) == [Receipt.CONFIRMED]

    (delivery,) = await drain(connection, WORK.name, 1)

    # `mandatory` is for the broker only; the consumer does not see it.
    assert delivery.parcel == structs.replace(sent, mandatory=False)
    assert (delivery.queue, delivery.returns, delivery.sender) == (WORK.name, 0, under_test.broker().user)


async def test_many_parcels_may_be_unconfirmed_at_once_and_keep_their_order(connection: Connection) -> None:
    await publish_bodies(connection, *range(1000))

    assert bodies(await drain(connection, WORK.name, 1000)) == [*range(1000)]


async def test_one_that_must_be_routed_and_cannot_is_told_apart_from_its_neighbours(
    connection: Connection,
) -> None:
    lost = Parcel(TOWN, "nowhere", b"lost", mandatory=True)
    kept = structs.replace(parcel(b"kept"), mandatory=True)

    assert await publish(connection, kept, lost, kept, lost, lost) == [
        Receipt.CONFIRMED,
        Receipt.UNROUTABLE,
        Receipt.CONFIRMED,
        Receipt.UNROUTABLE,
        Receipt.UNROUTABLE,
    ]


async def test_an_exchange_that_is_not_there_is_an_error_and_ends_the_channel_alone(
    connection: Connection,
) -> None:
    publishing = await connection.open_publishing()
    with pytest.raises(NotFound):
        await within_patience(publishing.publish(Parcel("moor.nowhere", "work", b"")))
    with pytest.raises(Interrupted):
        await within_patience(publishing.publish(parcel(b"on the same channel")))

    assert await publish(connection, parcel(b"on another channel")) == [Receipt.CONFIRMED]


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("routing_key", structs.replace(parcel(1), routing_key="k" * 256)),
        ("routing_key", structs.replace(parcel(1), routing_key="\u00e4" * 128)),
        ("reply_to", structs.replace(parcel(1), reply_to="r" * 256)),
        ("content_type", structs.replace(parcel(1), content_type="c" * 256)),
    ],
    ids=["key", "key in bytes", "reply_to", "content_type"],
)
async def test_a_name_that_is_too_long_is_refused_with_its_field(
    connection: Connection, field: str, changed: Parcel
) -> None:
    publishing = await connection.open_publishing()
    with pytest.raises(Refusal, match=rf"{field} has 256 bytes, at most 255 are allowed: "):
        await within_patience(publishing.publish(changed))

    longest = structs.replace(parcel(b"as long as may be"), reply_to="r" * 255, content_type="c" * 255)
    assert await publish(connection, longest) == [Receipt.CONFIRMED]
    (delivery,) = await drain(connection, WORK.name, 1)
    assert delivery.parcel == longest


@pytest.mark.parametrize("header", [2**63, -(2**63) - 1, "\ud800"], ids=["large", "small", "no text"])
async def test_a_header_that_has_no_bytes_is_refused(connection: Connection, header: str | int) -> None:
    publishing = await connection.open_publishing()
    with pytest.raises(Refusal):
        await within_patience(publishing.publish(structs.replace(parcel(1), headers={"moor-reason": header})))

    assert await publish(connection, parcel(b"on another channel")) == [Receipt.CONFIRMED]


async def test_of_many_under_way_no_neighbour_of_a_refused_one_is_told_that_it_was(
    connection: Connection,
) -> None:
    """The name is so long that RabbitMQ cuts off its own error text."""
    refused = Parcel("moor.nowhere" + "e" * 110, "k" * 255, b"")
    publishing = await connection.open_publishing()
    told = await within_patience(
        asyncio.gather(
            *(publishing.publish(refused if n == 20 else parcel(n)) for n in range(40)),
            return_exceptions=True,
        )
    )
    assert all(each is Receipt.CONFIRMED or isinstance(each, Interrupted) for each in told[:20])
    assert isinstance(told[20], NotFound | OneWasRefused)
    assert all(isinstance(each, Interrupted) for each in told[21:])

    alone = await connection.open_publishing()
    with pytest.raises(NotFound):
        await within_patience(alone.publish(refused))


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("claim.c1", ["claim.c1"], ["claim.c2", "claim", "claim.c1.x", "xclaim.c1", "claimxc1", ""]),
        ("claim.*", ["claim.c1", "claim.c2"], ["claim", "claim.c1.x", "release.c1"]),
        ("*.c1", ["claim.c1", "swap.c1"], ["c1", "spawn.failed.c1"]),
        ("instance.*.c1", ["instance.active.c1"], ["instance.c1", "instance.a.b.c1"]),
        ("instance.#", ["instance", "instance.active", "instance.active.c1"], ["instances", "an.instance"]),
        ("#.c1", ["c1", "claim.c1", "spawn.failed.c1"], ["c2", "c1.x"]),
        ("a.#.b", ["a.b", "a.x.b", "a.x.y.b", "a.b.b"], ["a", "b", "a.x", "x.b"]),
        ("#.a.#", ["a", "x.a", "a.x", "x.a.y.a"], ["x", "x.y", ""]),
        ("*.#", ["a", "a.b"], [""]),
        ("#", ["", "a", "a.b.c"], []),
    ],
)
async def test_a_topic_pattern_takes_its_keys_and_no_others(
    under_test: BrokerUnderTest, pattern: str, matching: list[str], others: list[str]
) -> None:
    queue = Queue("town.any", QueueKind.QUESTIONS, (Binding(TOWN, pattern),))
    async with connected(under_test.broker(), world(queue)) as connection:
        receipts = await publish(
            connection, *(Parcel(TOWN, key, b"", mandatory=True) for key in (*matching, *others))
        )

    assert receipts == [Receipt.CONFIRMED] * len(matching) + [Receipt.UNROUTABLE] * len(others)


async def test_a_parcel_goes_to_every_queue_that_is_bound_but_once_to_each(
    under_test: BrokerUnderTest,
) -> None:
    one = Queue("town.one", QueueKind.WORK, (Binding(TOWN, "a.*"), Binding(TOWN, "*.b"), Binding(TOWN, "#")))
    other = Queue("town.other", QueueKind.FEED, (Binding(TOWN, "a.b"),))
    async with connected(under_test.broker(), world(one, other)) as connection:
        await publish_bodies(connection, 1, 2, routing_key="a.b")

        assert bodies(await drain(connection, one.name, 2)) == [1, 2]
        assert bodies(await drain(connection, other.name, 2)) == [1, 2]


async def test_the_default_exchange_reaches_a_queue_by_its_name(connection: Connection) -> None:
    receipts = await publish(
        connection,
        Parcel("", WORK.name, b"1", mandatory=True),
        Parcel("", "town.nobody", b"2", mandatory=True),
    )

    assert receipts == [Receipt.CONFIRMED, Receipt.UNROUTABLE]
    assert bodies(await drain(connection, WORK.name, 1)) == [1]


@pytest.mark.parametrize("queue", [WORK, QUESTIONS], ids=lambda queue: queue.kind.value)
async def test_a_full_queue_refuses_until_it_was_consumed(under_test: BrokerUnderTest, queue: Queue) -> None:
    limits = Limits(work_length_max=10, questions_length_max=10)
    key = queue.bindings[0].pattern
    async with connected(under_test.broker(), world(queue, limits=limits)) as connection:
        publishing = await connection.open_publishing()
        taken = 0
        while await within_patience(publishing.publish(parcel(taken, key))) is Receipt.CONFIRMED:
            taken += 1
        # The limit is not exact: the queue tells its publishers, and some parcels are on their way by then.
        assert 10 <= taken <= 200

        assert bodies(await drain(connection, queue.name, taken)) == [*range(taken)]
        await until(
            lambda: publishing.publish(parcel(taken, key)),
            "the queue takes parcels again",
            lambda found: found is Receipt.CONFIRMED,
        )


async def test_a_feed_forgets_its_oldest(under_test: BrokerUnderTest) -> None:
    async with connected(under_test.broker(), world(FEED, limits=Limits(feed_length_max=10))) as connection:
        await publish_bodies(connection, *range(25), routing_key="news")

        assert bodies(await drain(connection, FEED.name, 10)) == [*range(15, 25)]


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
async def test_what_stands_otherwise_is_not_declared_over(connection: Connection, other: Objects) -> None:
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


async def test_what_is_not_there_is_not_found(connection: Connection) -> None:
    nowhere = Queue("town.lost", QueueKind.WORK, (Binding("moor.nowhere", "#"),))
    for asked in (
        connection.depth("town.nobody"),
        connection.open_consuming("town.nobody", prefetch=1),
        connection.declare(Objects(queues=(nowhere,))),
    ):
        with pytest.raises(NotFound):
            await asked


async def test_an_answer_queue_belongs_to_its_connection_alone(under_test: BrokerUnderTest) -> None:
    async with (
        connected(under_test.broker(), world(ANSWERS)) as owner,
        connected(under_test.broker()) as other,
    ):
        consuming = await owner.open_consuming(ANSWERS.name, prefetch=1)
        await owner.declare(world(ANSWERS))
        for asked in (other.open_consuming(ANSWERS.name, prefetch=1), other.depth(ANSWERS.name)):
            with pytest.raises(Refusal):
                await asked

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
                with suppress(NotFound):
                    await connection.declare(objects)
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
