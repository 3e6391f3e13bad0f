"""One client of a served memory broker: relays its requests and pushes its deliveries."""

import asyncio
import logging

from msgspec import structs

from bus.broker import Interrupted, Receipt, Refusal
from bus.memory import MemoryBroker
from bus.memory.channels import MemoryConsuming, MemoryPublishing
from bus.memory.connection import MemoryConnection
from bus.unix_socket.frames import (
    CONNECTION,
    NO_ANSWER,
    BlockedChanged,
    Cancelled,
    Delivered,
    Failed,
    Reply,
    RequestDone,
    SocketRequest,
    decode_request,
    frame_of,
    in_bytes,
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
        self._channels: dict[int, MemoryPublishing | MemoryConsuming] = {}

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
        if hello is None or hello.operation != "hello":
            return
        try:
            connection = self._connection = self._broker.connect(hello.arguments["user"], self)
        except (Refusal, Interrupted) as problem:
            self._say(Failed(hello.id, type(problem).__name__, str(problem)))
            return
        self._say(RequestDone(hello.id, connection.blocked))
        while (request := await self._next()) is not None:
            await self._room.acquire()
            doing = self._tasks.create_task(self._answer(request, connection))
            doing.add_done_callback(lambda _: self._room.release())

    async def _next(self) -> SocketRequest | None:
        """The next request. None if the client has gone, or has sent something that is no request."""
        try:
            return decode_request(await read_frame(self._reader))
        except (EOFError, ConnectionError):
            return None
        except NOT_JSON as problem:
            log.warning("disconnecting a client that sent an invalid request: %s", problem)
            return None

    async def _answer(self, request: SocketRequest, connection: MemoryConnection) -> None:
        """Carry out one request, and answer it. A wrong or late acknowledgement has no answer: it ends its consumer."""
        try:
            reply: Reply = RequestDone(request.id, await self._do(request, connection))
        except (Refusal, Interrupted) as problem:
            reply = Failed(request.id, type(problem).__name__, str(problem))
        if request.id != NO_ANSWER:
            self._say(reply)

    async def _do(self, request: SocketRequest, connection: MemoryConnection) -> int | str | None:
        """Carry out an operation on the connection or on a channel. It does nothing on a consumer that has ended.

        The client names the method. Only requests for the operations of the table (`ARGUMENTS`) are decoded.
        """
        number, operation, arguments = request.channel, request.operation, request.arguments
        opens = operation in ("open_publishing", "open_consuming")
        on = connection if opens or number == CONNECTION else self._channels.get(number)
        if on is None:
            assert operation != "publish", "a client publishes on a channel that it has opened"
            return None
        if operation == "publish":
            arguments["parcel"] = in_bytes(arguments["parcel"])
        elif operation == "close":
            self._channels.pop(number, None)
        done = await getattr(on, operation)(**arguments)
        if opens:
            self._opened(number, done)
            return None
        answer: int | str | None = done.value if isinstance(done, Receipt) else done
        return answer

    def _opened(self, number: int, channel: MemoryPublishing | MemoryConsuming) -> None:
        self._channels[number] = channel
        if isinstance(channel, MemoryConsuming):
            self._tasks.create_task(self._push(number, channel))

    # Deliveries

    async def _push(self, channel: int, consuming: MemoryConsuming) -> None:
        """Push deliveries until the consumer ends. The memory broker limits them by the client's prefetch."""
        try:
            while True:
                for delivery in await consuming.receive():
                    delivered = structs.replace(delivery, parcel=in_bytes(delivery.parcel))
                    self._say(Delivered(channel, delivered))
                await self._writer.drain()
        except (Interrupted, ConnectionError) as problem:
            self._channels.pop(channel, None)
            self._say(Cancelled(channel, type(problem).__name__, str(problem)))

    def _say(self, reply: Reply) -> None:
        if not self._writer.is_closing():
            self._writer.write(frame_of(reply))
