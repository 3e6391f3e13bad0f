"""One AMQP channel: requests and replies, assembling messages from frames, and the end of the channel.

The broker replies in order, so many requests may be under way. Their meaning is not known here.
"""

import asyncio
from collections import deque
from typing import Protocol

from pamqp import commands
from pamqp.base import Frame
from pamqp.frame import FrameTypes, marshal
from pamqp.header import ContentHeader

from bus.rabbit.endings import again, bounded, fail, refusal_of
from kit.errors import Interrupted, Refusal


class Listener:
    """Is told what arrives on a channel beside the replies to requests. This base class ignores all of it."""

    def on_content(self, method: Frame, header: ContentHeader, body: bytes) -> None: ...

    def on_confirm(self, frame: commands.Basic.Ack | commands.Basic.Nack) -> None: ...

    def on_cancel(self) -> None: ...

    def on_end(self, why: Exception) -> None: ...


class Carrier(Protocol):
    """The methods of a connection that a channel uses."""

    @property
    def blocked(self) -> str: ...

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
