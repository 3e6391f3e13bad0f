"""The bus client of the `moor` commands: it asks questions, hears events and follows instances to an end state."""

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit, urlunsplit

import typer
from msgspec import structs

from bus.broker import AccessRefused, Broker, Refusal
from bus.codec import CODEC, Codec, FewTypesCodec, encode
from bus.configuration.settings import BusSettings
from bus.errors import Unavailable
from bus.message import Envelope, Message
from bus.messages.build import (
    AskInstances,
    BuildRejected,
    CellHeard,
    InstanceDetails,
    InstanceEvent,
    InstanceId,
    InstancesFound,
    InstanceState,
)
from bus.messages.hosts import AskHosts, HostsFound, HostState
from bus.messages.placement import AskSnapshot, ProviderState, SnapshotPage
from bus.permissions import key_pattern
from bus.process import Part, run_until
from bus.topology import EVENTS, FEED, Application, Grant, broker_user_of, destination_of, user_of
from bus.unreadable import Unreadable
from bus.workers.authority import project_of
from bus.workers.handling import Received
from bus.workers.link import Link
from bus.workers.listening import listen
from bus.workers.station import Station, process_name
from moor.options import broker_of, command_settings, fail, run_with
from moor.settings import Settings

T = TypeVar("T")
P = TypeVar("P")

# On the bus of `moor up`, a command connects as this application, unless it needs an operator's rights.
LOCAL = Application("local", admin=True)
ASK_AGAIN_S = 1.0
# Events are fast but may be missed; polling at this interval finds what was missed.
LOOK_AGAIN_S = 2.0
FOUND_AT_ONCE_MAX = 200
ASKED_AT_ONCE_MAX = 200
PAGE = 500
UNTIL_LOOK_S = 0.1
DRAIN_S_MAX = 5.0

# A command gets few types of messages.
FEW_TYPES = FewTypesCodec()

States = dict[InstanceId, InstanceState]
Feed = AsyncGenerator[Sequence[Received[Message]], None]


def check_readable(message: Message) -> None:
    """Check that the receiver could decode this message. If not, an option has a wrong value: raise BadParameter."""
    readable(encode(Envelope(message=message)))


def readable(line: bytes) -> Message:
    """Decode a message as its receiver will. Raises BadParameter, which names the wrong field, if that is impossible."""
    read = FEW_TYPES.decode(line)
    if isinstance(read, Envelope):
        return read.message
    assert isinstance(read, Unreadable), "a line of this release has no newer version"
    why, *_ = read.reason.partition(" - at `$")
    raise typer.BadParameter(f"{read.field} is {read.value!r}, and cannot be sent: {why}")


def batches_of(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


class Asks(Protocol):
    """Anything that can ask a question on the bus: a `Client` or a `Station`."""

    async def ask(self, question: Message) -> Message: ...


async def answer_of(asking: Asks, question: Message, kind: type[T]) -> T:
    """Ask a question and return its answer, of type `kind`. If the answer is a rejection, end the command."""
    return granted(question, await asking.ask(question), kind)


def granted(question: Message, answer: Message, kind: type[T]) -> T:
    if isinstance(answer, BuildRejected):
        # Only a refusal needs it.
        from moor.nearest_names import hint_for  # noqa: PLC0415

        fail(f"rejected: {answer.field} is {answer.value!r}: {answer.reason}{hint_for(answer)}")
    assert isinstance(answer, kind), f"{question!r} was answered by {answer!r}"
    return answer


async def answers_of(asking: "Client", questions: Sequence[Message], kind: type[T]) -> list[T]:
    """Ask many questions, ASKED_AT_ONCE_MAX at a time, and return their answers, each of type `kind`."""
    answers: list[T] = []
    for some in batches_of(questions, ASKED_AT_ONCE_MAX):
        answered = zip(some, await asking.ask_all(some), strict=True)
        answers += [granted(question, answer, kind) for question, answer in answered]
    return answers


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


async def hosts_of(asking: Asks, name: str = "") -> list[HostState]:
    """All hosts, or only the host with this name."""
    return await items_of(asking, AskHosts(name=name, limit=PAGE), HostsFound, lambda page: page.hosts)


async def providers_of(asking: Asks) -> list[ProviderState]:
    return await items_of(asking, AskSnapshot(limit=PAGE), SnapshotPage, lambda page: page.providers)


async def until_choosable(
    asking: Asks, are_enough: Callable[[Sequence[HostState]], bool]
) -> Sequence[HostState]:
    """Wait until schedulers can choose enough hosts: the hosts are up, and placement has their providers."""
    while True:
        # Raised while the workers that answer are still starting.
        with suppress(Unavailable):
            up = [host for host in await hosts_of(asking) if host.up]
            if are_enough(up):
                provided = {each.id for each in await providers_of(asking)}
                found = [host for host in up if host.id in provided]
                if are_enough(found):
                    return found
        await asyncio.sleep(UNTIL_LOOK_S)


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


class Client:
    """Asks questions and hears events as one user of the broker."""

    def __init__(self, station: Station, running: asyncio.Task[None]) -> None:
        self._station = station
        self._running = running
        self._refused = asyncio.Queue[Refusal]()
        # The cells of the instances that were found, and when each was last heard.
        self.cells: dict[str, CellHeard] = {}
        # What their rows say beyond their states. Schedulers of an earlier release say nothing.
        self.details: dict[InstanceId, InstanceDetails] = {}
        station.on_refusal(self._refused.put_nowait)

    async def ask(self, question: Message) -> Message:
        """Return the answer. Raise the broker's refusal if this client may not ask or may not receive the answer."""
        return (await self.ask_all((question,)))[0]

    async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
        for question in questions:
            check_readable(question)
        return await during(self._station.ask_all(questions), self._raise_refusal(), self._raise_failure())

    async def send(self, message: Message) -> None:
        """Publish an order that has no answer. Return when the broker has it."""
        await self._station.send(message)

    async def _raise_refusal(self) -> None:
        raise await self._refused.get()

    async def _raise_failure(self) -> None:
        await asyncio.shield(self._running)

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
            self.cells |= {each.cell: each for each in page.cells}
            self.details |= {each.id: each for each in page.details}
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
async def client(
    settings: Settings, *, operates: bool = False, patience_s: float = 30.0
) -> AsyncIterator[Client]:
    """A client that waits at most `patience_s` for an answer.

    If there is no broker now, raise at once. If the broker goes away later, wait for it.
    """
    broker = broker_of(_as_user(settings.bus_url, user_of("operator") if operates else LOCAL.user))
    await (await broker.connect()).close()
    bus = BusSettings(answer_timeout_ms=patience_s * 1000, ask_again_ms=min(ASK_AGAIN_S, patience_s) * 1000)
    async with station_on(broker, "moor", bus, codec=FEW_TYPES) as (station, task):
        yield Client(station, task)


def ask_bus(bus: str, work: Callable[[Client], Awaitable[T]], *, operates: bool = True) -> T:
    """Run a command's work with a client on this bus."""
    return run_with(client(command_settings(bus=bus), operates=operates), work)


def asked(bus: str, question: Message, kind: type[T], *, operates: bool = True) -> T:
    """Do the whole work of a command that asks one question: connect to this bus, ask, and return the answer, of type
    `kind`.
    """
    return ask_bus(bus, lambda asking: answer_of(asking, question, kind), operates=operates)


def asked_for_all(
    bus: str, question: Message, kind: type[P], items: Callable[[P], Iterable[T]], *, operates: bool = True
) -> list[T]:
    """Ask a question on this bus and return the items on all pages of the answer."""
    return ask_bus(bus, lambda asking: items_of(asking, question, kind, items), operates=operates)


class InstanceFollower:
    """Keeps the states of the instances in `ids` up to date, by events and by polling.

    The caller may add ids and remove them meanwhile.
    """

    def __init__(self, client: Client, ids: Collection[InstanceId], project: str = "") -> None:
        self.states: States = {}
        self._client = client
        self._ids = ids
        self._project = project
        self._changed = asyncio.Event()
        self._listening = asyncio.Event()

    def take(self, states: Iterable[InstanceState]) -> None:
        """Store these states of the API level; skip any that is not newer than the known one.

        One that names another cell counts at any sequence: what was known came from an event of a cell that does not have
        the instance.
        """
        for state in states:
            known = self.states.get(state.id)
            is_newer = known is None or known.sequence < state.sequence
            if state.id in self._ids and (is_newer or _is_elsewhere(known, state.cell)):
                self.states[state.id] = state
                self._changed.set()

    def hear(self, event: InstanceEvent) -> None:
        """Store the state that an event tells, unless the instance is known to be in another cell than the event's."""
        if not _is_elsewhere(self.states.get(event.instance.id), event.cell):
            self.take((event.instance,))

    async def until(
        self, is_over: Callable[[InstanceState], bool], show: Callable[[States], None], by_s: float
    ) -> bool:
        """Call `show` at each change, until `is_over` holds for all instances. Return False if time is up before.

        Time is up at `by_s` on the event loop's clock.
        """
        try:
            async with asyncio.timeout_at(by_s):
                await self._follow(
                    lambda: all(id_ in self.states and is_over(self.states[id_]) for id_ in self._ids), show
                )
        except TimeoutError:
            return False
        return True

    async def follow(self, show: Callable[[States], None]) -> None:
        """Call `show` with the states at each change, without end."""
        await self._follow(lambda: False, show)

    async def _follow(self, is_over: Callable[[], bool], show: Callable[[States], None]) -> None:
        await during(self._show_until(is_over, show), self._hear(), self._look())

    async def _show_until(self, is_over: Callable[[], bool], show: Callable[[States], None]) -> None:
        while not is_over():
            await self._changed.wait()
            self._changed.clear()
            show(self.states)

    async def _hear(self) -> None:
        async with aclosing(self._client.listen("instance.#", project=self._project)) as heard:
            async for batch in heard:
                self._listening.set()
                for each in batch:
                    if isinstance(each, InstanceEvent):
                        self.hear(each)

    async def _look(self) -> None:
        # Poll only once the subscription is active: an event between the first poll and the subscription would be missed,
        # and noticed only by the second poll.
        await self._listening.wait()
        while True:
            self.take(await self._client.instances([*self._ids], self._project))
            await asyncio.sleep(LOOK_AGAIN_S)


def _is_elsewhere(known: InstanceState | None, cell: str) -> bool:
    """Is an instance in this state in another cell than this one? Without a cell it is nowhere yet."""
    return known is not None and bool(known.cell) and bool(cell) and known.cell != cell


def _as_user(url: str, user: str) -> str:
    """Put this user into a Unix socket's URL. There a client may connect as any user without a password."""
    parts = urlsplit(url)
    return (
        urlunsplit(parts._replace(netloc=f"{user}@")) if parts.scheme == "unix" and not parts.netloc else url
    )
