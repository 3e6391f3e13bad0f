"""The protocol on the Unix socket: requests of the client, answers with the same id, and messages without a request.

Each of these is a msgpack array after four bytes of length.
"""

import asyncio
import struct
from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from typing import Any

import msgspec
from msgspec import Struct

from bus.broker import BODY_BYTES_MAX, Delivery
from bus.message import Parcel
from bus.queues import Binding, Objects
from kit.errors import AccessRefused, ConnectionLost, ConsumerCancelled, Interrupted, NotFound, Refusal

# A parcel of another program may be much larger than ours and must still arrive, to be dead-lettered. Names and headers
# come on top; the memory broker limits them.
FRAME_BYTES_MAX = BODY_BYTES_MAX + 256 * 1024
# The id of a request that has no answer.
NO_ANSWER = 0
# Stands for a channel in requests that are about the connection itself.
CONNECTION = 0

_LENGTH = struct.Struct(">I")


class SocketRequest(Struct, frozen=True, array_like=True):
    """A client's request for an operation, on its connection or on one of its channels. The client numbers both."""

    id: int
    channel: int

    @property
    def operation(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ARGUMENTS[self.operation]}


# The operations of bus/broker.py, with the names and types of their arguments. A channel is opened under the number that it
# shall have. A wrong acknowledgement has no answer: it ends its consumer.
#
# `hello` is a client's first request. Its answer is why the broker accepts nothing now, empty if it does. To close the
# connection is its last request: the server closes the stream when everything before it is done.
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "hello": {"user": str},
    "declare": {"objects": Objects},
    "bind": {"queue": str, "bindings": tuple[Binding, ...]},
    "depth": {"queue": str},
    "consumers": {"queue": str},
    "open_publishing": {},
    "open_consuming": {"queue": str, "prefetch": int},
    "publish": {"parcel": Parcel},
    "acknowledge": {"tag": int, "multiple": bool},
    "give_back": {"tag": int},
    "close": {},
}
_REQUESTS = {
    operation: msgspec.defstruct(
        operation, [*arguments.items()], bases=(SocketRequest,), tag=operation, frozen=True, array_like=True
    )
    for operation, arguments in ARGUMENTS.items()
}


def request_for(operation: str, id_: int, channel: int, arguments: Mapping[str, object]) -> SocketRequest:
    request = _REQUESTS[operation](id_, channel, **arguments)
    assert isinstance(request, SocketRequest)
    return request


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

_any_request: Any = reduce(or_, _REQUESTS.values())
decode_request: Callable[[bytes], SocketRequest] = msgspec.msgpack.Decoder[Any](_any_request).decode
decode_reply: Callable[[bytes], Reply] = msgspec.msgpack.Decoder[Any](Reply).decode
_encode = msgspec.msgpack.Encoder().encode

# The broker's exceptions, which the client raises again.
PROBLEMS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (Refusal, AccessRefused, NotFound, Interrupted, ConnectionLost, ConsumerCancelled)
}


def frame_of(message: SocketRequest | Reply) -> bytes:
    encoded = _encode(message)
    return _LENGTH.pack(len(encoded)) + encoded


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """The next message, still encoded. Raises EOFError when the other end has closed the stream."""
    (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if size > FRAME_BYTES_MAX:
        raise ValueError(f"a frame has {size} bytes, at most {FRAME_BYTES_MAX} are allowed")
    return await reader.readexactly(size)
