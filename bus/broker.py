"""The broker port: the little that a message broker must be able to do.

It is honest rather than comfortable: connections break, confirms get lost, consumers are cancelled, and all of that is
said. What makes it comfortable (reconnecting, batching, settling per item) is written once, above it, for every broker.

What it may say instead of doing it stands in the tree of bus/errors.py: `Refusal` and `Interrupted`.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Protocol

from msgspec import Struct

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
    "HandsOver",
    "Interrupted",
    "NotFound",
    "OneWasRefused",
    "Parcel",
    "Publishing",
    "Receipt",
    "Refusal",
]

PLAIN = "application/json"  # one message
LINES = "application/x-ndjson"  # one message a line
PARCEL_BYTES_MAX = 256 * 1024
PARCEL_ITEMS_MAX = 200
# AMQP's short strings: keys, addresses and names.
NAME_BYTES_MAX = 255


class HandsOver(Enum):
    """What a broker gives a parcel's reader, if that is in its writer's process."""

    BYTES = "bytes"
    # The messages as they were written, too, which so need not be read again.
    MESSAGES_TOO = "messages too"
    # Nothing else: nobody wants bytes, so none are made.
    MESSAGES = "messages"


class Parcel(Struct, frozen=True):
    """One AMQP message, with one or more messages of ours in its body."""

    exchange: str
    routing_key: str
    body: bytes
    content_type: str = PLAIN
    persistent: bool = True
    mandatory: bool = False
    reply_to: str = ""
    headers: Mapping[str, str | int] = {}
    # What the body says, or would say, for a reader in the writer's own process. No wire carries this.
    envelopes: tuple[Envelope[Message], ...] = ()


class Delivery(Struct, frozen=True):
    """A parcel as it reached a consumer. `returns` counts how often it came back unacknowledged before."""

    tag: int
    queue: str
    parcel: Parcel
    returns: int = 0
    # The user it was published as, as verified by the broker; empty if the publisher did not say.
    sender: str = ""


class Receipt(Enum):
    """What the broker made of a parcel."""

    CONFIRMED = "confirmed"
    # Taken by no queue; only said of mandatory parcels.
    UNROUTABLE = "unroutable"
    # A queue is full: nothing was stored, try again later.
    REFUSED = "refused"
    # The channel broke first, so nobody knows; only a publisher says so, of its own channels.
    LOST = "lost"


class Publishing(Protocol):
    """A channel to publish on. Many publishes may be under way; they reach the broker in the order of their calls."""

    async def publish(self, parcel: Parcel) -> Receipt:
        """Hand over one parcel and wait for the broker's word on it; waits as long as the broker is blocked. A `Refusal` is
        of this very parcel, and may have ended the channel.
        """

    async def close(self) -> None: ...


class Consuming(Protocol):
    """A channel on which one queue is consumed."""

    async def receive(self) -> Sequence[Delivery]:
        """All deliveries that wait, at least one, in order. Raises `Interrupted` when there will be no more."""

    async def acknowledge(self, tag: int, *, multiple: bool = False) -> None:
        """Done with this delivery; with `multiple`, with all up to it."""

    async def give_back(self, tag: int) -> None:
        """Not done: to be delivered again, and counted as a return."""

    async def close(self) -> None:
        """Stop; what was not acknowledged is delivered to someone else."""


class Connection(Protocol):
    """One connection, as one user. Broken means `ConnectionLost` from everything that is opened on it."""

    @property
    def blocked(self) -> str:
        """Why the broker takes nothing from publishers now; empty if it does."""

    async def until_unblocked(self) -> None:
        """Wait until the broker takes parcels again, or this connection is lost."""

    async def declare(self, objects: Objects) -> None:
        """Make these stand. Declaring what stands already, alike, changes nothing."""

    async def bind(self, queue: str, bindings: Sequence[Binding]) -> None:
        """Bind a queue that stands to exchanges that stand; `NotFound` if one of them does not. It may be bound already."""

    async def open_publishing(self) -> Publishing: ...

    async def open_consuming(self, queue: str, prefetch: int) -> Consuming: ...

    async def depth(self, queue: str) -> int:
        """How many parcels wait in a queue."""

    async def close(self) -> None: ...


class Broker(Protocol):
    """Where to connect, and as whom."""

    @property
    def user(self) -> str: ...

    @property
    def hands_over(self) -> HandsOver: ...

    async def connect(self) -> Connection:
        """A new connection; `ConnectionLost` if there is nobody, `AccessRefused` if not for this user."""
