"""The broker port: the small set of operations that a message broker must offer; and how long its readers let parcels gather (`Pace`).

The port hides no failure: connections break, confirms get lost, consumers are cancelled, and callers are
told. Reconnecting, batching and settling per message are written once above the port, for every broker.

Failures are raised as the errors `Refusal` and `Interrupted` of kit/errors.py.
"""

import asyncio
from collections.abc import Iterator, Sequence
from enum import Enum
from math import exp
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from bus.message import Parcel
from bus.queues import Binding, Objects
from kit.parts import grown

# RabbitMQ limits the size of messages too. The limit is far above what we send: a larger parcel of another program must
# still arrive, to be buried.
BODY_BYTES_MAX = 16 * 1024 * 1024
# The limit of AMQP's short strings, such as routing keys, reply addresses and names.
NAME_BYTES_MAX = 255


class Delivery(Struct, frozen=True):
    """A parcel as delivered to a consumer. `returns` counts how often it was returned unacknowledged before."""

    tag: int
    queue: str
    parcel: Parcel
    returns: int = 0
    # The publishing user, verified by the broker. Empty if the publisher did not name it.
    sender: str = ""
    expiration: str = ""


class Receipt(Enum):
    """The broker's answer to a published parcel."""

    CONFIRMED = "confirmed"
    # No queue takes it. Only reported for mandatory parcels.
    UNROUTABLE = "unroutable"
    # A queue is full and stored nothing; try again later.
    REFUSED = "refused"
    # The channel broke before the answer, so the outcome is unknown. Only a publisher reports this, about its
    # own channels.
    LOST = "lost"


class Publishing(Protocol):
    """A channel to publish on. Many parcels may be under way; they reach the broker in the order of the calls."""

    async def publish(self, parcel: Parcel) -> Receipt:
        """Publish one parcel and wait for the broker's answer. While the broker is blocked, this waits without limit.

        A `Refusal` is about this parcel and may have closed the channel.
        """

    async def close(self) -> None: ...


class Consuming(Protocol):
    """A channel on which one queue is consumed."""

    async def receive(self) -> Sequence[Delivery]:
        """Wait for deliveries, and return all that have arrived, in order. Raises `Interrupted` when no more will come."""

    async def acknowledge(self, tag: int, *, multiple: bool = False) -> None:
        """Acknowledge this delivery; with `multiple`, all deliveries up to it."""

    async def give_back(self, tag: int) -> None:
        """Return this delivery to its queue. The queue delivers it again, and counts it as returned."""

    async def close(self) -> None:
        """Stop consuming. The broker delivers what was not acknowledged to another consumer."""


class Connection(Protocol):
    """One connection of one user. When it breaks, everything opened on it raises `ConnectionLost`."""

    @property
    def blocked(self) -> str:
        """Why the broker takes nothing from publishers now. Empty if it takes parcels."""

    async def until_unblocked(self) -> None:
        """Wait until the broker takes parcels again, or this connection is lost."""

    async def declare(self, objects: Objects) -> None:
        """Declare exchanges and queues. Declaring an existing object with equal properties changes nothing."""

    async def bind(self, queue: str, bindings: Sequence[Binding]) -> None:
        """Bind an existing queue to existing exchanges. Raises `NotFound` if the queue or an exchange does not exist.

        Bindings that exist already are kept.
        """

    async def open_publishing(self) -> Publishing: ...

    async def open_consuming(self, queue: str, prefetch: int) -> Consuming: ...

    async def depth(self, queue: str) -> int:
        """The number of parcels that wait in a queue."""

    async def consumers(self, queue: str) -> int:
        """How many consumers a queue has, of all connections."""

    async def close(self) -> None: ...


# AMQP counts them in 16 bits.
PREFETCH_MAX = 65_535


def require_prefetch(prefetch: int) -> None:
    """Zero would be no bound: one consumer would hold all."""
    if not 1 <= prefetch <= PREFETCH_MAX:
        raise ValueError(f"prefetch is {prefetch}, must be at least 1 and at most {PREFETCH_MAX}")


class Broker(Protocol):
    """A broker's address and the user to connect as."""

    @property
    def user(self) -> str: ...

    async def connect(self) -> Connection:
        """A new connection. Raises `ConnectionLost` if the broker does not answer, `AccessRefused` if it
        rejects the user.
        """


# A consumer's deliveries while they wait for their reader. Consumers of every kind of broker use this code.


D = TypeVar("D")


class Arrivals(Generic[D]):
    """Deliveries in the order of their arrival, until the reader takes them or the consumer ends."""

    def __init__(self) -> None:
        self._waiting: list[D] = []
        self._changed = asyncio.Event()
        self.why_over: Exception | None = None

    def put(self, delivery: D) -> None:
        self._waiting.append(delivery)
        self._changed.set()

    def end(self, why: Exception) -> None:
        """Accept no more deliveries. The reader still gets those that wait, and after them `why`, raised as an error.

        If this is called several times, the first reason counts.
        """
        self.why_over = self.why_over or why
        self._changed.set()

    def drop(self, why: Exception) -> None:
        """Accept no more deliveries and forget the waiting ones: the broker has put them back into their queue."""
        self._waiting.clear()
        self.end(why)

    def check(self) -> None:
        """Raise the error that ended the deliveries, if they have ended.

        Each call raises a new exception, since an exception that is raised twice grows its traceback.
        """
        if self.why_over is not None:
            raise type(self.why_over)(*self.why_over.args)

    @property
    def is_ready(self) -> bool:
        """Has something arrived that the reader has not taken?"""
        return bool(self._waiting)

    async def take(self) -> Sequence[D]:
        """Remove and return all waiting deliveries, and wait until there is at least one.

        If none waits and the deliveries have ended, raise the error that ended them.
        """
        while not self._waiting:
            self.check()
            self._changed.clear()
            await self._changed.wait()
        taken, self._waiting = self._waiting, []
        return taken


# Cuts a sequence into chunks of limited weight.


def chunks(weights: Sequence[int], weight_max: int) -> Iterator[slice]:
    """Cut elements with these weights, in their order, into as few chunks of at most `weight_max` as possible.

    An element that is heavier than `weight_max` is a chunk by itself.
    """
    first = weight = 0
    for n, each in enumerate(weights):
        if weight + each > weight_max and n > first:
            yield slice(first, n)
            first, weight = n, 0
        weight += each
    yield slice(first, len(weights))


class Origin(Struct, frozen=True, cache_hash=True):
    """Where a message comes from, and where its answer goes. Whose word is taken for it: bus/workers/authority.py.

    `sender` is a user, empty if the message named none. `reply_to` is an answer queue, empty if no answer is wanted.
    `exchange` and `key` are where the message was first published; empty if nobody has verified that. `astray` is set if the
    broker has dead-lettered the message and it arrived outside the dead-letter queue: it is the queue that the message came
    from. `expiration` is what its sender wrote into AMQP's property of this name.
    """

    sender: str = ""
    reply_to: str = ""
    exchange: str = ""
    key: str = ""
    astray: str = ""
    expiration: str = ""


# How long parcels may gather before they are read or handled together: not at all while few come, and a moment while many do.


# Parcels are counted with weights that fall with their age.
MEMORY_S = 0.2
# A wait pays if it brings at least so many parcels.
PARCELS_WORTH_IT = 4
# With so many messages, what a batch itself costs hardly matters any more.
MESSAGES_ENOUGH = 100
# A shorter wait is none: a clock may not tell it from zero.
SHORTEST_S = 0.000_1
# A wait was in vain if it brought less than this part of the parcels that were to be expected, by how many came before.
VAIN_BELOW = 1 / 3
# After so many in a row there is none for a while, which grows with each further one.
VAIN_WAITS = 3
REST_S_FIRST, REST_S_MAX = 0.2, 5.0


class Pace:
    """Decides when the next batch begins.

    The cost of a batch hardly depends on the number of its messages. So while parcels keep coming, and each has few messages,
    batches begin at equal distances, and take all messages that came meanwhile. A message on an idle system does not wait. Nor do
    messages of a sender that has gathered them itself: its parcels are rare. A client that sends one message after the answer to the
    last sends nothing while it waits: such waits are in vain, and are soon left out.
    """

    def __init__(self) -> None:
        self._parcels = 0.0
        self._counted_s = 0.0
        self._begun_s = 0.0
        # Since when the next batch waits, and how many parcels were counted then.
        self._waits: tuple[float, float] | None = None
        # How many waits in a row were in vain, and until when there is none.
        self._vain = 0
        self._rests_until_s = 0.0

    def arrived(self, now_s: float, parcels: int = 1) -> None:
        """Note that so many parcels have arrived."""
        self._parcels = self._parcels_now(now_s) + parcels
        self._counted_s = now_s

    def wait_s(self, now_s: float, messages: int, gather_s: float) -> float:
        """How long the next batch has to wait, with so many messages there; 0 if it may begin now."""
        wait_s = self._begun_s + gather_s - now_s
        if messages >= MESSAGES_ENOUGH or wait_s < SHORTEST_S:
            return 0.0
        parcels = self._parcels_now(now_s)
        if parcels / MEMORY_S * gather_s < PARCELS_WORTH_IT or now_s < self._rests_until_s:
            return 0.0
        if self._waits is None:
            self._waits = (now_s, parcels)
        return wait_s

    def begun(self, now_s: float) -> None:
        if self._waits is not None:
            self._judge_wait(now_s, *self._waits)
            self._waits = None
        self._begun_s = now_s

    def _judge_wait(self, now_s: float, since_s: float, parcels: float) -> None:
        left = exp((since_s - now_s) / MEMORY_S)
        brought = self._parcels_now(now_s) - parcels * left
        least = parcels * (1 - left) * VAIN_BELOW
        if least < 1:
            # That nothing came may be chance.
            return
        self._vain = self._vain + 1 if brought < least else 0
        if self._vain >= VAIN_WAITS:
            self._rests_until_s = now_s + grown(REST_S_FIRST, REST_S_MAX, self._vain - VAIN_WAITS + 1)

    def _parcels_now(self, now_s: float) -> float:
        return self._parcels * exp((self._counted_s - now_s) / MEMORY_S)
