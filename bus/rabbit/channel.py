"""One AMQP channel: requests and replies, messages assembled from frames, and its end. And the channels of the broker port, for
publishing and for consuming.

The broker replies in order, so many requests may be under way. Their meaning is not known to a channel.

RabbitMQ forgets a consumer without a word if the leader of its quorum queue does not live to tell it of the queue's end: then the
consumer would wait for ever, also beside a new queue of the same name. So one that has received nothing for a while looks
whether its queue is there, and consumes it anew, on the same channel: what it holds stays held. One that holds as much as it may is
quiet for this reason, and waits: what it holds has a limit, however long its reader settles nothing.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any, Protocol, TypeVar, cast

from pamqp import commands
from pamqp.base import Frame
from pamqp.frame import FrameTypes, marshal
from pamqp.header import ContentHeader

from bus.broker import Arrivals, Delivery, Receipt
from bus.message import Parcel
from bus.rabbit.frames import delivery_of, frames_of, why_unfit
from kit.errors import (
    AccessRefused,
    ConnectionLost,
    ConsumerCancelled,
    Interrupted,
    NotFound,
    OneWasRefused,
    Refusal,
)

log = logging.getLogger(__name__)

# The longest wait for the broker's part of a close.
CLOSE_S_MAX = 5.0
# A consumer that has received nothing for so long looks whether its queue knows it.
QUIET_S = 30.0

_T = TypeVar("_T")


class Listener:
    """Is told what arrives on a channel beside the replies to requests. This base class ignores all of it."""

    def on_content(self, method: Frame, header: ContentHeader, body: bytes) -> None: ...

    def on_confirm(self, frame: commands.Basic.Ack | commands.Basic.Nack) -> None: ...

    def on_cancel(self) -> None: ...

    def on_end(self, why: Exception) -> None: ...


class Carrier(Protocol):
    """The methods of a connection that a channel uses."""

    content_size_max: int

    @property
    def blocked(self) -> str: ...

    async def until_unblocked(self) -> None: ...

    def send(self, frames: bytes) -> None: ...

    def forget(self, number: int) -> None: ...


class Channel:
    """One AMQP channel, which takes each frame of it that arrives. A refusal by the broker ends it."""

    def __init__(self, wire: Carrier, number: int, listener: Listener) -> None:
        self.number = number
        self.ended: Exception | None = None
        self._wire = wire
        self._listener = listener
        self._answers: deque[asyncio.Future[FrameTypes]] = deque()
        self._closed = asyncio.Event()
        self._leaving = False
        self._consumers: set[str] = set()
        self._method: Frame | None = None
        self._header: ContentHeader | None = None
        self._body: list[bytes] = []
        self._missing = 0

    def ask(self, question: Frame) -> asyncio.Future[FrameTypes]:
        """Send a request, and return the future of its reply. The caller may ignore the future."""
        answer: asyncio.Future[FrameTypes] = asyncio.get_running_loop().create_future()
        try:
            self.tell(question)
        except (Refusal, Interrupted) as why:
            fail(answer, why)
        else:
            self._answers.append(answer)
        return answer

    def tell(self, frame: Frame) -> None:
        self.send(marshal(frame, self.number))

    def send(self, frames: bytes) -> None:
        """Send frames. Raises if the channel is closed: the broker would close the whole connection for them."""
        if self.ended is not None:
            raise again(self.ended)
        if self._leaving:
            raise Interrupted("the channel was closed by this end")
        self._wire.send(frames)

    def leave(self) -> None:
        """Start to close the channel. The broker stops delivering, and its channel number can be used again when the
        broker confirms.
        """
        if self.ended is None and not self._leaving:
            self.tell(commands.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
            self._leaving = True

    async def close(self) -> None:
        await self.stop_consuming()
        self.leave()
        # A broker that blocks us does not read; it gets the close frame when it reads again.
        if not self._wire.blocked:
            await bounded(self._closed.wait())

    async def stop_consuming(self) -> None:
        """Cancel this channel's consumers, and wait until their queues have all acknowledgements.

        When many come at once, RabbitMQ keeps some of them at the channel until the queue has taken the others. It would
        forget them if the channel ended then, and the messages would be delivered again.
        """
        if self._leaving or self._wire.blocked:
            return
        if cancels := self._cancel():
            await bounded(asyncio.gather(*cancels))

    def consume_anew(self, queue: str) -> asyncio.Future[FrameTypes]:
        """Replace this channel's consumers by one of this queue. The queue has one all the time, also if the caller is cancelled."""
        consuming = self.ask(commands.Basic.Consume(queue=queue))
        self._cancel()
        return consuming

    def _cancel(self) -> list[asyncio.Future[FrameTypes]]:
        cancels = [self.ask(commands.Basic.Cancel(consumer_tag=tag)) for tag in self._consumers]
        self._consumers.clear()
        return cancels

    def end(self, why: Exception) -> None:
        if self.ended is not None:
            return
        self.ended = why
        self._closed.set()
        for answer in self._answers:
            fail(answer, why)
        self._answers.clear()
        self._listener.on_end(why)

    def take_body(self, part: bytes) -> None:
        """Take the payload of a body frame."""
        self._body.append(part)
        self._missing -= len(part)
        self._hand_over_if_whole()

    def take(self, frame: FrameTypes) -> None:
        """Take any other frame."""
        match frame:
            case ContentHeader():
                self._header, self._missing = frame, frame.body_size
                self._hand_over_if_whole()
            case commands.Basic.Deliver() | commands.Basic.Return():
                self._method = frame
            case commands.Basic.Ack() | commands.Basic.Nack():
                self._listener.on_confirm(frame)
            case commands.Basic.Cancel(consumer_tag=tag):
                self._consumers.discard(tag)
                self._listener.on_cancel()
            case commands.Channel.Close():
                self._wire.send(marshal(commands.Channel.CloseOk(), self.number))
                self._wire.forget(self.number)
                self.end(refusal_of(frame))
            case commands.Channel.CloseOk():
                self._wire.forget(self.number)
                self.end(Interrupted("the channel was closed by this end"))
            case _:
                if isinstance(frame, commands.Basic.ConsumeOk):
                    self._consumers.add(frame.consumer_tag or "")
                answer = self._answers.popleft()
                if not answer.done():
                    answer.set_result(frame)

    def _hand_over_if_whole(self) -> None:
        if self._missing > 0 or self._method is None or self._header is None:
            return
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._listener.on_content(self._method, self._header, body)
        self._method, self._header, self._body = None, None, []


class RabbitPublishing(Listener):
    """Publishes parcels. Broker and publisher number them alike, and confirms name these numbers."""

    channel: Channel

    def __init__(self, wire: Carrier, user: str) -> None:
        self.wire = wire
        self._user = user
        # Keeps callers in order while the broker is blocked; otherwise a later caller could be first.
        self._turn = asyncio.Lock()
        self._published = 0
        self._unconfirmed: dict[int, asyncio.Future[Receipt]] = {}
        self._returned: set[int] = set()

    async def publish(self, parcel: Parcel) -> Receipt:
        async with self._turn:
            await self.wire.until_unblocked()
            told = self._send(parcel)
        return await told

    async def close(self) -> None:
        await self.channel.close()

    def frames(self, parcel: Parcel, number: int) -> bytes:
        """The frames that publish this parcel as the one with this number."""
        return frames_of(parcel, number, self.channel.number, self._user, self.wire.content_size_max)

    def _send(self, parcel: Parcel) -> asyncio.Future[Receipt]:
        number = self._published + 1
        try:
            frames = self.frames(parcel, number)
        except (TypeError, ValueError) as problem:
            raise Refusal(f"AMQP cannot carry this parcel: {why_unfit(parcel) or problem}") from problem
        try:
            self.channel.send(frames)
        except (Refusal, Interrupted) as why:
            raise ConnectionLost(f"this channel has ended: {why}") from None
        # Count only what was sent, as the broker does.
        self._published = number
        told: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._unconfirmed[number] = told
        return told

    def on_content(self, method: Frame, header: ContentHeader, body: bytes) -> None:  # noqa: ARG002 - as the port has it
        """Note that the broker returned a mandatory parcel, which no queue takes. The confirm of the parcel follows."""
        self._returned.add(int(header.properties.message_id or 0))

    def on_confirm(self, frame: commands.Basic.Ack | commands.Basic.Nack) -> None:
        last = frame.delivery_tag or 0
        receipt = Receipt.CONFIRMED if isinstance(frame, commands.Basic.Ack) else Receipt.REFUSED
        if frame.multiple:
            numbers = list(itertools.takewhile(lambda number: number <= last, self._unconfirmed))
        else:
            numbers = [last]
        for number in numbers:
            told = self._unconfirmed.pop(number)
            if not told.done():
                told.set_result(Receipt.UNROUTABLE if number in self._returned else receipt)
        self._returned.difference_update(numbers)

    def on_end(self, why: Exception) -> None:
        """Tell all callers that wait for a confirm that the channel has ended.

        The broker ends a channel when it refuses one parcel, and does not say which. So `Refusal` is reported only if a
        single parcel was under way. Otherwise all callers get `OneWasRefused`.
        """
        if not isinstance(why, Refusal):
            why = ConnectionLost(f"not confirmed before the channel ended: {why}")
        elif len(self._unconfirmed) > 1:
            why = OneWasRefused(f"one of {len(self._unconfirmed)} parcels was refused: {why}")
        for told in self._unconfirmed.values():
            fail(told, why)
        self._unconfirmed.clear()


class RabbitConsuming(Listener):
    channel: Channel

    def __init__(
        self,
        queue: str,
        prefetch: int,
        consume_anew: Callable[["RabbitConsuming"], Awaitable[None]],
        quiet_s: float,
    ) -> None:
        self._queue = queue
        self._prefetch = prefetch
        self._consume_anew = consume_anew
        self._quiet_s = quiet_s
        self._arrivals = Arrivals()
        # The tags that are not settled, the lowest first.
        self._held: dict[int, None] = {}

    async def receive(self) -> Sequence[Delivery]:
        while not self._arrivals.is_ready:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._quiet_s):
                    return await self._arrivals.take()
            if len(self._held) >= self._prefetch:
                continue
            # What ends the channel ends what arrives on it, too. Where RabbitMQ refuses only the look, a later one may succeed.
            with suppress(Refusal, Interrupted):
                await self._consume_anew(self)
        return await self._arrivals.take()

    async def acknowledge(self, tag: int, *, multiple: bool = False) -> None:
        self._tell(commands.Basic.Ack(delivery_tag=tag, multiple=multiple))
        for settled in [*takewhile(tag.__ge__, self._held)] if multiple else (tag,):
            self._held.pop(settled, None)

    async def give_back(self, tag: int) -> None:
        self._tell(commands.Basic.Nack(delivery_tag=tag, requeue=True))
        self._held.pop(tag, None)

    async def close(self) -> None:
        await self.channel.close()

    def _tell(self, frame: Frame) -> None:
        # A cancelled consumer may still settle its deliveries while its channel is open.
        if self.channel.ended is not None:
            self._arrivals.check()
        self.channel.tell(frame)

    def on_content(self, method: Frame, header: ContentHeader, body: bytes) -> None:
        delivery = delivery_of(self._queue, cast("commands.Basic.Deliver", method), header, body)
        self._held[delivery.tag] = None
        self._arrivals.put(delivery)

    def on_cancel(self) -> None:
        """The broker cancelled the consumer. Earlier deliveries may still be acknowledged; no more will come."""
        self._arrivals.end(
            ConsumerCancelled(f"the broker cancelled the consumer of {self._queue!r}: was the queue deleted?")
        )

    def on_end(self, why: Exception) -> None:
        """End the deliveries, since the channel has ended. The broker gives the waiting ones to another consumer."""
        self._arrivals.drop(why if isinstance(why, ConnectionLost) else ConsumerCancelled(str(why)))


def refusal_of(frame: commands.Channel.Close) -> Refusal:
    text = frame.reply_text or f"closed by the broker with code {frame.reply_code}"
    match frame.reply_code:
        case 403:
            return AccessRefused(text)
        case 404:
            return NotFound(text)
        case _:
            return Refusal(text)


def again(why: Exception) -> Exception:
    """A copy of this exception to raise. An exception that is raised twice grows its traceback."""
    return type(why)(*why.args)


def fail(future: asyncio.Future[Any], why: Exception) -> None:
    if not future.done():
        future.set_exception(again(why))
        # The caller may have been cancelled: mark the exception as retrieved, so that asyncio does not log it.
        future.exception()


async def bounded(closing: Coroutine[Any, Any, _T] | asyncio.Future[_T]) -> None:
    """Wait until a channel or connection is closed, for a limited time. Failures to close are only logged."""
    task = asyncio.ensure_future(closing)
    try:
        await asyncio.wait((task,), timeout=CLOSE_S_MAX)
    finally:
        task.cancel()
    if task.done() and not task.cancelled() and (problem := task.exception()):
        log.debug("closing ended with %r", problem)
