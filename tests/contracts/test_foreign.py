"""Contract of readers of a foreign exchange (Ironic's): they never block it, report each gap, and survive its deletion."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
from msgspec import structs

from bus.broker import Broker, Connection, Receipt
from bus.message import Parcel
from bus.topology import DEAD, Exchange, Limits, Objects, objects_of, user_of
from bus.workers.dead_letters import NotReplayed, open_dead_letters
from bus.workers.sending import Link
from ironic_sync.events import InboxBatch, inbox_dead_letter, read_inbox
from ironic_sync.settings import Inbox
from kit.parts import Status
from tests.contracts.broker_under_test import BrokerUnderTest
from tests.contracts.small_world import connected, publish, until_depth, within_patience
from tests.contracts.stage import CELLS, SETTINGS, dead_letters, declared, send, station
from tests.waiting import until

pytestmark = pytest.mark.asyncio

KEY = "ironic_versioned_notifications.info"
INBOX = Inbox()
SMALL = Inbox(limits=Limits(inbox_length_max=3))
THEIRS = Objects((Exchange(INBOX.exchange, durable=False),))
LOOK_S = 0.02


def said(body: bytes | int, key: str = KEY) -> Parcel:
    return Parcel(INBOX.exchange, key, body if isinstance(body, bytes) else str(body).encode())


@asynccontextmanager
async def hearing(
    broker: Broker, inbox: Inbox = INBOX, *, status: Status | None = None
) -> AsyncIterator[AsyncGenerator[InboxBatch, None]]:
    """A reader with its own link, after its report of the first gap."""
    link = Link(broker, SETTINGS)
    batches = read_inbox(link, inbox, settings=SETTINGS, status=status, look_s=LOOK_S, look_s_absent=LOOK_S)
    try:
        async with aclosing(batches):
            assert (await next_of(batches)).gap.startswith("reading begins")
            yield batches
    finally:
        await link.close()


async def next_of(batches: AsyncGenerator[InboxBatch, None]) -> InboxBatch:
    return await within_patience(anext(batches))


async def heard(batches: AsyncGenerator[InboxBatch, None], count: int) -> list[int]:
    """This many messages, without a gap before them."""
    found: list[int] = []
    while len(found) < count:
        batch = await next_of(batches)
        assert not batch.gap
        found += [int(each.body) for each in batch.messages]
    return found


async def gap(batches: AsyncGenerator[InboxBatch, None]) -> str:
    batch = await next_of(batches)
    assert not batch.messages
    return batch.gap


async def stands(connection: Connection, inbox: Inbox) -> None:
    """The queue exists and is bound, and no consumer reads it."""
    await connection.declare(Objects(THEIRS.exchanges, (inbox.declared,), inbox.limits))


async def test_bodies_are_heard_as_they_are_in_order(under_test: BrokerUnderTest) -> None:
    async with connected(under_test.broker(), THEIRS) as ironic, hearing(under_test.broker()) as batches:
        await publish(ironic, said(b"\x00 no json"), said(b"{}", "ironic_versioned_notifications.error"))

        found: list[tuple[bytes, str]] = []
        while len(found) < 2:
            batch = await next_of(batches)
            found += [(each.body, each.key) for each in batch.messages]
            assert all(each.exchange == "ironic" and not each.came_back for each in batch.messages)

    assert found == [(b"\x00 no json", KEY), (b"{}", "ironic_versioned_notifications.error")]


async def test_a_full_inbox_drops_its_oldest_and_takes_everything(under_test: BrokerUnderTest) -> None:
    async with connected(under_test.broker()) as ironic:
        await stands(ironic, SMALL)

        receipts = [(await publish(ironic, said(number)))[0] for number in range(1, 8)]

        assert receipts == [Receipt.CONFIRMED] * 7
        await until_depth(ironic, SMALL.queue, 3)
        async with hearing(under_test.broker(), SMALL) as batches:
            assert await heard(batches, 3) == [5, 6, 7]


async def test_an_inbox_is_bounded_in_bytes_too(under_test: BrokerUnderTest) -> None:
    inbox = Inbox(limits=Limits(inbox_bytes_max=1000))
    async with connected(under_test.broker()) as ironic:
        await stands(ironic, inbox)

        for number in range(1, 6):
            assert await publish(ironic, said(b"%d" % number + b" " * 399)) == [Receipt.CONFIRMED]

        await until_depth(ironic, inbox.queue, 2)
        async with hearing(under_test.broker(), inbox) as batches:
            assert await heard(batches, 2) == [4, 5]


async def test_what_a_reader_did_not_finish_comes_to_another(under_test: BrokerUnderTest) -> None:
    async with connected(under_test.broker(), THEIRS) as ironic:
        link = Link(under_test.broker(), SETTINGS)
        async with aclosing(read_inbox(link, INBOX, settings=SETTINGS)) as batches:
            assert await gap(batches)
            await publish(ironic, said(1))
            assert await heard(batches, 1) == [1]
            await publish(ironic, said(2))
            # A reader that asks for more has finished the batch before.
            assert await heard(batches, 1) == [2]
        # Its connection is still open, and other parts may use it.
        async with hearing(under_test.broker()) as batches:
            again = await next_of(batches)
        await link.close()

        assert [(each.body, each.came_back) for each in again.messages] == [(b"2", True)]


async def test_an_exchange_that_went_and_came_back_is_bound_again(under_test: BrokerUnderTest) -> None:
    async with connected(under_test.broker(), THEIRS) as ironic, hearing(under_test.broker()) as batches:
        await publish(ironic, said(1))
        assert await heard(batches, 1) == [1]
        await under_test.delete_exchange(INBOX.exchange)
        asking = asyncio.ensure_future(anext(batches))
        await asyncio.wait((asking,), timeout=10 * LOOK_S)
        assert not asking.done()

        await ironic.declare(THEIRS)

        assert "did not exist" in (await within_patience(asking)).gap
        await publish(ironic, said(2))
        assert await heard(batches, 1) == [2]


async def test_the_role_ironic_may_read_and_bind_again_and_no_more(under_test: BrokerUnderTest) -> None:
    user = user_of("ironic")
    status = Status("inbox")
    async with connected(under_test.broker(), objects_of(CELLS, create_foreign=True)) as operator:
        await under_test.add_user(user, CELLS)
        async with hearing(under_test.broker(user), status=status) as batches:
            await under_test.delete_exchange(INBOX.exchange)
            await operator.declare(THEIRS)
            asking = asyncio.ensure_future(anext(batches))

            async def is_bound() -> bool:
                return await publish(operator, structs.replace(said(1), mandatory=True)) == [
                    Receipt.CONFIRMED
                ]

            await until(is_bound, "the queue is bound again")
            assert {*(each.body for each in (await within_patience(asking)).messages)} <= {b"1"}
        assert status.failures == 0
        # If the queue does not exist, the reader waits for an operator: it may not declare it.
        await under_test.delete_queue(INBOX.queue)
        link = Link(under_test.broker(user), SETTINGS)
        async with aclosing(read_inbox(link, INBOX, settings=SETTINGS, status=status)) as batches:
            asking = asyncio.ensure_future(anext(batches))

            async def is_refused() -> bool:
                return "AccessRefused" in status.last_error

            await until(is_refused, "it may not declare")
            await operator.declare(objects_of(CELLS))
            assert (await within_patience(asking)).gap.startswith("reading was interrupted")
        await link.close()


async def test_a_body_that_cannot_be_read_is_a_dead_letter_that_says_where_it_came_from(
    under_test: BrokerUnderTest,
) -> None:
    broker = await declared(under_test)
    body = b"\xff half a node\n and more"
    async with station(broker) as here, connected(under_test.broker(), THEIRS) as ironic:
        async with hearing(under_test.broker()) as batches:
            await publish(ironic, said(body))
            (each,) = (await next_of(batches)).messages
            await here.publisher.offer(
                inbox_dead_letter(each, reason="no JSON", where="ironic-1", letter="ironic-1-1")
            )
        (letter,) = await dead_letters(broker, 1)

    assert (letter.parcel.body, letter.reason, letter.queue) == (body, "no JSON", INBOX.queue)
    assert (letter.origin.exchange, letter.origin.key, letter.where) == (INBOX.exchange, KEY, "ironic-1")


async def test_a_letter_from_an_inbox_is_not_replayed(under_test: BrokerUnderTest) -> None:
    broker = await declared(under_test)
    await send(broker, Parcel(DEAD, INBOX.queue, b"{}", mandatory=True))
    async with connected(broker) as connection:
        await until_depth(connection, "dead", 1)
        async with open_dead_letters(connection, letters_max=10) as opened:
            with pytest.raises(NotReplayed, match="is an inbox"):
                await opened.replay(connection, [*opened.letters])
        await until_depth(connection, "dead", 1)
