"""The public client for asyncio, and an event loop in a thread for programs without it."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

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
from moor.client.hosts import AggregateCalls
from moor.client.instances import ConsoleCalls, MoveCalls, PlanCalls
from moor.client.keeping import KeepingCalls
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
    KeepingCalls,
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
            workers = (seen := await self.overview(once=True)).workers
            options = AuditOptions(
                settle=timedelta(seconds=settle_s),
                heals=heal,
                removes_strays=remove_strays,
                cell=cell,
                host=(await self.show_host(host)).id if host else None,
                # Where none was ever heard, there is nothing to judge.
                keepers=seen.workers_left_out > 0 or any(each.beat.role == "keeper" for each in workers),
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


# For programs without asyncio. sync_client.py makes their client of these.

T = TypeVar("T")
P = TypeVar("P")


class SyncSentRequest:
    """A `SentRequest`, for programs without asyncio."""

    def __init__(self, request: SentRequest, client: "ClientThread") -> None:
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

    def __init__(self, listing: Listing[T, P], client: "ClientThread") -> None:
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


class ClientThread:
    """A `Client`, on an event loop in a thread of its own."""

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


async def _next(items: AsyncGenerator[T, None]) -> T:
    return await anext(items)
