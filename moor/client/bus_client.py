"""One user of the bus: asks questions, hears events, and finds instances."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit, urlunsplit

from msgspec import structs

from bus.broker import PARCEL_BYTES_MAX, Broker
from bus.codec import CODEC, Codec, FewTypesCodec, encode
from bus.definitions import key_pattern
from bus.message import Envelope, Message, type_of
from bus.messages.build import AskInstances, BuildRejected, InstancesFound, InstanceState
from bus.settings import BusSettings
from bus.topology import EVENTS, FEED, Application, Grant, broker_user_of, destination_of, user_of
from bus.unreadable import Unreadable
from bus.workers.authority import project_of
from bus.workers.handling import Received
from bus.workers.sending import Link
from bus.workers.station import Station, listen, process_name
from engine.flavors import InstanceId
from kit.errors import AccessRefused, ConnectionLost
from kit.process import Part, run_until
from moor.client.errors import NotSendable, Rejected

# Runs the parts of a process, connects them to the bus, and hears its events.

T = TypeVar("T")

DRAIN_S_MAX = 5.0

Feed = AsyncGenerator[Sequence[Received[Message]], None]


async def during(work: Coroutine[Any, Any, T], *watches: Coroutine[Any, Any, object]) -> T:
    """Return the result of the coroutine `work`, while the coroutines `watches` run beside it.

    If one of `watches` fails first, cancel `work` and raise that failure.
    """
    working = asyncio.create_task(work)
    watching = [asyncio.create_task(each) for each in watches]
    try:
        await asyncio.wait((working, *watching), return_when=asyncio.FIRST_COMPLETED)
        for task in watching:
            if task.done():
                task.result()
        return await working
    finally:
        for task in (working, *watching):
            task.cancel()
        await asyncio.gather(working, *watching, return_exceptions=True)


@asynccontextmanager
async def running(
    parts: Sequence[Part], drain_s_max: float = DRAIN_S_MAX
) -> AsyncIterator[asyncio.Task[None]]:
    """Run the parts of a process while this context is open, then drain them.

    Yields the task that runs the parts. If a part fails, this task ends before the context does.
    """
    stop = asyncio.Event()
    task = asyncio.create_task(run_until(stop, parts, drain_s_max))
    try:
        yield task
    finally:
        stop.set()
        await task


@asynccontextmanager
async def station_on(
    broker: Broker, role: str, settings: BusSettings | None = None, *, codec: Codec = CODEC
) -> AsyncIterator[tuple[Station, asyncio.Task[None]]]:
    """Connect to the bus to ask questions. Yields the connection (a `Station`), and the task that receives the answers."""
    async with AsyncExitStack() as stack:
        station = Station(broker, process_name(role), settings=settings, asks=True, codec=codec)
        stack.push_async_callback(station.close)
        yield station, await stack.enter_async_context(running((station,)))


@asynccontextmanager
async def feed_of(station: Station, grant: Grant) -> AsyncIterator[Feed]:
    """Subscribe to the exchange and the routing keys that `grant` names, and yield the feed of batches.

    The first batch is empty: it says that the subscription is active.
    """
    link = Link(station.consuming.broker, station.settings)
    feed = listen(link, (grant,), process=station.name, settings=station.settings, codec=station.codec)
    try:
        async with aclosing(feed):
            yield feed
    finally:
        await link.close()


@asynccontextmanager
async def hearing(station: Station, *keys: str) -> AsyncIterator[Feed]:
    """Listen to the events with these routing keys, from now on."""
    async with feed_of(station, Grant(EVENTS, keys)) as feed:
        await anext(feed)
        yield feed


# Questions and their answers, page by page. A rejection in place of an answer is raised.

# A parcel also has the envelope, which the publisher fills.
LINE_BYTES_MAX = PARCEL_BYTES_MAX - 1024

# A command gets few types of messages.
FEW_TYPES = FewTypesCodec()

P = TypeVar("P")
M = TypeVar("M", bound=Message)


class Asks(Protocol):
    """Anything that can ask a question on the bus: a `BusClient` or a `Station`."""

    async def ask(self, question: Message) -> Message: ...


def batches_of(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def as_received(message: M) -> M:
    """The message as its receiver will decode it: with tuples in place of lists, for instance.

    Raises `NotSendable`, which names the wrong field, if no receiver could decode it.
    """
    try:
        line = encode(Envelope(message=message))
    except (TypeError, ValueError, OverflowError) as problem:
        raise NotSendable("message", type(message).__name__, str(problem)) from None
    if len(line) > LINE_BYTES_MAX:
        # Its receivers would not read it, and could not answer.
        why = f"it has {len(line)} bytes, and a message at most {LINE_BYTES_MAX}"
        raise NotSendable("message", type_of(message), why, getattr(message, "request_id", None))
    try:
        read = readable(line)
    except NotSendable as wrong:
        wrong.request_id = getattr(message, "request_id", None)
        raise
    assert isinstance(read, type(message)), "a message is decoded as its own type"
    return read


def readable(line: bytes) -> Message:
    """Decode a message as its receiver will. Raises `NotSendable` if that is impossible."""
    read = FEW_TYPES.decode(line)
    if isinstance(read, Envelope):
        return read.message
    assert isinstance(read, Unreadable), "a line of this release has no newer version"
    why, *_ = read.reason.partition(" - at `$")
    raise NotSendable(read.field, read.value, why)


async def answer_of(asking: Asks, question: Message, kind: type[T]) -> T:
    """Ask a question and return its answer, of type `kind`. Raises `Rejected` if it is refused."""
    return granted(question, await asking.ask(question), kind)


def granted(question: Message, answer: Message, kind: type[T]) -> T:
    if isinstance(answer, BuildRejected):
        raise Rejected(
            answer.field, answer.value, answer.reason, getattr(question, "request_id", answer.request_id)
        )
    assert isinstance(answer, kind), f"{question!r} was answered by {answer!r}"
    return answer


async def pages_of(asking: Asks, question: Message, kind: type[P]) -> AsyncGenerator[P, None]:
    """Ask a question, and yield all pages of its answer: one, if answers of this kind have no `next`."""
    while True:
        page = await answer_of(asking, question, kind)
        yield page
        if not (after := getattr(page, "next", None)):
            return
        question = structs.replace(question, after=after)


async def items_of(
    asking: Asks, question: Message, kind: type[P], items: Callable[[P], Iterable[T]]
) -> list[T]:
    """Ask for all pages of an answer, and return the items on them."""
    return [item async for page in pages_of(asking, question, kind) for item in items(page)]


# On the bus of `moor up`, a client connects as this application, unless it needs an operator's rights.
LOCAL = Application("local", admin=True)
FOUND_AT_ONCE_MAX = 200
# Why a call ends that is under way when its client is closed.
CLOSED = "this client was closed"


class BusClient:
    """Asks questions and hears events as one user of the broker."""

    def __init__(self, station: Station, running: asyncio.Task[None]) -> None:
        self._station = station
        self._running = running
        station.raise_refusals()

    @property
    def trouble(self) -> str:
        """Why there is no connection to the broker now. Empty if there is one."""
        return self._station.trouble

    async def ask(self, question: Message) -> Message:
        """Return the answer. Raise the broker's refusal if this client may not ask or may not receive the answer."""
        return (await self.ask_all((question,)))[0]

    async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
        """Return the answers, in the order of the questions. Raise `NotSendable` if no receiver could read a question."""
        sendable = [as_received(question) for question in questions]
        return await during(self._station.ask_all(sendable), self._raise_failure())

    async def send(self, message: Message) -> None:
        """Publish an order that has no answer. Return when the broker has it."""
        await self._station.send(message)

    async def _raise_failure(self) -> None:
        await asyncio.shield(self._running)
        raise ConnectionLost(CLOSED)

    async def instances(self, ids: Sequence[InstanceId], project: str = "") -> list[InstanceState]:
        """The instances with these ids, as far as they exist."""
        found: list[InstanceState] = []
        for some in batches_of(ids, FOUND_AT_ONCE_MAX):
            question = AskInstances(instances=tuple(some), limit=FOUND_AT_ONCE_MAX, project=project)
            async for page in self.pages_of_instances(question):
                found += page.instances
        return found

    async def pages_of_instances(self, question: AskInstances) -> AsyncIterator[InstancesFound]:
        async for page in pages_of(self, question, InstancesFound):
            yield page

    async def listen(self, *patterns: str, project: str = "") -> AsyncGenerator[Sequence[Message], None]:
        """Yield batches of events whose routing keys match `patterns`, from now on.

        The first batch is empty: it says that the subscription is active. So is the first one after each interruption,
        and no other. If a project is named, only events about its instances are yielded. An application receives them
        from the project's feed, which the schedulers publish.
        """
        speaker = broker_user_of(self._station.consuming.broker.user)
        matches = key_pattern(Grant(EVENTS, patterns)).fullmatch
        if project and speaker is not None and speaker.application:
            # An admin application has no feed of its own and may hear all events.
            with suppress(AccessRefused):
                async with feed_of(self._station, Grant(FEED, (project,))) as feed:
                    async for batch in feed:
                        messages = [each.message for each in batch]
                        wanted = [each for each in messages if matches(destination_of(each).routing_key)]
                        if wanted or not batch:
                            yield wanted
        async with feed_of(self._station, Grant(EVENTS, patterns)) as feed:
            async for batch in feed:
                wanted = [each.message for each in batch if project in ("", project_of(each.message))]
                if wanted or not batch:
                    yield wanted


@asynccontextmanager
async def connected(
    broker: Broker, patience_s: float, codec: Codec = CODEC
) -> AsyncIterator[tuple[Station, asyncio.Task[None]]]:
    """A station that waits at most `patience_s` for an answer, for a client.

    If there is no broker now, raise at once. If the broker goes away later, wait for it.
    """
    await (await broker.connect()).close()
    bus = BusSettings(answer_timeout_ms=patience_s * 1000)
    async with station_on(broker, "moor", bus, codec=codec) as connection:
        yield connection


def with_user(url: str, *, operates: bool = False) -> str:
    """Put a user into a Unix socket's URL that has none. There a client may connect as any user without a password."""
    parts = urlsplit(url)
    if parts.scheme != "unix" or parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=f"{user_of('operator') if operates else LOCAL.user}@"))
