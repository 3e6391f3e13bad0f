"""Behaviour of the real broker only: what clients can do with our users' rights, and the kinds of its queues.

The tests use raw AMQP, without our own port, as an attacker with a cell's password would.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from copy import deepcopy
from itertools import product
from typing import Any, cast

import aio_pika
import aiormq
import pytest
from aiormq.abc import AbstractChannel
from pamqp.commands import Basic

from bus.broker import Receipt
from bus.message import Parcel
from bus.rabbit import RabbitBroker
from bus.rabbit.rpc import ForeignExchange, ForeignQueue, RabbitRpc
from bus.topology import (
    API,
    DEAD,
    EVENTS,
    FEED,
    PLACEMENT,
    REPLY,
    Binding,
    Limits,
    Objects,
    Queue,
    QueueKind,
    Site,
    answers_queue,
    objects_of,
)
from bus.workers.publisher import Publisher
from bus.workers.sending import Link
from kit.errors import AccessRefused, ConnectionLost, ConsumerCancelled, Interrupted
from tests.contracts.broker_under_test import ADMIN, SHOP
from tests.contracts.rabbitmq_under_test import (
    URL_VARIABLE,
    Hosts,
    RabbitMQUnderTest,
    evaluate,
)
from tests.contracts.small_world import connected, publish, receive
from tests.contracts.stage import SETTINGS, WORK, Remembering, order, station, working
from tests.running import closing
from tests.waiting import until

pytestmark = pytest.mark.rabbitmq

CELLS = ("a", "b")
CELL = "moor-conductor-a"
SCHEDULER = "moor-scheduler"
OWN_KEY = f"answers.{CELL}.p1"
STANDING = objects_of(CELLS)
EXCHANGES = tuple(exchange.name for exchange in STANDING.exchanges if not exchange.foreign)
QUEUES = tuple(queue.name for queue in STANDING.queues)

Attempt = Callable[[AbstractChannel], Awaitable[object]]


@pytest.fixture
async def rabbitmq() -> AsyncIterator[RabbitMQUnderTest]:
    """The whole topology, and a cell's user."""
    async with closing(await RabbitMQUnderTest.start()) as (under_test,):
        await under_test.declare(STANDING)
        await under_test.add_users((CELL, ADMIN.user, SHOP.user, SCHEDULER), CELLS)
        yield under_test


@asynccontextmanager
async def raw(
    rabbitmq: RabbitMQUnderTest, user: str = ""
) -> AsyncIterator[Callable[[Attempt], Awaitable[str]]]:
    """Attempts as this user, each on a channel of its own; the answer is empty, or the reason of the refusal."""
    async with closing(await aio_pika.connect(rabbitmq.url(user))) as (connection,):

        async def attempt(what: Attempt) -> str:
            channel = connection.channel(on_return_raises=False)
            await channel.initialize()
            try:
                await what(await channel.get_underlay_channel())
            except aiormq.exceptions.ChannelClosed as refused:
                return str(refused)
            await channel.close()
            return ""

        yield attempt


def publishes(
    exchange: str,
    routing_key: str,
    body: bytes = b"{}",
    headers: dict[str, list[str]] | None = None,
    user: str | None = None,
) -> Attempt:
    properties = Basic.Properties(headers=cast("dict[str, Any]", headers or {}), user_id=user)
    return lambda channel: channel.basic_publish(
        body, exchange=exchange, routing_key=routing_key, properties=properties
    )


def declares(
    name: str, arguments: Mapping[str, str | int], *, durable: bool = False, exclusive: bool = False
) -> Attempt:
    return lambda channel: channel.queue_declare(
        name, durable=durable, exclusive=exclusive, arguments=cast("dict[str, Any]", dict(arguments))
    )


def declares_exchange(name: str, arguments: Mapping[str, str]) -> Attempt:
    return lambda channel: channel.exchange_declare(name, arguments=dict(arguments))


def binds(destination: str, source: str, key: str) -> Attempt:
    return lambda channel: channel.exchange_bind(destination, source, key)


def binds_queue(queue: str, exchange: str, key: str) -> Attempt:
    return lambda channel: channel.queue_bind(queue, exchange, key)


async def depths(rabbitmq: RabbitMQUnderTest) -> dict[str, int]:
    """All queues that are not empty."""
    async with connected(rabbitmq.broker()) as connection:
        found = {name: await connection.depth(name) for name in QUEUES}
    return {name: depth for name, depth in found.items() if depth}


# A consumer that its queue has forgotten


async def test_a_fork_of_the_tests_gets_hosts_without_the_queues_that_one_before_it_left() -> None:
    stock = Hosts()
    before = deepcopy(stock)
    host = before.take()
    async with await aio_pika.connect(f"{os.environ[URL_VARIABLE].rstrip('/')}/{host}") as connection:
        await (await connection.channel()).declare_queue("left")

    assert stock.take() == host
    assert evaluate(f'rabbit_amqqueue:list(<<"{host}">>)') == "[]"


async def test_a_call_that_nobody_answered_comes_again_and_says_so(rabbitmq: RabbitMQUnderTest) -> None:
    # It goes with its last reader: nothing of it is left behind.
    calls = [ForeignQueue("calls", ForeignExchange("theirs"), "call", is_auto_deleted=True)]
    broker = RabbitBroker(rabbitmq.url())
    async with closing(await broker.connect(), await broker.connect()) as (first, second):
        calling = await RabbitRpc.open(first, calls, 1)
        await publish(second, Parcel("theirs", "call", b"{}"))
        (call,) = await calling.receive()
        heir = await RabbitRpc.open(second, calls, 1)
        await calling.close()
        (again,) = await heir.receive()

    assert (call.is_redelivered, again.is_redelivered) == (False, True)


@pytest.mark.parametrize("now", ["gone", "another of its name"])
async def test_a_quiet_consumer_finds_out_that_its_queue_has_ended_without_a_word(
    rabbitmq: RabbitMQUnderTest, now: str
) -> None:
    broker = RabbitBroker(rabbitmq.url(), quiet_s=0.2)
    async with connected(broker) as connection, connected(rabbitmq.broker()) as other:
        consuming = await connection.open_consuming("scheduler.requests", prefetch=10)
        await publish(other, Parcel(API, "build.request.shop", b"1"))
        (held,) = await receive(consuming, 1)

        # As if its leader were lost before it could tell anybody.
        name = f'rabbit_misc:r(<<"{rabbitmq.virtual_host}">>, queue, <<"scheduler.requests">>)'
        evaluate(
            f"{{ok, Q}} = rabbit_amqqueue:lookup({name}), ra:force_delete_server(quorum_queues, amqqueue:get_pid(Q)),"
            f' rabbit_amqqueue:internal_delete({name}, <<"tests">>)'
        )
        if now == "gone":
            with pytest.raises(ConsumerCancelled):
                async with asyncio.timeout(60):
                    await consuming.receive()
            return

        await other.declare(STANDING)
        waiting = asyncio.create_task(receive(consuming, 1))
        await until(
            lambda: other.consumers("scheduler.requests"),
            "the new queue has a consumer",
            lambda found: found == 1,
        )
        await publish(other, Parcel(API, "build.request.shop", b"2"))
        (new,) = await waiting
        await consuming.acknowledge(held.tag)
        await consuming.acknowledge(new.tag)

        assert (held.parcel.body, new.parcel.body, new.returns) == (b"1", b"2", 0)


@pytest.mark.parametrize(
    ("user", "queue", "exchange", "key"),
    [
        (SCHEDULER, "scheduler.requests", API, "build.request.shop"),
        (SCHEDULER, "scheduler.questions", API, "host.query"),
        (CELL, OWN_KEY, REPLY, OWN_KEY),
        (CELL, f"feed.{CELL}.p1", EVENTS, "host.beat.a"),
    ],
    ids=["work", "questions", "answers", "feed"],
)
async def test_a_consumer_that_is_quiet_again_and_again_gets_each_message_once(
    rabbitmq: RabbitMQUnderTest, user: str, queue: str, exchange: str, key: str
) -> None:
    broker = RabbitBroker(rabbitmq.url(user), quiet_s=0.001)
    async with connected(broker) as connection, connected(rabbitmq.broker()) as other:
        bindings = (Binding(EVENTS, "host.beat.a"),)
        own = (answers_queue(CELL, "p1"), Queue(f"feed.{CELL}.p1", QueueKind.FEED, bindings, Site.BOTH))
        if user == CELL:
            await connection.declare(Objects(queues=own))
        consuming = await connection.open_consuming(queue, prefetch=10)
        for number in range(40):
            receiving = asyncio.create_task(receive(consuming, 1))
            await publish(other, Parcel(exchange, key, b"%d" % number))
            (got,) = await receiving
            # One that comes in the very moment is returned to the queue, and delivered again.
            assert got.parcel.body == b"%d" % number
            # Every other message is held while it consumes anew.
            if number % 2:
                await consuming.acknowledge(got.tag, multiple=True)

        assert await connection.depth(queue) == 0


async def test_a_consumer_that_is_quiet_since_it_holds_all_it_may_gets_no_more(
    rabbitmq: RabbitMQUnderTest,
) -> None:
    broker = RabbitBroker(rabbitmq.url(), quiet_s=0.001)
    async with connected(broker) as connection, connected(rabbitmq.broker()) as other:
        consuming = await connection.open_consuming("scheduler.requests", prefetch=2)
        for number in range(9):
            await publish(other, Parcel(API, "build.request.shop", b"%d" % number))
        held = [*await receive(consuming, 2)]
        receiving = asyncio.create_task(consuming.receive())
        # Each answer takes longer than the consumer is patient.
        assert {await other.depth("scheduler.requests") for _ in range(40)} == {7}

        await consuming.acknowledge(held[0].tag)
        held += await receiving
        await consuming.acknowledge(held[-1].tag, multiple=True)
        while len(held) < 9:
            held += await consuming.receive()
            await consuming.acknowledge(held[-1].tag, multiple=True)
        await consuming.close()

        assert sorted(each.parcel.body for each in held) == [b"%d" % number for number in range(9)]
        assert await other.depth("scheduler.requests") == 0


async def test_readers_of_a_queue_that_is_deleted_again_and_again_have_no_more_channels_than_before(
    rabbitmq: RabbitMQUnderTest,
) -> None:
    """A worker at its queue, and one who asks at that for the answers."""

    host = f'<<"{rabbitmq.virtual_host}">>'
    has_reader = "rabbit_amqqueue:info(Each, [consumers]) =:= [{consumers, 1}]"
    queues_read = f"[amqqueue:get_name(Each) || Each <- rabbit_amqqueue:list({host}), {has_reader}]"
    is_ours = f"rabbit_channel:info(Each, [vhost]) =:= [{{vhost, {host}}}]"
    channels = f"length([Each || Each <- rabbit_channel:list(), {is_ours}])"

    async def read() -> list[str]:
        """The queues with a consumer."""
        return re.findall(r'queue,\s*<<"([^"]+)">>', await asyncio.to_thread(evaluate, queues_read))

    counted: list[str] = []
    async with (
        station(rabbitmq.broker(), "asker", asks=True),
        working(rabbitmq.broker(), Remembering()) as worker,
    ):
        for _ in range(2):
            queues = await until(read, "both have a consumer", lambda found: len(found) == 2)
            counted.append(await asyncio.to_thread(evaluate, channels))
            for queue in queues:
                await rabbitmq.delete_queue(queue)
            await until(
                lambda: worker.intake.interruptions,
                "the worker has heard of it",
                lambda found: found >= len(counted),
            )
            await rabbitmq.declare(STANDING)

    assert int(counted[0]) >= 2
    assert len({*counted}) == 1, counted


async def test_a_connection_whose_channels_are_all_open_works_on_and_a_message_waits_for_a_channel(
    rabbitmq: RabbitMQUnderTest,
) -> None:
    link = Link(rabbitmq.broker(), SETTINGS)
    publisher = Publisher(link, SETTINGS, "publisher")
    connection = await link.connection()
    opened = [await connection.open_publishing() for _ in range(2047)]
    with pytest.raises(Interrupted, match=r"all 2047 channels of the connection to .+ are open"):
        await connection.open_publishing()
    assert await opened[0].publish(Parcel(API, "build.request.shop", b"1")) is Receipt.CONFIRMED

    sent = publisher.send(order(1, cell="a"))
    await until(lambda: publisher.sender.held_back > 0, "it is tried again")
    assert not sent.done()
    await opened[0].close()
    await sent
    await publisher.close()
    await opened[1].close()

    assert await connection.depth(WORK) == 1
    await link.close()


async def test_a_copy_by_header_reaches_only_queues_that_a_cell_may_reach(
    rabbitmq: RabbitMQUnderTest,
) -> None:
    """RabbitMQ 3.10 does not check the keys in CC and BCC headers, so exchanges must have no queues that a cell may not
    reach.

    A cell reaches the queues of placement, the queues of events, and its own. Their readers check each message by its primary key. It also
    reaches the dead letters, which a person checks.
    """
    every_key = [binding.pattern for queue in STANDING.queues for binding in queue.bindings]
    keys = sorted({key.replace("*", "b").replace("#", "b") for key in every_key} | set(QUEUES))
    async with raw(rabbitmq, CELL) as attempt:
        for exchange, key in (
            (PLACEMENT, "swap.a"),
            ("moor.cell.a", "spawn.a"),
            (EVENTS, "instance.active.a"),
            ("moor.retry.conductor.a", "conductor.a.work"),
            (DEAD, "conductor.a.work"),
        ):
            assert await attempt(publishes(exchange, key, headers={"CC": keys, "BCC": keys})) == ""
        for exchange in ("amq.topic", "amq.fanout"):
            assert "ACCESS_REFUSED" in await attempt(publishes(exchange, "anything"))

    assert set(await depths(rabbitmq)) == {
        "placement.work",
        "placement.claims",
        "placement.searches",
        "placement.questions",
        "scheduler.events",
        "keeper.events",
        "conductor.a.work",
        "conductor.a.questions",
        "compute.a.work",
        "compute.a.questions",
        "ironic.a.work",
        "dead",
    }


# Nor create a way there


@pytest.mark.parametrize("exchange", [API, ""], ids=["requests", "the default exchange"])
async def test_a_cell_has_no_queue_whose_dead_letters_go_where_it_may_not_write(
    rabbitmq: RabbitMQUnderTest, exchange: str
) -> None:
    arguments: dict[str, str | int] = {
        "x-dead-letter-exchange": exchange,
        "x-dead-letter-routing-key": "scheduler.requests",
    }
    async with raw(rabbitmq, CELL) as attempt:
        for name in ("", OWN_KEY, "amq.gen-mine"):
            refused = await attempt(declares(name, arguments, exclusive=True))
            assert "ACCESS_REFUSED" in refused, f"{name!r}: {refused or 'allowed'}"


@pytest.mark.parametrize("name", [OWN_KEY, "amq.gen-mine", "moor.mine", "feed.moor-conductor-a.p1"])
async def test_a_cell_has_no_exchange_of_its_own(rabbitmq: RabbitMQUnderTest, name: str) -> None:
    """A new exchange has no topic rights: bound to an exchange where a cell may write, it would carry any key there."""
    async with raw(rabbitmq, CELL) as attempt:
        for arguments in (dict[str, str](), {"alternate-exchange": PLACEMENT}):
            refused = await attempt(declares_exchange(name, arguments))
            assert "ACCESS_REFUSED" in refused, refused or "allowed"


async def test_a_cell_binds_exchanges_only_for_its_own_answers(
    rabbitmq: RabbitMQUnderTest,
) -> None:
    """A cell may read `moor.reply` with the keys of its answers, so it may bind that to an exchange where it may write:
    RabbitMQ's rights cannot tell the two apart. The cell's own messages do not pass there, because it may write answers to
    operators alone.
    """
    own_keys = (OWN_KEY, f"answers.{CELL}.*", f"answers.{CELL}.#")
    keys = ("#", "", "scheduler.requests", "reshape", "swap.a", "answers.moor-scheduler.p1", *own_keys)
    exchanges = (*EXCHANGES, "amq.topic")
    async with raw(rabbitmq, CELL) as attempt:
        allowed = {
            (source, destination, key)
            for source, destination, key in product(exchanges, exchanges, keys)
            if not await attempt(binds(destination, source, key))
        }

        writable = (PLACEMENT, EVENTS, DEAD, REPLY, "moor.cell.a", "moor.retry.conductor.a")
        assert allowed == {(REPLY, destination, key) for destination in writable for key in own_keys}

    # All of these bindings exist now. Placement's answers reach no queue by them except the dead letters, where a cell
    # may put anything.
    async with raw(rabbitmq) as placement:
        assert await placement(publishes(REPLY, OWN_KEY, b"an answer")) == ""
    assert set(await depths(rabbitmq)) == {"dead"}


async def test_the_dead_letters_of_an_answer_queue_are_answers(rabbitmq: RabbitMQUnderTest) -> None:
    """A cell may have its answers dead-lettered with any key, to an exchange where it may write. It gains nothing: only
    answers reach such a queue, and no parcel of its own.
    """
    astray: dict[str, str | int] = {
        "x-dead-letter-exchange": PLACEMENT,
        "x-dead-letter-routing-key": "release.b",
        "x-message-ttl": 0,
    }
    async with raw(rabbitmq, CELL) as attempt:

        async def dead_letters_its_answers(channel: AbstractChannel) -> None:
            queue = str(
                (
                    await channel.queue_declare("", exclusive=True, arguments=cast("dict[str, Any]", astray))
                ).queue
            )
            await channel.queue_bind(queue, REPLY, OWN_KEY)
            for exchange in EXCHANGES:
                if exchange != REPLY:
                    refused = await attempt(binds_queue(queue, exchange, "conductor.a.work"))
                    assert "ACCESS_REFUSED" in refused, f"bound to {exchange}"
            assert "ACCESS_REFUSED" in await attempt(publishes("", queue, b"its own words"))

        assert await attempt(dead_letters_its_answers) == ""
        async with raw(rabbitmq) as placement:
            await placement(publishes(REPLY, OWN_KEY, b"an answer"))
        await until(lambda: depths(rabbitmq), "the answer went astray")
    async with connected(rabbitmq.broker()) as connection:
        work = await connection.open_consuming("placement.work", prefetch=10)
        assert [each.parcel.body for each in await receive(work, 1)] == [b"an answer"]


# Senders


async def test_no_user_publishes_as_another(rabbitmq: RabbitMQUnderTest) -> None:
    async with raw(rabbitmq, CELL) as attempt:
        refused = await attempt(publishes(PLACEMENT, "swap.a", user="moor-placement"))
        assert "user_id property set to 'moor-placement'" in refused
        assert await attempt(publishes(PLACEMENT, "swap.a", user=CELL)) == ""


async def test_a_wrong_password_is_refused_without_being_shown(rabbitmq: RabbitMQUnderTest) -> None:
    url = rabbitmq.url(CELL).replace("as-secret-as", "not-as-secret-as")

    with pytest.raises(AccessRefused, match="wrong password") as refused:
        await RabbitBroker(url).connect()

    assert "secret" not in str(refused.value)


# Kinds of queue


async def test_a_dead_letter_waits_in_its_queue_until_the_queue_of_dead_letters_is_back(
    rabbitmq: RabbitMQUnderTest,
) -> None:
    """At-least-once dead-lettering: while the dead letters' queue is away, nothing is lost on the way to it."""
    work = Queue("patient.work", QueueKind.WORK, (Binding("moor.cell.a", "spawn.patient"),))
    async with connected(rabbitmq.broker()) as connection, dead_letters_retried_after(1000):
        await connection.declare(Objects(queues=(work,)))
        await rabbitmq.delete_queue("dead")
        publishing = await connection.open_publishing()
        await publishing.publish(Parcel("moor.cell.a", "spawn.patient", b"killer", mandatory=True))
        consuming = await connection.open_consuming(work.name, prefetch=1)
        for returns in range(Limits().deliveries_max + 1):
            (delivery,) = await receive(consuming, 1)
            assert delivery.returns == returns
            await consuming.give_back(delivery.tag)

        await connection.declare(STANDING)
        (letter,) = await receive(await connection.open_consuming("dead", prefetch=1), 1)

    assert letter.parcel.body == b"killer"
    assert letter.parcel.routing_key == work.name
    assert letter.parcel.headers["x-first-death-reason"] == "delivery_limit"
    assert letter.parcel.headers["x-first-death-queue"] == work.name


@asynccontextmanager
async def dead_letters_retried_after(ms: int) -> AsyncIterator[None]:
    """For queues that are declared from now on; RabbitMQ's default is three minutes."""
    set_to = "application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, {})"
    await asyncio.to_thread(evaluate, set_to.format(ms))
    try:
        yield
    finally:
        await asyncio.to_thread(evaluate, set_to.format(180_000))


KINDS: dict[str, dict[str, str | int]] = {
    "conductor.a.work": {
        "x-queue-type": "quorum",
        "x-delivery-limit": Limits().deliveries_max,
        "x-dead-letter-exchange": DEAD,
        "x-dead-letter-routing-key": "conductor.a.work",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-max-length": Limits().work_length_max,
    },
    "placement.questions": {
        "x-overflow": "reject-publish",
        "x-max-length": Limits().questions_length_max,
    },
    "dead": {
        "x-queue-type": "quorum",
        "x-overflow": "reject-publish",
        "x-max-length": Limits().dead_length_max,
    },
    "ironic.events": {
        "x-overflow": "drop-head",
        "x-max-length": Limits().inbox_length_max,
        "x-max-length-bytes": Limits().inbox_bytes_max,
    },
}


@pytest.mark.parametrize("name", KINDS)
async def test_a_queue_is_of_the_kind_it_should_be(rabbitmq: RabbitMQUnderTest, name: str) -> None:
    arguments = KINDS[name]
    # Classic queues survive a restart only if their readers may not declare them.
    durable = arguments.get("x-queue-type") == "quorum" or name in ("placement.questions", "ironic.events")
    async with raw(rabbitmq) as attempt:
        for key in arguments:
            # The broker compares all arguments: without any one of them it is another queue.
            fewer = {other: value for other, value in arguments.items() if other != key}
            assert "PRECONDITION_FAILED" in await attempt(declares(name, fewer, durable=durable)), key
        assert "PRECONDITION_FAILED" in await attempt(declares(name, arguments, durable=not durable))
        assert await attempt(declares(name, arguments, durable=durable)) == ""


async def test_a_feed_is_bounded_drops_its_oldest_and_expires_without_a_reader(
    rabbitmq: RabbitMQUnderTest,
) -> None:
    """A second declaration to compare the arguments is impossible: the broker chooses the name."""
    async with connected(rabbitmq.broker(), Objects(queues=(Queue("feed.one", QueueKind.FEED),))):
        is_feed = 'binary:match(element(4, amqqueue:get_name(Each)), <<"amq.gen-">>) =:= {0, 8}'
        its = f'Each <- rabbit_amqqueue:list(<<"{rabbitmq.virtual_host}">>), {is_feed}'
        listed = await asyncio.to_thread(evaluate, f"[rabbit_amqqueue:info(Each, [arguments]) || {its}]")

    found = dict(re.findall(r'<<"(x-[a-z-]+)">>,\s*\w+,\s*(?:<<")?([\w-]+)', listed))
    limits = Limits()
    assert found["x-overflow"] == "drop-head"
    assert found["x-max-length"] == str(limits.feed_length_max)
    assert found["x-expires"] == str(limits.unused_expires_ms)


async def test_the_queue_of_an_application_that_does_not_read_is_bounded_and_others_are_served(
    rabbitmq: RabbitMQUnderTest,
) -> None:
    """It declares its queue without a bound, as a client in any language may. It gets the newest events when it reads again."""
    more = 100
    bound = Limits().feed_length_max
    slow = await aio_pika.connect(rabbitmq.url(SHOP.user))
    teller = await aio_pika.connect(rabbitmq.url(SCHEDULER))
    async with slow, teller:
        queue = await (await slow.channel()).declare_queue("", exclusive=True)
        await queue.bind(FEED, "shop")
        told = await (await teller.channel()).get_exchange(FEED, ensure=False)
        for first in range(0, bound + more, 1_000):
            numbers = range(first, min(first + 1_000, bound + more))
            messages = [aio_pika.Message(str(number).encode()) for number in numbers]
            # Each is confirmed: a slow reader does not hold up the sender.
            await asyncio.gather(*[told.publish(each, "shop", mandatory=True) for each in messages])

        assert queue.name.startswith("amq.gen-")
        declared = await queue.channel.declare_queue(queue.name, passive=True)
        assert declared.declaration_result.message_count == bound
        oldest = await queue.get(no_ack=True)
        assert int(oldest.body) == more


# Networks


async def test_a_network_that_drops_everything_is_noticed_by_heartbeats(
    rabbitmq: RabbitMQUnderTest,
) -> None:
    connection = await RabbitBroker(f"{rabbitmq.url()}?heartbeat=1").connect()
    consuming = await connection.open_consuming("compute.a.work", prefetch=1)

    rabbitmq.swallow()

    with pytest.raises(ConnectionLost):
        await asyncio.wait_for(consuming.receive(), 30)
    await connection.close()
