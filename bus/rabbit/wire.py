"""The stream of frames to the broker, shared by all channels of a connection.

It uses aiormq, the client below aio-pika, which opens the connection and keeps it alive. Its socket is shared (streams.py).
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import aiormq
from pamqp import commands
from pamqp.base import Frame
from pamqp.frame import FrameTypes

from bus.rabbit.channel import Channel, Listener
from bus.rabbit.endings import again, bounded
from bus.rabbit.frames import FRAME_OVERHEAD
from bus.rabbit.streams import Streams
from kit.errors import ConnectionLost

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
        self._numbers = itertools.cycle(range(1, (client.connection_tune.channel_max or 2047) + 1))
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
