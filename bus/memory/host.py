"""The objects that stand on a memory broker, and the parcels in them: all that outlives a connection.

Who may do what is decided before (connection.py); here everything asked for is done, or impossible.
"""

from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct, structs

from bus import headers
from bus.broker import NAME_BYTES_MAX, AccessRefused, NotFound, Parcel, Receipt, Refusal
from bus.codec import in_bytes
from bus.memory.exchange import MemoryExchange
from bus.memory.journal import Journal
from bus.memory.queue import MemoryQueue, Stored, Terms
from bus.topology import DEAD, INBOXES, MISSED, Binding, Exchange, QueueKind

# The default exchange reaches every queue by its name.
DEFAULT = ""
RESERVED = "amq."
# In the place of the one connection that owns a queue.
EVERYBODY = None
# As RabbitMQ has a largest message. Far above what we send: what others send too large must still arrive to be buried.
BODY_BYTES_MAX = 16 * 1024 * 1024
HEADERS_LENGTH_MAX = 32 * 1024
PLAINLY_SHORT = NAME_BYTES_MAX // 4

# RabbitMQ's default: who holds a delivery longer is taken for dead.
CONSUMER_TIMEOUT_S = 1800.0

Hook = Callable[[Parcel], None]

_encode = msgspec.json.Encoder().encode


class StandingQueue(Struct, frozen=True):
    """A durable queue, and what is bound to it, as the journal keeps it."""

    name: str
    terms: Terms
    bindings: tuple[Binding, ...] = ()


class Standing(Struct, frozen=True):
    """All durable objects."""

    exchanges: tuple[str, ...] = ()
    queues: tuple[StandingQueue, ...] = ()


_decode_standing = msgspec.json.Decoder(Standing).decode


class MemoryHost:
    def __init__(self, journal: Journal | None = None) -> None:
        self.journal = journal
        self.exchanges: dict[str, MemoryExchange] = {}
        # By name; before that, by the one connection that has it, if it is one's alone. Such names are as private as the
        # queues: two connections may each have a queue of answers by the same name, and the default exchange knows none.
        self._queues: dict[tuple[object, str], MemoryQueue] = {}
        # Why nothing is taken from publishers; empty when it is.
        self.blocked = ""
        self.consumer_timeout_s = CONSUMER_TIMEOUT_S
        # Called when a parcel was stored and its publisher does not know yet: the place for a simulation to cut.
        self.on_stored: Hook = _nothing
        if journal is not None:
            self._restore(journal)

    def declare_exchange(self, exchange: Exchange) -> None:
        _check_name(exchange.name)
        standing = self.exchanges.get(exchange.name)
        if standing is None:
            self.exchanges[exchange.name] = MemoryExchange(exchange.name, durable=exchange.durable)
            self._note_standing(durable=exchange.durable)
        elif standing.durable != exchange.durable:
            raise Refusal(
                f"exchange {exchange.name!r} stands as durable={standing.durable}, declared as durable={exchange.durable}"
            )

    def declare_queue(self, name: str, terms: Terms, who: object) -> MemoryQueue:
        _check_name(name)
        place = (who if terms.exclusive else EVERYBODY, name)
        queue = self._queues.get(place)
        if queue is None:
            queue = self._queues[place] = MemoryQueue(name, terms, place[0], self.journal)
            self._note_standing(durable=terms.durable)
        elif terms.kind is QueueKind.DEAD and queue.terms == structs.replace(terms, length_max=None):
            # An earlier release declared it without a limit; what is in it stays.
            queue.terms = terms
            self._note_standing(durable=terms.durable)
        elif queue.terms != terms:
            raise Refusal(f"queue {name!r} stands as {queue.terms}, declared as {terms}")
        queue.expire_unless_used(self._expire)
        return queue

    def bind(self, exchange: str, pattern: str, queue: MemoryQueue) -> None:
        standing = self._exchange(exchange)
        if standing.bind(pattern, queue):
            self._note_standing(durable=standing.durable and queue.terms.durable)

    def queue_for(self, name: str, who: object) -> MemoryQueue:
        """A queue by its name: one's own, or everybody's."""
        queue = self._queues.get((who, name)) or self._queues.get((EVERYBODY, name))
        if queue is None:
            raise NotFound(f"no queue {name!r}")
        return queue

    def depth(self, name: str, who: object) -> int:
        queue = self.queue_for(name, who)
        # As in RabbitMQ, to look is to use.
        queue.expire_unless_used(self._expire)
        return queue.depth

    def delete_exchange(self, name: str) -> None:
        """And with it what was bound to it."""
        exchange = self.exchanges.pop(name, None)
        if exchange is not None:
            self._note_standing(durable=exchange.durable)

    def delete_queue(self, name: str) -> None:
        queue = self._queues.get((EVERYBODY, name))
        if queue is not None:
            self._delete(queue)

    def delete_queues_of(self, owner: object) -> None:
        for queue in [*self._queues.values()]:
            if queue.owner is owner:
                self._delete(queue)

    def store(self, parcel: Parcel, sender: str) -> Receipt:
        """Into every queue that the parcel is for. One of them full is a refusal, though the others have it then."""
        _check_bounds(parcel)
        queues = self._route(parcel.exchange, parcel.routing_key)
        if not queues:
            return Receipt.UNROUTABLE if parcel.mandatory else Receipt.CONFIRMED
        # What the publisher asked of us is not for the reader; and the headers must not stay the publisher's to change.
        arriving = (
            structs.replace(parcel, mandatory=False, headers=dict(parcel.headers))
            if parcel.mandatory or parcel.headers
            else parcel
        )
        taken = [queue.offer(arriving, sender) for queue in queues]
        for queue in queues:
            if queue.untold:
                self._tell_of_drops(queue)
        return Receipt.CONFIRMED if all(taken) else Receipt.REFUSED

    def take_back(self, queue: MemoryQueue, returned: list[Stored]) -> None:
        if self._stands(queue):
            queue.take_back(returned)
            self._bury_discarded(queue)

    def left(self, queue: MemoryQueue) -> None:
        """A consumer has gone, maybe the last."""
        if self._stands(queue):
            queue.expire_unless_used(self._expire)

    def bury_all_discarded(self) -> None:
        """Try again what found no way to the dead letters; there may be one now."""
        for queue in [*self._queues.values()]:
            self._bury_discarded(queue)

    def restart(self) -> None:
        """What was not durable is gone. To be called when no connection is left."""
        for queue in [*self._queues.values()]:
            if queue.terms.durable:
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
        """At least once: a letter leaves its queue when another one has it, and not before."""
        while queue.discarded and DEAD in self.exchanges:
            stored = queue.discarded[0]
            letter = _dead_letter(queue.name, stored, DEAD, headers.DELIVERY_LIMIT)
            if self.store(letter, stored.sender) is not Receipt.CONFIRMED:
                return
            queue.bury_first_discarded()

    def _tell_of_drops(self, queue: MemoryQueue) -> None:
        """At most once, as RabbitMQ's classic queues do it."""
        untold, queue.untold = queue.untold, []
        for stored in untold if MISSED in self.exchanges else ():
            self.store(_dead_letter(queue.name, stored, MISSED, headers.MAXLEN), stored.sender)

    def _expire(self, queue: MemoryQueue) -> None:
        if self._stands(queue):
            self._delete(queue)

    def _stands(self, queue: MemoryQueue) -> bool:
        return self._queues.get((queue.owner, queue.name)) is queue

    def _delete(self, queue: MemoryQueue) -> None:
        del self._queues[queue.owner, queue.name]
        for exchange in self.exchanges.values():
            exchange.unbind_all(queue)
        queue.delete()
        self._note_standing(durable=queue.terms.durable)

    # What outlives the process

    def _restore(self, journal: Journal) -> None:
        written = journal.objects()
        standing = _decode_standing(written) if written else Standing()
        for name in standing.exchanges:
            self.exchanges[name] = MemoryExchange(name, durable=True)
        # An earlier release declared an inbox so. It is declared anew.
        outdated = {
            each.name
            for each in standing.queues
            if each.name in INBOXES and each.terms.kind is QueueKind.WORK
        }
        for each in standing.queues:
            if each.name in outdated:
                continue
            queue = self._queues[EVERYBODY, each.name] = MemoryQueue(each.name, each.terms, journal=journal)
            for binding in each.bindings:
                self.exchanges[binding.exchange].bind(binding.pattern, queue)
        for kept in journal.parcels():
            if kept.queue not in outdated:
                self._queues[EVERYBODY, kept.queue].restore(kept)

    def _note_standing(self, *, durable: bool) -> None:
        if self.journal is not None and durable:
            self.journal.declared(self._standing)

    def _standing(self) -> bytes:
        lasting = [exchange for exchange in self.exchanges.values() if exchange.durable]
        bindings: dict[MemoryQueue, list[Binding]] = {
            queue: [] for queue in self._queues.values() if queue.terms.durable
        }
        for exchange in lasting:
            for pattern, queue in exchange.bindings:
                if queue in bindings:
                    bindings[queue].append(Binding(exchange.name, pattern))
        queues = (StandingQueue(queue.name, queue.terms, tuple(bound)) for queue, bound in bindings.items())
        return _encode(Standing(tuple(exchange.name for exchange in lasting), tuple(queues)))


def _check_name(name: str) -> None:
    if name.startswith(RESERVED):
        raise AccessRefused(f"{name!r} is not a name to be declared: the broker gives those itself")


def _dead_letter(queue: str, stored: Stored, exchange: str, reason: str) -> Parcel:
    first_death = {
        headers.BROKER_REASON: reason,
        headers.BROKER_QUEUE: queue,
        headers.BROKER_EXCHANGE: stored.parcel.exchange,
        headers.BROKER_KEY: stored.parcel.routing_key,
    }
    return structs.replace(
        in_bytes(stored.parcel),
        exchange=exchange,
        routing_key=queue,
        mandatory=True,
        # Only the first death is told.
        headers=first_death | dict(stored.parcel.headers),
    )


def _check_bounds(parcel: Parcel) -> None:
    body, headers_of_it = parcel.body, parcel.headers
    if type(body) is not bytes:
        raise TypeError(f"a parcel's body must be bytes, got {type(body).__name__}")
    if len(body) > BODY_BYTES_MAX:
        raise Refusal(f"a parcel of {len(body)} bytes: at most {BODY_BYTES_MAX} are taken")
    names = (parcel.routing_key, parcel.reply_to, parcel.content_type)
    # What is this short needs no counting of its bytes.
    if sum(map(len, names)) > PLAINLY_SHORT or not all(map(str.isascii, names)):
        for field in ("routing_key", "reply_to", "content_type"):
            _check_name_of(field, getattr(parcel, field))
    if headers_of_it:
        _check_headers(headers_of_it)
        length = sum(len(name) + len(str(value)) for name, value in headers_of_it.items())
        if length > HEADERS_LENGTH_MAX:
            raise Refusal(
                f"a parcel with {length} characters of headers: at most {HEADERS_LENGTH_MAX} are taken"
            )


def _check_name_of(field: str, name: str) -> None:
    size = len(_bytes_of(field, name))
    if size > NAME_BYTES_MAX:
        raise Refusal(f"{field} has {size} bytes, at most {NAME_BYTES_MAX} are taken: {name[:40]!r}...")


def _check_headers(headers_of_it: Mapping[str, str | int]) -> None:
    for name, value in headers_of_it.items():
        _check_name_of("a header's name", name)
        if isinstance(value, str):
            _bytes_of(f"header {name!r}", value)
        elif type(value) is not int or not -(2**63) <= value < 2**63:
            raise Refusal(f"header {name!r} is {value!r}: neither text nor a number of 64 bits")


def _bytes_of(field: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as problem:
        raise Refusal(f"{field} has no bytes: {problem}") from problem


def _nothing(_: Parcel) -> None:
    """Nobody is watching."""
