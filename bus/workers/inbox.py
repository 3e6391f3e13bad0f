"""Reads the messages of another program, such as Ironic: raw bytes, over a connection and from a queue of our own.

The broker often belongs to that program. It then has no retry or dead-letter exchanges of ours and does not verify
senders. Nothing is judged here: every user that may write to the exchange is trusted. All processes that read share one
queue, an inbox (bus/topology/). A full inbox drops its oldest messages, so it never blocks the program.

Messages can be missed: while the queue is not bound, or because it was full. The reader is told of each such gap and
must then read the missed state in another way.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime

from msgspec import Struct, structs

from bus.broker import Connection, Consuming, Delivery, NotFound, Parcel
from bus.configuration.settings import BusSettings
from bus.errors import Operational
from bus.origin import Origin
from bus.parts import Status
from bus.topology import (
    IRONIC,
    IRONIC_EVENTS,
    IRONIC_TOPIC,
    MISSED,
    Exchange,
    Limits,
    Objects,
    Queue,
    inbox_queues,
    missed_queue,
)
from bus.workers.dead_letters import dead_letter_parcel
from bus.workers.link import Link, pauses_of

log = logging.getLogger(__name__)

# How often the queue is bound again, and how often while the exchange does not exist.
LOOK_S = 5.0
LOOK_S_ABSENT = 0.5
# A name or topic must not be a pattern: `#` would also match Ironic's RPC.
_WILDCARDS = frozenset("#*")


class Inbox(Struct, frozen=True):
    """The settings of an inbox: which topics of which exchange are read, and from which queue.

    The exchange belongs to the other program. With `creates_exchange` the reader creates a missing exchange as Ironic
    would (not durable). That is only for a broker that no Ironic uses.
    """

    exchange: str = IRONIC
    topics: tuple[str, ...] = (IRONIC_TOPIC,)
    queue: str = IRONIC_EVENTS
    creates_exchange: bool = False
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        for field, names in (
            ("exchange", (self.exchange,)),
            ("topics", self.topics),
            ("queue", (self.queue,)),
        ):
            wrong = [name for name in names if not name or _WILDCARDS & {*name}]
            if wrong or not names:
                raise ValueError(f"{field} is {names!r}, must be at least one name without '*' and '#'")

    @property
    def queues(self) -> tuple[Queue, Queue]:
        return inbox_queues(self.queue, self.exchange, self.topics)

    @property
    def missed(self) -> str:
        return missed_queue(self.queue)


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
    interruption, when the other program's exchange exists again, and after the inbox was full. If several processes
    read the inbox, only one of them is told that it was full. Operational errors are not raised: they are counted at
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
                    consuming, deliveries = await reading.next(look_s if reading.is_bound else look_s_absent)
                    if consuming is None:
                        if await reading.is_bound_again():
                            yield InboxBatch(gap=f"the exchange {inbox.exchange!r} did not exist for a while")
                        continue
                    if consuming is reading.missed:
                        yield InboxBatch(
                            gap=f"the queue {inbox.queue!r} was full and dropped its oldest messages"
                        )
                    else:
                        yield InboxBatch(tuple(map(_message_of, deliveries)))
                    await consuming.acknowledge(deliveries[-1].tag, multiple=True)
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
    """Consumes an inbox over one connection, and the queue that receives what a full inbox drops.

    The exchange of the other program may be missing, or be deleted later. So `next` also tells when it is time to try
    again to bind the inbox to it.
    """

    missed: Consuming

    def __init__(self, connection: Connection, inbox: Inbox) -> None:
        self._connection = connection
        self._inbox = inbox
        self._consumings: list[Consuming] = []
        self._waiting: dict[Consuming | None, asyncio.Future[Sequence[Delivery]]] = {}
        self.is_bound: bool | None = None

    async def begin(self, prefetch: int) -> None:
        connection, inbox = self._connection, self._inbox
        if not await _queues_exist(connection, inbox):
            messages, missed = inbox.queues
            # The inbox is bound separately, since its exchange may not exist.
            queues = (structs.replace(messages, bindings=()), missed)
            await connection.declare(Objects((Exchange(MISSED),), queues, inbox.limits))
        self._consumings.append(await connection.open_consuming(inbox.queue, prefetch))
        self.missed = await connection.open_consuming(inbox.missed, 1)
        self._consumings.append(self.missed)
        await self.is_bound_again()

    async def is_bound_again(self) -> bool:
        """Bind the inbox. Returns whether this succeeded although the exchange did not exist at the last try."""
        was_bound, self.is_bound = self.is_bound, await _is_bound(self._connection, self._inbox)
        names = self._inbox.queue, self._inbox.exchange
        if self.is_bound and not was_bound:
            log.info("the queue %r is bound to the exchange %r", *names)
        elif self.is_bound is not was_bound:
            log.warning("the queue %r is bound as soon as the exchange %r exists: it does not yet", *names)
        return self.is_bound and not was_bound

    async def next(self, look_s: float) -> tuple[Consuming | None, Sequence[Delivery]]:
        """Wait for deliveries, and return them with the consumer that received them.

        Every `look_s` seconds the consumer is None and there are no deliveries: then the caller tries to bind the inbox
        again.
        """
        for consuming in (*self._consumings, None):
            if consuming not in self._waiting:
                happening = consuming.receive() if consuming else asyncio.sleep(look_s, ())
                self._waiting[consuming] = asyncio.ensure_future(happening)
        await asyncio.wait(self._waiting.values(), return_when=asyncio.FIRST_COMPLETED)
        first = next(each for each, waiting in self._waiting.items() if waiting.done())
        return first, self._waiting.pop(first).result()

    async def close(self) -> None:
        """Stop consuming. Unacknowledged deliveries return to their queue."""
        for waiting in self._waiting.values():
            waiting.cancel()
        await asyncio.gather(*self._waiting.values(), return_exceptions=True)
        for consuming in self._consumings:
            with suppress(Operational):
                await consuming.close()


@asynccontextmanager
async def _reading(connection: Connection, inbox: Inbox, prefetch: int) -> AsyncIterator[_Reading]:
    reading = _Reading(connection, inbox)
    try:
        await reading.begin(prefetch)
        yield reading
    finally:
        await reading.close()


async def _queues_exist(connection: Connection, inbox: Inbox) -> bool:
    """Do the queues of this inbox exist: its own, and the one in which the broker reports messages that the inbox
    dropped?

    A reader of the inbox declares them only if one is missing, since it may have no right to declare.
    """
    try:
        for queue in inbox.queues:
            await connection.depth(queue.name)
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
        await connection.bind(inbox.queue, inbox.queues[0].bindings)
    except NotFound:
        return False
    return True


def _message_of(delivery: Delivery) -> InboxMessage:
    parcel = delivery.parcel
    return InboxMessage(parcel.body, parcel.exchange, parcel.routing_key, came_back=delivery.returns > 0)
