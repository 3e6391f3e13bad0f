"""The streams of a connection's socket. The client library and our channels share them.

The library opens the connection, keeps it alive and ends it, which it does on channel 0. Frames of our channels go straight to them,
as they arrive: through the library each frame would take a switch of tasks and several copies. And while many small messages
come, reading rests between them (rests.py): for them, waking up to read is most of the cost.
"""

import asyncio
import struct
from typing import Any, cast

from aiormq.connection import TransportFactory
from pamqp.constants import FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD
from pamqp.exceptions import PAMQPException
from pamqp.frame import unmarshal
from yarl import URL

from bus.rabbit.channel import Channel
from bus.rabbit.frames import FRAME_END, FRAME_HEAD, FRAME_OVERHEAD
from bus.rabbit.rests import Rests

_KINDS = (FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT)
HEARTBEAT = FRAME_HEAD.pack(FRAME_HEARTBEAT, 0, 0) + FRAME_END
# The library takes a connection for lost on which it reads nothing, and a busy broker sends no heartbeats.
TOLD_EVERY_S = 1.0


class FrameReader(asyncio.StreamReader):
    """Passes the frames of `channels` to them. All else can be read from this stream, as from any other."""

    _socket: asyncio.ReadTransport

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop()
        super().__init__(loop=self._clock)
        self.channels: dict[int, Channel] = {}
        self._told_s = 0.0
        # The beginning of a frame that has not arrived as a whole, and how many bytes it must have to be looked at again.
        self._pieces: list[bytes] = []
        self._gathered = 0
        self._needed = 0
        # What arrives is no AMQP, or a frame that cannot be read: from there on the library reads all, and ends the connection.
        self._is_strange = False
        self._rests = Rests()

    def set_transport(self, transport: asyncio.BaseTransport) -> None:
        super().set_transport(transport)
        self._socket = cast("asyncio.ReadTransport", transport)

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]  # a transport gives bytes
        size = len(data)
        if self._pieces:
            self._pieces.append(data)
            self._gathered += size
            if self._gathered < self._needed:
                return
            data = b"".join(self._pieces)
            self._pieces.clear()
        end, messages = self._pass_on(data)
        if end < len(data):
            self._pieces.append(data[end:])
            self._gathered = len(data) - end
        now_s = self._clock.time()
        if messages and now_s - self._told_s >= TOLD_EVERY_S:
            self._told_s = now_s
            super().feed_data(HEARTBEAT)
        if rest_s := self._rests.after_read_s(now_s, messages, size):
            self._rest(rest_s)

    def feed_eof(self) -> None:
        if self._pieces:
            # A frame that is cut off is the library's to complain about.
            super().feed_data(b"".join(self._pieces))
            self._pieces.clear()
        super().feed_eof()

    def _pass_on(self, data: bytes) -> tuple[int, int]:
        """Pass on the frames that are whole. Returns where they end, and how many methods were among those for channels."""
        at, size, methods = 0, len(data), 0
        while size - at >= FRAME_OVERHEAD and not self._is_strange:
            kind, number, length = FRAME_HEAD.unpack_from(data, at)
            end = at + FRAME_OVERHEAD + length
            if end > size and kind in _KINDS:
                self._needed = end - at
                return at, methods
            channel = self.channels.get(number)
            if kind not in _KINDS or (channel is not None and not _is_passed(data[at:end], kind, channel)):
                self._is_strange = True
                break
            if channel is None:
                super().feed_data(data[at:end])
            elif kind == FRAME_METHOD:
                methods += 1
            at = end
        if self._is_strange:
            super().feed_data(data[at:])
            return size, methods
        self._needed = FRAME_OVERHEAD
        return at, methods

    def _rest(self, seconds: float) -> None:
        if not self._socket.is_closing():
            self._socket.pause_reading()
            self._clock.call_later(seconds, self._read_again)

    def _read_again(self) -> None:
        if not self._socket.is_closing():
            self._socket.resume_reading()


def _is_passed(frame: bytes, kind: int, channel: Channel) -> bool:
    """Pass a frame to its channel. False if it cannot be read."""
    if kind == FRAME_BODY:
        if not frame.endswith(FRAME_END):
            return False
        channel.take_body(frame[FRAME_HEAD.size : -1])
        return True
    try:
        read = unmarshal(frame)
    except (PAMQPException, ValueError, LookupError, struct.error):
        return False
    channel.take(read[2])
    return True


class Streams(TransportFactory):
    """Opens the streams of one connection for the library, and keeps them."""

    reader: FrameReader
    writer: asyncio.StreamWriter

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        provider = kwargs.pop("ssl_context_provider")
        context = await provider.get_context() if url.scheme == "amqps" else None
        loop = asyncio.get_running_loop()
        self.reader = FrameReader()
        protocol = asyncio.StreamReaderProtocol(self.reader, loop=loop)
        # The library reads further arguments of the loop from the URL, such as `happy_eyeballs_delay`.
        transport, _ = await loop.create_connection(
            lambda: protocol, url.host or "", url.port or 0, ssl=context, **kwargs
        )
        self.writer = asyncio.StreamWriter(transport, protocol, self.reader, loop)
        return self.reader, self.writer
