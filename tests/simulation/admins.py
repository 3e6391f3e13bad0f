"""Administrators that write to placement directly. Two use the bus. The third acts as an HTTP server does: it has its
own connection to the database, and answers reads from a view.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from bus.broker import Broker
from bus.message import Message
from bus.messages.administration import (
    AskCandidates,
    AskConsumer,
    AskHolders,
    AskNames,
    AskUsages,
    CandidatesFound,
    ConsumerFound,
    ConsumerState,
    HoldersFound,
    NamesFound,
    RequestGroup,
    UsagesFound,
    Write,
    WriteAnswered,
    WriteVerdict,
)
from bus.messages.placement import AskSnapshot, SnapshotPage
from bus.workers.station import Station
from engine.inventories import ConsumerId, ProviderId, ProviderState
from kit.errors import Failure, Transient
from placement_worker.admin_writes import WriteBatcher
from placement_worker.store_sql import SqlPlacementStore
from placement_worker.view import ProviderReplica, ProviderView
from placement_worker.wiring import STANDARD
from tests.simulation.admin_ops import Admin, BooksApi
from tests.simulation.faulty_database import CommitObserver, FaultyDatabase
from tests.simulation.findings import Findings
from tests.simulation.fixtures import AGGREGATES
from tests.simulation.loop import until_s
from tests.simulation.plan import AdminOp, Plan
from tests.simulation.process import SimProcess
from tests.simulation.stored_books import InspectableStore
from tests.simulation.view_oracle import caught_up_replica, compare_candidates
from tests.simulation.workers import BUS

A = TypeVar("A", bound=Message)
T = TypeVar("T")
PAGE = 20


class Admins:
    def __init__(
        self, plan: Plan, findings: Findings, books: InspectableStore, observer: CommitObserver
    ) -> None:
        self._plan = plan
        self._findings = findings
        self._books = books
        self._observer = observer
        # The view of the HTTP server's latest incarnation; compared with the books at the end.
        self.view: ProviderView | None = None

    async def run(self, process: SimProcess, broker: Broker) -> None:
        if process.name.startswith("http"):
            await self._serve(process)
            return
        station = Station(
            broker, process.name, settings=BUS, asks=True, clock=process.clock, chance=process.chance
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(station.run())
            tasks.create_task(self._work(process, BusApi(station)))

    async def _serve(self, process: SimProcess) -> None:
        store = SqlPlacementStore(FaultyDatabase(self._books.tables, process, self._observer))
        view = self.view = ProviderView(store, PAGE)
        batcher = WriteBatcher(store, STANDARD, process.clock)
        await self._work(process, HttpServerApi(batcher, view, store, self._books, self._findings))

    async def _work(self, process: SimProcess, api: BooksApi) -> None:
        """Start all operations of this administrator. A restarted process starts only those that are still due."""
        admin = Admin(api, asyncio.sleep)
        now_s = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as tasks:
            for op in self._plan.admin_ops:
                if op.admin == process.name and op.at_s >= now_s:
                    tasks.create_task(self._do(admin, op))

    async def _do(self, admin: Admin, op: AdminOp) -> None:
        await until_s(op.at_s)
        self._findings.log(op.admin, "begins: {}", op.action)
        await admin.do(op.action, random.Random(op.seed))


class BusApi:
    """Reaches placement over the bus. It asks again until it is answered, so placement may see the same write several
    times.
    """

    def __init__(self, station: Station) -> None:
        self._station = station

    async def write(self, write: Write) -> WriteVerdict:
        return (await self._ask(write, WriteAnswered)).verdict

    async def providers(self) -> Mapping[ProviderId, ProviderState]:
        known: dict[ProviderId, ProviderState] = {}
        after: int | None = 0
        while after is not None:
            page = await self._ask(AskSnapshot(after=after, limit=PAGE), SnapshotPage)
            known |= {state.id: state for state in page.providers}
            after = page.next
        return known

    async def consumer(self, consumer: ConsumerId) -> ConsumerState | None:
        return (await self._ask(AskConsumer(consumer=consumer), ConsumerFound)).consumer

    async def holders_of(self, provider: ProviderId) -> Sequence[ConsumerState]:
        holders: list[ConsumerState] = []
        after: ConsumerId | None = None
        while True:
            page = await self._ask(AskHolders(provider=provider, after=after, limit=PAGE), HoldersFound)
            holders += page.holders
            after = page.next
            if after is None:
                return holders

    async def query(self) -> None:
        await self._ask(AskUsages(project="admins"), UsagesFound)
        await self._ask(AskNames(of="traits", limit=1), NamesFound)
        cpus = RequestGroup(resources={"VCPU": 1}, member_of=(AGGREGATES,))
        await self._ask(AskCandidates(groups=(cpus,)), CandidatesFound)

    async def _ask(self, question: Message, kind: type[A]) -> A:
        while True:
            try:
                answer = await self._station.ask(question)
            except Failure:
                await asyncio.sleep(1)
                continue
            assert isinstance(answer, kind), f"{question!r} was answered by {answer!r}"
            return answer


class HttpServerApi:
    """Works as an HTTP server does: writes go to the write batcher, reads to the view, reads of consumers to the
    database.
    """

    def __init__(
        self,
        batcher: WriteBatcher,
        view: ProviderView,
        store: SqlPlacementStore,
        books: InspectableStore,
        findings: Findings,
    ) -> None:
        self._batcher = batcher
        self._view = view
        self._store = store
        self._books = books
        self._findings = findings

    async def write(self, write: Write) -> WriteVerdict:
        return await _until_available(lambda: self._batcher.ask(write))

    async def providers(self) -> Mapping[ProviderId, ProviderState]:
        replica = await self._caught_up()
        return {state.id: state for state in replica}

    async def consumer(self, consumer: ConsumerId) -> ConsumerState | None:
        return await _until_available(lambda: self._store.consumer(consumer))

    async def holders_of(self, provider: ProviderId) -> Sequence[ConsumerState]:
        return await _until_available(lambda: self._store.holders_of(provider, None, 1_000))

    async def query(self) -> None:
        """Compare the candidates found in the view with those found in the books."""
        compare_candidates(await self._caught_up(), self._books, self._findings)

    async def _caught_up(self) -> ProviderReplica:
        return await _until_available(lambda: caught_up_replica(self._view, self._books, self._findings))


async def _until_available(request: Callable[[], Awaitable[T]]) -> T:
    """Repeat the request while the service is unavailable, as an HTTP client does."""
    while True:
        try:
            return await request()
        except Transient:
            await asyncio.sleep(0.5)
