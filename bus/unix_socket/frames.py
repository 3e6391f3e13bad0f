"""The protocol on the socket: requests with an id, answers with the same id, and messages that the broker sends by
itself.

Each message is a msgpack array after four bytes of length. Messages of one event loop turn are written at once.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Any, cast

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
    Receipt,
    Refusal,
)
from bus.memory.virtual_host import BODY_BYTES_MAX
from bus.topology import Binding, Objects

# A parcel of another program may be much larger than ours and must still arrive, to be dead-lettered. Names and headers
# come on top; the memory broker limits them.
FRAME_BYTES_MAX = BODY_BYTES_MAX + 256 * 1024

_LENGTH = struct.Struct(">I")


class Hello(Struct, frozen=True, array_like=True, tag="hello"):
    """The first request, answered by `Welcome` or by `Failed` with the id 0."""

    user: str


class Declare(Struct, frozen=True, array_like=True, tag="declare"):
    id: int
    objects: Objects


class Bind(Struct, frozen=True, array_like=True, tag="bind"):
    id: int
    queue: str
    bindings: tuple[Binding, ...]


class OpenPublishing(Struct, frozen=True, array_like=True, tag="publishing"):
    """The client numbers its channels."""

    id: int
    channel: int


class OpenConsuming(Struct, frozen=True, array_like=True, tag="consuming"):
    id: int
    channel: int
    queue: str
    prefetch: int


class Publish(Struct, frozen=True, array_like=True, tag="publish"):
    id: int
    channel: int
    parcel: Parcel


class Acknowledge(Struct, frozen=True, array_like=True, tag="ack"):
    """Has no answer; a wrong tag ends the consumer."""

    channel: int
    tag: int
    multiple: bool


class GiveBack(Struct, frozen=True, array_like=True, tag="back"):
    """Has no answer."""

    channel: int
    tag: int


class AskDepth(Struct, frozen=True, array_like=True, tag="depth?"):
    id: int
    queue: str


class CloseChannel(Struct, frozen=True, array_like=True, tag="close"):
    id: int
    channel: int


class Goodbye(Struct, frozen=True, array_like=True, tag="goodbye"):
    """The server closes the stream when everything before it is done."""


Question = Declare | Bind | OpenPublishing | OpenConsuming | Publish | AskDepth | CloseChannel
Unanswered = Acknowledge | GiveBack | Goodbye
Request = Hello | Question | Unanswered


class Welcome(Struct, frozen=True, array_like=True, tag="welcome"):
    blocked: str


class Done(Struct, frozen=True, array_like=True, tag="done"):
    id: int


class Told(Struct, frozen=True, array_like=True, tag="told"):
    id: int
    receipt: Receipt


class Depth(Struct, frozen=True, array_like=True, tag="depth"):
    id: int
    depth: int


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
    why: str


Reply = Welcome | Done | Told | Depth | Failed | Delivered | Cancelled | BlockedChanged

encode = msgspec.msgpack.Encoder().encode
decode_request: Callable[[bytearray], Request] = msgspec.msgpack.Decoder[Any](Request).decode
decode_reply: Callable[[bytearray], Reply] = msgspec.msgpack.Decoder[Any](Reply).decode

_PROBLEMS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (Refusal, AccessRefused, NotFound, Interrupted, ConnectionLost, ConsumerCancelled)
}


def problem_named(name: str, text: str) -> Exception:
    """The broker's exception, to be raised again by the client."""
    return _PROBLEMS[name](text)


class Frames(asyncio.Protocol):
    """One end of the socket: splits bytes into frames and writes frames. It ends once, and reports that once."""

    def __init__(self, received: Callable[[bytearray], None], ended: Callable[[str], None]) -> None:
        self._received = received
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._incoming = bytearray()
        self._outgoing: list[bytes] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._why = "the other end closed the connection"

    def send(self, frame: bytes) -> None:
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(_LENGTH.pack(len(frame)))
        self._outgoing.append(frame)

    async def drained(self) -> None:
        """Wait until the other end has read enough to send more."""
        await self._writable.wait()

    def close(self, why: str) -> None:
        """Write what is pending, then close."""
        if self._transport is not None and not self._transport.is_closing():
            self._flush()
            self._why = why
            self._transport.close()

    def cut(self, why: str) -> None:
        """Close at once: the other end does not read, so nothing more can be written."""
        if self._transport is not None:
            self._why = why
            self._transport.abort()

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's stream transports have this interface, but do not inherit from asyncio's class.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        incoming = self._incoming
        incoming += data
        start = 0
        while len(incoming) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(incoming, start)
            if size > FRAME_BYTES_MAX:
                self.close(f"a frame has {size} bytes, at most {FRAME_BYTES_MAX} are allowed")
                return
            end = start + _LENGTH.size + size
            if end > len(incoming):
                break
            self._received(incoming[start + _LENGTH.size : end])
            start = end
        del incoming[:start]

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable.set()
        self._ended(str(exc) if exc else self._why)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self._transport is not None and outgoing and not self._transport.is_closing():
            self._transport.write(b"".join(outgoing))
