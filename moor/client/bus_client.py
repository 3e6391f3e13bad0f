"""One user of the bus: asks questions, hears events, and finds and follows instances."""

import asyncio
import itertools
import random
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from copy import copy
from typing import Protocol, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from msgspec import structs

from bus.addresses import broker_at
from bus.broker import Broker
from bus.codec import CODEC, Codec, FewTypesCodec, encode
from bus.message import PARCEL_BYTES_MAX, Envelope, Message, ProjectMessage, type_of
from bus.messages.build import (
    AskInstances,
    BuildRejected,
    InstanceEvent,
    InstancesFound,
    InstanceState,
    MoveKind,
    RebuildInstance,
)
from bus.messages.hosts import AskHosts, HostsFound
from bus.messages.moves import EndMove, MoveInstance, is_to_wait_again
from bus.messages.placement import AskSnapshot, SnapshotPage
from bus.settings import BusSettings
from bus.topology import EVENTS, FEED, LOCAL, Grant, broker_user_of, destination_of, user_of
from bus.unreadable import Unreadable
from bus.workers.authority import project_of
from bus.workers.connections import NoAnswer, Station, listen, process_name
from bus.workers.handlers import Received
from engine.flavors import InstanceId, RequestId
from engine.hosts import HostState
from engine.inventories import ProviderState, near, near_in_words, standard_vocabulary
from kit.clock import now
from kit.errors import AccessRefused, ConnectionLost, Unavailable
from kit.parts import Pauses, batches_of
from kit.process import during, running
from moor.client.errors import NotInTime, NotSendable, Rejected

# Runs the parts of a process, connects them to the bus, and hears its events.

T = TypeVar("T")

Feed = AsyncGenerator[Sequence[Received[Message]], None]


@asynccontextmanager
async def station_on(
    broker: Broker, role: str, settings: BusSettings | None = None, *, codec: Codec = CODEC
) -> AsyncIterator[tuple[Station, asyncio.Task[None]]]:
    """Connect to the bus to ask questions. Yields the connection (a `Station`), and the task that receives the answers."""
    async with AsyncExitStack() as stack:
        station = Station(broker, process_name(role), settings=settings, asks=True, codec=codec)
        stack.push_async_callback(station.close)
        yield station, await stack.enter_async_context(running((station,)))


# The names of those that listen now.
_LISTENING: set[str] = set()


@asynccontextmanager
async def feed_of(station: Station, grant: Grant) -> AsyncIterator[Feed]:
    """Subscribe to the exchange and the routing keys that `grant` names, and yield the feed of batches.

    The first batch is empty: it says that the subscription is active.
    """
    with _own_name(station.name) as name:
        listening = Station(station.consuming.broker, name, settings=station.settings, codec=station.codec)
        try:
            async with aclosing(listen(listening, (grant,))) as feed:
                yield feed
        finally:
            await listening.close()


@contextmanager
def _own_name(name: str) -> Iterator[str]:
    """A name for one listener of this station, and so a queue of its own. The next listener takes the name of one that has ended: the broker
    keeps the queue for a while.
    """
    own = next(each for number in itertools.count() if (each := f"{name}-{number}") not in _LISTENING)
    _LISTENING.add(own)
    try:
        yield own
    finally:
        _LISTENING.remove(own)


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


async def answers_of(asking: "BusClient | Station", questions: Sequence[Message], kind: type[T]) -> list[T]:
    """Ask many questions, ASKED_AT_ONCE_MAX at a time, and return their answers, each of type `kind`."""
    answers: list[T] = []
    for some in batches_of(questions, ASKED_AT_ONCE_MAX):
        answered = zip(some, await asking.ask_all(some), strict=True)
        answers += [granted(question, answer, kind) for question, answer in answered]
    return answers


async def answer_of(asking: Asks, question: Message, kind: type[T]) -> T:
    """Ask a question and return its answer, of type `kind`. Raises `Rejected` if it is refused."""
    return granted(question, await asking.ask(question), kind)


def granted(question: Message, answer: Message, kind: type[T]) -> T:
    if isinstance(answer, BuildRejected):
        request_id = getattr(question, "request_id", answer.request_id)
        raise Rejected(answer.field, answer.value, answer.reason, request_id, _hint(answer))
    assert isinstance(answer, kind), f"{question!r} was answered by {answer!r}"
    return answer


def _hint(refused: BuildRejected) -> str:
    """The standard names near the one that a scheduler refuses."""
    if "neither a standard one" not in refused.reason:
        return ""
    return near_in_words(near(refused.value, standard_vocabulary().names))


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


ASKED_AT_ONCE_MAX = 200
HOSTS_PAGE = 500
UNTIL_LOOK_S = 0.1


async def hosts_of(asking: Asks, name: str = "") -> list[HostState]:
    """All hosts, or only those with this name."""
    return await items_of(asking, AskHosts(name=name, limit=HOSTS_PAGE), HostsFound, lambda page: page.hosts)


async def providers_of(asking: Asks) -> list[ProviderState]:
    return await items_of(asking, AskSnapshot(limit=HOSTS_PAGE), SnapshotPage, lambda page: page.providers)


async def until_choosable(
    asking: Asks, are_enough: Callable[[Sequence[HostState]], bool]
) -> Sequence[HostState]:
    """Wait until schedulers can choose enough hosts: the hosts are up, and placement has their providers. A host that an
    operator has taken out of use counts as if it were up: nobody needs to wait for it.
    """
    while True:
        # Raised while the workers that answer are still starting.
        with suppress(Unavailable):
            up = [host for host in await hosts_of(asking) if host.up or host.setting.mode != "up"]
            if are_enough(up):
                provided = {each.id for each in await providers_of(asking)}
                found = [host for host in up if host.id in provided]
                if are_enough(found):
                    return found
        await asyncio.sleep(UNTIL_LOOK_S)


FOUND_AT_ONCE_MAX = 200
# Between questions whether a scheduler knows of an end, and how long they go on.
KNOWN_PAUSES = Pauses(first_s=0.01)
KNOWN_S_MAX = 5.0
# Why a call ends that is under way when its client is closed.
CLOSED = "this client was closed"


class BusClient:
    """Asks questions and hears events as one user of the broker."""

    is_for_member = False

    def __init__(self, station: Station, running: asyncio.Task[None]) -> None:
        self._station = station
        self._running = running
        station.raise_refusals()

    def for_member(self) -> Self:
        """This client, whose questions are for a member of the project that they name."""
        other = copy(self)
        other.is_for_member = True
        return other

    @property
    def trouble(self) -> str:
        """Why there is no connection to the broker now. Empty if there is one."""
        return self._station.trouble

    async def ask(self, question: Message) -> Message:
        """Return the answer. Raise the broker's refusal if this client may not ask or may not receive the answer."""
        return (await self.ask_all((question,)))[0]

    async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
        """Return the answers, in the order of the questions. Raise `NotSendable` if no receiver could read a question."""
        return await during(self._station.ask_all(self.sendable(questions)), self._raise_failure())

    def sendable(self, questions: Sequence[Message]) -> list[Message]:
        """The questions as their receivers will decode them, and marked if they are for a member."""
        return [
            as_received(
                structs.replace(each, for_member=True)
                if self.is_for_member and isinstance(each, ProjectMessage)
                else each
            )
            for each in questions
        ]

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
            async for page in pages_of(self, question, InstancesFound):
                found += page.instances
        return found

    async def until_known(self, states: Iterable[InstanceState], project: str = "") -> None:
        """Wait until the schedulers know of these states: then they take the next order for the instances.

        A cell tells the ends of orders to everyone at once, so a client may hear of one before a scheduler has written it. If no
        scheduler answers in time, the caller goes on: the order has ended all the same.
        """
        pauses = KNOWN_PAUSES.each(random)
        heard = {each.id: each.sequence for each in states}
        with suppress(TimeoutError, Unavailable):
            async with asyncio.timeout(KNOWN_S_MAX):
                while heard:
                    known = {each.id: each.sequence for each in await self.instances([*heard], project)}
                    heard = {id_: number for id_, number in heard.items() if known.get(id_, number) < number}
                    if heard:
                        await asyncio.sleep(next(pauses))

    async def listen(self, *patterns: str, project: str = "") -> AsyncGenerator[Sequence[Message], None]:
        """Yield batches of events whose routing keys match `patterns`, from now on.

        The first batch is empty: it says that the subscription is active. So is the first one after each interruption,
        and no other. If a project is named, only events about its instances are yielded. An application receives them
        from the project's feed, which the schedulers publish.
        """
        speaker = broker_user_of(self._station.consuming.broker.user)
        asked = Grant(EVENTS, patterns)

        def wanted(batch: Sequence[Received[Message]]) -> list[Message]:
            """The queue may still have what an earlier listener asked for."""
            messages = [
                each.message
                for each in batch
                if asked.allows(EVENTS, destination_of(each.message).routing_key)
            ]
            return [each for each in messages if project in ("", project_of(each))]

        # A feed has nothing else.
        on_feeds = any(each.startswith(("build", "instance", "*", "#")) for each in patterns)
        if project and on_feeds and speaker is not None and speaker.application:
            # An admin application has no feed of its own and may hear all events.
            with suppress(AccessRefused):
                async with feed_of(self._station, Grant(FEED, (project,))) as feed:
                    async for batch in feed:
                        if (heard := wanted(batch)) or not batch:
                            yield heard
        async with feed_of(self._station, Grant(EVENTS, patterns)) as feed:
            async for batch in feed:
                if (heard := wanted(batch)) or not batch:
                    yield heard


@asynccontextmanager
async def connected(
    broker: Broker, patience_s: float, role: str = "moor", *, waits: bool = False
) -> AsyncIterator[BusClient]:
    """A client that waits at most `patience_s` for an answer.

    If there is no broker now, raise at once, unless it `waits`. If the broker goes away later, wait for it.
    """
    if not waits:
        await (await broker.connect()).close()
    bus = BusSettings(answer_timeout_ms=patience_s * 1000)
    async with station_on(broker, role, bus, codec=FEW_TYPES) as connection:
        yield BusClient(*connection)


def with_user(url: str, *, operates: bool = False) -> str:
    """Put a user into a Unix socket's URL that has none. There a client may connect as any user without a password."""
    parts = urlsplit(url)
    if parts.scheme != "unix" or parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=f"{user_of('operator') if operates else LOCAL.user}@"))


@asynccontextmanager
async def connected_at(
    url: str, *, operates: bool = False, patience_s: float = 30.0
) -> AsyncIterator[BusClient]:
    async with connected(broker_at(with_user(url, operates=operates)), patience_s) as asking:
        try:
            yield asking
        except NoAnswer as late:
            raise NotInTime("no worker has answered", patience_s) from late


# Follows instances until what an order began in them has ended, and says why it failed.

# Events are fast but may be missed; polling at this interval finds what was missed.
LOOK_AGAIN_S = 2.0

States = dict[InstanceId, InstanceState]


class InstanceFollower:
    """Keeps the states of the instances in `ids` up to date, by events and by polling.

    The caller may add ids and remove them meanwhile. `tell` is called with each new state.
    """

    def __init__(
        self,
        client: BusClient,
        ids: Collection[InstanceId],
        project: str = "",
        tell: Callable[[InstanceState], None] = lambda _: None,
    ) -> None:
        self.states: States = {}
        self._client = client
        self._ids = ids
        self._project = project
        self._listening = asyncio.Event()
        self._tell = tell
        # Instances to ask about before the next look at all of them.
        self._new: set[InstanceId] = set()
        self._are_new = asyncio.Event()

    def look_soon(self, ids: Iterable[InstanceId]) -> None:
        """Ask about these instances soon: nobody has listened to their events so far."""
        self._new.update(ids)
        self._are_new.set()

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
                self._tell(state)

    def hear(self, event: InstanceEvent) -> None:
        """Store the state that an event tells, unless the instance is known to be in another cell than the event's."""
        if not _is_elsewhere(self.states.get(event.instance.id), event.cell):
            self.take((event.instance,))

    async def follow(self) -> None:
        """Keep the states up to date, without end."""
        await during(self._hear(), self._look())

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
        loop = asyncio.get_running_loop()
        due_s = 0.0
        while True:
            is_due = due_s <= loop.time()
            new, self._new = self._new, set()
            self._are_new.clear()
            ids = self._ids if is_due else new
            if is_due:
                due_s = loop.time() + LOOK_AGAIN_S
            # A broker that is away, or schedulers that do not answer, may be back before the caller's time is up.
            with suppress(Unavailable):
                self.take(await self._client.instances([*ids], self._project))
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await self._are_new.wait()


def _is_elsewhere(known: InstanceState | None, cell: str) -> bool:
    """Is an instance in this state in another cell than this one? Without a cell it is nowhere yet."""
    return known is not None and bool(known.cell) and bool(cell) and known.cell != cell


# When an order has ended, and why it failed: pure functions of the state of its instance.

# What an end is, is listed; any other state, of a later release perhaps, is none.
BUILT = ("active", "moving", "moved", "stopped", "shelved", "offloaded")
ENDED = (*BUILT, "error", "deleted")
# The states that orders to switch the power lead to.
RESULTS: Mapping[MoveKind, str] = {"stop": "stopped", "start": "active"}


def has_ended(instance: InstanceState) -> bool:
    """True if no build, rebuild or delete of the instance goes on. It may have been stopped or moved since."""
    return instance.state in ENDED


def why_not_built(instance: InstanceState) -> str:
    """Why the build failed; empty if the instance was built."""
    if instance.state in (*BUILT, "rebuilding"):
        return ""
    if instance.state in ("deleting", "deleted"):
        return "the instance was deleted"
    failures = (f"{each.host}: {each.reason}" for each in instance.failures)
    return "; ".join(filter(None, (instance.reason, *failures))) or f"the instance is {instance.state}"


def rests(state: InstanceState, move_id: RequestId) -> bool:
    """True if the move has arrived or ended, or if the instance is deleted or has another move by now."""
    if state.state in ("deleting", "deleted") or state.move is None or state.move.request_id != move_id:
        return True
    if is_to_wait_again(state, now()):
        return False
    return state.state == "moved" or bool(state.move.outcome)


def why_not_moved(state: InstanceState, order: MoveInstance | EndMove) -> str:
    """Why the order has failed. Empty if the instance arrived, or if its move was confirmed, reverted or aborted as ordered."""
    move = state.move
    if isinstance(order, MoveInstance) and RESULTS.get(order.kind) == state.state:
        # Perhaps it was so before, and there was nothing to do.
        return ""
    if move is None or move.request_id != order.request_id:
        return "another move came after this one"
    if state.state in ("deleting", "deleted"):
        return "the instance was deleted"
    if isinstance(order, EndMove):
        wanted = {"confirm": "confirmed", "revert": "reverted", "abort": "aborted"}[order.how]
        return (
            "" if move.outcome == wanted else f"the move is {move.outcome}: {move.failure or 'it came first'}"
        )
    if state.state == "moved" or move.outcome in ("confirmed", "done"):
        # One that its host could not run is in error, and the host is asked further.
        return state.reason if state.state == "error" else ""
    reasons = "; ".join([move.failure, *(f"{each.host}: {each.reason}" for each in state.failures)])
    return f"the move has {move.outcome}: {reasons}"


def why_not_rebuilt(state: InstanceState, order: RebuildInstance) -> str:
    """Why the instance was not rebuilt; empty if it has the image of this rebuild."""
    last = state.rebuild
    if last is None or last.request_id != order.request_id:
        why = "another rebuild came after this one"
    elif last.failure or state.state not in BUILT:
        why = last.failure or state.reason or f"the instance is {state.state}"
    else:
        return ""
    return f"the instance was not rebuilt from {order.image_name or (order.image.source if order.image else '')}: {why}"


# One subscription and one poll for all instances that the callers of a client follow, however many these are.

# How long the subscription stays when nobody follows an instance any more.
LINGER_S = 10.0

Told = asyncio.Queue[InstanceState | BaseException]


class InstanceWatch:
    """Tells each caller the new states of its instances. It listens only while there are callers."""

    def __init__(self, client: BusClient, project: str) -> None:
        self._client = client
        self._project = project
        self._callers: dict[InstanceId, list[Told]] = {}
        self._follower: InstanceFollower | None = None
        self._following: asyncio.Task[None] | None = None
        self._ending: asyncio.TimerHandle | None = None

    @contextmanager
    def of(self, ids: Sequence[InstanceId], known: Sequence[InstanceState] = ()) -> Iterator[Told]:
        """A queue of the states of these instances, from now on. `known` are states that the caller has learned so far.

        If the instances cannot be followed, the queue gets the reason, as an exception.
        """
        told: Told = asyncio.Queue()
        follower = self._started()
        before = {id_: follower.states.get(id_) for id_ in ids}
        for id_ in before:
            self._callers.setdefault(id_, []).append(told)
        follower.take(known)
        for id_, state in before.items():
            if state is not None and follower.states[id_] is state:
                told.put_nowait(state)
        follower.look_soon(before)
        try:
            yield told
        finally:
            for id_ in before:
                self._leave(id_, told)

    def _leave(self, id_: InstanceId, told: Told) -> None:
        callers = self._callers[id_]
        callers.remove(told)
        if callers:
            return
        del self._callers[id_]
        if self._follower is not None:
            self._follower.states.pop(id_, None)
        if not self._callers and self._following is not None:
            self._ending = asyncio.get_running_loop().call_later(LINGER_S, self._stop)

    def _stop(self) -> None:
        following, self._following, self._follower = self._following, None, None
        if following is not None:
            following.cancel()

    def _started(self) -> InstanceFollower:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        if self._follower is None or self._following is None or self._following.done():
            self._follower = InstanceFollower(self._client, self._callers, self._project, self._tell)
            self._following = asyncio.create_task(self._follower.follow())
            self._following.add_done_callback(self._ended)
        return self._follower

    def _tell(self, state: InstanceState) -> None:
        for told in self._callers.get(state.id, ()):
            told.put_nowait(state)

    def _ended(self, following: asyncio.Task[None]) -> None:
        """Tell all callers why they hear nothing any more."""
        why = ConnectionLost(CLOSED) if following.cancelled() else following.exception()
        if following is self._following and why is not None:
            for told in {id(each): each for callers in self._callers.values() for each in callers}.values():
                told.put_nowait(why)

    async def close(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait((self._following,))
