"""The broker port over a Unix socket."""

import asyncio
import itertools
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

from bus.broker import (
    AccessRefused,
    ConnectionLost,
    ConsumerCancelled,
    Delivery,
    Interrupted,
    Parcel,
    Receipt,
    Refusal,
)
from bus.topology import Binding, Objects
from bus.unix_socket.frames import (
    FRAME_BYTES_MAX,
    Acknowledge,
    AskDepth,
    Bind,
    BlockedChanged,
    Cancelled,
    CloseChannel,
    Declare,
    Delivered,
    Depth,
    Done,
    Failed,
    Frames,
    GiveBack,
    Goodbye,
    Hello,
    OpenConsuming,
    OpenPublishing,
    Publish,
    Reply,
    Request,
    Told,
    Welcome,
    decode_reply,
    encode,
    problem_named,
)

T = TypeVar("T")
# The id of the answer to `Hello`; no request has it.
HELLO = 0
# A broker without an alarm that does not answer for so long hangs; the socket alone would not show that.
ANSWER_S_MAX = 30.0
CLOSE_S_MAX = 5.0


class UnixBroker:
    """A memory broker served by another process at this path; a `Broker`."""

    def __init__(
        self, path: str | os.PathLike[str], user: str = "", *, answer_s_max: float = ANSWER_S_MAX
    ) -> None:
        self._path = os.fspath(path)
        self._user = user
        self._answer_s_max = answer_s_max

    @property
    def user(self) -> str:
        return self._user

    async def connect(self) -> "UnixConnection":
        connection = UnixConnection(self._answer_s_max)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: connection.frames, self._path)
        except PermissionError as problem:
            raise AccessRefused(f"no permission to open the socket {self._path}: {problem}") from problem
        except OSError as problem:
            raise ConnectionLost(f"no process serves a bus at {self._path}: {problem}") from problem
        try:
            await connection.greet(self._user)
        except BaseException:
            connection.frames.cut("not connected")
            raise
        return connection


class UnixConnection:
    def __init__(self, answer_s_max: float = ANSWER_S_MAX) -> None:
        self._answer_s_max = answer_s_max
        self.frames = Frames(self._received, self._connection_lost)
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(HELLO + 1)
        self._channels = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._consumings: dict[int, UnixConsuming] = {}
        self._blocked = ""
        self._lost = ""
        self._ended = asyncio.Event()
        self._unblocked = asyncio.Event()

    @property
    def blocked(self) -> str:
        return self._blocked

    async def until_unblocked(self) -> None:
        while self._blocked:
            self._unblocked.clear()
            await self._unblocked.wait()

    async def greet(self, user: str) -> None:
        self._blocked = await self.ask(Hello(user), HELLO, str)

    async def declare(self, objects: Objects) -> None:
        request = next(self._ids)
        await self.ask(Declare(request, objects), request, type(None))

    async def bind(self, queue: str, bindings: Sequence[Binding]) -> None:
        request = next(self._ids)
        await self.ask(Bind(request, queue, tuple(bindings)), request, type(None))

    async def open_publishing(self) -> "UnixPublishing":
        request, channel = next(self._ids), next(self._channels)
        await self.ask(OpenPublishing(request, channel), request, type(None))
        return UnixPublishing(self, channel)

    async def open_consuming(self, queue: str, prefetch: int) -> "UnixConsuming":
        if prefetch < 1:
            raise ValueError(
                f"prefetch is {prefetch}, must be at least 1: without a bound one consumer holds all"
            )
        request, channel = next(self._ids), next(self._channels)
        # Register the consumer first: deliveries may follow the answer before the caller has read it.
        consuming = self._consumings[channel] = UnixConsuming(self, channel)
        try:
            await self.ask(OpenConsuming(request, channel, queue, prefetch), request, type(None))
        except BaseException:
            self._consumings.pop(channel, None)
            raise
        return consuming

    async def depth(self, queue: str) -> int:
        request = next(self._ids)
        return await self.ask(AskDepth(request, queue), request, int)

    async def close(self) -> None:
        if not self._lost:
            self.tell(Goodbye())
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S_MAX):
                    await self._ended.wait()
            self.frames.cut("closed by this end")

    # Used by its channels

    def check(self) -> None:
        if self._lost:
            raise ConnectionLost(self._lost)

    def tell(self, request: Request) -> None:
        """Send a request; requests arrive in the order of the calls."""
        self.check()
        try:
            frame = encode(request)
        except (ValueError, TypeError, OverflowError) as problem:
            raise Refusal(f"the request cannot be encoded: {problem}") from problem
        if len(frame) > FRAME_BYTES_MAX:
            raise Refusal(f"the request has {len(frame)} bytes, at most {FRAME_BYTES_MAX} are allowed")
        self.frames.send(frame)

    async def ask(self, request: Request, number: int, _: type[T]) -> T:
        answer: asyncio.Future[T] = self._ask(request, number)
        while not (await asyncio.wait((answer,), timeout=self._answer_s_max))[0]:
            if not self._blocked:
                self.frames.cut(f"no answer within {self._answer_s_max:g} s")
        return answer.result()

    def _ask(self, request: Request, number: int) -> asyncio.Future[Any]:
        self.tell(request)
        answer = self._answers[number] = self._loop.create_future()
        return answer

    async def publish(self, channel: int, parcel: Parcel) -> Receipt:
        """Waits as long as the broker has an alarm."""
        request = next(self._ids)
        receipt: Receipt = await self._ask(Publish(request, channel, parcel), request)
        return receipt

    async def close_channel(self, channel: int) -> None:
        self._consumings.pop(channel, None)
        if not self._lost:
            request = next(self._ids)
            try:
                await self.ask(CloseChannel(request, channel), request, type(None))
            except ConnectionLost:
                return

    # Received from the broker

    def _received(self, frame: bytearray) -> None:
        reply = decode_reply(frame)
        match reply:
            case Delivered(channel=channel, delivery=delivery):
                if channel in self._consumings:
                    self._consumings[channel].arrive(delivery)
            case Told(id=number, receipt=receipt):
                self._settle(number, receipt)
            case Done(id=number):
                self._settle(number, None)
            case Failed(id=number, problem=problem, text=text):
                self._settle(number, problem_named(problem, text))
            case _:
                self._received_rarely(reply)

    def _received_rarely(self, reply: Reply) -> None:
        match reply:
            case Welcome(blocked=blocked):
                self._settle(HELLO, blocked)
            case Depth(id=number, depth=depth):
                self._settle(number, depth)
            case BlockedChanged(why=why):
                self._blocked = why
                self._unblocked.set()
            case Cancelled(channel=channel, problem=problem, text=text):
                consuming = self._consumings.pop(channel, None)
                if consuming is not None:
                    consuming.end(problem_named(problem, text))

    def _settle(self, number: int, answer: object) -> None:
        waiting = self._answers.pop(number, None)
        if waiting is None or waiting.done():
            return
        if isinstance(answer, Exception):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)

    def _connection_lost(self, why: str) -> None:
        self._lost = why
        self._blocked = ""
        self._ended.set()
        self._unblocked.set()
        for number in [*self._answers]:
            self._settle(number, ConnectionLost(why))
        for consuming in self._consumings.values():
            consuming.end(ConnectionLost(why))
        self._consumings.clear()


class UnixPublishing:
    def __init__(self, connection: UnixConnection, channel: int) -> None:
        self._connection = connection
        self._channel = channel
        self._closed = False

    async def publish(self, parcel: Parcel) -> Receipt:
        if self._closed:
            raise Interrupted("the channel is closed: closed by its user")
        return await self._connection.publish(self._channel, parcel)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._connection.close_channel(self._channel)


class UnixConsuming:
    def __init__(self, connection: UnixConnection, channel: int) -> None:
        self._connection = connection
        self._channel = channel
        self._arrived: list[Delivery] = []
        self._arrival: asyncio.Future[None] | None = None
        self._over: Exception | None = None

    async def receive(self) -> Sequence[Delivery]:
        while not self._arrived:
            self._check()
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        arrived, self._arrived = self._arrived, []
        return arrived

    async def acknowledge(self, tag: int, *, multiple: bool = False) -> None:
        self._check()
        self._connection.tell(Acknowledge(self._channel, tag, multiple))

    async def give_back(self, tag: int) -> None:
        self._check()
        self._connection.tell(GiveBack(self._channel, tag))

    async def close(self) -> None:
        if self._over is None:
            self.end(ConsumerCancelled("closed by its user"))
            await self._connection.close_channel(self._channel)

    def arrive(self, delivery: Delivery) -> None:
        self._arrived.append(delivery)
        self._wake()

    def end(self, why: Exception) -> None:
        """Unread deliveries have already returned to their queue."""
        self._over = why
        self._arrived.clear()
        self._wake()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _check(self) -> None:
        if self._over is not None:
            raise type(self._over)(str(self._over))
