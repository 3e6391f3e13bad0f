"""Serves a memory broker to other processes of this machine."""

import asyncio
import logging
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bus.broker import Receipt
from bus.memory import MemoryBroker
from bus.memory.broker import MemoryConnection, MemoryConsuming, MemoryPublishing
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
    read_frame,
)
from kit.errors import UNREADABLE, Interrupted, Refusal

# One client of a served memory broker: relays its requests and pushes its deliveries.


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

    # Requests

    async def _hear(self) -> None:
        hello = await self._next()
        if hello is None or hello.operation != "hello":
            return
        try:
            connection = self._connection = self._broker.connect(hello.arguments["user"])
        except (Refusal, Interrupted) as problem:
            self._say(Failed(hello.id, type(problem).__name__, str(problem)))
            return
        connection.on_blocked = lambda why: self._say(BlockedChanged(why))
        connection.on_lost = self._writer.close
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
        except UNREADABLE as problem:
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
        if operation == "close":
            self._channels.pop(number, None)
        done = await getattr(on, operation)(**arguments)
        if opens:
            self._channels[number] = done
            if isinstance(done, MemoryConsuming):
                self._tasks.create_task(self._push(number, done))
            return None
        answer: int | str | None = done.value if isinstance(done, Receipt) else done
        return answer

    # Deliveries

    async def _push(self, channel: int, consuming: MemoryConsuming) -> None:
        """Push deliveries until the consumer ends. The memory broker limits them by the client's prefetch."""
        try:
            while True:
                for delivery in await consuming.receive():
                    self._say(Delivered(channel, delivery))
                await self._writer.drain()
        except (Interrupted, ConnectionError) as problem:
            self._channels.pop(channel, None)
            self._say(Cancelled(channel, type(problem).__name__, str(problem)))

    def _say(self, reply: Reply) -> None:
        if not self._writer.is_closing():
            self._writer.write(frame_of(reply))


# The system's limit on a socket's path, without the final zero byte.
PATH_BYTES_MAX = 107
BACKLOG = 128


class SocketTakenError(OSError):
    """The path cannot be served: another process serves it, its file must not be replaced, or none can be made."""


@asynccontextmanager
async def serve_unix(broker: MemoryBroker, path: str | os.PathLike[str]) -> AsyncIterator[None]:
    """A context in which the broker is served at this path, to processes of this user of the machine."""
    place = Path(path)
    listening = _listen(place)
    inode = _inode(place)
    sessions: dict[asyncio.Task[None], Session] = {}

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = Session(broker, reader, writer)
        running = asyncio.create_task(session.run())
        sessions[running] = session
        running.add_done_callback(sessions.pop)

    server = await asyncio.start_unix_server(begin, sock=listening, backlog=BACKLOG)
    try:
        yield
    finally:
        server.close()
        running = [*sessions]
        for session in sessions.values():
            session.end("the broker is served no more")
        await asyncio.gather(*running)
        if _inode(place) == inode:
            # Otherwise another process serves there by now.
            _remove(place)


def _listen(place: Path) -> socket.socket:
    if len(os.fsencode(place)) > PATH_BYTES_MAX:
        raise SocketTakenError(
            f"{place} is too long for a socket, at most {PATH_BYTES_MAX} bytes: choose another path"
        )
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _make_way(place)
        listening.bind(os.fspath(place))
        # No client can connect before we listen, so the file is private before the first one does.
        place.chmod(0o600)
        listening.setblocking(False)
    except SocketTakenError:
        listening.close()
        raise
    except OSError as problem:
        listening.close()
        raise SocketTakenError(f"{place} cannot be made: {problem}; choose another path") from problem
    return listening


def _make_way(place: Path) -> None:
    """Remove a socket that no process answers: a process that died left it behind."""
    try:
        mode = place.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SocketTakenError(f"{place} exists and is not a socket: it was not changed, choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(os.fspath(place))
        except ConnectionRefusedError:
            _remove(place)
            return
    raise SocketTakenError(f"{place} is served by another process: stop it first, or choose another path")


def _inode(place: Path) -> int | None:
    try:
        return place.stat().st_ino
    except FileNotFoundError:
        return None


def _remove(place: Path) -> None:
    place.unlink(missing_ok=True)
