"""The connection of a client; what it lists; an order that was taken, followed to its end; and the arguments of orders."""

# ruff: noqa: SLF001 - listings and requests are parts of their session

import asyncio
import os
import sys
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing, contextmanager
from copy import copy
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypedDict, TypeVar, cast
from uuid import UUID

from msgspec import convert, structs

from bus.addresses import broker_at
from bus.broker import Broker
from bus.codec import CODEC
from bus.message import Envelope, Message, type_of
from bus.messages.build import BuildInstance, InstanceState, MoveKind
from bus.messages.moves import MoveInstance, MoveWait
from bus.unreadable import Unreadable
from bus.workers.connections import NoAnswer
from engine.flavors import Flavor, Image, InstanceId, JoinedGroup, PortRequest, RequestId, VolumeRequest, Wait
from engine.inventories import AggregateId, GroupId
from kit.errors import AccessRefused, ConnectionLost, Refusal
from moor.client.bus_client import (
    BusClient,
    InstanceWatch,
    answer_of,
    as_received,
    connected,
    pages_of,
    with_user,
)
from moor.client.errors import (
    BrokerAway,
    BrokerRefused,
    NoHostFound,
    NotAllowed,
    NotDone,
    NotFound,
    NotInTime,
)

T = TypeVar("T")
P = TypeVar("P")


class ClientSession:
    """The open connection of a client. Many tasks may use it at once.

    A question or an order without an answer is sent again, with the same id, until `patience_s` are over: also to a broker
    that was away meanwhile, or over a new connection. Following an instance takes at most `timeout_s`.
    """

    def __init__(
        self,
        url: str | Broker = "",
        *,
        project: str | None = None,
        patience_s: float = 30.0,
        timeout_s: float = 120.0,
        as_operator: bool = False,
        role: str = "moor",
        waits: bool = False,
    ) -> None:
        """The bus is at `url`: `amqp://...`, `amqps://...` or `unix:///path`; or it is a broker in this process.

        Without a `url`, the client connects as the `moor` commands do: as MOOR_BUS_URL or the settings file say, or else to a
        `moor up` on this machine; and so for the `project`.

        With `as_operator`, a client of `moor up` is an operator and not an admin application. On RabbitMQ the user of the URL
        decides that. `role` is how the broker's connections of this program are called. One that `waits`
        opens though there is no broker yet.
        """
        if not url:
            url, stated = _of_the_commands()
            project = stated if project is None else project
        self.project = project or ""
        self._is_for_member = False
        self.patience_s = patience_s
        self.timeout_s = timeout_s
        self._broker = broker_at(with_user(url, operates=as_operator)) if isinstance(url, str) else url
        self._role = role
        self._waits = waits
        self._opened: BusClient | None = None
        self._watches: dict[str, InstanceWatch] = {}
        self._beside: set[asyncio.Task[None]] = set()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        with self._raising():
            self._opened = await self._stack.enter_async_context(
                connected(self._broker, self.patience_s, self._role, waits=self._waits)
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened = None
        for watch in self._watches.values():
            await watch.close()
        self._watches.clear()
        for task in self._beside:
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)
        await self._stack.aclose()

    def of_project(self, project: str, *, for_member: bool = False) -> Self:
        """This client, on the same connection, for a project: its orders and questions name it. With `for_member`, answers say
        what a project sees: no hosts but those of its instances.
        """
        other = copy(self)
        other.project = project
        other._is_for_member = for_member
        return other

    @property
    def _bus(self) -> BusClient:
        if self._opened is None:
            raise RuntimeError("the client is not open: use it inside `async with Client(...) as moor:`")
        return self._opened.for_member() if self._is_for_member else self._opened

    def _watch(self, project: str) -> InstanceWatch:
        if project not in self._watches:
            self._watches[project] = InstanceWatch(self._bus, project)
        return self._watches[project]

    def _run_beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run this until it ends, or until the client is closed."""
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
        return task

    async def _ask(self, question: Message, kind: type[T]) -> T:
        with self._raising(question):
            return await answer_of(self._bus, question, kind)

    async def _one(
        self, question: Message, kind: type[P], items: Callable[[P], Sequence[T]], what: str, name: object
    ) -> T:
        """The only item that the answer has, which is that with this name or id. Raises `NotFound`."""
        # Without a name the question would be for all of them.
        found = items(await self._ask(question, kind)) if name else ()
        if not found:
            raise NotFound(what, str(name))
        return found[0]

    @contextmanager
    def _raising(self, question: Message | None = None) -> Iterator[None]:
        """Turn what the bus raises into errors of the client."""
        request_id = getattr(question, "request_id", None)
        try:
            yield
        except NoAnswer as late:
            if self._opened is not None and (trouble := self._opened.trouble):
                raise BrokerAway(trouble, request_id) from late
            what = type_of(question) if question is not None else "the question"
            raise NotInTime(f"no worker has answered {what}", self.patience_s, (), request_id) from late
        except AccessRefused as refused:
            raise NotAllowed(str(refused), request_id) from refused
        except Refusal as refused:
            raise BrokerRefused(str(refused), request_id) from refused
        except ConnectionLost as lost:
            raise BrokerAway(str(lost), request_id) from lost


def _of_the_commands() -> tuple[str, str]:
    """The URL and the project that the `moor` commands would use."""
    # Reading them loads the settings of all workers.
    from moor.settings import GENERAL, sources  # noqa: PLC0415

    found = sources(os.environ, here=Path.cwd())
    return found.of_command({}).bus_url, found.of(GENERAL).project


class Listing(Generic[T, P]):
    """Things that are read page by page: `async for each in listing`, all of them by `await listing`, or one page after the other, as
    the messages that have them.

    The next page is asked for when the caller gets to it.
    """

    def __init__(
        self,
        session: ClientSession,
        question: Message | Callable[[], Awaitable[Message]],
        kind: type[P],
        items: Callable[[P], Iterable[T]],
    ) -> None:
        """A function makes the question where it has to find first what its caller names."""
        self._session = session
        self._question = question
        self._kind = kind
        self._items = items

    def __aiter__(self) -> AsyncIterator[T]:
        return self.items()

    def items_on(self, page: P) -> Iterable[T]:
        """The items that a page has."""
        return self._items(page)

    async def items(self) -> AsyncGenerator[T, None]:
        """All of them, one after the other."""
        async with aclosing(self.pages()) as pages:
            async for page in pages:
                for item in self._items(page):
                    yield item

    async def pages(self) -> AsyncGenerator[P, None]:
        """All pages. A page has more than its things: the cells of instances, for example."""
        with self._session._raising():
            bus = self._session._bus
        question = await self._asked()
        pages = pages_of(bus, question, self._kind)
        while True:
            with self._session._raising(question):
                page = await anext(pages, None)
            if page is None:
                return
            yield page

    async def page(self, after: Any = None, size: int = 100) -> P:
        """The page of at most so many that begins after what the page before calls `next`; without that, the first one."""
        fields = {"limit": size, "after": after} if after else {"limit": size}
        return await self._session._ask(structs.replace(await self._asked(), **fields), self._kind)

    async def _asked(self) -> Message:
        return self._question if isinstance(self._question, Message) else await self._question()

    def __await__(self) -> Generator[Any, None, list[T]]:
        """All of them: `await listing`."""
        return self.first(sys.maxsize).__await__()

    async def first(self, most: int) -> list[T]:
        """The first of them, at most so many."""
        return [item for page in await self.beginning(most) for item in self._items(page)][:most]

    async def beginning(self, most: int) -> list[P]:
        """The first pages, until they have so many items."""
        found: list[P] = []
        left = most
        async with aclosing(self.pages()) as pages:
            async for page in pages:
                found.append(page)
                left -= len([*self._items(page)])
                if left <= 0:
                    break
        return found


class SentRequest:
    """A build, a move, a rebuild or a delete that a scheduler has taken.

    `id` is the request's id: to send the order again with it is harmless. `instances` are the instances concerned.
    `is_over(state)` says whether the order has ended in the instance of this state, and `why_not_done(state)` why it has failed
    there; empty if it has not.
    """

    def __init__(
        self,
        session: ClientSession,
        id_: RequestId,
        instances: Sequence[InstanceId],
        *,
        what: str,
        project: str,
        is_over: Callable[[InstanceState], bool],
        why_not_done: Callable[[InstanceState], str],
        known: Sequence[InstanceState] = (),
    ) -> None:
        self.id = id_
        self.instances = tuple(instances)
        self._session = session
        self._what = what
        self._project = project
        self.is_over = is_over
        self.why_not_done = why_not_done
        self._known = {each.id: each for each in known if each.id in self.instances}

    @property
    def states(self) -> tuple[InstanceState, ...]:
        """The instances as this request has last heard of them, in the order of `instances`."""
        return tuple(self._known[id_] for id_ in self.instances if id_ in self._known)

    async def follow(self, timeout_s: float | None = None) -> AsyncGenerator[InstanceState, None]:
        """Yield the state of each instance, and each new state, until the order has ended in all of them.

        Raises `NotInTime` after `timeout_s` (the client's, if it is None). The order then goes on.
        """
        limit_s = self._session.timeout_s if timeout_s is None else timeout_s
        by_s = asyncio.get_running_loop().time() + limit_s
        under_way = set(self.instances)
        watch = self._session._watch(self._project)
        with watch.of(self.instances, self.states) as told:
            while under_way:
                try:
                    async with asyncio.timeout_at(by_s):
                        state = await told.get()
                except TimeoutError:
                    what = (
                        f"{self._what} has not ended in {len(under_way)} of {len(self.instances)} instances"
                    )
                    raise NotInTime(what, limit_s, self.states, self.id) from None
                if isinstance(state, BaseException):
                    with self._session._raising():
                        raise state
                self._known[state.id] = state
                if self.is_over(state):
                    under_way.discard(state.id)
                yield state

    async def until_ended(
        self,
        timeout_s: float | None = None,
        tell: Callable[[tuple[InstanceState, ...]], None] = lambda _: None,
    ) -> tuple[InstanceState, ...]:
        """Wait until the order has ended, well or not, and return the states of the instances.

        The schedulers know of the end then, too: they take the next order for these instances. `tell` is called with the states
        at each change.
        """
        async with aclosing(self.follow(timeout_s)) as states:
            async for _ in states:
                tell(self.states)
        with self._session._raising():
            await self._session._bus.until_known(self.states, self._project)
        return self.states

    async def until_done(self, timeout_s: float | None = None) -> tuple[InstanceState, ...]:
        """Wait until the order has ended, and return the states of the instances.

        Raises `NotDone` if it has failed in one of them, or `NoHostFound` if there was no host for one.
        """
        states = await self.until_ended(timeout_s)
        failed = [each for each in states if self.why_not_done(each)]
        if not failed:
            return states
        reasons = dict.fromkeys(f"{each.name or each.id}: {self.why_not_done(each)}" for each in failed)
        reason = f"{self._what} has failed in {len(failed)} of {len(states)} instances: {'; '.join(reasons)}"
        funnel = next((each.no_valid_host for each in failed if each.no_valid_host is not None), None)
        if funnel is not None:
            raise NoHostFound(states, reason, self.id, funnel)
        raise NotDone(states, reason, self.id)


# The arguments of builds and moves, by name, the messages that they make, and the ids of our own requests.

# The states of instances (the bus's reference, `InstanceState`).
StateName = Literal[
    "accepted",
    "waiting",
    "placed",
    "building",
    "active",
    "rebuilding",
    "moving",
    "moved",
    "stopped",
    "shelved",
    "offloaded",
    "error",
    "deleting",
    "deleted",
]


class BuildFields(TypedDict, total=False):
    """The fields of a build request beside its flavor (the bus's reference describes each).

    `image_name` names a stored image. `image` may be an image's source alone, `wait` the seconds, and `member_of` single aggregates.
    A group, an instance or an aggregate may be named by its id, its name, or the beginning of its id.
    """

    request_id: UUID
    count: int
    all_or_nothing: bool
    instance_ids: Sequence[UUID]
    name: str
    project: str
    user: str
    image: Image | str
    image_name: str
    image_properties: Mapping[str, str]
    availability_zone: str
    place: str
    group: JoinedGroup | UUID | str
    hosts: Sequence[str]
    ignore_hosts: Sequence[str]
    different_host: Sequence[UUID | str]
    same_host: Sequence[UUID | str]
    member_of: Sequence[UUID | str | Sequence[UUID]]
    forbidden_aggregates: Sequence[UUID | str]
    deadline_s: int | None
    config_drive: str
    ports: Sequence[str]
    port_requests: Sequence[PortRequest]
    volume_requests: Sequence[VolumeRequest]
    wait: Wait | int
    priority: int
    alternatives: Sequence[Flavor]


class OrderFields(TypedDict, total=False):
    """What every order about one instance may name. An order with a `request_id` of yours may be sent again."""

    request_id: UUID
    project: str
    deadline_s: int | None


class MoveFields(OrderFields, total=False):
    """The fields of a move to another host: one of `hosts`, together with its group, and how it waits for room. With `source` it moves only
    if it is there, and with `source_epoch` while that host has the setting of this number.
    """

    hosts: Sequence[str]
    with_group: bool
    wait: MoveWait | int
    for_user: str
    source: str
    source_epoch: int


def read_request(content: bytes) -> BuildInstance:
    """A build request from JSON, as a scheduler reads it: an unknown key is an error. Raises ValueError."""
    read = CODEC.decode(b'{"message": %b}' % content)
    if isinstance(read, Envelope) and isinstance(read.message, BuildInstance):
        return read.message
    raise ValueError(read.reason if isinstance(read, Unreadable) else "the file has no build.request")


def build_of(
    flavor: BuildInstance | Flavor | str | Sequence[str], project: str, fields: BuildFields
) -> BuildInstance:
    """The build request as its receiver reads it. Raises `Rejected` for a value that cannot be sent."""
    if isinstance(flavor, BuildInstance):
        return as_received(flavor)
    given = cast("dict[str, Any]", {"project": project, **fields})
    if isinstance(group := given.get("group"), UUID):
        given["group"] = JoinedGroup(id=GroupId(group))
    if isinstance(image := given.get("image"), str):
        given["image"] = Image(source=image)
    if isinstance(wait := given.get("wait"), int):
        given["wait"] = Wait(for_s=wait)
    if "member_of" in given:
        given["member_of"] = [
            (AggregateId(each),) if isinstance(each, UUID) else each for each in given["member_of"]
        ]
    if isinstance(flavor, Flavor):
        return as_received(BuildInstance(flavor=flavor, **given))
    names = (flavor,) if isinstance(flavor, str) else tuple(flavor)
    return as_received(BuildInstance(flavor_names=names, **given))


def move_of(
    instance: UUID, kind: MoveKind, project: str, fields: Mapping[str, Any], **more: Any
) -> MoveInstance:
    """The order to move, as its receiver reads it. Raises `Rejected` for a value that cannot be sent."""
    given = {"project": project, **fields, **more}
    given["wait"] = wait_of(given.get("wait"))
    given["request_id"] = order_id(given.get("request_id"))
    return as_received(MoveInstance(instance=InstanceId(instance), kind=kind, **given))


def wait_of(wait: MoveWait | int | None) -> MoveWait | None:
    """How a move waits; a number is the seconds."""
    return MoveWait(for_s=wait) if isinstance(wait, int) else wait


def order_id(stated: UUID | None) -> RequestId:
    """The id of an order: the caller's, or a new one."""
    return RequestId(stated) if stated is not None else new_request_ids(1)[0]


_UUID7 = 0x7 << 76 | 0b10 << 62
_RANDOM_BITS = (1 << 76) - 1 & ~(0b11 << 62)


def new_request_ids(count: int) -> list[RequestId]:
    """Make new request ids, as uuid7: 48 bits are the time in milliseconds, and 74 are random.

    So the ids of one time begin alike, and databases store their rows together.
    """
    since = time.time_ns() // 1_000_000 << 80 | _UUID7
    chance = os.urandom(10 * count)
    # Half as dear as UUID(int=...).
    return [
        RequestId(
            convert((since | int.from_bytes(chance[place : place + 10]) & _RANDOM_BITS).to_bytes(16), UUID)
        )
        for place in range(0, len(chance), 10)
    ]
