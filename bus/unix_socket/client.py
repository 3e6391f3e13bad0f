"""The operations of bus/broker.py, carried out over a Unix socket by the memory broker of another process."""

import asyncio
import itertools
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from bus.broker import Arrivals, Delivery, Receipt, require_prefetch
from bus.message import Parcel
from bus.unix_socket.frames import (
    ARGUMENTS,
    CONNECTION,
    FRAME_BYTES_MAX,
    NO_ANSWER,
    PROBLEMS,
    BlockedChanged,
    Cancelled,
    Delivered,
    Failed,
    Reply,
    RequestDone,
    decode_reply,
    frame_of,
    read_frame,
    request_for,
)
from kit.errors import UNREADABLE, AccessRefused, ConnectionLost, ConsumerCancelled, Interrupted, Refusal

# A broker without an alarm that does not answer for so long hangs; the socket alone would not show that.
ANSWER_S_MAX = 30.0
CLOSE_S_MAX = 5.0
# The id of the first request.
HELLO = NO_ANSWER + 1


class UnixBroker:
    """A memory broker served by another process at this path; a `Broker`."""

    def __init__(
        self, path: str | os.PathLike[str], user: str = "", *, answer_s_max: float = ANSWER_S_MAX
    ) -> None:
        self._path = os.fspath(path)
        self.user = user
        self._answer_s_max = answer_s_max

    async def connect(self) -> "UnixConnection":
        try:
            reader, writer = await asyncio.open_unix_connection(self._path)
        except PermissionError as problem:
            raise AccessRefused(f"no permission to open the socket {self._path}: {problem}") from problem
        except OSError as problem:
            raise ConnectionLost(f"no process serves a bus at {self._path}: {problem}") from problem
        connection = UnixConnection(reader, writer, self._answer_s_max)
        try:
            await connection.ask("hello", user=self.user)
        except BaseException:
            connection.cut("not connected")
            raise
        return connection


def _asked(operation: str) -> Any:
    """A method that only has the other process carry out this operation of the table, and returns its answer."""

    async def ask(self: "UnixConnection", *values: object, **named: object) -> Any:
        by_name = dict(zip(ARGUMENTS[operation], values, strict=False))
        return await self.ask(operation, CONNECTION, **by_name, **named)

    return ask


class UnixConnection:
    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer_s_max: float
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._answer_s_max = answer_s_max
        self._ids = itertools.count(HELLO)
        self._channels = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._consumings: dict[int, UnixConsuming] = {}
        self.blocked = ""
        self._unblocked = asyncio.Event()
        # Why the connection is cut, or was lost.
        self._cut = ""
        self._lost = ""
        # Ends with the connection, and then tells everyone who waits.
        self._reading = asyncio.create_task(self._read())

    async def until_unblocked(self) -> None:
        while self.blocked:
            self._unblocked.clear()
            await self._unblocked.wait()

    declare, bind, depth, consumers = map(_asked, ("declare", "bind", "depth", "consumers"))

    async def open_publishing(self) -> "UnixPublishing":
        channel = next(self._channels)
        await self.ask("open_publishing", channel)
        return UnixPublishing(self, channel)

    async def open_consuming(self, queue: str, prefetch: int) -> "UnixConsuming":
        require_prefetch(prefetch)
        channel = next(self._channels)
        # Register the consumer first: deliveries may follow the answer before the caller has read it.
        consuming = self._consumings[channel] = UnixConsuming(self, channel)
        try:
            await self.ask("open_consuming", channel, queue=queue, prefetch=prefetch)
        except BaseException:
            self._consumings.pop(channel, None)
            raise
        return consuming

    async def close(self) -> None:
        if not self._lost:
            self.tell("close")
            await asyncio.wait((self._reading,), timeout=CLOSE_S_MAX)
            self.cut("closed by this end")

    def cut(self, why: str) -> None:
        """Close the socket at once, without sending what is left: the server has perhaps stopped reading."""
        self._cut = why
        self._writer.transport.abort()

    # Used by its channels

    async def ask(self, operation: str, channel: int = CONNECTION, **arguments: object) -> Any:
        """Send a request and wait for its answer. While the broker is blocked, this waits without limit."""
        answer = self.begin(operation, channel, **arguments)
        try:
            while not (await asyncio.wait((answer,), timeout=self._answer_s_max))[0]:
                if not self.blocked:
                    self.cut(f"no answer within {self._answer_s_max:g} s")
        finally:
            # A cancelled caller reads no answer; asyncio would report the end of the connection as an error that nobody read.
            answer.cancel()
        return answer.result()

    def begin(self, operation: str, channel: int, **arguments: object) -> asyncio.Future[Any]:
        """Send a request, and return the future of its answer."""
        id_ = next(self._ids)
        self._send(operation, id_, channel, arguments)
        answer = self._answers[id_] = asyncio.get_running_loop().create_future()
        return answer

    def tell(self, operation: str, channel: int = CONNECTION, **arguments: object) -> None:
        """Send a request that has no answer; requests arrive in the order of the calls."""
        self._send(operation, NO_ANSWER, channel, arguments)

    def _send(self, operation: str, id_: int, channel: int, arguments: Mapping[str, object]) -> None:
        if self._lost:
            raise ConnectionLost(self._lost)
        try:
            frame = frame_of(request_for(operation, id_, channel, arguments))
        except (ValueError, TypeError, OverflowError) as problem:
            raise Refusal(f"the request cannot be encoded: {problem}") from problem
        if len(frame) > FRAME_BYTES_MAX:
            raise Refusal(f"the request has {len(frame)} bytes, at most {FRAME_BYTES_MAX} are allowed")
        self._writer.write(frame)

    async def close_channel(self, channel: int) -> None:
        self._consumings.pop(channel, None)
        with suppress(ConnectionLost):
            await self.ask("close", channel)

    # Received from the broker

    async def _read(self) -> None:
        try:
            while True:
                self._received(decode_reply(await read_frame(self._reader)))
        except (EOFError, ConnectionError, *UNREADABLE) as problem:
            was_closed = isinstance(problem, EOFError)
            self._end(self._cut or ("the other end closed the connection" if was_closed else str(problem)))

    def _received(self, reply: Reply) -> None:
        match reply:
            case Delivered(channel=channel, delivery=delivery) if channel in self._consumings:
                self._consumings[channel].arrivals.put(delivery)
            case RequestDone(id=number, value=value):
                if number == HELLO:
                    # The caller would read it too late: word of an alarm may follow in the same chunk.
                    self.blocked = str(value or "")
                self._settle(number, value)
            case Failed(id=number, problem=problem, text=text):
                self._settle(number, PROBLEMS[problem](text))
            case BlockedChanged(why=why):
                self.blocked = why
                self._unblocked.set()
            case Cancelled(channel=channel, problem=problem, text=text) if channel in self._consumings:
                self._consumings.pop(channel).arrivals.drop(PROBLEMS[problem](text))

    def _settle(self, number: int, answer: object) -> None:
        waiting = self._answers.pop(number)
        if waiting.done():
            return
        if isinstance(answer, Exception):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)

    def _end(self, why: str) -> None:
        self._writer.close()
        self._lost = why
        self.blocked = ""
        self._unblocked.set()
        for number in [*self._answers]:
            self._settle(number, ConnectionLost(why))
        for consuming in self._consumings.values():
            consuming.arrivals.drop(ConnectionLost(why))
        self._consumings.clear()


class UnixPublishing:
    def __init__(self, connection: UnixConnection, channel: int) -> None:
        self._connection = connection
        self._channel = channel
        self._closed = False

    async def publish(self, parcel: Parcel) -> Receipt:
        if self._closed:
            raise Interrupted("the channel is closed: closed by its user")
        # Its answer has no time limit: it may take as long as the journal's disk.
        return Receipt(await self._connection.begin("publish", self._channel, parcel=parcel))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._connection.close_channel(self._channel)


class UnixConsuming:
    def __init__(self, connection: UnixConnection, channel: int) -> None:
        self.arrivals = Arrivals[Delivery]()
        self._connection = connection
        self._channel = channel

    async def receive(self) -> Sequence[Delivery]:
        return await self.arrivals.take()

    async def acknowledge(self, tag: int, *, multiple: bool = False) -> None:
        self.arrivals.check()
        self._connection.tell("acknowledge", self._channel, tag=tag, multiple=multiple)

    async def give_back(self, tag: int) -> None:
        self.arrivals.check()
        self._connection.tell("give_back", self._channel, tag=tag)

    async def close(self) -> None:
        if self.arrivals.why_over is None:
            self.arrivals.drop(ConsumerCancelled("closed by its user"))
            await self._connection.close_channel(self._channel)
