"""How queues are consumed: the one way to open a consumer and to close it.

Nothing is retried here. An error ends the context, and the part that runs it (kit/parts.py, `Supervised`) begins again after a
pause: then everything is declared and opened anew.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol, Self, TypeVar

from msgspec import structs

from bus.broker import Connection, Consuming, Delivery
from bus.queues import Objects, Queue
from bus.workers.sending import Link
from kit.errors import NotFound, Operational
from kit.parts import Status

log = logging.getLogger(__name__)


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
            if self._inbox.exchanges:
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
