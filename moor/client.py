"""The bus client of the `moor` commands: it asks questions, hears events and follows instances to an end state."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

from msgspec import structs

from bus.broker import AccessRefused, Refusal
from bus.codec import CODEC
from bus.link import Link
from bus.listening import listen
from bus.message import Message
from bus.messages.build import (
    AskInstances,
    InstanceActive,
    InstanceDeleted,
    InstanceFailed,
    InstanceId,
    InstancePlaced,
    InstancesFound,
    InstanceState,
)
from bus.messages.hosts import AskHosts, HostsFound, HostState
from bus.permissions import key_pattern
from bus.process import run_until
from bus.settings import BusSettings
from bus.station import Station, process_name
from bus.topology import EVENTS, FEED, Application, Grant, broker_user_of, destination_of, user_of
from moor.options import broker_of
from moor.settings import Settings

# On the bus of `moor up`, a command connects as this application, unless it needs an operator's rights.
LOCAL = Application("local", admin=True)
ASK_AGAIN_S = 1.0
# Events are fast but may be missed; polling at this interval finds what was missed.
LOOK_AGAIN_S = 2.0
FOUND_AT_ONCE_MAX = 200

InstanceEvent = InstancePlaced | InstanceActive | InstanceFailed | InstanceDeleted
States = dict[InstanceId, InstanceState]


class Client:
    """Asks questions and hears events as one user of the broker."""

    def __init__(self, station: Station, running: asyncio.Task[None]) -> None:
        self._station = station
        self._running = running
        self._refused = asyncio.Queue[Refusal]()
        station.on_refusal(self._refused.put_nowait)

    async def ask(self, question: Message) -> Message:
        """Return the answer. Raise the broker's refusal if this client may not ask or may not receive the answer."""
        asking = asyncio.create_task(self._station.ask(question))
        refused = asyncio.create_task(self._refused.get())
        try:
            await asyncio.wait((asking, refused, self._running), return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            if refused.done():
                raise refused.result()
            self._running.result()
            return await asking
        finally:
            asking.cancel()
            refused.cancel()

    async def instances(self, question: AskInstances) -> Sequence[InstanceState]:
        return (await self._page(question)).instances

    async def pages(self, question: AskInstances) -> AsyncIterator[Sequence[InstanceState]]:
        """All matching instances, page by page."""
        while True:
            found = await self._page(question)
            yield found.instances
            if found.next is None:
                return
            question = structs.replace(question, after=found.next)

    async def hosts(self, question: AskHosts) -> AsyncIterator[Sequence[HostState]]:
        """All matching hosts, page by page."""
        while True:
            found = await self.ask(question)
            assert isinstance(found, HostsFound), f"a question for hosts was answered by {found!r}"
            yield found.hosts
            if not found.next:
                return
            question = structs.replace(question, after=found.next)

    async def listen(self, *patterns: str, project: str = "") -> AsyncGenerator[Sequence[Message], None]:
        """Events with these keys, from now on. The first batch is empty: it says that the subscription is active.

        With a project, only events about its instances. An application receives them from the project's feed, which the
        schedulers publish.
        """
        if project and self._is_application:
            # An admin application has no feed of its own and may hear all events.
            with suppress(AccessRefused):
                async with aclosing(self._listen(Grant(FEED, (project,)))) as heard:
                    async for batch in heard:
                        yield [each for each in batch if _has_key(each, patterns)]
        async with aclosing(self._listen(Grant(EVENTS, patterns))) as heard:
            async for batch in heard:
                yield [each for each in batch if project in ("", _project_of(each))]

    @property
    def _is_application(self) -> bool:
        speaker = broker_user_of(self._station.consuming.broker.user)
        return speaker is not None and bool(speaker.application)

    async def _listen(self, grant: Grant) -> AsyncGenerator[Sequence[Message], None]:
        link = Link(self._station.consuming.broker, self._station.settings)
        heard = listen(
            link,
            (grant,),
            process=self._station.name,
            settings=self._station.settings,
            codec=CODEC,
        )
        try:
            async with aclosing(heard):
                async for batch in heard:
                    yield [each.message for each in batch]
        finally:
            await link.close()

    async def _page(self, question: AskInstances) -> InstancesFound:
        found = await self.ask(question)
        assert isinstance(found, InstancesFound), f"a question for instances was answered by {found!r}"
        return found


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
    station = Station(broker, process_name("moor"), settings=bus, asks=True)
    stop = asyncio.Event()
    running = asyncio.create_task(run_until(stop, (station,), drain_s_max=5))
    try:
        yield Client(station, running)
    finally:
        stop.set()
        await asyncio.wait((running,))
        await station.close()


class InstanceFollower:
    """Follows instances by their events and by polling, until `by_s` on the event loop's clock."""

    def __init__(self, client: Client, ids: Collection[InstanceId], by_s: float, project: str = "") -> None:
        self._by_s = by_s
        self.states: States = {}
        self._client = client
        self._ids = tuple(ids)
        self._project = project
        self._changed = asyncio.Event()
        self._listening = asyncio.Event()

    def take(self, states: Iterable[InstanceState]) -> None:
        """Store these states; skip any that is not newer than the known one."""
        for state in states:
            known = self.states.get(state.id)
            if state.id in self._ids and (known is None or known.sequence < state.sequence):
                self.states[state.id] = state
                self._changed.set()

    async def until(self, is_over: Callable[[InstanceState], bool], show: Callable[[States], None]) -> bool:
        """Show changes until `is_over` holds for all instances. Return False if time is up before."""
        working = [asyncio.create_task(self._hear()), asyncio.create_task(self._look())]
        try:
            async with asyncio.timeout_at(self._by_s):
                while not self._is_over(is_over):
                    changed = asyncio.create_task(self._changed.wait())
                    await asyncio.wait((changed, *working), return_when=asyncio.FIRST_COMPLETED)
                    changed.cancel()
                    for task in working:
                        if task.done():
                            task.result()
                    self._changed.clear()
                    show(self.states)
        except TimeoutError:
            return False
        finally:
            for task in working:
                task.cancel()
            await asyncio.wait(working)
        return True

    def _is_over(self, is_over: Callable[[InstanceState], bool]) -> bool:
        return all(id_ in self.states and is_over(self.states[id_]) for id_ in self._ids)

    async def _hear(self) -> None:
        async with aclosing(self._client.listen("instance.#", project=self._project)) as heard:
            async for batch in heard:
                self._listening.set()
                self.take(each.instance for each in batch if isinstance(each, InstanceEvent))

    async def _look(self) -> None:
        # Poll only once the subscription is active: an event between the first poll and the subscription would be missed,
        # and noticed only by the second poll.
        await self._listening.wait()
        while True:
            for start in range(0, len(self._ids), FOUND_AT_ONCE_MAX):
                some = self._ids[start : start + FOUND_AT_ONCE_MAX]
                question = AskInstances(instances=some, limit=FOUND_AT_ONCE_MAX, project=self._project)
                self.take(await self._client.instances(question))
            await asyncio.sleep(LOOK_AGAIN_S)


def _has_key(message: Message, patterns: Sequence[str]) -> bool:
    """Do these patterns match the event's routing key?"""
    return (
        key_pattern(Grant(EVENTS, tuple(patterns))).fullmatch(destination_of(message).routing_key) is not None
    )


def _project_of(message: Message) -> str:
    return getattr(message, "project", "") or getattr(getattr(message, "instance", None), "project", "")


def _as_user(url: str, user: str) -> str:
    """Put this user into a Unix socket's URL. There a client may connect as any user without a password."""
    parts = urlsplit(url)
    return (
        urlunsplit(parts._replace(netloc=f"{user}@")) if parts.scheme == "unix" and not parts.netloc else url
    )
