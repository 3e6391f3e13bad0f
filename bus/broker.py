"""The broker port: the small set of operations that a message broker must offer.

The port hides no failure: connections break, confirms get lost, consumers are cancelled, and callers are
told. Reconnecting, batching and settling per message are written once above the port, for every broker.

Failures are raised as the errors `Refusal` and `Interrupted` of bus/errors.py.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from bus.errors import (
    AccessRefused,
    ConnectionLost,
    ConsumerCancelled,
    Interrupted,
    NotFound,
    OneWasRefused,
    Refusal,
)
from bus.message import Envelope, Message
from bus.topology import Binding, Objects

__all__ = [
    "BODY_BYTES_MAX",
    "LINES",
    "NAME_BYTES_MAX",
    "PARCEL_BYTES_MAX",
    "PARCEL_ITEMS_MAX",
    "PLAIN",
    "AccessRefused",
    "Broker",
    "Connection",
    "ConnectionLost",
    "ConsumerCancelled",
    "Consuming",
    "Delivery",
    "Interrupted",
    "NotFound",
    "OneWasRefused",
    "Parcel",
    "Publishing",
    "Receipt",
    "Refusal",
    "encode_lines",
    "require_prefetch",
]

PLAIN = "application/json"  # one message
LINES = "application/x-ndjson"  # one message a line
PARCEL_BYTES_MAX = 256 * 1024
# RabbitMQ limits the size of messages too. The limit is far above what we send: a larger parcel of another program must
# still arrive, to be buried.
BODY_BYTES_MAX = 16 * 1024 * 1024
PARCEL_ITEMS_MAX = 200
# The limit of AMQP's short strings, such as routing keys, reply addresses and names.
NAME_BYTES_MAX = 255


_encode_lines = msgspec.json.Encoder().encode_lines


def encode_lines(envelopes: Sequence[Envelope[Message]]) -> bytes:
    """Encode several messages as the body of one parcel: one JSON object on each line."""
    return _encode_lines(envelopes)[:-1]


class Parcel(Struct, frozen=True):
    """One AMQP message, with one or more messages of ours in its body."""

    exchange: str
    routing_key: str
    # None: nobody has needed them yet. Then they are made of `envelopes`.
    encoded: bytes | None = msgspec.field(name="body")
    content_type: str = PLAIN
    persistent: bool = True
    mandatory: bool = False
    reply_to: str = ""
    headers: Mapping[str, str | int] = {}
    # The messages in the body: a reader in the writer's process need not decode them. They are never sent over a wire.
    envelopes: tuple[Envelope[Message], ...] = ()

    @property
    def body(self) -> bytes:
        encoded = self.encoded
        if encoded is None:
            encoded = encode_lines(self.envelopes)
            force_setattr(self, "encoded", encoded)
        return encoded


class Delivery(Struct, frozen=True):
    """A parcel as delivered to a consumer. `returns` counts how often it was returned unacknowledged before."""

    tag: int
    queue: str
    parcel: Parcel
    returns: int = 0
    # The publishing user, verified by the broker. Empty if the publisher did not name it.
    sender: str = ""


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

    @property
    def hands_over(self) -> bool:
        """Whether readers get the message objects of a parcel (`envelopes`), so that mostly nobody needs its bytes."""

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


def require_prefetch(prefetch: int) -> None:
    if prefetch < 1:
        raise ValueError(
            f"prefetch is {prefetch}, must be at least 1: without a bound one consumer holds all"
        )


class Broker(Protocol):
    """A broker's address and the user to connect as."""

    @property
    def user(self) -> str: ...

    async def connect(self) -> Connection:
        """A new connection. Raises `ConnectionLost` if the broker does not answer, `AccessRefused` if it
        rejects the user.
        """
