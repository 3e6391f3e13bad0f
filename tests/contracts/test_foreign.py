"""Contract of readers of a foreign exchange (Ironic's): they never block it, report each gap, and survive its deletion."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
from msgspec import structs

from bus.broker import Broker, Connection, Receipt
from bus.message import Parcel
from bus.topology import DEAD, Exchange, Limits, Objects, objects_of, user_of
from bus.workers.consuming import InboxConsuming, consumer
from bus.workers.dead_letters import NotReplayed, open_dead_letters
from bus.workers.sending import Link, pauses_of
from ironic_sync.events import inbox_dead_letter
from ironic_sync.settings import Inbox
from kit.parts import Status, Supervised
from tests.contracts.broker_under_test import BrokerUnderTest
from tests.contracts.small_world import connected, publish, until_depth, within_patience
from tests.contracts.stage import CELLS, SETTINGS, dead_letters, send, station
from tests.running import closing
from tests.waiting import until

KEY = "ironic_versioned_notifications.info"
INBOX = Inbox()
THEIRS = Objects((Exchange(INBOX.exchange, durable=False),))
LOOK_S = 0.02


def said(body: bytes | int, key: str = KEY) -> Parcel:
    return Parcel(INBOX.exchange, key, body if isinstance(body, bytes) else str(body).encode())


def opening(inbox: Inbox) -> Callable[[Connection], Awaitable[InboxConsuming]]:
    return partial(InboxConsuming.open, inbox=inbox.objects, prefetch=SETTINGS.prefetch, bind_s=LOOK_S)


@asynccontextmanager
async def hearing(
    broker: Broker, inbox: Inbox = INBOX, *, status: Status | None = None
) -> AsyncIterator[InboxConsuming]:
    """A reader with its own link."""
    async with (
        closing(Link(broker, SETTINGS)) as (link,),
        consumer(link, status or Status("inbox"), opening(inbox)) as reader,
    ):
        yield reader


async def heard(reader: InboxConsuming, count: int) -> list[int]:
    """This many messages, without a gap before them, which are acknowledged."""
    found: list[int] = []
    while len(found) < count:
        batch = await within_patience(reader.receive())
        assert batch
        found += [int(each.parcel.body) for each in batch]
        await reader.acknowledge(batch[-1].tag, multiple=True)
    return found


async def test_bodies_are_heard_as_they_are_in_order(under_test: BrokerUnderTest) -> None:
    async with connected(under_test.broker(), THEIRS) as ironic, hearing(under_test.broker()) as reader:
        await publish(ironic, said(b"\x00 no json"), said(b"{}", "ironic_versioned_notifications.error"))

        found: list[tuple[bytes, str]] = []
        while len(found) < 2:
            batch = await within_patience(reader.receive())
            found += [(each.parcel.body, each.parcel.routing_key) for each in batch]
            assert all(each.parcel.exchange == "ironic" and not each.returns for each in batch)

    assert found == [(b"\x00 no json", KEY), (b"{}", "ironic_versioned_notifications.error")]


@pytest.mark.parametrize(
    ("limits", "padding", "sent", "left"),
    [(Limits(inbox_length_max=3), 0, 7, [5, 6, 7]), (Limits(inbox_bytes_max=1000), 399, 5, [4, 5])],
    ids=["by their number", "by their bytes"],
)
async def test_a_full_inbox_drops_its_oldest_and_takes_everything(
    under_test: BrokerUnderTest, limits: Limits, padding: int, sent: int, left: list[int]
) -> None:
    inbox = Inbox(limits=limits)
    async with connected(under_test.broker()) as ironic:
        # The queue exists and is bound, and no consumer reads it.
        await ironic.declare(Objects(THEIRS.exchanges, (inbox.declared,), inbox.limits))

        for number in range(1, sent + 1):
            assert await publish(ironic, said(b"%d" % number + b" " * padding)) == [Receipt.CONFIRMED]

        await until_depth(ironic, inbox.queue, len(left))
        async with hearing(under_test.broker(), inbox) as reader:
            assert await heard(reader, len(left)) == left


async def test_what_a_reader_did_not_finish_comes_to_another(under_test: BrokerUnderTest) -> None:
    async with connected(under_test.broker(), THEIRS) as ironic:
        link = Link(under_test.broker(), SETTINGS)
        async with consumer(link, Status("inbox"), opening(INBOX)) as reader:
            await publish(ironic, said(1))
            assert await heard(reader, 1) == [1]
            await publish(ironic, said(2))
            (unfinished,) = await within_patience(reader.receive())
        # Its connection is still open, and other parts may use it.
        async with hearing(under_test.broker()) as reader:
            (again,) = await within_patience(reader.receive())
        await link.close()

        assert unfinished.parcel.body == again.parcel.body == b"2"
        assert again.returns


@pytest.mark.hits("the queue %r is bound as soon as the exchange %r exists: it does not yet")
async def test_an_exchange_that_went_and_came_back_is_bound_again(under_test: BrokerUnderTest) -> None:
    async with connected(under_test.broker(), THEIRS) as ironic, hearing(under_test.broker()) as reader:
        await publish(ironic, said(1))
        assert await heard(reader, 1) == [1]
        await under_test.delete_exchange(INBOX.exchange)
        asking = asyncio.ensure_future(reader.receive())
        await asyncio.wait((asking,), timeout=10 * LOOK_S)
        assert not asking.done()

        await ironic.declare(THEIRS)

        assert await within_patience(asking) == ()
        await publish(ironic, said(2))
        assert await heard(reader, 1) == [2]


async def test_a_reader_that_creates_the_exchange_again_tells_that_it_has_missed_some(
    under_test: BrokerUnderTest,
) -> None:
    inbox = Inbox(creates_exchange=True)
    async with connected(under_test.broker()) as ironic, hearing(under_test.broker(), inbox) as reader:
        await under_test.delete_exchange(INBOX.exchange)

        assert await within_patience(reader.receive()) == ()
        await publish(ironic, said(1))
        assert await heard(reader, 1) == [1]


async def test_the_role_ironic_may_read_and_bind_again_and_no_more(under_test: BrokerUnderTest) -> None:
    user = user_of("ironic")
    status = Status("inbox")
    async with connected(under_test.broker(), objects_of(CELLS, create_foreign=True)) as operator:
        await under_test.add_users((user,), CELLS)
        async with hearing(under_test.broker(user), status=status) as reader:
            await under_test.delete_exchange(INBOX.exchange)
            await operator.declare(THEIRS)
            asking = asyncio.ensure_future(reader.receive())
            await until(
                lambda: publish(operator, structs.replace(said(1), mandatory=True)),
                "the queue is bound again",
                lambda found: found == [Receipt.CONFIRMED],
            )
            assert {*(each.parcel.body for each in await within_patience(asking))} <= {b"1"}
        assert status.failures == 0
        # If the queue does not exist, the reader waits for an operator: it may not declare it.
        await under_test.delete_queue(INBOX.queue)
        link = Link(under_test.broker(user), SETTINGS)
        reads_again = asyncio.Event()

        async def read() -> None:
            async with consumer(link, part.status, opening(INBOX)):
                reads_again.set()

        part = Supervised("inbox", read, pauses=pauses_of(SETTINGS))
        reading = asyncio.create_task(part.run())
        await until(lambda: "AccessRefused" in part.status.last_error, "it may not declare")
        await operator.declare(objects_of(CELLS))
        await within_patience(reads_again.wait())
        await reading
        await link.close()


async def test_a_body_that_cannot_be_read_is_a_dead_letter_that_says_where_it_came_from(
    under_test: BrokerUnderTest, broker: Broker
) -> None:
    body = b"\xff half a node\n and more"
    async with station(broker) as here, connected(under_test.broker(), THEIRS) as ironic:
        async with hearing(under_test.broker()) as reader:
            await publish(ironic, said(body))
            (each,) = await within_patience(reader.receive())
            await here.publisher.offer(
                inbox_dead_letter(each, reason="no JSON", where="ironic-1", letter="ironic-1-1")
            )
        (letter,) = await dead_letters(broker, 1)

    assert (letter.parcel.body, letter.reason, letter.queue) == (body, "no JSON", INBOX.queue)
    assert (letter.origin.exchange, letter.origin.key, letter.where) == (INBOX.exchange, KEY, "ironic-1")


async def test_a_letter_from_an_inbox_is_not_replayed(broker: Broker) -> None:
    await send(broker, Parcel(DEAD, INBOX.queue, b"{}", mandatory=True))
    async with connected(broker) as connection:
        await until_depth(connection, "dead", 1)
        async with open_dead_letters(connection, letters_max=10) as opened:
            with pytest.raises(NotReplayed, match="is an inbox"):
                await opened.replay(connection, [*opened.letters])
        await until_depth(connection, "dead", 1)
