"""The public client: for asyncio, and for programs without it."""

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from bus.message import Message
from bus.messages.build import InstanceState
from engine.flavors import InstanceId, RequestId
from engine.hosts import HostState
from engine.inventories import near
from kit.errors import ConnectionLost
from kit.process import during
from moor.client.bus_client import CLOSED, hosts_of
from moor.client.dead_letters import DeadLetterCalls
from moor.client.errors import NotFound
from moor.client.hosts import AggregateCalls, HostCalls
from moor.client.instances import ConsoleCalls, MoveCalls, PlanCalls
from moor.client.placement import PlacementCalls
from moor.client.requests import Listing, SentRequest
from moor.client.stored import StoredCalls

if TYPE_CHECKING:
    from engine.inventories import ConsumerId
    from moor.client.books.auditing import AuditResult, Finding, ListsNodes
    from moor.client.books.books_reader import BooksReader
    from moor.client.books.rules import NodeInIronic, NovaToAsk

# If the caller is slower than the events, the others wait at the broker, which drops the oldest at its limit.
EVENTS_AHEAD_MAX = 1_000


class Client(
    MoveCalls,
    ConsoleCalls,
    PlanCalls,
    StoredCalls,
    HostCalls,
    AggregateCalls,
    PlacementCalls,
    DeadLetterCalls,
):
    """A client of Moorage on its bus: `async with Client(url) as moor:`."""

    async def events(self, *keys: str) -> AsyncGenerator[Message, None]:
        """The events with these routing keys from now on, such as `instance.#` or `build.#`; `*` is one word, `#` any.

        The subscription begins when the first event is asked for. Events may be missed while the broker is away: each has the whole
        state of its subject. Only events of the client's project, if it has one. To wait for a request, follow it instead.
        """
        heard: asyncio.Queue[Message] = asyncio.Queue(EVENTS_AHEAD_MAX)
        # A task of the session, which ends it even if the caller abandons the iterator.
        hearing = self._run_beside(self._hear(keys, heard))
        try:
            while True:
                with self._raising():
                    event = (
                        await during(heard.get(), _failure_of(hearing))
                        if heard.empty()
                        else heard.get_nowait()
                    )
                yield event
        finally:
            hearing.cancel()

    async def audit(
        self,
        *,
        settle_s: float = 60.0,
        heal: bool = False,
        remove_strays: bool = False,
        cell: str = "",
        host: str = "",
        cells: Sequence[str] = (),
        below: "Mapping[str, Client] | None" = None,
        tell: "Callable[[Finding], None]" = lambda _: None,
        nova: "NovaToAsk | None" = None,
        ironic: "ListsNodes | None" = None,
    ) -> "AuditResult":
        """Compare the books of placement, the API level, the cells and their hosts, while boots go on; with `heal` mend what differs.

        With `cell` or `host` only of the instances there. What changed in the last `settle_s` seconds is in flight, and not judged.
        With `remove_strays`, hosts remove what no row knows. `cells` are cells that must answer though they have no hosts; `below`
        has the client of each cell with a broker of its own. `tell` is called with each finding at once. `nova` says whether a Nova
        needs what it holds, `ironic` lists the nodes of an Ironic. For operators.
        """
        # An audit is many modules, and few programs make one.
        from moor.client.books.auditing import AuditOptions, audited  # noqa: PLC0415

        with self._raising():
            hosts = await hosts_of(self._bus)
            names = {each.cell for each in hosts}
            if cell and cell not in names:
                raise NotFound("cell", cell, near=near(cell, names))
            options = AuditOptions(
                settle=timedelta(seconds=settle_s),
                heals=heal,
                removes_strays=remove_strays,
                cell=cell,
                host=(await self.show_host(host)).id if host else None,
            )
            reader = self._books(hosts, cells, below)
            return await audited(reader, options, tell, hosts=hosts, nova=nova, ironic=ironic)

    async def why_no_strays(
        self,
        nodes: "Sequence[NodeInIronic]",
        *,
        settle_s: float = 60.0,
        cells: Sequence[str] = (),
        below: "Mapping[str, Client] | None" = None,
    ) -> "dict[ConsumerId, str]":
        """Which of the instances on these bare-metal nodes somebody has in the books, or may have, and who. For operators."""
        from moor.client.books.auditing import why_no_strays  # noqa: PLC0415 - as above

        with self._raising():
            reader = self._books(await hosts_of(self._bus), cells, below)
            return await why_no_strays(reader, nodes, timedelta(seconds=settle_s))

    def _books(
        self, hosts: Sequence[HostState], cells: Sequence[str], below: "Mapping[str, Client] | None"
    ) -> "BooksReader":
        from moor.client.books.auditing import with_computes  # noqa: PLC0415 - as above
        from moor.client.books.books_reader import BooksReader  # noqa: PLC0415

        below = below or {}
        names = {*cells, *below, *[each.cell for each in hosts]}
        at = {name: below[name]._bus if name in below else self._bus for name in names}  # noqa: SLF001 - of this class
        return BooksReader(self._bus, at, with_computes(hosts))

    async def event_batches(self, *keys: str) -> AsyncGenerator[Sequence[Message], None]:
        """The same events, as many at once as have come. The first batch is empty, and says that the subscription is active; so is the
        first one after each interruption, and no other.
        """
        with self._raising():
            async with aclosing(self._bus.listen(*keys, project=self.project)) as batches:
                async for batch in batches:
                    yield batch

    async def _hear(self, keys: tuple[str, ...], heard: asyncio.Queue[Message]) -> None:
        async with aclosing(self._bus.listen(*keys, project=self.project)) as batches:
            async for batch in batches:
                for each in batch:
                    await heard.put(each)


async def _failure_of(hearing: asyncio.Task[None]) -> None:
    await asyncio.wait((hearing,))
    if hearing.cancelled():
        raise ConnectionLost(CLOSED)
    hearing.result()


# The public client for programs without asyncio. Each method runs that of `Client`, on an event loop in a thread of its own.

T = TypeVar("T")
P = TypeVar("P")
Args = ParamSpec("Args")


class SyncSentRequest:
    """A `SentRequest`, for programs without asyncio."""

    def __init__(self, request: SentRequest, client: "SyncClient") -> None:
        self._request = request
        self._client = client

    @property
    def id(self) -> RequestId:
        return self._request.id

    @property
    def instances(self) -> tuple[InstanceId, ...]:
        return self._request.instances

    @property
    def states(self) -> tuple[InstanceState, ...]:
        """The instances as this request has last heard of them."""
        return self._request.states

    def follow(self, timeout_s: float | None = None) -> Iterator[InstanceState]:
        """Yield the state of each instance, and each new state, until the order has ended in all of them."""
        return self._client.iterate(self._request.follow(timeout_s))

    def until_ended(
        self,
        timeout_s: float | None = None,
        tell: Callable[[tuple[InstanceState, ...]], None] = lambda _: None,
    ) -> tuple[InstanceState, ...]:
        """Wait until the order has ended, well or not, and return the states of the instances. `tell` is called with them at each change,
        in the client's thread.
        """
        return self._client.run(self._request.until_ended(timeout_s, tell))

    def until_done(self, timeout_s: float | None = None) -> tuple[InstanceState, ...]:
        """Wait until the order has ended, and return the states. Raises `NotDone` or `NoHostFound` if it has failed."""
        return self._client.run(self._request.until_done(timeout_s))


class SyncListing(Generic[T, P]):
    """A `Listing`, for programs without asyncio."""

    def __init__(self, listing: Listing[T, P], client: "SyncClient") -> None:
        self._listing = listing
        self._client = client

    def __iter__(self) -> Iterator[T]:
        return self._client.iterate(self._listing.items())

    def pages(self) -> Iterator[P]:
        return self._client.iterate(self._listing.pages())

    def page(self, after: Any = None, size: int = 100) -> P:
        return self._client.run(self._listing.page(after, size))

    def first(self, most: int) -> list[T]:
        return self._client.run(self._listing.first(most))


def _waits(
    method: Callable[Concatenate[Client, Args], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["SyncClient", Args], T]:
    @functools.wraps(method)
    def waiting(self: "SyncClient", /, *args: Args.args, **kwargs: Args.kwargs) -> T:
        return self.run(method(self.client, *args, **kwargs))

    return waiting


def _orders(
    method: Callable[Concatenate[Client, Args], Coroutine[Any, Any, SentRequest]],
) -> Callable[Concatenate["SyncClient", Args], SyncSentRequest]:
    @functools.wraps(method)
    def ordering(self: "SyncClient", /, *args: Args.args, **kwargs: Args.kwargs) -> SyncSentRequest:
        return SyncSentRequest(self.run(method(self.client, *args, **kwargs)), self)

    return ordering


def _lists(
    method: Callable[Concatenate[Client, Args], Listing[T, P]],
) -> Callable[Concatenate["SyncClient", Args], SyncListing[T, P]]:
    @functools.wraps(method)
    def listing(self: "SyncClient", /, *args: Args.args, **kwargs: Args.kwargs) -> SyncListing[T, P]:
        return SyncListing(method(self.client, *args, **kwargs), self)

    return listing


def _iterates(
    method: Callable[Concatenate[Client, Args], AsyncGenerator[T, None]],
) -> Callable[Concatenate["SyncClient", Args], Iterator[T]]:
    @functools.wraps(method)
    def iterating(self: "SyncClient", /, *args: Args.args, **kwargs: Args.kwargs) -> Iterator[T]:
        return self.iterate(method(self.client, *args, **kwargs))

    return iterating


class SyncClient:
    """`Client` for programs without asyncio: `with SyncClient(url) as moor:`. Several threads may use it at once."""

    def __init__(
        self,
        url: str = "",
        *,
        project: str | None = None,
        patience_s: float = 30.0,
        timeout_s: float = 120.0,
        as_operator: bool = False,
    ) -> None:
        self.client = Client(
            url, project=project, patience_s=patience_s, timeout_s=timeout_s, as_operator=as_operator
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="moor client", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.run(self.client.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.run(self.client.__aexit__(kind, error, trace))
        finally:
            self._end()

    def _end(self) -> None:
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def of_project(self, project: str, *, for_member: bool = False) -> Self:
        """This client, on the same connection, for a project: its orders and questions name it. With `for_member`, answers say
        what a project sees: no hosts but those of its instances.
        """
        other = copy(self)
        other.client = self.client.of_project(project, for_member=for_member)
        return other

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run this on the client's loop and return its result."""
        if not self._thread.is_alive():
            work.close()
            raise RuntimeError("the client is not open: use it inside `with SyncClient(...) as moor:`")
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("this is the client's own thread: it would wait for itself for ever")
        done = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return done.result()
        except BaseException:
            # Ctrl-C here ends the work there.
            done.cancel()
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield what the generator yields on the client's loop."""
        try:
            while True:
                try:
                    item = self.run(_next(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            # A generator that nobody finished may outlive the client.
            if self._thread.is_alive():
                self.run(items.aclose())

    boot = _orders(Client.boot)
    find_request = _orders(Client.find_request)
    delete = _orders(Client.delete)
    show = _waits(Client.show)
    look = _waits(Client.look)
    instances_called = _waits(Client.instances_called)
    list_instances = _lists(Client.list_instances)
    history = _lists(Client.history)

    migrate = _orders(Client.migrate)
    live_migrate = _orders(Client.live_migrate)
    resize = _orders(Client.resize)
    evacuate = _orders(Client.evacuate)
    shelve = _orders(Client.shelve)
    offload = _orders(Client.offload)
    unshelve = _orders(Client.unshelve)
    stop = _orders(Client.stop)
    start = _orders(Client.start)
    reboot = _orders(Client.reboot)
    confirm = _orders(Client.confirm)
    revert = _orders(Client.revert)
    abort = _orders(Client.abort)
    rebuild = _orders(Client.rebuild)
    list_moves = _lists(Client.list_moves)

    console = _waits(Client.console)
    follow_console = _iterates(Client.follow_console)
    console_parts = _iterates(Client.console_parts)

    plan = _waits(Client.plan)
    verdicts = _lists(Client.verdicts)
    plan_drain = _waits(Client.plan_drain)
    explain = _waits(Client.explain)

    create_flavor = _waits(Client.create_flavor)
    delete_flavor = _waits(Client.delete_flavor)
    show_flavor = _waits(Client.show_flavor)
    list_flavors = _lists(Client.list_flavors)
    create_image = _waits(Client.create_image)
    set_image = _waits(Client.set_image)
    delete_image = _waits(Client.delete_image)
    show_image = _waits(Client.show_image)
    list_images = _lists(Client.list_images)
    create_device_profile = _waits(Client.create_device_profile)
    delete_device_profile = _waits(Client.delete_device_profile)
    show_device_profile = _waits(Client.show_device_profile)
    list_device_profiles = _lists(Client.list_device_profiles)
    create_group = _waits(Client.create_group)
    delete_group = _waits(Client.delete_group)
    show_group = _waits(Client.show_group)
    list_groups = _lists(Client.list_groups)
    set_quota = _waits(Client.set_quota)
    show_quota = _waits(Client.show_quota)
    list_quotas = _lists(Client.list_quotas)
    usage = _waits(Client.usage)
    create_application = _waits(Client.create_application)
    delete_application = _waits(Client.delete_application)
    show_application = _waits(Client.show_application)
    list_applications = _lists(Client.list_applications)

    list_hosts = _lists(Client.list_hosts)
    show_host = _waits(Client.show_host)
    until_choosable = _waits(Client.until_choosable)
    set_host = _waits(Client.set_host)
    adopt_on_node = _waits(Client.adopt_on_node)
    give_back = _waits(Client.give_back)
    delete_host = _waits(Client.delete_host)
    instances_on = _waits(Client.instances_on)
    drain = _waits(Client.drain)
    evacuate_host = _waits(Client.evacuate_host)
    list_capabilities = _lists(Client.list_capabilities)
    list_hosts_having = _lists(Client.list_hosts_having)
    list_cells = _lists(Client.list_cells)
    show_cell = _waits(Client.show_cell)
    overview = _waits(Client.overview)
    tiles = _waits(Client.tiles)

    list_aggregates = _lists(Client.list_aggregates)
    show_aggregate = _waits(Client.show_aggregate)
    create_aggregate = _waits(Client.create_aggregate)
    set_aggregate = _waits(Client.set_aggregate)
    delete_aggregate = _waits(Client.delete_aggregate)

    list_providers = _lists(Client.list_providers)
    show_provider = _waits(Client.show_provider)
    create_provider = _waits(Client.create_provider)
    set_provider = _waits(Client.set_provider)
    delete_provider = _waits(Client.delete_provider)
    list_holders = _lists(Client.list_holders)
    list_traits = _lists(Client.list_traits)
    create_trait = _waits(Client.create_trait)
    delete_trait = _waits(Client.delete_trait)
    list_classes = _lists(Client.list_classes)
    create_class = _waits(Client.create_class)
    delete_class = _waits(Client.delete_class)
    candidates = _waits(Client.candidates)

    list_dead_letters = _waits(Client.list_dead_letters)
    show_dead_letter = _waits(Client.show_dead_letter)
    count_dead_letters = _waits(Client.count_dead_letters)
    replay_dead_letters = _waits(Client.replay_dead_letters)
    delete_dead_letters = _waits(Client.delete_dead_letters)

    audit = _waits(Client.audit)
    why_no_strays = _waits(Client.why_no_strays)

    events = _iterates(Client.events)
    event_batches = _iterates(Client.event_batches)


async def _next(items: AsyncGenerator[T, None]) -> T:
    return await anext(items)
