"""Hears Ironic's notifications and applies them. A body that cannot be read becomes a dead letter on the API level's
broker.
"""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import datetime
from functools import partial

from msgspec import Struct, structs

from bus.broker import Connection, Consuming, Delivery, Origin
from bus.message import Parcel
from bus.settings import BusSettings
from bus.topology import (
    IRONIC_EVENTS,
    Exchange,
    Objects,
)
from bus.workers.dead_letters import dead_letter_parcel
from bus.workers.publisher import Publisher
from bus.workers.sending import Link, pauses_of
from ironic_sync.applying import NOTIFICATIONS_UNREADABLE, Listener, NodeWriter, node_of
from ironic_sync.core.notifications import (
    AllocationNotified,
    Ignored,
    Notification,
    UnreadableNotification,
    read,
)
from ironic_sync.settings import Inbox
from kit.errors import NotFound, Operational
from kit.metrics import Readings
from kit.parts import Status, Supervised
from kit.times import moment

log = logging.getLogger(__name__)

# Reads the messages of another program, such as Ironic: raw bytes, over a connection and from a queue of our own.
#
# The broker often belongs to that program. It then has no retry or dead-letter exchanges of ours and does not verify
# senders. Nothing is judged here: every user that may write to the exchange is trusted. All processes that read share one
# queue, an inbox (bus/topology.py). A full inbox drops its oldest messages, so it never blocks the program.
#
# Messages can be missed while the queue is not bound: the reader is told of each such gap, and must then read the missed state in
# another way. Nobody tells it what a full inbox dropped: so it also reads all of the state at an interval.


# How often the queue is bound again, and how often while the exchange does not exist.
LOOK_S = 5.0
LOOK_S_ABSENT = 0.5


class InboxMessage(Struct, frozen=True):
    """One message as it was published. `came_back` says that an earlier reader received it and did not acknowledge it."""

    body: bytes
    exchange: str
    key: str
    came_back: bool = False


class InboxBatch(Struct, frozen=True):
    """Messages in the order of their arrival. Or, after a gap, no messages and the reason why earlier ones may be missing."""

    messages: tuple[InboxMessage, ...] = ()
    gap: str = ""


async def read_inbox(
    link: Link,
    inbox: Inbox,
    *,
    settings: BusSettings,
    status: Status | None = None,
    look_s: float = LOOK_S,
    look_s_absent: float = LOOK_S_ABSENT,
) -> AsyncGenerator[InboxBatch, None]:
    """Yields the messages of an inbox in batches, until the caller stops. A batch is acknowledged when the caller asks
    for the next one.

    If the caller dies before that, the batch is delivered again, to this process or another. A batch without messages
    tells of a gap (`InboxBatch.gap`): earlier messages may have been missed. It comes first of all, after each
    interruption, and when the other program's exchange exists again. Operational errors are not raised: they are counted at
    `status`, the status of the reading part, and reading is tried again.

    Close the generator as soon as it is left (`contextlib.aclosing`), so that unacknowledged messages go back at once.
    """
    status = status or Status(f"inbox {inbox.queue}", pauses=pauses_of(settings))
    gap = "reading begins: earlier messages may have been missed"
    # A generator cannot be the work of a part, so it retries by itself.
    while True:
        try:
            async with link.opened() as connection, _reading(connection, inbox, settings.prefetch) as reading:
                status.well()
                yield InboxBatch(gap=gap)
                while True:
                    deliveries = await reading.next(look_s if reading.is_bound else look_s_absent)
                    if deliveries:
                        yield InboxBatch(tuple(map(_message_of, deliveries)))
                        await reading.consuming.acknowledge(deliveries[-1].tag, multiple=True)
                    elif await reading.is_bound_again():
                        yield InboxBatch(gap=f"the exchange {inbox.exchange!r} did not exist for a while")
        except Operational as problem:
            gap = f"reading was interrupted: {problem}"
            await asyncio.sleep(status.failed(problem))


def inbox_dead_letter(
    message: InboxMessage, *, reason: str, where: str, letter: str, at: datetime | None = None
) -> Parcel:
    """Make the parcel that brings an unreadable message of another program to the dead letters of the API level's
    broker.

    The caller sends it by `Publisher.offer`. `where` names the process; `letter` is a unique name. An operator can look
    at the dead letter and drop it. It is never replayed, since an inbox has no retry exchange.
    """
    origin = Origin(exchange=message.exchange, key=message.key)
    # The queue's name in the topology, whatever the inbox is called: the role may only dead-letter under that name.
    return dead_letter_parcel(
        message.body, IRONIC_EVENTS, origin, reason=reason, attempts=1, where=where, letter=letter, at=at
    )


class _Reading:
    """Consumes an inbox over one connection.

    The exchange of the other program may be missing, or be deleted later. So `next` also tells when it is time to try
    again to bind the inbox to it.
    """

    def __init__(self, connection: Connection, inbox: Inbox, consuming: Consuming) -> None:
        self.consuming = consuming
        self._connection = connection
        self._inbox = inbox
        self._receiving: asyncio.Future[Sequence[Delivery]] | None = None
        self.is_bound: bool | None = None

    async def is_bound_again(self) -> bool:
        """Bind the inbox. Returns whether this succeeded although the exchange did not exist at the last try."""
        was_bound, self.is_bound = self.is_bound, await _is_bound(self._connection, self._inbox)
        names = self._inbox.queue, self._inbox.exchange
        if self.is_bound and not was_bound:
            log.info("the queue %r is bound to the exchange %r", *names)
        elif self.is_bound is not was_bound:
            log.warning("the queue %r is bound as soon as the exchange %r exists: it does not yet", *names)
        return self.is_bound and not was_bound

    async def next(self, look_s: float) -> Sequence[Delivery]:
        """Wait for deliveries. There are none after `look_s` seconds: then the caller tries to bind the inbox again."""
        if self._receiving is None:
            self._receiving = asyncio.ensure_future(self.consuming.receive())
        done, _ = await asyncio.wait((self._receiving,), timeout=look_s)
        if not done:
            return ()
        received, self._receiving = self._receiving, None
        return received.result()

    async def close(self) -> None:
        """Stop consuming. Unacknowledged deliveries return to their queue."""
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.gather(self._receiving, return_exceptions=True)
        with suppress(Operational):
            await self.consuming.close()


@asynccontextmanager
async def _reading(connection: Connection, inbox: Inbox, prefetch: int) -> AsyncIterator[_Reading]:
    # It is declared only if it is missing, since its reader may have no right to declare; and bound separately, since its exchange
    # may not exist.
    if not await _exists(connection, inbox):
        queue = structs.replace(inbox.declared, bindings=())
        await connection.declare(Objects((), (queue,), inbox.limits))
    reading = _Reading(connection, inbox, await connection.open_consuming(inbox.queue, prefetch))
    try:
        await reading.is_bound_again()
        yield reading
    finally:
        await reading.close()


async def _exists(connection: Connection, inbox: Inbox) -> bool:
    try:
        await connection.depth(inbox.queue)
    except NotFound:
        return False
    return True


async def _is_bound(connection: Connection, inbox: Inbox) -> bool:
    """Bind the inbox to its exchange. Returns False if there is no such exchange.

    The reader calls this at intervals, since an exchange that was deleted and created again has lost its bindings.
    """
    if inbox.creates_exchange:
        await connection.declare(Objects((Exchange(inbox.exchange, durable=False),)))
    try:
        await connection.bind(inbox.queue, inbox.declared.bindings)
    except NotFound:
        return False
    return True


def _message_of(delivery: Delivery) -> InboxMessage:
    parcel = delivery.parcel
    return InboxMessage(parcel.body, parcel.exchange, parcel.routing_key, came_back=delivery.returns > 0)


# Applies them to the rows of nodes.


# Unknown types are told once each, and these are remembered.
TYPES_REMEMBERED_MAX = 1000
# After several notifications the next batch waits so many times as long as they took, and so long at most.
RESTS_PER_BATCH = 2.0
REST_S_MAX = 0.015


def rest_s(count: int, took_s: float) -> float:
    """How long the reader waits for the next batch, after a batch of `count` notifications that took `took_s` to
    apply.

    During the wait, notifications that come fast gather into a larger batch: for the database, placement and the
    schedulers, a batch costs little more than one notification. There is no wait after a single notification.
    """
    return min(REST_S_MAX, RESTS_PER_BATCH * took_s) if count > 1 else 0.0


class EventReader(Supervised):
    """The part that reads Ironic's notifications in batches and has them applied. A batch is acknowledged after its
    changes are committed and its dead letters are confirmed.
    """

    def __init__(
        self,
        link: Link,
        inbox: Inbox,
        writer: NodeWriter,
        graves: Publisher,
        *,
        name: str,
        settings: BusSettings,
        on_gap: Callable[[str], None],
        on_allocations: Callable[[Sequence[AllocationNotified]], None],
        on_came_back: Listener,
        chance: random.Random | None = None,
    ) -> None:
        """`on_came_back` gets the rows of nodes whose notifications an earlier reader had received: it may have written
        them, and died before it told of them.
        """
        super().__init__("hear Ironic", self._hear, is_needed=True, chance=chance)
        self._link = link
        self._inbox = inbox
        self._writer = writer
        self._graves = graves
        self._name = name
        self._settings = settings
        self._on_gap = on_gap
        self._on_allocations = on_allocations
        self._on_came_back = on_came_back
        self._unknown_types: set[str] = set()
        self.unreadable = 0

    @property
    def readings(self) -> Readings:
        return (NOTIFICATIONS_UNREADABLE.numbers({(): self.unreadable}),)

    async def _hear(self) -> None:
        loop = asyncio.get_running_loop()
        batches = read_inbox(self._link, self._inbox, settings=self._settings, status=self.status)
        async with aclosing(batches):
            async for batch in batches:
                if batch.gap:
                    self._on_gap(batch.gap)
                began_s = loop.time()
                # A database that is away is waited for here: to begin to read anew would count as a gap.
                await self.status.until_done(partial(self._apply, batch))
                if wait_s := rest_s(len(batch.messages), loop.time() - began_s):
                    await asyncio.sleep(wait_s)

    async def _apply(self, batch: InboxBatch) -> None:
        notifications: list[Notification] = []
        wrong: list[tuple[InboxMessage, UnreadableNotification]] = []
        came_back: list[Notification] = []
        for heard in batch.messages:
            result = read(heard.body)
            if isinstance(result, Ignored):
                self._ignore(result)
                continue
            if isinstance(result, UnreadableNotification):
                wrong.append((heard, result))
            notifications.append(result)
            if heard.came_back:
                came_back.append(result)
        if notifications:
            await self._writer.hear(notifications)
            if again := {node for each in came_back if (node := node_of(each)) is not None}:
                self._on_came_back([*(await self._writer.read(again)).values()])
            # Most allocations do not say which node they took.
            nameless = [
                each for each in notifications if isinstance(each, AllocationNotified) and each.node is None
            ]
            if nameless:
                self._on_allocations(nameless)
        for heard, unreadable in wrong:
            await self._bury(heard, unreadable)

    def _ignore(self, notification: Ignored) -> None:
        if (
            not notification.is_known
            and notification.event_type not in self._unknown_types
            and len(self._unknown_types) < TYPES_REMEMBERED_MAX
        ):
            self._unknown_types.add(notification.event_type)
            log.info("notifications of type %r are ignored: %s", notification.event_type, notification.reason)

    async def _bury(self, heard: InboxMessage, wrong: UnreadableNotification) -> None:
        self.unreadable += 1
        letter = f"{self._name}-{self.unreadable}"
        await self._graves.offer(
            inbox_dead_letter(
                heard,
                reason=wrong.reason,
                where=self._name,
                letter=letter,
                at=moment(self._writer.clock_us()),
            )
        )
