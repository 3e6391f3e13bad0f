"""The streams of a connection's socket, which the client library and our channels share; and the frames that are sent on it.

The library opens the connection, keeps it alive and ends it, which it does on channel 0. Frames of our channels go straight to them,
as they arrive: through the library each frame would take a switch of tasks and several copies. And while many small messages
come, reading rests between them (`Rests`): for them, waking up to read is most of the cost.
"""

import asyncio
import itertools
import struct
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import aiormq
from aiormq.connection import TransportFactory
from pamqp import commands
from pamqp.base import Frame
from pamqp.constants import FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD
from pamqp.exceptions import PAMQPException
from pamqp.frame import FrameTypes, unmarshal
from yarl import URL

from bus.rabbit.channel import Channel, Listener, again, bounded
from bus.rabbit.frames import FRAME_END, FRAME_HEAD, FRAME_OVERHEAD
from kit.errors import ConnectionLost, Interrupted, NotFound

# The cost of a read hardly depends on how much it brings. Rests may pay while reads come this close to each other.
QUICK_S = 0.004
QUICK_READS_MIN = 8
# Messages wait for half of it on average.
REST_S = 0.008
# Reading rests only if so many messages are to be expected meanwhile.
WORTH_IT = 3
# After so many rests it is tried again how fast messages come without them.
RESTS_MAX = 32
QUICK_READS_MAX = 4096
# A read that brings so many bytes needs no rest: they have gathered already.
LARGE_BYTES = 64 * 1024


class Rests:
    """Decides after each read whether to rest.

    A rest pays if messages come meanwhile as fast as before. Where they do not, their sender waits for answers to the last ones, and
    a rest only holds it up. So each rest that brings less than half doubles the number of quick reads before the next one.
    """

    def __init__(self) -> None:
        self._read_s = 0.0
        # Reads since there was a pause, when these began, and what they brought.
        self._quick = 0
        self._since_s = 0.0
        self._messages = 0
        self._quick_needed = QUICK_READS_MIN
        # Messages a second as they came without rests.
        self._rate = 0.0
        self._rests_left = 0
        self._has_rested = False

    def after_read_s(self, now_s: float, messages: int, size: int) -> float:
        """How long to rest after a read of so many messages and bytes. 0: not at all."""
        passed_s, self._read_s = now_s - self._read_s, now_s
        if self._has_rested:
            has_paid = messages >= self._rate * passed_s / 2
            self._quick_needed = QUICK_READS_MIN if has_paid else min(2 * self._quick_needed, QUICK_READS_MAX)
            self._rests_left -= 1
            self._has_rested = has_paid and self._rests_left > 0 and size < LARGE_BYTES
            if not self._has_rested:
                self._begin(now_s)
        elif passed_s >= QUICK_S:
            self._begin(now_s)
        else:
            self._quick += 1
            self._messages += messages
            if self._quick >= self._quick_needed:
                self._rate = self._messages / max(now_s - self._since_s, QUICK_S / 1000)
                self._rests_left = RESTS_MAX
                self._has_rested = self._rate * REST_S >= WORTH_IT and size < LARGE_BYTES
        return REST_S if self._has_rested else 0.0

    def _begin(self, now_s: float) -> None:
        """Count quick reads anew, from this one on."""
        self._quick, self._since_s, self._messages = 0, now_s, 0


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


# Longer than a cluster needs to elect the leader of a queue.
ANSWER_S_MAX = 60.0


class RabbitWire:
    """Sends the frames of one connection, and opens its channels. When it ends, all its channels end."""

    def __init__(
        self,
        client: aiormq.Connection,
        streams: Streams,
        name: str,
        *,
        hang_up: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._client = client
        self._writer = streams.writer
        self._name = name
        self._hang_up = hang_up
        self._loop = asyncio.get_running_loop()
        self._channels_max = client.connection_tune.channel_max or 2047
        self._numbers = itertools.cycle(range(1, self._channels_max + 1))
        # Each gets its frames as long as it is in here.
        self._channels = streams.reader.channels
        self._outbox: list[bytes] = []
        self._something_to_send = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._all_sent.set()
        self._is_closed_here = False
        self._lost: asyncio.Future[ConnectionLost] = self._loop.create_future()
        self._sender = self._loop.create_task(self._send())
        self._farewell: asyncio.Task[None] | None = None
        self.content_size_max = (client.connection_tune.frame_max or 2**31) - FRAME_OVERHEAD
        client.closing.add_done_callback(self._on_closing)

    @property
    def blocked(self) -> str:
        if self._lost.done():
            return ""
        # The client's `ready()` waits exactly while the broker blocks us. It offers no other way to ask.
        waiting: Coroutine[Any, Any, None] = self._client.ready()
        try:
            waiting.send(None)
        except StopIteration:
            return ""
        waiting.close()
        return "the broker is short of memory or disk"

    async def until_unblocked(self) -> None:
        if not self.blocked:
            return
        waiting = self._loop.create_task(self._client.ready())
        try:
            await asyncio.wait((waiting, self._lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()

    async def open(self, listener: Listener, *requests: Frame) -> Channel:
        """Open a channel and send these requests on it. Returns the channel when all of them were answered."""
        if self._lost.done():
            raise again(self._lost.result())
        if len(self._channels) >= self._channels_max:
            # Not as a refusal: what is to be published waits, as after a break.
            raise Interrupted(f"all {self._channels_max} channels of the connection to {self._name} are open")
        number = next(number for number in self._numbers if number not in self._channels)
        channel = Channel(self, number, listener)
        self._channels[number] = channel
        try:
            for request in (commands.Channel.Open(), *requests):
                await self.answered(channel.ask(request))
        except BaseException:
            channel.leave()
            raise
        return channel

    async def answered(self, asked: asyncio.Future[FrameTypes]) -> FrameTypes:
        """The reply to a request. A node that does not answer, for instance because it no longer sees the others, ends as a
        lost connection does: then another node is tried.
        """
        while True:
            done, _ = await asyncio.wait((asked,), timeout=ANSWER_S_MAX)
            if done:
                return asked.result()
            if not self.blocked:
                self._end(ConnectionLost(f"{self._name} did not answer within {ANSWER_S_MAX:g} s"))

    async def ask_aside(self, *questions: Frame) -> Sequence[FrameTypes]:
        """Send requests on a channel of their own and return the replies. A refusal closes only that channel."""
        channel = await self.open(Listener())
        try:
            asked = [channel.ask(question) for question in questions]
            return [await self.answered(each) for each in asked]
        finally:
            await channel.close()

    async def stands(self, passive: Frame) -> bool:
        """Does what this passive declaration names exist?"""
        try:
            await self.ask_aside(passive)
        except NotFound:
            return False
        return True

    def on_lost(self, do: Callable[[], object]) -> None:
        """Call this when the connection ends, unless this end has closed it."""
        self._lost.add_done_callback(lambda _: None if self._is_closed_here else do())

    def send(self, frames: bytes) -> None:
        """Send frames in the order of the calls, as many in one write as have gathered."""
        self._outbox.append(frames)
        self._something_to_send.set()
        self._all_sent.clear()

    def forget(self, number: int) -> None:
        """Drop a channel that the broker has closed. Its number may be used again."""
        self._channels.pop(number, None)

    async def close(self) -> None:
        if not self._lost.done():
            # Acknowledgements that were passed on are sent, and have arrived, before the connection closes.
            await asyncio.gather(*[channel.stop_consuming() for channel in self._channels.values()])
            await bounded(self._all_sent.wait())
            self._is_closed_here = True
            self._end(ConnectionLost(f"the connection to {self._name} was closed by this end"))
        if self._farewell is not None:
            await bounded(asyncio.shield(self._farewell))

    async def _send(self) -> None:
        """Write the frames that gather, until the connection ends. This task is no part of the process (kit/parts.py)."""
        while True:
            await self._something_to_send.wait()
            payload = b"".join(self._outbox)
            self._outbox.clear()
            self._writer.write(payload)
            # While the socket takes no more, the next frames gather.
            try:
                await self._writer.drain()
            except Exception:  # noqa: BLE001 - whatever ended the reading is raised here, too
                # The connection is lost: the library notices it, and then this end ends it.
                return
            if not self._outbox:
                self._something_to_send.clear()
                self._all_sent.set()

    def _on_closing(self, closing: asyncio.Future[Any]) -> None:
        problem = None if closing.cancelled() else closing.exception()
        self._end(ConnectionLost(f"the connection to {self._name} is lost: {problem!r}"))

    def _end(self, why: ConnectionLost) -> None:
        if self._lost.done():
            return
        self._lost.set_result(why)
        self._sender.cancel()
        self._all_sent.set()
        for channel in tuple(self._channels.values()):
            channel.end(why)
        self._channels.clear()
        self._farewell = self._loop.create_task(bounded(self._hang_up()))
