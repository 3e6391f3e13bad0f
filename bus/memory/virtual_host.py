"""The exchanges and queues of a memory broker, and the parcels in them: everything that outlives a connection.

The connection has checked the user's rights before it calls this (broker.py). An operation that is impossible,
such as binding to a missing exchange, raises a `Refusal`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import attrgetter
from typing import Protocol

import msgspec
from msgspec import Struct, structs

from bus.broker import BODY_BYTES_MAX, NAME_BYTES_MAX, Receipt
from bus.memory.journal import Journal, JournaledParcel
from bus.message import BROKER_EXCHANGE, BROKER_KEY, BROKER_QUEUE, BROKER_REASON, DELIVERY_LIMIT, Parcel
from bus.queues import DEAD, Binding, Exchange, QueueProperties, matches
from kit.errors import AccessRefused, ConsumerCancelled, Interrupted, NotFound, Refusal

# A queue: the properties of its kind, its parcels, and the order of its consumers.
#
# It knows nothing of connections. It gives parcels to consumers in turn, as long as they have room, and takes back what
# they return.


class QueuedParcel(Struct, eq=False):
    """One parcel in one queue."""

    parcel: Parcel
    sender: str
    position: int
    # Its row number in the journal; 0 if it is not there.
    row: int = 0
    returns: int = 0
    held_since: float = 0.0


class TakesParcels(Protocol):
    """A consumer of a connection, to which a queue delivers (broker.py)."""

    def take(self, stored: QueuedParcel) -> bool:
        """Take this parcel. Says whether there is room for more."""

    def finish(self, why: Interrupted) -> None: ...


class MemoryQueue:
    def __init__(
        self,
        name: str,
        properties: QueueProperties,
        owner: object | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.name = name
        self.properties = properties
        self.owner = owner
        self._journal = journal if properties.durable else None
        # Parcels that came back too often and are not in the dead-letter queue yet. They count against the length, as
        # in RabbitMQ: a queue whose dead letters go nowhere fills up instead of losing them.
        self.discarded: deque[QueuedParcel] = deque()
        # The size of the ready parcels, if it is limited.
        self._bytes = 0
        self._ready: deque[QueuedParcel] = deque()
        self._consumers: dict[TakesParcels, None] = {}
        # Consumers with room, the next one first. While there is one, no parcel is ready.
        self._waiting: deque[TakesParcels] = deque()
        self._position = 0
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def depth(self) -> int:
        return len(self._ready)

    @property
    def consumers(self) -> int:
        return len(self._consumers)

    def offer(self, parcel: Parcel, sender: str) -> bool:
        """Store the parcel in this queue, or deliver it at once. Returns False if the queue is full."""
        drops, length_max = self.properties.drops_oldest, self.properties.length_max
        if not drops and length_max is not None and len(self._ready) + len(self.discarded) >= length_max:
            return False
        self._position += 1
        row = (
            self._journal.arrived(self.name, parcel, sender)
            if self._journal is not None and parcel.persistent
            else 0
        )
        stored = QueuedParcel(parcel, sender, self._position, row)
        self._ready.append(stored)
        self._bytes += self._size_of((stored,))
        self._serve()
        if drops:
            self._drop_down_to_limits()
        return True

    def attach(self, consumer: TakesParcels) -> None:
        self._consumers[consumer] = None
        self._stop_expiry()
        self.has_room(consumer)

    def detach(self, consumer: TakesParcels) -> None:
        self._consumers.pop(consumer, None)
        if consumer in self._waiting:
            self._waiting.remove(consumer)

    def has_room(self, consumer: TakesParcels) -> None:
        """Note that this consumer can take parcels, and deliver some if any are ready. It is new, or was full before."""
        self._waiting.append(consumer)
        self._serve()

    def take_back(self, returned: Iterable[QueuedParcel]) -> None:
        """Put unacknowledged parcels back at their old positions, and count that each was returned once more."""
        kept = []
        for stored in returned:
            stored.returns = stored.returns + 1 if self.properties.counts_returns else 1
            if self._came_back_too_often(stored):
                self.discarded.append(stored)
            else:
                kept.append(stored)
        self._put_in_order(kept)
        self._serve()

    def done_with(self, done: Iterable[QueuedParcel]) -> None:
        """Delete these parcels from the journal: they were acknowledged, dropped or dead-lettered."""
        if self._journal is not None:
            for stored in done:
                if stored.row:
                    self._journal.done(stored.row)

    def restore(self, kept: JournaledParcel) -> None:
        """Put a parcel from the journal into this queue, behind those restored before."""
        self._position += 1
        returns = kept.returns if self.properties.counts_returns else min(kept.returns, 1)
        stored = QueuedParcel(kept.parcel, kept.sender, self._position, kept.row, returns)
        if self._came_back_too_often(stored):
            self.discarded.append(stored)
        else:
            self._ready.append(stored)
            self._bytes += self._size_of((stored,))

    def forget_transient(self) -> None:
        """After a restart: keep persistent parcels only."""
        self._ready = deque(stored for stored in self._ready if stored.parcel.persistent)
        self.discarded = deque(stored for stored in self.discarded if stored.parcel.persistent)
        self._bytes = self._size_of(self._ready)

    def delete(self) -> None:
        self._stop_expiry()
        self._ready.clear()
        self.discarded.clear()
        if self._journal is not None:
            self._journal.deleted(self.name)
        for consumer in [*self._consumers]:
            consumer.finish(ConsumerCancelled(f"queue {self.name!r} was deleted while it was consumed"))

    def expire_unless_used(self, expired: Callable[["MemoryQueue"], None]) -> None:
        """Start the timer that deletes a queue without consumers, if this queue has such a timer and no consumers."""
        if self.properties.expires_ms is None or self._consumers:
            return
        self._stop_expiry()
        self._expiry = asyncio.get_running_loop().call_later(self.properties.expires_ms / 1000, expired, self)

    def _drop_down_to_limits(self) -> None:
        length_max, bytes_max = self.properties.length_max, self.properties.bytes_max
        while (length_max is not None and len(self._ready) > length_max) or (
            bytes_max is not None and self._bytes > bytes_max
        ):
            self.done_with((self._next_ready(),))

    def _next_ready(self) -> QueuedParcel:
        stored = self._ready.popleft()
        self._bytes -= self._size_of((stored,))
        return stored

    def _size_of(self, parcels: Iterable[QueuedParcel]) -> int:
        """How many bytes these parcels have. 0 if this queue has no limit of them: parcels may have no bytes yet."""
        if self.properties.bytes_max is None:
            return 0
        return sum(len(stored.parcel.body) for stored in parcels)

    def _serve(self) -> None:
        ready, waiting = self._ready, self._waiting
        while ready and waiting:
            consumer, stored = waiting.popleft(), self._next_ready()
            if stored.row and self._journal is not None:
                self._journal.delivered(self.name, stored.row, stored.returns)
            if consumer.take(stored):
                waiting.append(consumer)

    def _came_back_too_often(self, stored: QueuedParcel) -> bool:
        return self.properties.deliveries_max is not None and stored.returns > self.properties.deliveries_max

    def _put_in_order(self, returned: list[QueuedParcel]) -> None:
        """Insert returned parcels by position: before later parcels, behind earlier ones that were requeued already."""
        if not returned:
            return
        self._bytes += self._size_of(returned)
        last = max(stored.position for stored in returned)
        while self._ready and self._ready[0].position < last:
            returned.append(self._ready.popleft())
        self._ready.extendleft(sorted(returned, key=attrgetter("position"), reverse=True))

    def _stop_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None


# Topic routing as in AMQP: which queues a routing key reaches.


class MemoryExchange:
    """The bindings of one exchange. A queue gets a parcel once, however many of its bindings match."""

    def __init__(self, name: str, *, durable: bool) -> None:
        self.name = name
        self.durable = durable
        # The patterns and their queues, in the order in which they were bound.
        self.bindings: dict[tuple[str, MemoryQueue], None] = {}
        self.route = lru_cache(maxsize=10_000)(self._route)

    def bind(self, pattern: str, queue: MemoryQueue) -> bool:
        """Bind a queue. Returns whether the binding is new."""
        if (pattern, queue) in self.bindings:
            return False
        self.bindings[pattern, queue] = None
        self.route.cache_clear()
        return True

    def unbind_all(self, queue: MemoryQueue) -> None:
        bindings = {binding: None for binding in self.bindings if binding[1] is not queue}
        if len(bindings) < len(self.bindings):
            self.bindings = bindings
            self.route.cache_clear()

    def _route(self, routing_key: str) -> tuple[MemoryQueue, ...]:
        """The queues for this key, in the order in which they were bound."""
        return tuple(
            dict.fromkeys(queue for pattern, queue in self.bindings if matches(pattern, routing_key))
        )


# The default exchange routes to each queue by its name.
DEFAULT = ""
RESERVED = "amq."
# The owner of a queue that all connections may use.
EVERYBODY = None
HEADERS_LENGTH_MAX = 32 * 1024

# RabbitMQ's default: a consumer that holds a delivery for longer is cancelled.
CONSUMER_TIMEOUT_S = 1800.0

_encode = msgspec.json.Encoder().encode


class DurableQueue(Struct, frozen=True):
    """A durable queue and its bindings, as the journal stores it."""

    name: str
    properties: QueueProperties = msgspec.field(name="terms")
    bindings: tuple[Binding, ...] = ()


class DurableObjects(Struct, frozen=True):
    """All durable exchanges and queues, as the journal stores them."""

    exchanges: tuple[str, ...] = ()
    queues: tuple[DurableQueue, ...] = ()


_decode_objects = msgspec.json.Decoder(DurableObjects).decode


class MemoryVirtualHost:
    def __init__(self, journal: Journal | None = None) -> None:
        self.journal = journal
        self.exchanges: dict[str, MemoryExchange] = {}
        # By owner and name. An exclusive queue belongs to one connection, and its name is private to it. Two
        # connections may each have an answer queue of the same name, and the default exchange does not route to either.
        self._queues: dict[tuple[object, str], MemoryQueue] = {}
        # Why the broker accepts nothing from publishers; empty when it does.
        self.blocked = ""
        # For consumers that are opened from now on.
        self.consumer_timeout_s = CONSUMER_TIMEOUT_S
        if journal is not None:
            self._restore(journal)

    def declare_exchange(self, exchange: Exchange) -> None:
        _check_name(exchange.name)
        standing = self.exchanges.get(exchange.name)
        if standing is None:
            self.exchanges[exchange.name] = MemoryExchange(exchange.name, durable=exchange.durable)
            self._note_objects(durable=exchange.durable)
        elif standing.durable != exchange.durable:
            raise Refusal(
                f"exchange {exchange.name!r} exists with durable={standing.durable}, declared with durable={exchange.durable}"
            )

    def declare_queue(self, name: str, properties: QueueProperties, who: object) -> MemoryQueue:
        _check_name(name)
        place = (who if properties.exclusive else EVERYBODY, name)
        queue = self._queues.get(place)
        if queue is None:
            queue = self._queues[place] = MemoryQueue(name, properties, place[0], self.journal)
            self._note_objects(durable=properties.durable)
        elif queue.properties != properties:
            raise Refusal(f"queue {name!r} exists with {queue.properties}, declared with {properties}")
        queue.expire_unless_used(self._expire)
        return queue

    def bind(self, exchange: str, pattern: str, queue: MemoryQueue) -> None:
        standing = self._exchange(exchange)
        if standing.bind(pattern, queue):
            self._note_objects(durable=standing.durable and queue.properties.durable)

    def queue_for(self, name: str, who: object) -> MemoryQueue:
        """The queue of this name that the connection `who` may use: its own exclusive queue, or one that all may use."""
        queue = self._queues.get((who, name)) or self._queues.get((EVERYBODY, name))
        if queue is None:
            raise NotFound(f"no queue {name!r}")
        return queue

    def depth(self, name: str, who: object) -> int:
        queue = self.queue_for(name, who)
        # As in RabbitMQ, reading the depth counts as use.
        queue.expire_unless_used(self._expire)
        return queue.depth

    def delete_queue(self, name: str) -> None:
        queue = self._queues.get((EVERYBODY, name))
        if queue is not None:
            self._delete(queue)

    def delete_queues_of(self, owner: object) -> None:
        for queue in [*self._queues.values()]:
            if queue.owner is owner:
                self._delete(queue)

    def store(self, parcel: Parcel, sender: str) -> Receipt:
        """Store the parcel in every queue that it is routed to.

        If one of the queues is full, the answer is a refusal, though the other queues have stored the parcel.
        """
        _check_bounds(parcel)
        queues = self._route(parcel.exchange, parcel.routing_key)
        if not queues:
            return Receipt.UNROUTABLE if parcel.mandatory else Receipt.CONFIRMED
        # `mandatory` is for the broker, not for the reader; and the publisher must not be able to change the headers
        # later.
        arriving = (
            structs.replace(parcel, mandatory=False, headers=dict(parcel.headers))
            if parcel.mandatory or parcel.headers
            else parcel
        )
        taken = [queue.offer(arriving, sender) for queue in queues]
        return Receipt.CONFIRMED if all(taken) else Receipt.REFUSED

    def take_back(self, queue: MemoryQueue, returned: list[QueuedParcel]) -> None:
        if self._exists(queue):
            queue.take_back(returned)
            self._bury_discarded(queue)

    def left(self, queue: MemoryQueue) -> None:
        """Note that a consumer has left this queue. If it was the last one, the timer that deletes unused queues starts."""
        if self._exists(queue):
            queue.expire_unless_used(self._expire)

    def bury_all_discarded(self) -> None:
        """Try again to dead-letter parcels that came back too often. The dead-letter exchange may not have existed before."""
        for queue in [*self._queues.values()]:
            self._bury_discarded(queue)

    def restart(self) -> None:
        """Delete all queues, parcels and exchanges that do not survive a restart. Called when no connection is left."""
        for queue in [*self._queues.values()]:
            if queue.properties.durable:
                queue.forget_transient()
            else:
                self._delete(queue)
        self.exchanges = {name: exchange for name, exchange in self.exchanges.items() if exchange.durable}
        self.blocked = ""

    def _exchange(self, name: str) -> MemoryExchange:
        try:
            return self.exchanges[name]
        except KeyError:
            raise NotFound(f"no exchange {name!r}") from None

    def _route(self, exchange: str, routing_key: str) -> tuple[MemoryQueue, ...]:
        if exchange == DEFAULT:
            queue = self._queues.get((EVERYBODY, routing_key))
            return (queue,) if queue is not None else ()
        return self._exchange(exchange).route(routing_key)

    def _bury_discarded(self, queue: MemoryQueue) -> None:
        """Move the parcels that came back too often to the dead-letter queue.

        A parcel leaves its own queue only when the dead-letter queue has stored it.
        """
        while queue.discarded and DEAD in self.exchanges:
            stored = queue.discarded[0]
            letter = _dead_letter(queue.name, stored)
            if self.store(letter, stored.sender) is not Receipt.CONFIRMED:
                return
            queue.done_with((queue.discarded.popleft(),))

    def _expire(self, queue: MemoryQueue) -> None:
        if self._exists(queue):
            self._delete(queue)

    def _exists(self, queue: MemoryQueue) -> bool:
        return self._queues.get((queue.owner, queue.name)) is queue

    def _delete(self, queue: MemoryQueue) -> None:
        del self._queues[queue.owner, queue.name]
        for exchange in self.exchanges.values():
            exchange.unbind_all(queue)
        queue.delete()
        self._note_objects(durable=queue.properties.durable)

    # The journal

    def _restore(self, journal: Journal) -> None:
        written = journal.file.objects()
        standing = _decode_objects(written) if written else DurableObjects()
        for name in standing.exchanges:
            self.exchanges[name] = MemoryExchange(name, durable=True)
        for each in standing.queues:
            queue = self._queues[EVERYBODY, each.name] = MemoryQueue(
                each.name, each.properties, journal=journal
            )
            for binding in each.bindings:
                self.exchanges[binding.exchange].bind(binding.pattern, queue)
        for kept in journal.file.parcels():
            self._queues[EVERYBODY, kept.queue].restore(kept)

    def _note_objects(self, *, durable: bool) -> None:
        if self.journal is not None and durable:
            self.journal.declared(self._durable_objects)

    def _durable_objects(self) -> bytes:
        lasting = [exchange for exchange in self.exchanges.values() if exchange.durable]
        bindings: dict[MemoryQueue, list[Binding]] = {
            queue: [] for queue in self._queues.values() if queue.properties.durable
        }
        for exchange in lasting:
            for pattern, queue in exchange.bindings:
                if queue in bindings:
                    bindings[queue].append(Binding(exchange.name, pattern))
        queues = (
            DurableQueue(queue.name, queue.properties, tuple(bound)) for queue, bound in bindings.items()
        )
        return _encode(DurableObjects(tuple(exchange.name for exchange in lasting), tuple(queues)))


def _check_name(name: str) -> None:
    if name.startswith(RESERVED):
        raise AccessRefused(
            f"{name!r} cannot be declared: names that begin with {RESERVED!r} are the broker's own"
        )


def _dead_letter(queue: str, stored: QueuedParcel) -> Parcel:
    death = {
        BROKER_REASON: DELIVERY_LIMIT,
        BROKER_QUEUE: queue,
        BROKER_EXCHANGE: stored.parcel.exchange,
        BROKER_KEY: stored.parcel.routing_key,
    }
    return structs.replace(
        stored.parcel,
        exchange=DEAD,
        routing_key=queue,
        mandatory=True,
        headers=dict(stored.parcel.headers) | death,
    )


def _check_bounds(parcel: Parcel) -> None:
    body = parcel.body
    if type(body) is not bytes:
        raise TypeError(f"a parcel's body must be bytes, got {type(body).__name__}")
    if len(body) > BODY_BYTES_MAX:
        raise Refusal(f"a parcel has {len(body)} bytes, at most {BODY_BYTES_MAX} are allowed")
    for field in ("routing_key", "reply_to", "content_type"):
        _check_name_of(field, getattr(parcel, field))
    length = 0
    for name, value in parcel.headers.items():
        _check_name_of("a header's name", name)
        if isinstance(value, str):
            _bytes_of(f"header {name!r}", value)
        elif type(value) is not int or not -(2**63) <= value < 2**63:
            raise Refusal(f"header {name!r} is {value!r}, must be a text or a 64-bit integer")
        length += len(name) + len(str(value))
    if length > HEADERS_LENGTH_MAX:
        raise Refusal(
            f"a parcel has {length} characters of headers, at most {HEADERS_LENGTH_MAX} are allowed"
        )


def _check_name_of(field: str, name: str) -> None:
    size = len(_bytes_of(field, name))
    if size > NAME_BYTES_MAX:
        raise Refusal(f"{field} has {size} bytes, at most {NAME_BYTES_MAX} are allowed: {name[:40]!r}...")


def _bytes_of(field: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as problem:
        raise Refusal(f"{field} cannot be encoded: {problem}") from problem
