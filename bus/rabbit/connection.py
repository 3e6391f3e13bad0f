"""An open connection to RabbitMQ, whose channels are the client library's.

The library may forget those who wait when a connection breaks, may answer them with a cancellation that nobody asked for, and waits for
ever for a node that answers nothing. So whatever waits here ends with a reason of ours, and within a time.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from aiormq import Channel, Connection, exceptions
from pamqp.base import Frame

from bus.rabbit.undocumented import is_blocked
from kit.errors import AccessRefused, ConnectionLost, Interrupted, NotFound, Refusal

log = logging.getLogger(__name__)

# Longer than a cluster needs to elect the leader of a queue.
ANSWER_S_MAX = 60.0
# How often it is looked in this time whether an answer stays away.
LOOKS = 4
# The longest wait for the broker's part of a close.
CLOSE_S_MAX = 5.0
# Of the ten that the library's queue takes.
WRITES_MAX = 8
ALARM = "the broker is short of memory or disk"

T = TypeVar("T")


class RabbitWire:
    """An open connection of the client library. When it ends, all that was opened on it ends."""

    def __init__(
        self,
        client: Connection,
        name: str,
        *,
        hang_up: Callable[[], Coroutine[Any, Any, None]],
        arrived: Callable[[int], None],
    ) -> None:
        """`arrived` is called with the size of each message that was read."""
        self.arrived = arrived
        self._client = client
        self._name = name
        self._hang_up = hang_up
        self._loop = asyncio.get_running_loop()
        self._channels_max = client.connection_tune.channel_max or 2047
        self._numbers = itertools.cycle(range(1, self._channels_max + 1))
        self._opened: set[OpenChannel] = set()
        # What nobody may wait for any more.
        self._under_way: set[asyncio.Task[Any]] = set()
        self._is_closed_here = False
        self._lost: asyncio.Future[ConnectionLost] = self._loop.create_future()
        self._farewell: asyncio.Task[None] | None = None
        # Since when each answer is awaited, the longest first.
        self._awaited: dict[object, float] = {}
        self._loop.call_later(ANSWER_S_MAX / LOOKS, self._look)
        client.closing.add_done_callback(self._on_closing)

    @property
    def blocked(self) -> str:
        return "" if self._lost.done() or not is_blocked(self._client) else ALARM

    @property
    def takes_frames(self) -> bool:
        """Would a parcel leave at once? One that waits in the library is sent even if its channel ends meanwhile, for which RabbitMQ
        ends the connection. And the library has nowhere to put its answer to the end of a channel if there is no room.
        """
        return self._lost.done() or (self._client.write_queue.qsize() < WRITES_MAX and not self.blocked)

    def is_open(self, channel: Channel) -> bool:
        """Has the broker not ended this channel? The library forgets it first, and tells those who wait on it a little later."""
        return self._client.channels.get(channel.number) is channel

    async def until_unblocked(self) -> None:
        if not self.blocked:
            return
        waiting = self._loop.create_task(self._client.ready())
        try:
            await asyncio.wait((waiting, self._lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()

    async def channel(self, *, confirms: bool = False) -> Channel:
        numbers = self._client.channels
        if len(numbers) >= self._channels_max:
            # Not as a refusal: what is to be published waits, as after a break.
            raise Interrupted(f"all {self._channels_max} channels of the connection to {self._name} are open")
        number = next(number for number in self._numbers if number not in numbers)
        # As many frames as arrive may wait for their channel: prefetch limits them.
        opening = self._client.channel(number, confirms, frame_buffer_size=0)
        return cast("Channel", await self.answered(opening))

    async def answered(self, asked: Coroutine[Any, Any, T], on: Channel | None = None) -> T:
        """The answer to a request. A node that does not answer, for instance because it no longer sees the others, ends as a
        lost connection does: then another node is tried.

        If the caller is cancelled, a request on a channel goes on: to withdraw it, the library would close the channel.
        """
        if self._lost.done():
            asked.close()
            raise again(self._lost.result())
        asking = self._loop.create_task(asked)
        self._under_way.add(asking)
        asking.add_done_callback(self._ended)
        try:
            with self.awaiting():
                await asyncio.wait((asking, self._lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if on is None:
                asking.cancel()
        if not asking.done():
            raise again(self._lost.result())
        problem = None if asking.cancelled() else asking.exception()
        if problem is None and not asking.cancelled():
            return asking.result()
        if isinstance(problem, TypeError | ValueError):
            raise problem
        if on is not None and isinstance(problem, exceptions.ChannelInvalidStateError):
            # The broker has refused an earlier request meanwhile. The library tells the reason a little later.
            closing = on.closing
            await asyncio.wait(
                (closing, self._lost), timeout=CLOSE_S_MAX, return_when=asyncio.FIRST_COMPLETED
            )
            problem = closing.exception() if closing.done() and not closing.cancelled() else problem
        raise self.reason(problem)

    @contextmanager
    def awaiting(self) -> Iterator[None]:
        """A context in which an answer of the broker is awaited. If it stays away for too long, the connection ends."""
        awaited = object()
        self._awaited[awaited] = self._loop.time()
        try:
            yield
        finally:
            del self._awaited[awaited]

    def _look(self) -> None:
        """End the connection if an answer has stayed away for too long. A broker that blocks us may take longer."""
        now_s = self._loop.time()
        if self.blocked:
            self._awaited = dict.fromkeys(self._awaited, now_s)
        if now_s - next(iter(self._awaited.values()), now_s) >= ANSWER_S_MAX:
            self._end(ConnectionLost(f"{self._name} did not answer within {ANSWER_S_MAX:g} s"))
        if not self._lost.done():
            self._loop.call_later(ANSWER_S_MAX / LOOKS, self._look)

    def reason(self, problem: BaseException | None) -> Refusal | Interrupted:
        """The library's reason for the end of a channel, as ours. None: a cancellation by the library."""
        if self._lost.done():
            return ConnectionLost(*self._lost.result().args)
        if isinstance(problem, exceptions.ChannelClosed):
            return refusal_of(problem)
        return ConnectionLost(f"the connection to {self._name} is lost: {problem!r}")

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (problem := task.exception()):
            log.debug("%s: %r", self._name, problem)

    async def ask_aside(self, *unanswered: Frame, question: Frame | None = None) -> Any:
        """Send requests on a channel of their own, and return the answer to the question. The others have none: they are declared so.
        A refusal closes only that channel.
        """
        channel = await self.channel()
        try:
            for each in unanswered:
                await self.answered(channel.rpc(each), channel)
            # Its answer comes after whatever was refused before.
            asked = channel.basic_qos() if question is None else channel.rpc(question)
            return await self.answered(asked, channel)
        finally:
            await self.leave(channel)

    async def stands(self, passive: Frame) -> bool:
        """Does what this passive declaration names exist?"""
        try:
            await self.ask_aside(question=passive)
        except NotFound:
            return False
        return True

    async def leave(self, channel: Channel) -> None:
        """Close a channel. What takes longer goes on: if it were cancelled, the library would close the channel a second time, for which
        RabbitMQ ends the connection.
        """
        leaving = self._loop.create_task(self._leave(channel))
        self._under_way.add(leaving)
        leaving.add_done_callback(self._ended)
        # A broker that blocks us does not read.
        if not self.blocked:
            await asyncio.wait(
                (leaving, self._lost), timeout=CLOSE_S_MAX, return_when=asyncio.FIRST_COMPLETED
            )

    async def _leave(self, channel: Channel) -> None:
        await self.until_unblocked()
        if not self._lost.done():
            await channel.close()

    def on_lost(self, do: Callable[[], object]) -> None:
        """Call this when the connection ends, unless this end has closed it."""
        self._lost.add_done_callback(lambda _: None if self._is_closed_here else do())

    def holds(self, opened: "OpenChannel") -> None:
        """End this with the connection, unless it is let go before."""
        if self._lost.done():
            opened.end(self._lost.result())
        else:
            self._opened.add(opened)

    def lets_go(self, opened: "OpenChannel") -> None:
        self._opened.discard(opened)

    async def close(self) -> None:
        if not self._lost.done():
            # Acknowledgements that were passed on are sent, and have arrived, before the connection closes.
            await asyncio.gather(*[each.stop() for each in self._opened])
            self._is_closed_here = True
            self._end(ConnectionLost(f"the connection to {self._name} was closed by this end"))
        if self._farewell is not None:
            await bounded(asyncio.shield(self._farewell))

    def _on_closing(self, closing: asyncio.Future[Any]) -> None:
        problem = None if closing.cancelled() else closing.exception()
        self._end(ConnectionLost(f"the connection to {self._name} is lost: {problem!r}"))

    def _end(self, why: ConnectionLost) -> None:
        if self._lost.done():
            return
        self._lost.set_result(why)
        for each in tuple(self._opened):
            each.end(why)
        self._opened.clear()
        for task in self._under_way:
            task.cancel()
        self._farewell = self._loop.create_task(bounded(self._hang_up()))


class OpenChannel:
    """A channel of the library, and the calls on it, which reach the broker in their order. Once the channel has ended, those that
    wait end with its reason.
    """

    def __init__(self, wire: RabbitWire, channel: Channel) -> None:
        self.wire = wire
        self.channel = channel
        self.over: Refusal | Interrupted | None = None
        # How many waited then.
        self.at_the_end = 0
        self._waiting: set[asyncio.Timeout] = set()
        # Where the library has no room, a later call could pass those that wait there. So they wait here, in order.
        self._turn = asyncio.Lock()
        self._behind = 0
        # A channel ends with its connection, too.
        channel.closing.add_done_callback(self._on_closing)
        wire.holds(self)

    async def call(self, asked: Coroutine[Any, Any, T]) -> T:
        if self._behind or not self.wire.takes_frames:
            await self._until_taken(asked)
        if self.over is not None or not self.wire.is_open(self.channel):
            asked.close()
            raise ConnectionLost(f"this channel has ended: {self.over or 'the broker has closed it'}")
        limit = asyncio.timeout(None)
        self._waiting.add(limit)
        try:
            async with limit:
                try:
                    # RabbitMQ's answer to several parcels at once is lost if the library does not know the last of them.
                    with self.wire.awaiting():
                        return await asked
                except (exceptions.DeliveryError, TypeError, ValueError):
                    raise
                except exceptions.ChannelInvalidStateError as problem:
                    raise ConnectionLost(f"this channel has ended: {problem}") from None
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if task is not None and task.cancelling():
                        raise
                    self.end(self.wire.reason(None))
                except Exception as problem:  # noqa: BLE001 - the library raises whatever has ended its connection
                    self.end(self.wire.reason(problem))
        except TimeoutError:
            # It was ended meanwhile.
            pass
        finally:
            self._waiting.remove(limit)
        assert self.over is not None, "it was ended above"
        raise again(self.over)

    async def _until_taken(self, asked: Coroutine[Any, Any, object]) -> None:
        self._behind += 1
        try:
            async with self._turn:
                while not self.wire.takes_frames:
                    await self.wire.until_unblocked()
                    await asyncio.sleep(0)
        except BaseException:
            asked.close()
            raise
        finally:
            self._behind -= 1

    def end(self, why: Refusal | Interrupted) -> None:
        """Tell all who wait why it has ended."""
        if self.over is not None:
            return
        self.over, self.at_the_end = why, len(self._waiting)
        for limit in self._waiting:
            if not limit.expired():
                limit.reschedule(0)

    async def stop(self) -> None:
        """Consume no more, and wait until the broker has all acknowledgements."""

    async def close(self) -> None:
        await self.stop()
        self.wire.lets_go(self)
        await self.wire.leave(self.channel)
        self.end(Interrupted("the channel was closed by this end"))

    def _on_closing(self, closing: asyncio.Future[Any]) -> None:
        self.end(self.wire.reason(None if closing.cancelled() else closing.exception()))


def again(why: Exception) -> Exception:
    """A copy of this exception to raise. An exception that is raised twice grows its traceback."""
    return type(why)(*why.args)


def refusal_of(problem: exceptions.ChannelClosed) -> Refusal | Interrupted:
    """Why a channel has ended. The library has no reason for one that was closed by this end."""
    *code, text = problem.args or (None,)
    match problem:
        case exceptions.ChannelAccessRefused():
            return AccessRefused(text)
        case exceptions.ChannelNotFoundEntity():
            return NotFound(text)
    if text or any(code):
        return Refusal(text or f"closed by the broker with code {code[0]}")
    return Interrupted("the channel was closed by this end")


async def bounded(closing: Coroutine[Any, Any, Any] | asyncio.Future[Any]) -> None:
    """Wait until a connection is closed, for a limited time. Failures to close are only logged."""
    task = asyncio.ensure_future(closing)
    try:
        await asyncio.wait((task,), timeout=CLOSE_S_MAX)
    finally:
        task.cancel()
    if task.done() and not task.cancelled() and (problem := task.exception()):
        log.debug("closing ended with %r", problem)
