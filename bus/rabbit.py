"""RabbitMQ behind the broker port: the one file that speaks AMQP.

aio-pika connects: addresses, TLS, logging in, heartbeats, frames. The channels on that connection are our own. One of
the library's costs a task, several futures and a lock for every message, looks at all unconfirmed parcels at every
confirm, and answers a broken connection with a cancellation that nobody asked for. Ours hands each frame on as it is
read, and lets what many callers write leave in one piece, which is what the broker's own costs depend on most.

Nothing here connects again or repeats anything: see bus/link.py for that.
"""

import asyncio
import itertools
import logging
import struct
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast
from urllib.parse import unquote, urlsplit

import aio_pika
import aiormq
from aio_pika.connection import make_url
from aiormq.abc import ChannelFrame
from pamqp import commands
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.frame import FrameTypes, marshal
from pamqp.header import ContentHeader

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
from bus.definitions import arguments_of
from bus.topology import Exchange, Limits, Objects, Queue, QueueKind

log = logging.getLogger(__name__)
# Whatever it complains of is raised here as well; it would do so with tracebacks, at every reconnect.
logging.getLogger("aiormq").setLevel(logging.CRITICAL)

HEARTBEAT_S = 10
CONNECT_S_MAX = 15.0
# A broker that does not say goodbye by then is left without.
CLOSE_S_MAX = 5.0

# Around the payload of an AMQP frame: kind, channel and length before it, one byte after.
_FRAME_HEAD = struct.Struct(">BHI")
_FRAME_END = b"\xce"
_FRAME_OVERHEAD = _FRAME_HEAD.size + len(_FRAME_END)
_HEADER_FRAME = 2
_BODY_FRAME = 3
_CONTENT_HEAD = struct.Struct(">HHQ")
_TRANSIENT, _PERSISTENT = 1, 2
# How often a quorum queue has had it back, among the headers of what it delivers.
_RETURNS = "x-delivery-count"

_T = TypeVar("_T")


class RabbitBroker:
    """A broker by its address: `amqp://user:password@host:port/vhost`, or `amqps://` with the CA's file in `?cafile=`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._url = url if "heartbeat=" in parts.query else str(make_url(url, heartbeat=HEARTBEAT_S))
        self._user = unquote(parts.username or "guest")
        # What may be shown: without the password.
        host = f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname
        self._name = f"RabbitMQ at {host}{parts.path} as {self._user!r}"

    @property
    def user(self) -> str:
        return self._user

    async def connect(self) -> "RabbitConnection":
        connection = aio_pika.Connection(make_url(self._url))
        try:
            await asyncio.wait_for(connection.connect(), CONNECT_S_MAX)
        except BaseException as problem:  # noqa: BLE001 - it is raised on
            # Else its destructor would, at some other time.
            await _bounded(connection.close())
            raise self._explained(problem) from None
        return RabbitConnection(connection, self._user, self._name)

    def _explained(self, problem: BaseException) -> BaseException:
        match problem:
            case aiormq.exceptions.ProbableAuthenticationError():
                return AccessRefused(f"{self._name}: wrong password, or no such user")
            case aiormq.exceptions.InvalidFrameError() if "Connection.OpenOk" in str(problem):
                # The client does not tell a wrong virtual host from a broker that is just stopping.
                return ConnectionLost(
                    f"{self._name}: closed on entering the virtual host; is it there, and allowed?"
                )
            case TimeoutError():
                return ConnectionLost(f"{self._name} did not answer within {CONNECT_S_MAX:.0f} s")
            case aiormq.exceptions.AMQPError() | OSError() | EOFError():
                return ConnectionLost(f"cannot connect to {self._name}: {problem!r}")
        return problem


class RabbitConnection:
    """One connection, the channels on it, and one stream of frames out to it."""

    def __init__(self, connection: aio_pika.Connection, user: str, name: str) -> None:
        if connection.transport is None:
            raise ConnectionLost(f"{name} went away at once")
        self._connection = connection
        self._wire = cast("aiormq.Connection", connection.transport.connection)
        self.user = user
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.cycle(range(1, (self._wire.connection_tune.channel_max or 2047) + 1))
        self._channels: dict[int, _Channel] = {}
        self._answers: dict[str, str] = {}
        self._outbox: list[bytes] = []
        self._something_to_send = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._all_sent.set()
        self._lost: asyncio.Future[ConnectionLost] = self._loop.create_future()
        self._sender = self._loop.create_task(self._send())
        self._farewell: asyncio.Task[None] | None = None
        self.content_size_max = (self._wire.connection_tune.frame_max or 2**31) - _FRAME_OVERHEAD
        self._wire.closing.add_done_callback(self._on_closing)

    @property
    def blocked(self) -> str:
        # The client's `ready()` waits exactly while the broker blocks us, and has no other way of being asked.
        waiting: Coroutine[Any, Any, None] = self._wire.ready()
        try:
            waiting.send(None)
        except StopIteration:
            return ""
        waiting.close()
        return "the broker is short of memory or disk"

    async def until_unblocked(self) -> None:
        if not self.blocked:
            return
        waiting = self._loop.create_task(self._wire.ready())
        try:
            await asyncio.wait((waiting, self._lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()

    async def declare(self, objects: Objects) -> None:
        absent = {
            exchange.name
            for exchange in objects.exchanges
            if exchange.foreign
            and not await self._stands(commands.Exchange.Declare(exchange=exchange.name, passive=True))
        }
        named = {
            queue.name: await self._name_answers(queue) if queue.kind is QueueKind.ANSWERS else queue.name
            for queue in objects.queues
        }
        await self._ask_aside(
            *(_declaration_of_exchange(exchange) for exchange in objects.exchanges if not exchange.foreign),
            *(
                _declaration_of_queue(queue, objects.limits)
                for queue in objects.queues
                if queue.kind is not QueueKind.ANSWERS
            ),
            *(
                commands.Queue.Bind(
                    queue=named[queue.name], exchange=binding.exchange, routing_key=binding.pattern
                )
                for queue in objects.queues
                for binding in queue.bindings
                if binding.exchange not in absent
            ),
        )

    async def open_publishing(self) -> "RabbitPublishing":
        publishing = RabbitPublishing(self)
        publishing.channel = await self._open(publishing)
        try:
            await publishing.channel.ask(commands.Confirm.Select())
        except asyncio.CancelledError:
            publishing.channel.leave()
            raise
        return publishing

    async def open_consuming(self, queue: str, prefetch: int) -> "RabbitConsuming":
        if prefetch < 1:
            raise ValueError(
                f"prefetch is {prefetch}, must be at least 1: without a bound one consumer holds all"
            )
        consuming = RabbitConsuming(self, queue)
        consuming.channel = await self._open(consuming)
        try:
            await consuming.channel.ask(commands.Basic.Qos(prefetch_count=prefetch))
            await consuming.channel.ask(commands.Basic.Consume(queue=self._answers.get(queue, queue)))
        except BaseException:
            consuming.channel.leave()
            raise
        return consuming

    async def depth(self, queue: str) -> int:
        (declared,) = await self._ask_aside(
            commands.Queue.Declare(queue=self._answers.get(queue, queue), passive=True)
        )
        return cast("commands.Queue.DeclareOk", declared).message_count or 0

    async def close(self) -> None:
        if not self._lost.done():
            # Acknowledgements that were handed over leave before we do.
            await _bounded(self._all_sent.wait())
            self._end(ConnectionLost(f"the connection to {self._name} was closed by this end"))
        if self._farewell is not None:
            await _bounded(asyncio.shield(self._farewell))

    # For channels

    def send(self, frames: bytes) -> None:
        """Frames leave in the order of the calls, as many at once as have gathered."""
        self._outbox.append(frames)
        self._something_to_send.set()
        self._all_sent.clear()

    def forget(self, number: int) -> None:
        """The broker is done with this channel: its number may be given out again."""
        self._channels.pop(number, None)
        self._wire.channels.pop(number, None)

    async def _send(self) -> None:
        while True:
            await self._something_to_send.wait()
            payload = b"".join(self._outbox)
            self._outbox.clear()
            # To wait until it is on its way is what lets the next frames gather.
            gone = self._loop.create_future()
            await self._wire.write_queue.put(ChannelFrame(payload, should_close=False, drain_future=gone))
            await gone
            if not self._outbox:
                self._something_to_send.clear()
                self._all_sent.set()

    async def _open(self, listener: "_Listener") -> "_Channel":
        if self._lost.done():
            raise _again(self._lost.result())
        number = next(number for number in self._numbers if number not in self._wire.channels)
        channel = _Channel(self, number, listener)
        self._channels[number] = channel
        # From here on the client hands us the frames of this channel.
        self._wire.channels[number] = cast("Any", channel)
        try:
            await channel.ask(commands.Channel.Open())
        except asyncio.CancelledError:
            channel.leave()
            raise
        return channel

    async def _ask_aside(self, *questions: Frame) -> Sequence[FrameTypes]:
        """On a channel of their own, since a refusal closes it."""
        channel = await self._open(_Listener())
        try:
            return [await answer for answer in [channel.ask(question) for question in questions]]
        finally:
            await channel.close()

    async def _stands(self, passive: Frame) -> bool:
        try:
            await self._ask_aside(passive)
        except NotFound:
            return False
        return True

    async def _name_answers(self, queue: Queue) -> str:
        """RabbitMQ names answer queues itself, so that nobody needs the right to (bus/permissions.py says why).

        They are this connection's alone, and so are their names.
        """
        name = self._answers.get(queue.name)
        if name is None or not await self._stands(commands.Queue.Declare(queue=name, passive=True)):
            (declared,) = await self._ask_aside(
                commands.Queue.Declare(
                    exclusive=True, arguments=cast("dict[str, Any]", arguments_of(queue, Limits()))
                )
            )
            name = self._answers[queue.name] = cast("commands.Queue.DeclareOk", declared).queue or ""
        return name

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
        self._farewell = self._loop.create_task(_bounded(self._connection.close()))


class _Listener:
    """Who uses a channel, and is told what arrives on it beside the answers to questions; nothing, if it only asks."""

    def on_content(self, method: Frame, header: ContentHeader, body: bytes) -> None: ...

    def on_confirm(self, frame: commands.Basic.Ack | commands.Basic.Nack) -> None: ...

    def on_cancel(self) -> None: ...

    def on_end(self, why: Exception) -> None: ...


class _Channel:
    """One AMQP channel. The client calls `frames.put` with what it reads; a refusal by the broker ends it."""

    def __init__(self, connection: RabbitConnection, number: int, listener: _Listener) -> None:
        self.number = number
        self.frames = self
        self.ended: Exception | None = None
        self._connection = connection
        self._listener = listener
        self._answers: deque[asyncio.Future[FrameTypes]] = deque()
        self._closed = asyncio.Event()
        self._leaving = False
        self._method: Frame | None = None
        self._header: ContentHeader | None = None
        self._body: list[bytes] = []
        self._missing = 0

    def ask(self, question: Frame) -> asyncio.Future[FrameTypes]:
        """The answer to come; it may be left unread."""
        answer: asyncio.Future[FrameTypes] = asyncio.get_running_loop().create_future()
        try:
            self.tell(question)
        except (Refusal, Interrupted) as why:
            _fail(answer, why)
        else:
            self._answers.append(answer)
        return answer

    def tell(self, frame: Frame) -> None:
        self.send(marshal(frame, self.number))

    def send(self, frames: bytes) -> None:
        """What is sent on a channel that is closed would cost us the whole connection."""
        if self.ended is not None:
            raise _again(self.ended)
        if self._leaving:
            raise Interrupted("the channel was closed by this end")
        self._connection.send(frames)

    def leave(self) -> None:
        """Close it without waiting: the broker stops delivering, and its number is free when it says so."""
        if self.ended is None and not self._leaving:
            self.tell(commands.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
            self._leaving = True

    async def close(self) -> None:
        self.leave()
        # A broker that blocks us does not read either; it finds the farewell when it reads again.
        if not self._connection.blocked:
            await _bounded(self._closed.wait())

    def end(self, why: Exception) -> None:
        if self.ended is not None:
            return
        self.ended = why
        self._closed.set()
        for answer in self._answers:
            _fail(answer, why)
        self._answers.clear()
        self._listener.on_end(why)

    async def put(self, item: tuple[int, FrameTypes]) -> None:
        """A frame has been read. Nothing here waits: the connection's other channels would wait with it."""
        frame = item[1]
        match frame:
            case ContentBody():
                self._body.append(frame.value)
                self._missing -= len(frame.value)
                self._hand_over_if_whole()
            case ContentHeader():
                self._header, self._missing = frame, frame.body_size
                self._hand_over_if_whole()
            case commands.Basic.Deliver() | commands.Basic.Return():
                self._method = frame
            case commands.Basic.Ack() | commands.Basic.Nack():
                self._listener.on_confirm(frame)
            case commands.Basic.Cancel():
                self._listener.on_cancel()
            case commands.Channel.Close():
                self._connection.send(marshal(commands.Channel.CloseOk(), self.number))
                self._connection.forget(self.number)
                self.end(_refusal(frame))
            case commands.Channel.CloseOk():
                self._connection.forget(self.number)
                self.end(Interrupted("the channel was closed by this end"))
            case _:
                answer = self._answers.popleft()
                if not answer.done():
                    answer.set_result(frame)

    def _hand_over_if_whole(self) -> None:
        if self._missing > 0 or self._method is None or self._header is None:
            return
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._listener.on_content(self._method, self._header, body)
        self._method, self._header, self._body = None, None, []


class RabbitPublishing(_Listener):
    """Parcels out, numbered by us and by the broker alike; its confirms name the numbers."""

    channel: _Channel

    def __init__(self, connection: RabbitConnection) -> None:
        self._connection = connection
        # Whoever comes while the broker is blocked gets in line; without this, whoever comes next would be first.
        self._turn = asyncio.Lock()
        self._published = 0
        self._unconfirmed: dict[int, tuple[Parcel, asyncio.Future[Receipt]]] = {}
        self._returned: set[int] = set()

    async def publish(self, parcel: Parcel) -> Receipt:
        async with self._turn:
            await self._connection.until_unblocked()
            told = self._send(parcel)
        return await told

    async def close(self) -> None:
        await self.channel.close()

    def _send(self, parcel: Parcel) -> asyncio.Future[Receipt]:
        number = self._published + 1
        try:
            frames = b"".join(self._frames(parcel, number))
        except (TypeError, ValueError) as problem:
            raise Refusal(f"AMQP cannot carry this parcel: {problem}") from problem
        try:
            self.channel.send(frames)
        except (Refusal, Interrupted) as why:
            raise ConnectionLost(f"this channel has ended: {why}") from None
        # Only what was sent is counted: the broker does not count what it does not see.
        self._published = number
        told: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._unconfirmed[number] = (parcel, told)
        return told

    def _frames(self, parcel: Parcel, number: int) -> Iterator[bytes]:
        """A method frame, a header frame, and as many body frames as it takes."""
        channel, size_max = self.channel.number, self._connection.content_size_max
        yield _publish_frame(parcel.exchange, parcel.routing_key, parcel.mandatory, channel)
        yield _frame(
            _HEADER_FRAME,
            channel,
            _CONTENT_HEAD.pack(60, 0, len(parcel.body))
            + _properties_of(parcel, number, self._connection.user),
        )
        for start in range(0, len(parcel.body), size_max):
            yield _frame(_BODY_FRAME, channel, parcel.body[start : start + size_max])

    def on_content(self, method: Frame, header: ContentHeader, body: bytes) -> None:  # noqa: ARG002 - as the port has it
        """A mandatory parcel came back: no queue takes it. Its confirm follows."""
        self._returned.add(int(header.properties.message_id or 0))

    def on_confirm(self, frame: commands.Basic.Ack | commands.Basic.Nack) -> None:
        last = frame.delivery_tag or 0
        receipt = Receipt.CONFIRMED if isinstance(frame, commands.Basic.Ack) else Receipt.REFUSED
        if frame.multiple:
            numbers = list(itertools.takewhile(lambda number: number <= last, self._unconfirmed))
        else:
            numbers = [last]
        for number in numbers:
            _, told = self._unconfirmed.pop(number)
            if not told.done():
                told.set_result(Receipt.UNROUTABLE if number in self._returned else receipt)
        self._returned.difference_update(numbers)

    def on_end(self, why: Exception) -> None:
        """A refusal is for the parcel that it names; what became of those beside it, nobody knows."""
        for parcel, told in self._unconfirmed.values():
            named = isinstance(why, Refusal) and _names(str(why), parcel)
            _fail(told, why if named else ConnectionLost(f"not confirmed before the channel ended: {why}"))
        self._unconfirmed.clear()


class RabbitConsuming(_Listener):
    """One queue's deliveries, gathered until someone comes for them."""

    channel: _Channel

    def __init__(self, connection: RabbitConnection, queue: str) -> None:
        self._connection = connection
        self._queue = queue
        self._waiting: list[Delivery] = []
        self._arrived = asyncio.Event()
        self._why_no_more: Exception | None = None

    async def receive(self) -> Sequence[Delivery]:
        while not self._waiting:
            if self._why_no_more is not None:
                raise _again(self._why_no_more)
            self._arrived.clear()
            await self._arrived.wait()
        taken, self._waiting = self._waiting, []
        return taken

    async def acknowledge(self, tag: int, *, multiple: bool = False) -> None:
        self._tell(commands.Basic.Ack(delivery_tag=tag, multiple=multiple))

    async def give_back(self, tag: int) -> None:
        self._tell(commands.Basic.Nack(delivery_tag=tag, requeue=True))

    async def close(self) -> None:
        await self.channel.close()

    def _tell(self, frame: Frame) -> None:
        # A consumer that was cancelled may still settle what it has, as long as its channel stands.
        if self.channel.ended is not None and self._why_no_more is not None:
            raise _again(self._why_no_more)
        self.channel.tell(frame)

    def on_content(self, method: Frame, header: ContentHeader, body: bytes) -> None:
        self._waiting.append(_delivery(self._queue, cast("commands.Basic.Deliver", method), header, body))
        self._arrived.set()

    def on_cancel(self) -> None:
        """What was delivered before may still be acknowledged; nothing more will come."""
        self._stop(
            ConsumerCancelled(f"the broker cancelled the consumer of {self._queue!r}: was the queue deleted?")
        )

    def on_end(self, why: Exception) -> None:
        """What waits is not ours any more: the broker delivers it to someone else."""
        self._waiting.clear()
        self._stop(why if isinstance(why, ConnectionLost) else ConsumerCancelled(str(why)))

    def _stop(self, why: Exception) -> None:
        self._why_no_more = self._why_no_more or why
        self._arrived.set()


# Parcels to frames and back


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return b"".join((_FRAME_HEAD.pack(kind, channel, len(payload)), payload, _FRAME_END))


@lru_cache(maxsize=1024)
def _publish_frame(exchange: str, routing_key: str, mandatory: bool, channel: int) -> bytes:  # noqa: FBT001 - AMQP's
    return marshal(
        commands.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=mandatory), channel
    )


def _properties_of(parcel: Parcel, number: int, user: str) -> bytes:
    """The message id is the parcel's number: by it one that comes back is known again."""
    mode = _PERSISTENT if parcel.persistent else _TRANSIENT
    if parcel.headers:
        return commands.Basic.Properties(
            content_type=parcel.content_type,
            headers=dict(parcel.headers),
            delivery_mode=mode,
            reply_to=parcel.reply_to,
            message_id=str(number),
            user_id=user,
        ).marshal()
    before, after = _properties_around_name(parcel.content_type, mode, parcel.reply_to, user)
    name = str(number).encode()
    return b"".join((before, bytes((len(name),)), name, after))


@lru_cache(maxsize=256)
def _properties_around_name(content_type: str, mode: int, reply_to: str, user: str) -> tuple[bytes, bytes]:
    """Nothing but the name differs from one parcel to the next, and the rest is dear to encode."""
    name = "the number comes here"
    whole = commands.Basic.Properties(
        content_type=content_type, delivery_mode=mode, reply_to=reply_to, message_id=name, user_id=user
    ).marshal()
    before, after = whole.split(bytes((len(name),)) + name.encode())
    return before, after


def _delivery(queue: str, method: commands.Basic.Deliver, header: ContentHeader, body: bytes) -> Delivery:
    properties = header.properties
    headers = properties.headers or {}
    returns = headers.get(_RETURNS, int(bool(method.redelivered)))
    parcel = Parcel(
        exchange=method.exchange or "",
        routing_key=method.routing_key or "",
        body=body,
        content_type=properties.content_type or "",
        persistent=properties.delivery_mode == _PERSISTENT,
        reply_to=properties.reply_to or "",
        headers={
            key: value for key, value in headers.items() if isinstance(value, str | int) and key != _RETURNS
        },
    )
    return Delivery(
        tag=method.delivery_tag or 0,
        queue=queue,
        parcel=parcel,
        returns=cast("int", returns),
        sender=properties.user_id or "",
    )


# The topology in frames


def _declaration_of_exchange(exchange: Exchange) -> Frame:
    return commands.Exchange.Declare(exchange=exchange.name, exchange_type="topic", durable=exchange.durable)


def _declaration_of_queue(queue: Queue, limits: Limits) -> Frame:
    return commands.Queue.Declare(
        queue=queue.name,
        durable=queue.kind in (QueueKind.WORK, QueueKind.DEAD),
        arguments=cast("dict[str, Any]", arguments_of(queue, limits)),
    )


# What goes wrong


def _refusal(frame: commands.Channel.Close) -> Refusal:
    text = frame.reply_text or f"closed by the broker with code {frame.reply_code}"
    match frame.reply_code:
        case 403:
            return AccessRefused(text)
        case 404:
            return NotFound(text)
        case _:
            return Refusal(text)


def _names(refusal: str, parcel: Parcel) -> bool:
    """Whether the broker's words are about this parcel: it names the exchange, and the key if that was the reason."""
    if f"exchange '{parcel.exchange or 'amq.default'}'" not in refusal:
        return False
    return "access to topic" not in refusal or f"topic '{parcel.routing_key}'" in refusal


def _again(why: Exception) -> Exception:
    """One for each who is told: an exception that is raised twice grows its traceback."""
    return type(why)(*why.args)


def _fail(future: asyncio.Future[Any], why: Exception) -> None:
    if not future.done():
        future.set_exception(_again(why))
        # Whoever asked may have gone: that is nothing to complain about later.
        future.exception()


async def _bounded(closing: Coroutine[Any, Any, _T] | asyncio.Future[_T]) -> None:
    """Wait for an end, for so long and no longer, whatever it ends with."""
    task = asyncio.ensure_future(closing)
    try:
        await asyncio.wait((task,), timeout=CLOSE_S_MAX)
    finally:
        task.cancel()
    if task.done() and not task.cancelled() and (problem := task.exception()):
        log.debug("closing ended with %r", problem)
