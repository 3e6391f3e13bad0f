"""One client of a served memory broker: relays its requests and pushes its deliveries."""

import asyncio
import logging

from msgspec import structs

from bus.broker import Interrupted, Refusal
from bus.memory import MemoryBroker
from bus.memory.channels import MemoryConsuming, MemoryPublishing
from bus.memory.connection import MemoryConnection
from bus.unix_socket.frames import (
    NO_ANSWER,
    Acknowledge,
    AskDepth,
    Bind,
    BlockedChanged,
    Cancelled,
    CloseChannel,
    Declare,
    Delivered,
    Failed,
    GiveBack,
    Goodbye,
    Hello,
    OpenConsuming,
    OpenPublishing,
    Publish,
    Reply,
    Request,
    RequestDone,
    decode_request,
    frame_of,
    read_frame,
)
from bus.unreadable import NOT_JSON

log = logging.getLogger(__name__)

# The session stops reading from a client with this many open requests, until one of them is done.
REQUESTS_UNDER_WAY_MAX = 2_000


class Session:
    """One client. Requests start in the order of arrival, and each is answered when it is done."""

    def __init__(
        self, broker: MemoryBroker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._broker = broker
        self._reader = reader
        self._writer = writer
        self._tasks = asyncio.TaskGroup()
        self._room = asyncio.Semaphore(REQUESTS_UNDER_WAY_MAX)
        self._connection: MemoryConnection | None = None
        self._publishings: dict[int, MemoryPublishing] = {}
        self._consumings: dict[int, MemoryConsuming] = {}

    async def run(self) -> None:
        """Serve the client until it goes, or sends anything but requests."""
        try:
            async with self._tasks:
                try:
                    await self._hear()
                finally:
                    # Earlier requests start before the connection ends, acknowledgements too.
                    await asyncio.sleep(0)
                    self.end("the client has gone")
        except ExceptionGroup:
            log.exception("disconnected a client whose request failed")

    def end(self, why: str) -> None:
        """End the client's connection to the broker, and close the stream when pending data is sent."""
        self._writer.close()
        if self._connection is not None:
            self._connection.end(why)

    # Called by its connection

    def blocked_changed(self, why: str) -> None:
        self._say(BlockedChanged(why))

    def lost(self, _: str) -> None:
        self._writer.close()

    # Requests

    async def _hear(self) -> None:
        hello = await self._next()
        if not isinstance(hello, Hello):
            return
        try:
            connection = self._connection = self._broker.connect(hello.user, self)
        except (Refusal, Interrupted) as problem:
            self._say(Failed(hello.id, type(problem).__name__, str(problem)))
            return
        self._say(RequestDone(hello.id, connection.blocked))
        while (request := await self._next()) is not None:
            await self._room.acquire()
            doing = self._tasks.create_task(self._answer(request, connection))
            doing.add_done_callback(lambda _: self._room.release())

    async def _next(self) -> Request | None:
        """The next request. None if the client has gone, or has sent something that is no request."""
        try:
            return decode_request(await read_frame(self._reader))
        except (EOFError, ConnectionError):
            return None
        except NOT_JSON as problem:
            log.warning("disconnecting a client that sent an invalid request: %s", problem)
            return None

    async def _answer(self, request: Request, connection: MemoryConnection) -> None:
        """Carry out one request, and answer it. A wrong or late acknowledgement has no answer: it ends its consumer."""
        try:
            reply: Reply = RequestDone(request.id, await self._do(request, connection))
        except (Refusal, Interrupted) as problem:
            reply = Failed(request.id, type(problem).__name__, str(problem))
        if request.id != NO_ANSWER:
            self._say(reply)

    async def _do(self, request: Request, connection: MemoryConnection) -> int | str | None:
        match request:
            case Publish(channel=channel, parcel=parcel):
                # Message objects are only for readers in one process; a client could send false ones, so drop them.
                in_bytes = structs.replace(parcel, envelopes=())
                return (await self._publishings[channel].publish(in_bytes)).value
            case AskDepth(queue=queue):
                return await connection.depth(queue)
            case Declare(objects=objects):
                await connection.declare(objects)
            case Bind(queue=queue, bindings=bindings):
                await connection.bind(queue, bindings)
            case Goodbye():
                await connection.close()
            case _:
                await self._use_channel(request, connection)
        return None

    async def _use_channel(self, request: Request, connection: MemoryConnection) -> None:
        match request:
            case OpenPublishing(channel=channel):
                self._publishings[channel] = await connection.open_publishing()
            case OpenConsuming(channel=channel, queue=queue, prefetch=prefetch):
                consuming = self._consumings[channel] = await connection.open_consuming(queue, prefetch)
                self._tasks.create_task(self._push(channel, consuming))
            case Acknowledge(channel=channel, tag=tag, multiple=multiple) if channel in self._consumings:
                await self._consumings[channel].acknowledge(tag, multiple=multiple)
            case GiveBack(channel=channel, tag=tag) if channel in self._consumings:
                await self._consumings[channel].give_back(tag)
            case CloseChannel(channel=channel) if channel in self._publishings:
                await self._publishings.pop(channel).close()
            case CloseChannel(channel=channel) if channel in self._consumings:
                await self._consumings.pop(channel).close()

    # Deliveries

    async def _push(self, channel: int, consuming: MemoryConsuming) -> None:
        """Push deliveries until the consumer ends. The memory broker limits them by the client's prefetch."""
        try:
            while True:
                for delivery in await consuming.receive():
                    in_bytes = structs.replace(delivery.parcel, envelopes=())
                    self._say(Delivered(channel, structs.replace(delivery, parcel=in_bytes)))
                await self._writer.drain()
        except (Interrupted, ConnectionError) as problem:
            self._consumings.pop(channel, None)
            self._say(Cancelled(channel, type(problem).__name__, str(problem)))

    def _say(self, reply: Reply) -> None:
        if not self._writer.is_closing():
            self._writer.write(frame_of(reply))
