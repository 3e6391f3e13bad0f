"""How queues are consumed: what a worker is told of its queue, and the one way to open a consumer and to close it.

Every part that consumes does so inside `consumer`: workers, the asker, listeners to feeds, and readers of other programs' messages.
Nothing is retried here. An error ends the context, and the part that runs it (kit/parts.py, `Supervised`) begins again after a
pause: then everything is declared and opened anew.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Generic, Protocol, Self, TypeVar

from msgspec import Struct, structs

from bus.broker import Connection, Consuming, Delivery
from bus.message import Message
from bus.queues import Objects, Queue
from bus.workers.handlers import Handler, Handlers, OutboxKey, Tx
from bus.workers.publisher import Publisher
from bus.workers.sending import Link
from kit.errors import NotFound, Operational
from kit.parts import Status

log = logging.getLogger(__name__)

Tx_co = TypeVar("Tx_co", covariant=True)
Tx_contra = TypeVar("Tx_contra", contravariant=True)


class Transactions(Protocol[Tx_co]):
    def transaction(self) -> AbstractAsyncContextManager[Tx_co]: ...


class OutboxStore(Protocol[Tx_contra]):
    """A store that keeps each published message with the entity that it is about, until the broker confirms it."""

    async def clear(self, tx: Tx_contra, said: Sequence[OutboxKey]) -> None:
        """Drop the messages with these keys, which the broker has confirmed. Runs in the transaction of the next batch."""

    async def pending(self, after: OutboxKey | None = None) -> Sequence[tuple[OutboxKey, Message]]:
        """A page of the unconfirmed messages in the order of their keys, after the key `after`. Empty at the end."""


class Subscription(Struct, Generic[Tx], frozen=True, eq=False):
    """The queue that a worker consumes, and how it handles the messages."""

    queue: str
    handlers: Handlers
    store: Transactions[Tx]
    # The worker also sends the unconfirmed messages of its outbox again, unless another worker `sweeps` the same outbox.
    outbox: OutboxStore[Tx] | None = None
    sweeps: bool = True
    # So many batches are handled beside each other. That pays where handlers wait for answers.
    batches_in_flight: int = 1
    # Most messages come alone, each in a parcel: so the broker hands over enough parcels ahead for full batches.
    singly: bool = False
    # Publishes the results of handlers, on another broker than the one that they were received on. Returned and dead-lettered
    # messages stay on the first.
    says_by: Publisher | None = None
    # The handlers that release what was claimed for a message, and answer it, before it is dead-lettered. The first that succeeds is
    # enough. Those of `Message` are for each type that has none of its own.
    before_burial: Mapping[type[Message], Sequence[Handler]] = {}
    # Called after each commit.
    committed: Callable[[], None] = lambda: None


class Closes(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=Closes)


@asynccontextmanager
async def consumer(
    link: Link, status: Status, opens: Callable[[Connection], Awaitable[C]]
) -> AsyncIterator[C]:
    """A context with the consumer that `opens` returns, after declaring what it needs. `status` is that of the part that consumes."""
    async with link.opened() as connection:
        consuming = await opens(connection)
        try:
            status.well()
            yield consuming
        finally:
            # A consumer that the broker has cancelled leaves its channel open.
            with suppress(Operational):
                await consuming.close()


async def open_own(connection: Connection, queue: Queue, prefetch: int) -> Consuming:
    """Consume a queue that this process has for itself: it may declare it, and does."""
    await connection.declare(Objects(queues=(queue,)))
    return await connection.open_consuming(queue.name, prefetch)


# The inbox is bound so many times as often while the exchange of the other program does not exist.
ABSENT_TIMES = 10


class InboxConsuming:
    """Consumes an inbox: a queue that is bound to the exchange of another program, such as Ironic.

    The exchange may be missing, or be deleted and made again, without the binding. So the inbox is bound again at an interval.
    """

    def __init__(self, connection: Connection, inbox: Objects, bind_s: float) -> None:
        self._connection = connection
        self._inbox = inbox
        self._bind_s = bind_s
        self._is_bound: bool | None = None
        self._consuming: Consuming
        self._receiving: asyncio.Future[Sequence[Delivery]] | None = None

    @classmethod
    async def open(cls, connection: Connection, inbox: Objects, prefetch: int, *, bind_s: float) -> Self:
        """`inbox` has one queue with its bindings to one exchange. If it has that exchange too, a missing one is created.

        The queue is declared only if it is missing, since its reader may have no right to declare; and bound separately, since the
        exchange may not exist.
        """
        (queue,) = inbox.queues
        try:
            await connection.depth(queue.name)
        except NotFound:
            await connection.declare(Objects((), (structs.replace(queue, bindings=()),), inbox.limits))
        opened = cls(connection, inbox, bind_s)
        await opened._is_bound_again()
        opened._consuming = await connection.open_consuming(queue.name, prefetch)
        return opened

    async def receive(self) -> Sequence[Delivery]:
        """Wait for deliveries. There are none if the exchange exists again: what was published meanwhile is missed."""
        while True:
            # It goes on while the inbox is bound: a consumer looks by itself whether its queue knows it.
            self._receiving = self._receiving or asyncio.ensure_future(self._consuming.receive())
            wait_s = self._bind_s if self._is_bound else self._bind_s / ABSENT_TIMES
            done, _ = await asyncio.wait((self._receiving,), timeout=wait_s)
            if done:
                received, self._receiving = self._receiving, None
                return received.result()
            if await self._is_bound_again():
                return ()

    async def acknowledge(self, tag: int, *, multiple: bool = False) -> None:
        await self._consuming.acknowledge(tag, multiple=multiple)

    async def close(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.gather(self._receiving, return_exceptions=True)
        await self._consuming.close()

    async def _is_bound_again(self) -> bool:
        """Bind the inbox. Returns whether this succeeded although the exchange did not exist at the last try."""
        (queue,), was_bound = self._inbox.queues, self._is_bound
        names = queue.name, queue.bindings[0].exchange
        try:
            # While it counts as bound it is not created: that it is missing would not be noticed.
            if self._inbox.exchanges and not was_bound:
                await self._connection.declare(Objects(self._inbox.exchanges))
            await self._connection.bind(queue.name, queue.bindings)
        except NotFound:
            self._is_bound = False
            if was_bound is not False:
                log.warning(
                    "the queue %r is bound as soon as the exchange %r exists: it does not yet", *names
                )
            return False
        self._is_bound = True
        if not was_bound:
            log.info("the queue %r is bound to the exchange %r", *names)
        return not was_bound
