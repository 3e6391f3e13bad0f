"""The protocol on the Unix socket: requests of the client, answers with the same id, and messages without a request.

Each of these is a msgpack array after four bytes of length.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from bus.broker import (
    AccessRefused,
    ConnectionLost,
    ConsumerCancelled,
    Delivery,
    Interrupted,
    NotFound,
    Parcel,
    Refusal,
)
from bus.memory.virtual_host import BODY_BYTES_MAX
from bus.topology import Binding, Objects

# A parcel of another program may be much larger than ours and must still arrive, to be dead-lettered. Names and headers
# come on top; the memory broker limits them.
FRAME_BYTES_MAX = BODY_BYTES_MAX + 256 * 1024
# The id of a request that has no answer.
NO_ANSWER = 0

_LENGTH = struct.Struct(">I")


class Ask(Struct, frozen=True, array_like=True):
    """A request of a client, which numbers its requests and its channels."""

    id: int


class Hello(Ask, frozen=True, tag="hello"):
    """A client's first request, which names its user. The answer is why the broker accepts nothing now, empty if it does."""

    user: str


class Declare(Ask, frozen=True, tag="declare"):
    objects: Objects


class Bind(Ask, frozen=True, tag="bind"):
    queue: str
    bindings: tuple[Binding, ...]


class OnChannel(Ask, frozen=True):
    channel: int


class OpenPublishing(OnChannel, frozen=True, tag="publishing"):
    pass


class OpenConsuming(OnChannel, frozen=True, tag="consuming"):
    queue: str
    prefetch: int


class Publish(OnChannel, frozen=True, tag="publish"):
    """Request to publish a parcel. The answer is a receipt."""

    parcel: Parcel


class Acknowledge(OnChannel, frozen=True, tag="ack"):
    """Acknowledges a delivery; with `multiple`, all deliveries up to it.

    The request has no answer; if its tag is wrong, the consumer is ended.
    """

    tag: int
    multiple: bool


class GiveBack(OnChannel, frozen=True, tag="back"):
    """Returns a delivery to its queue. Has no answer."""

    tag: int


class AskDepth(Ask, frozen=True, tag="depth"):
    """Asks how many parcels wait in a queue. The answer is a number."""

    queue: str


class CloseChannel(OnChannel, frozen=True, tag="close"):
    pass


class Goodbye(Ask, frozen=True, tag="goodbye"):
    """The client's last request. The server closes the stream when everything before it is done, and sends no answer."""


Request = (
    Hello
    | Declare
    | Bind
    | OpenPublishing
    | OpenConsuming
    | Publish
    | Acknowledge
    | GiveBack
    | AskDepth
    | CloseChannel
    | Goodbye
)


class RequestDone(Struct, frozen=True, array_like=True, tag="done"):
    """The answer to a request that was carried out."""

    id: int
    value: int | str | None


class Failed(Struct, frozen=True, array_like=True, tag="failed"):
    id: int
    problem: str
    text: str


class Delivered(Struct, frozen=True, array_like=True, tag="delivered"):
    channel: int
    delivery: Delivery


class Cancelled(Struct, frozen=True, array_like=True, tag="cancelled"):
    """No more deliveries will come on this channel."""

    channel: int
    problem: str
    text: str


class BlockedChanged(Struct, frozen=True, array_like=True, tag="blocked"):
    """Tells the client that the broker accepts nothing from publishers from now on, for the reason `why`. If `why` is
    empty, the broker accepts parcels again.
    """

    why: str


Reply = RequestDone | Failed | Delivered | Cancelled | BlockedChanged

decode_request: Callable[[bytes], Request] = msgspec.msgpack.Decoder[Any](Request).decode
decode_reply: Callable[[bytes], Reply] = msgspec.msgpack.Decoder[Any](Reply).decode
_encode = msgspec.msgpack.Encoder().encode

# The broker's exceptions, which the client raises again.
PROBLEMS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (Refusal, AccessRefused, NotFound, Interrupted, ConnectionLost, ConsumerCancelled)
}


def frame_of(message: Request | Reply) -> bytes:
    encoded = _encode(message)
    return _LENGTH.pack(len(encoded)) + encoded


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """The next message, still encoded. Raises EOFError when the other end has closed the stream."""
    (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if size > FRAME_BYTES_MAX:
        raise ValueError(f"a frame has {size} bytes, at most {FRAME_BYTES_MAX} are allowed")
    return await reader.readexactly(size)
