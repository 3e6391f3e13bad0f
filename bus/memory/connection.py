"""A connection to the memory broker as one user: it checks the user's rights, and ends all its channels when it ends."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from bus.broker import AccessRefused, ConnectionLost, require_prefetch
from bus.memory.channels import MemoryConsuming, MemoryPublishing
from bus.memory.queue import MemoryQueue, QueuedParcel
from bus.memory.virtual_host import MemoryVirtualHost
from bus.memory.wire import MemoryWire
from bus.permissions import Rights
from bus.topology import DEAD_LETTERS, Binding, Limits, Objects, Queue, QueueKind, properties_of


class ConnectionListener(Protocol):
    """Is told when a connection to the memory broker is blocked or lost.

    The server of the Unix socket listens in this way, and tells the client's process.
    """

    def blocked_changed(self, why: str) -> None: ...

    def lost(self, why: str) -> None: ...


class MemoryConnection:
    def __init__(
        self,
        host: MemoryVirtualHost,
        user: str,
        rights: Rights,
        ended: Callable[["MemoryConnection"], None],
        listener: ConnectionListener | None = None,
    ) -> None:
        self._host = host
        self._user = user
        self._rights = rights
        self._ended = ended
        self._listener = listener
        self._wire = MemoryWire(host)
        self._consumings: dict[MemoryConsuming, None] = {}
        self._unblocked = asyncio.Event()

    @property
    def blocked(self) -> str:
        return "" if self._wire.lost else self._host.blocked

    @property
    def hands_over(self) -> bool:
        return self._host.hands_over

    async def until_unblocked(self) -> None:
        while self.blocked:
            self._unblocked.clear()
            await self._unblocked.wait()

    async def declare(self, objects: Objects) -> None:
        await self._wire.tell(partial(self._declare, objects))
        await self._written()

    async def bind(self, queue: str, bindings: Sequence[Binding]) -> None:
        await self._wire.tell(partial(self._bind_all, queue, bindings))
        await self._written()

    async def open_publishing(self) -> MemoryPublishing:
        return await self._wire.tell(lambda: MemoryPublishing(self._wire, self._user, self._rights))

    async def open_consuming(self, queue: str, prefetch: int) -> MemoryConsuming:
        require_prefetch(prefetch)
        return await self._wire.tell(partial(self._consume, queue, prefetch))

    async def depth(self, queue: str) -> int:
        return await self._wire.tell(partial(self._host.depth, queue, self))

    async def consumers(self, queue: str) -> int:
        return await self._wire.tell(lambda: self._host.queue_for(queue, self).consumers)

    async def close(self) -> None:
        self.end("closed by its user")

    def end(self, why: str) -> None:
        end_connections((self,), why)

    # Called by the broker

    def alarm_changed(self) -> None:
        if not self._host.blocked:
            self._wire.hear()
            self._unblocked.set()
        if self._listener is not None:
            self._listener.blocked_changed(self._host.blocked)

    def let_go(self, why: str) -> list[tuple[MemoryQueue, list[QueuedParcel]]]:
        """End this connection, and return its unacknowledged parcels by queue. `take_back` requeues them."""
        if self._wire.lost:
            return []
        self._wire.cut(why)
        self._unblocked.set()
        held = [(consuming.queue, consuming.let_go(ConnectionLost(why))) for consuming in self._consumings]
        self._consumings.clear()
        self._ended(self)
        if self._listener is not None:
            self._listener.lost(why)
        return held

    def take_back(self, held: Iterable[tuple[MemoryQueue, list[QueuedParcel]]]) -> None:
        """Put the parcels that `let_go` returned back into their queues, where other consumers may get them."""
        self._host.delete_queues_of(self)
        for queue, returned in held:
            self._host.take_back(queue, returned)
            self._host.left(queue)

    # Operations and rights

    async def _written(self) -> None:
        if self._host.journal is not None:
            await self._host.journal.written()
            self._wire.check()

    def _declare(self, objects: Objects) -> None:
        foreign = {exchange.name for exchange in objects.exchanges if exchange.foreign}
        for exchange in objects.exchanges:
            if not exchange.foreign:
                self._require(
                    self._rights.may_configure(exchange.name), f"declare exchange {exchange.name!r}"
                )
                self._host.declare_exchange(exchange)
        for queue in objects.queues:
            self._declare_queue(queue, objects.limits, foreign)
        self._host.bury_all_discarded()

    def _declare_queue(self, queue: Queue, limits: Limits, foreign: set[str]) -> None:
        rights, name = self._rights, queue.name
        is_own = queue.kind in (QueueKind.ANSWERS, QueueKind.FEED)
        may_declare = rights.may_declare_queue(name) if is_own else rights.may_configure(name)
        self._require(may_declare, f"declare queue {name!r}")
        if (dead_letters := DEAD_LETTERS.get(queue.kind)) is not None:
            # Otherwise a user could write to the exchange by way of dead letters, without the right to it.
            may_bury = rights.may_read(name) and rights.may_write(dead_letters)
            self._require(may_bury, f"let queue {name!r} have its dead letters in {dead_letters!r}")
        declared = self._host.declare_queue(name, properties_of(queue.kind, limits), self)
        for binding in queue.bindings:
            if binding.exchange in foreign and binding.exchange not in self._host.exchanges:
                continue
            self._bind(declared, binding)

    def _bind_all(self, name: str, bindings: Sequence[Binding]) -> None:
        queue = self._host.queue_for(name, self)
        for binding in bindings:
            self._bind(queue, binding)

    def _bind(self, queue: MemoryQueue, binding: Binding) -> None:
        rights, name = self._rights, queue.name
        may_bind = rights.may_write(name) and rights.may_bind(binding.exchange, binding.pattern)
        self._require(
            may_bind, f"bind queue {name!r} to exchange {binding.exchange!r} with {binding.pattern!r}"
        )
        self._host.bind(binding.exchange, binding.pattern, queue)

    def _consume(self, name: str, prefetch: int) -> MemoryConsuming:
        self._require(self._rights.may_read(name), f"consume queue {name!r}")
        queue = self._host.queue_for(name, self)
        consuming = MemoryConsuming(
            self._wire, queue, prefetch, lambda ended: self._consumings.pop(ended, None)
        )
        self._consumings[consuming] = None
        queue.attach(consuming)
        return consuming

    def _require(self, permitted: bool, what: str) -> None:  # noqa: FBT001 - a condition to check is not a switch
        if not permitted:
            raise AccessRefused(f"user {self._user!r} may not {what}")


def end_connections(connections: Iterable[MemoryConnection], why: str) -> None:
    """End several connections at once: all consumers stop before any parcel goes back into its queue.

    So none of them receives parcels that another one had.
    """
    held = [(connection, connection.let_go(why)) for connection in connections]
    for connection, returned in held:
        connection.take_back(returned)
