"""One client of a served memory broker: relays its requests and pushes its deliveries."""

import asyncio
import logging
from contextlib import suppress

from msgspec import structs

from bus.broker import Interrupted, Refusal
from bus.memory import MemoryBroker
from bus.memory.channels import MemoryConsuming, MemoryPublishing
from bus.memory.connection import MemoryConnection
from bus.unix_socket.frames import (
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
    Question,
    Reply,
    Told,
    Unanswered,
    Welcome,
    decode_request,
    encode,
)
from bus.unreadable import NOT_JSON

log = logging.getLogger(__name__)

# The session stops reading from a client with this many open requests, until half of them are done.
REQUESTS_UNDER_WAY_MAX = 2_000


class Session:
    """One client. Requests start in the order of arrival, and each is answered when it is done."""

    def __init__(self, broker: MemoryBroker, sessions: "dict[Session, None]") -> None:
        self.frames = Frames(self._received, self._connection_lost)
        self.ended = asyncio.Event()
        self._broker = broker
        self._sessions = sessions
        self._connection: MemoryConnection | None = None
        self._publishings: dict[int, MemoryPublishing] = {}
        self._consumings: dict[int, MemoryConsuming] = {}
        self._under_way: set[asyncio.Task[None]] = set()
        self._pushing: set[asyncio.Task[None]] = set()
        self._listening = True
        sessions[self] = None

    def end(self, why: str) -> None:
        self.frames.close(why)

    # Its connection

    def blocked_changed(self, why: str) -> None:
        self._say(BlockedChanged(why))

    def lost(self, why: str) -> None:
        self.frames.close(why)

    def _connection_lost(self, _: str) -> None:
        """All earlier requests have started by now, acknowledgements too, since they were queued before this call."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.end("the client has gone")
        self._sessions.pop(self, None)
        self.ended.set()

    # Requests

    def _received(self, frame: bytearray) -> None:
        try:
            request = decode_request(frame)
        except NOT_JSON as problem:
            log.warning("disconnecting a client that sent an invalid request: %s", problem)
            self.frames.close("not a request")
            return
        if isinstance(request, Hello):
            self._welcome(request)
        elif self._connection is None:
            self.frames.close("the first request must be hello")
        else:
            self._begin(request, self._connection)

    def _welcome(self, hello: Hello) -> None:
        try:
            self._connection = self._broker.connect(hello.user, self)
        except Refusal as refusal:
            self._say(_failed(0, refusal))
        else:
            self._say(Welcome(self._connection.blocked))

    def _begin(self, request: Question | Unanswered, connection: MemoryConnection) -> None:
        match request:
            case Acknowledge() | GiveBack() | Goodbye():
                doing = self._heed(request, connection)
            case _:
                doing = self._answer(request, connection)
        task = asyncio.get_running_loop().create_task(doing)
        self._under_way.add(task)
        task.add_done_callback(self._done)
        if self._listening and len(self._under_way) >= REQUESTS_UNDER_WAY_MAX:
            self._listening = False
            self.frames.pause_reading()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not self._listening and len(self._under_way) * 2 <= REQUESTS_UNDER_WAY_MAX:
            self._listening = True
            self.frames.resume_reading()
        if not task.cancelled() and task.exception() is not None:
            log.error("disconnecting a client whose request failed", exc_info=task.exception())
            self.frames.close("its request failed")

    async def _heed(self, request: Unanswered, connection: MemoryConnection) -> None:
        """Requests without an answer. A wrong or late acknowledgement ends its consumer, and the client is told that."""
        with suppress(Refusal, Interrupted):
            match request:
                case Acknowledge(channel=channel, tag=tag, multiple=multiple) if channel in self._consumings:
                    await self._consumings[channel].acknowledge(tag, multiple=multiple)
                case GiveBack(channel=channel, tag=tag) if channel in self._consumings:
                    await self._consumings[channel].give_back(tag)
                case Goodbye():
                    await connection.close()

    async def _answer(self, request: Question, connection: MemoryConnection) -> None:
        try:
            match request:
                case Publish(channel=channel, parcel=parcel):
                    # Message objects are only for readers in one process; a client could send false ones, so drop them.
                    as_bytes = structs.replace(parcel, envelopes=()) if parcel.envelopes else parcel
                    reply: Reply = Told(request.id, await self._publishings[channel].publish(as_bytes))
                case AskDepth(queue=queue):
                    reply = Depth(request.id, await connection.depth(queue))
                case _:
                    await self._do(request, connection)
                    reply = Done(request.id)
        except (Refusal, Interrupted) as problem:
            reply = _failed(request.id, problem)
        self._say(reply)

    async def _do(
        self,
        request: Declare | Bind | OpenPublishing | OpenConsuming | CloseChannel,
        connection: MemoryConnection,
    ) -> None:
        match request:
            case Declare(objects=objects):
                await connection.declare(objects)
            case Bind(queue=queue, bindings=bindings):
                await connection.bind(queue, bindings)
            case OpenPublishing(channel=channel):
                self._publishings[channel] = await connection.open_publishing()
            case OpenConsuming(channel=channel, queue=queue, prefetch=prefetch):
                self._push_from(channel, await connection.open_consuming(queue, prefetch))
            case CloseChannel(channel=channel):
                await self._close_channel(channel)

    async def _close_channel(self, channel: int) -> None:
        publishing, consuming = self._publishings.pop(channel, None), self._consumings.pop(channel, None)
        if publishing is not None:
            await publishing.close()
        if consuming is not None:
            await consuming.close()

    # Deliveries

    def _push_from(self, channel: int, consuming: MemoryConsuming) -> None:
        self._consumings[channel] = consuming
        task = asyncio.get_running_loop().create_task(self._push(channel, consuming))
        self._pushing.add(task)
        task.add_done_callback(self._pushing.discard)

    async def _push(self, channel: int, consuming: MemoryConsuming) -> None:
        """Push deliveries. The memory broker limits them by the client's prefetch."""
        try:
            while True:
                for delivery in await consuming.receive():
                    as_bytes = structs.replace(
                        delivery, parcel=structs.replace(delivery.parcel, envelopes=())
                    )
                    self._say(Delivered(channel, as_bytes))
                await self.frames.drained()
        except Interrupted as problem:
            self._consumings.pop(channel, None)
            self._say(Cancelled(channel, type(problem).__name__, str(problem)))

    def _say(self, reply: Reply) -> None:
        self.frames.send(encode(reply))


def _failed(request: int, problem: Refusal | Interrupted) -> Failed:
    return Failed(request, type(problem).__name__, str(problem))
