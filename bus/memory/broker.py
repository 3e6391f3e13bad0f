"""The memory broker. It checks which users may connect, and breaks connections as tests and the simulation ask for."""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial
from itertools import takewhile
from typing import Any, TypeVar

from bus.broker import Arrivals, Delivery, Receipt, require_prefetch
from bus.definitions import ALL_RIGHTS, Rights
from bus.memory.journal import Journal
from bus.memory.virtual_host import MemoryQueue, MemoryVirtualHost, QueuedParcel
from bus.message import Parcel
from bus.queues import DEAD_LETTERS, Binding, Limits, Objects, Queue, QueueKind, properties_of
from kit.errors import AccessRefused, ConnectionLost, ConsumerCancelled, Interrupted, Refusal

# The stream of requests from a client to the memory broker. The broker may stop reading it, and it can be cut.


T = TypeVar("T")


class MemoryWire:
    """The requests of one connection to the memory broker.

    A blocked broker stops reading from a connection that publishes. So it does not read that connection's other
    requests either, acknowledgements included. Deliveries still arrive.
    """

    def __init__(self, host: MemoryVirtualHost) -> None:
        self.host = host
        # Why it was cut; empty while it is not.
        self.lost = ""
        self._unheard: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] = deque()

    def check(self) -> None:
        if self.lost:
            raise ConnectionLost(self.lost)

    async def tell(self, said: Callable[[], T], *, publishing: bool = False) -> T:
        """Carry out a request at the broker, at once or when the broker reads from this connection again.

        A blocked broker lets a publish wait, and each request that comes after it on the connection.
        """
        self.check()
        if not (self.host.blocked and (publishing or self._unheard)):
            return said()
        heard: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._unheard.append((heard, said))
        return await heard

    def hear(self) -> None:
        """Carry out the requests that waited while the broker did not read from this connection."""
        while self._unheard:
            heard, said = self._unheard.popleft()
            if heard.done():
                continue
            try:
                heard.set_result(said())
            except (Refusal, Interrupted) as problem:
                heard.set_exception(problem)

    def cut(self, why: str) -> None:
        self.lost = why
        while self._unheard:
            heard, _ = self._unheard.popleft()
            if not heard.done():
                heard.set_exception(ConnectionLost(why))


# The two kinds of channel on a memory connection: for publishing and for consuming.
#
# No answer and no delivery comes within the call that caused it. A confirm comes in a later turn of the event loop. So
# there is a moment in which the parcel is stored, its publisher does not know, and the connection can be cut. A consumer
# yields to the loop even while deliveries wait, so that it cannot starve others.


class MemoryPublishing:
    def __init__(self, wire: MemoryWire, user: str, rights: Rights) -> None:
        self._wire = wire
        self._user = user
        # A look at the rights costs 5 µs.
        self._may_publish = lru_cache(maxsize=10_000)(rights.may_publish)
        self._over = ""

    async def publish(self, parcel: Parcel) -> Receipt:
        receipt = await self._wire.tell(partial(self._store, parcel), publishing=True)
        # The moment between storing and confirming the parcel.
        journal = self._wire.host.journal
        if journal is not None and parcel.persistent:
            await journal.written()
        await asyncio.sleep(0)
        self._wire.check()
        return receipt

    async def close(self) -> None:
        self._over = self._over or "closed by its user"

    def _store(self, parcel: Parcel) -> Receipt:
        if self._over:
            raise Interrupted(f"the channel is closed: {self._over}")
        try:
            if not self._may_publish(parcel.exchange, parcel.routing_key):
                raise AccessRefused(
                    f"user {self._user!r} may not publish to exchange {parcel.exchange or 'amq.default'!r} "
                    f"with key {parcel.routing_key!r}"
                )
            return self._wire.host.store(parcel, self._user)
        except Refusal as refusal:
            # As in AMQP, an error closes the channel, not the connection.
            self._over = str(refusal)
            raise


class MemoryConsuming:
    def __init__(
        self,
        wire: MemoryWire,
        queue: MemoryQueue,
        prefetch: int,
        finished: Callable[["MemoryConsuming"], object],
    ) -> None:
        self.queue = queue
        self._wire = wire
        self._prefetch = prefetch
        self._finished = finished
        self._loop = asyncio.get_running_loop()
        self._timeout_s = wire.host.consumer_timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._tag = 0
        # Unacknowledged deliveries by tag, in order.
        self._held: dict[int, QueuedParcel] = {}
        self._arrivals = Arrivals[Delivery]()

    async def receive(self) -> Sequence[Delivery]:
        await asyncio.sleep(0)
        return await self._arrivals.take()

    async def acknowledge(self, tag: int, *, multiple: bool = False) -> None:
        await self._wire.tell(partial(self._settle, tag, self.queue.done_with, multiple=multiple))

    async def give_back(self, tag: int) -> None:
        give_back = partial(self._wire.host.take_back, self.queue)
        await self._wire.tell(partial(self._settle, tag, give_back))

    async def close(self) -> None:
        if self._arrivals.why_over is None:
            self.finish(ConsumerCancelled("closed by its user"))

    # Called by the queue

    def take(self, stored: QueuedParcel) -> bool:
        self._tag += 1
        tag = self._tag
        self._held[tag] = stored
        stored.held_since = self._loop.time()
        self._arrivals.put(Delivery(tag, self.queue.name, stored.parcel, stored.returns, stored.sender))
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._look_at_the_clock)
        return len(self._held) < self._prefetch

    # Ending

    def finish(self, why: Interrupted) -> None:
        """End the deliveries of this consumer, and put its unacknowledged parcels back into the queue."""
        returned = self.let_go(why)
        self._wire.host.take_back(self.queue, returned)
        self._wire.host.left(self.queue)
        self._finished(self)

    def let_go(self, why: Interrupted) -> list[QueuedParcel]:
        """Stop this consumer, and return its unacknowledged parcels. The caller puts them back into their queue.

        When several consumers end at once, all of them stop first. So none receives parcels that another one had.
        """
        self._arrivals.drop(why)
        self.queue.detach(self)
        if self._timer is not None:
            self._timer.cancel()
        returned = [*self._held.values()]
        self._held.clear()
        return returned

    def _settle(
        self, tag: int, settle: Callable[[list[QueuedParcel]], None], *, multiple: bool = False
    ) -> None:
        self._require(tag)
        was_full = len(self._held) >= self._prefetch
        tags = [*takewhile(tag.__ge__, self._held)] if multiple else [tag]
        settle([self._held.pop(each) for each in tags])
        if was_full:
            self.queue.has_room(self)

    def _require(self, tag: int) -> None:
        self._arrivals.check()
        if tag not in self._held:
            problem = (
                f"delivery {tag} of queue {self.queue.name!r} is not held: settled before, or never delivered"
            )
            self.finish(ConsumerCancelled(problem))
            raise Refusal(problem)

    def _look_at_the_clock(self) -> None:
        """Cancel the consumer if it has held its oldest delivery for too long.

        Otherwise set a timer for the time when it will have. One timer is enough for all deliveries, since the oldest
        one is due first.
        """
        self._timer = None
        oldest = next(iter(self._held.values()), None)
        if oldest is None:
            return
        due = oldest.held_since + self._timeout_s
        if due <= self._loop.time():
            self.finish(
                ConsumerCancelled(
                    f"a delivery of queue {self.queue.name!r} was held longer than {self._timeout_s:g} s"
                )
            )
        else:
            self._timer = self._loop.call_at(due, self._look_at_the_clock)


# A connection to the memory broker as one user: it checks the user's rights, and ends all its channels when it ends.


class MemoryConnection:
    def __init__(
        self,
        host: MemoryVirtualHost,
        user: str,
        rights: Rights,
        ended: Callable[["MemoryConnection"], None],
    ) -> None:
        self._host = host
        self._user = user
        self._rights = rights
        self._ended = ended
        # The server of the Unix socket tells these to the client's process.
        self.on_blocked: Callable[[str], object] = lambda _: None
        self.on_lost: Callable[[], object] = lambda: None
        self._wire = MemoryWire(host)
        self._consumings: dict[MemoryConsuming, None] = {}
        self._unblocked = asyncio.Event()

    @property
    def blocked(self) -> str:
        return "" if self._wire.lost else self._host.blocked

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
        self.on_blocked(self._host.blocked)

    def let_go(self, why: str) -> list[tuple[MemoryQueue, list[QueuedParcel]]]:
        """End this connection, and return its unacknowledged parcels by queue. `take_back` requeues them."""
        if self._wire.lost:
            return []
        self._wire.cut(why)
        self._unblocked.set()
        held = [(consuming.queue, consuming.let_go(ConnectionLost(why))) for consuming in self._consumings]
        self._consumings.clear()
        self._ended(self)
        self.on_lost()
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


class MemoryBroker:
    """One broker for all connections of one event loop.

    Without users, every connection may do everything. With users, each has its rights and unknown users are rejected. A
    connection without a user name belongs to the process that owns the broker, and may still do everything. A change of
    `users` counts from a user's next connection on.
    """

    def __init__(self, users: Iterable[Rights] = (), journal: Journal | None = None) -> None:
        self.host = MemoryVirtualHost(journal)
        if journal is not None:
            journal.on_trouble = self.block
        self._stopped = False
        self.users = {rights.user: rights for rights in users}
        # In the order of connecting, so that a failure of all of them hits them in that order.
        self._connections: dict[MemoryConnection, None] = {}

    def as_user(self, user: str = "") -> "MemoryAccess":
        return MemoryAccess(self, user)

    def connect(self, user: str) -> MemoryConnection:
        if self._stopped:
            raise ConnectionLost("the broker was stopped")
        rights = self.users.get(user, ALL_RIGHTS)
        if self.users and user and user not in self.users:
            raise AccessRefused(f"user {user!r} is unknown to this broker")
        connection = MemoryConnection(self.host, user, rights, self._forget)
        self._connections[connection] = None
        return connection

    def stop(self) -> None:
        """Break all connections, accept no new ones, and close the journal if there is one."""
        self._stopped = True
        self.cut_connections("the broker was stopped")
        if self.host.journal is not None:
            self.host.journal.close()

    def cut_connections(self, why: str = "the connection was cut") -> None:
        """Break all connections as a network failure does: what was sent last may or may not have arrived."""
        end_connections([*self._connections], why)

    def restart(self) -> None:
        """Restart: durable queues keep their persistent parcels, everything else is lost."""
        self.cut_connections("the broker was restarted")
        self.host.restart()

    def block(self, why: str) -> None:
        """Take nothing from publishers from now on, for the reason `why`. If `why` is empty, take everything again."""
        self.host.blocked = why
        for connection in [*self._connections]:
            connection.alarm_changed()

    def _forget(self, connection: MemoryConnection) -> None:
        self._connections.pop(connection, None)


@contextmanager
def journaled_broker(path: str | os.PathLike[str], users: Iterable[Rights] = ()) -> Iterator[MemoryBroker]:
    """A memory broker with a journal file: it begins with the queues and parcels that the file has.

    The file has what the broker had when it was last stopped, or when its process was killed.
    """
    with ExitStack() as undo:
        journal = Journal(path)
        undo.callback(journal.close)
        broker = MemoryBroker(users, journal)
        undo.pop_all()
    try:
        yield broker
    finally:
        broker.stop()


class MemoryAccess:
    """Access to a memory broker as one user; a `Broker`."""

    def __init__(self, broker: MemoryBroker, user: str) -> None:
        self._broker = broker
        self.user = user

    async def connect(self) -> MemoryConnection:
        return self._broker.connect(self.user)
