"""A process's way to its rows: the memory stores, with the moments in which the process may die, and a word to whoever
checks after each commit.

Rows outlive processes. A transaction of a process that dies before its commit leaves nothing, as cancellation has it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Protocol

from bus.handling import Kept
from bus.message import Message, ProviderId
from bus.messages.build import InstanceId
from bus.messages.hosts import HostState
from bus.messages.placement import LogPosition, ProviderState, ReportInventory, RevisionsPage, SnapshotPage
from cell_conductor.core.instance import Instance
from cell_conductor.store import ConductorStore, ConductorTransaction
from compute_sim.core.attempts import Attempted
from compute_sim.store_memory import MemoryComputeStore
from placement_worker.core.ledger import ClaimChanges, ClaimOrder, Forest, Ledger, TreeChanges
from placement_worker.store import ChangeFeed, PlacementStore, PlacementTransaction, Unpublished
from scheduler_worker.instances import InstanceRow
from scheduler_worker.store import (
    Acceptance,
    InstanceQuery,
    Known,
    NewRequest,
    SchedulerStore,
    SchedulerTransaction,
)
from tests.simulation.process import SimProcess

SLOW_OFTEN = 0.1
SLOW_S_MAX = 0.01


class Commits(Protocol):
    """Whoever is told what was committed."""

    def books_written(
        self, orders: Sequence[ClaimOrder], claims: ClaimChanges | None, trees: TreeChanges | None
    ) -> None: ...

    def requests_written(self, rows: Iterable[InstanceRow], hosts: Sequence[HostState]) -> None: ...

    def cell_written(self, rows: Sequence[Instance], forgotten: Sequence[InstanceId]) -> None: ...

    def attempts_changed(self, attempts: Sequence[Attempted]) -> None: ...


async def _on_the_way(process: SimProcess) -> None:
    """Databases are slow now and then, and nobody gets there who is dead."""
    if process.is_dead:
        await asyncio.Event().wait()
    if process.chance.random() < SLOW_OFTEN:
        await asyncio.sleep(process.chance.uniform(0, SLOW_S_MAX))


class PlacementDoor:
    def __init__(self, store: PlacementStore, process: SimProcess, commits: Commits) -> None:
        self._store = store
        self._process = process
        self._commits = commits

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["_BooksTransaction"]:
        await _on_the_way(self._process)
        async with self._store.transaction() as inner:
            tx = _BooksTransaction(inner)
            yield tx
            await self._process.point("before_commit")
        self._commits.books_written(tx.orders, tx.claims, tx.trees)
        await self._process.point("after_commit")

    async def snapshot_page(self, after: int, limit: int) -> SnapshotPage:
        await _on_the_way(self._process)
        return await self._store.snapshot_page(after, limit)

    async def changes_page(self, since: str, after: int, limit: int) -> SnapshotPage | None:
        return await self._store.changes_page(since, after, limit)

    async def revisions_page(self, after: int, limit: int) -> RevisionsPage:
        return await self._store.revisions_page(after, limit)

    @asynccontextmanager
    async def lead_feed(self) -> AsyncIterator[ChangeFeed | None]:
        async with self._store.lead_feed() as feed:
            yield None if feed is None else _Feed(feed, self._process)

    async def prune(self, ended_before: datetime, logged_before: datetime) -> int:
        return await self._store.prune(ended_before, logged_before)

    async def audit(self) -> tuple[str, ...]:
        return await self._store.audit()

    async def close(self) -> None: ...


class _BooksTransaction:
    def __init__(self, inner: PlacementTransaction) -> None:
        self._inner = inner
        self.orders: Sequence[ClaimOrder] = ()
        self.claims: ClaimChanges | None = None
        self.trees: TreeChanges | None = None

    async def lock_claims(self, orders: Sequence[ClaimOrder]) -> Ledger:
        self.orders = orders
        return await self._inner.lock_claims(orders)

    async def write_claims(self, changes: ClaimChanges) -> None:
        self.claims = changes
        await self._inner.write_claims(changes)

    async def lock_trees(self, reports: Sequence[ReportInventory]) -> Forest:
        return await self._inner.lock_trees(reports)

    async def write_trees(self, changes: TreeChanges) -> None:
        self.trees = changes
        await self._inner.write_trees(changes)

    async def read_trees(self, roots: Sequence[ProviderId]) -> tuple[ProviderState, ...]:
        return await self._inner.read_trees(roots)


class _Feed:
    def __init__(self, inner: ChangeFeed, process: SimProcess) -> None:
        self._inner = inner
        self._process = process

    @property
    def published(self) -> LogPosition:
        return self._inner.published

    async def read(self) -> Unpublished:
        return await self._inner.read()

    async def mark(self, position: int, cursor: str) -> None:
        await self._process.point("in_timer")
        await self._inner.mark(position, cursor)


class SchedulerDoor:
    def __init__(self, store: SchedulerStore, process: SimProcess, commits: Commits) -> None:
        self._store = store
        self._process = process
        self._commits = commits

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["_RequestsTransaction"]:
        await _on_the_way(self._process)
        async with self._store.transaction() as inner:
            tx = _RequestsTransaction(inner)
            yield tx
            await self._process.point("before_commit")
        if tx.rows or tx.hosts:
            self._commits.requests_written(tx.rows.values(), tx.hosts)
        await self._process.point("after_commit")

    async def instances(self, query: InstanceQuery) -> Sequence[InstanceRow]:
        await _on_the_way(self._process)
        return await self._store.instances(query)

    async def overdue(self, now: datetime, limit: int) -> Sequence[InstanceId]:
        late = await self._store.overdue(now, limit)
        if late:
            await self._process.point("in_timer")
        return late

    async def unsaid(self, before: datetime, after: InstanceId | None, limit: int) -> Sequence[InstanceRow]:
        rows = await self._store.unsaid(before, after, limit)
        if rows:
            await self._process.point("in_timer")
        return rows

    async def hosts(self, name: str, after: str, limit: int) -> Sequence[HostState]:
        return await self._store.hosts(name, after, limit)

    async def prune(self, ended_before: datetime, limit: int) -> int:
        return await self._store.prune(ended_before, limit)

    async def hosts_of(self, ids: Sequence[ProviderId]) -> Sequence[HostState]:
        await _on_the_way(self._process)
        return await self._store.hosts_of(ids)

    async def hosts_changed(self, since: datetime) -> Sequence[HostState]:
        await _on_the_way(self._process)
        return await self._store.hosts_changed(since)

    async def close(self) -> None: ...


class _RequestsTransaction:
    def __init__(self, inner: SchedulerTransaction) -> None:
        self._inner = inner
        self.rows: dict[InstanceId, InstanceRow] = {}
        self.hosts: list[HostState] = []

    async def accept(self, requests: Sequence[NewRequest]) -> Sequence[Acceptance]:
        acceptances = await self._inner.accept(requests)
        for each in acceptances:
            if isinstance(each, Known):
                self.rows |= {row.id: row for row in each.rows}
        return acceptances

    async def lock(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, InstanceRow]:
        return await self._inner.lock(instances)

    async def save(self, rows: Sequence[InstanceRow]) -> None:
        self.rows |= {row.id: row for row in rows}
        await self._inner.save(rows)

    async def lock_hosts(self, ids: Sequence[ProviderId], names: Sequence[str]) -> Sequence[HostState]:
        return await self._inner.lock_hosts(ids, names)

    async def save_hosts(self, hosts: Sequence[HostState], at: datetime) -> None:
        self.hosts += hosts
        await self._inner.save_hosts(hosts, at)

    async def confirm(self, said: Sequence[Kept]) -> None:
        await self._inner.confirm(said)


class ConductorDoor:
    def __init__(self, store: ConductorStore, process: SimProcess, commits: Commits) -> None:
        self._store = store
        self._process = process
        self._commits = commits

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["_CellTransaction"]:
        await _on_the_way(self._process)
        async with self._store.transaction() as inner:
            tx = _CellTransaction(inner, self._process)
            yield tx
            await self._process.point("before_commit")
        if tx.rows or tx.forgotten:
            self._commits.cell_written(tx.rows, tx.forgotten)
        await self._process.point("after_commit")

    async def clear(self, tx: ConductorTransaction, said: Sequence[Kept]) -> None:
        assert isinstance(tx, _CellTransaction), "a transaction of another store"
        await self._store.clear(tx.inner, said)

    async def pending(self) -> Sequence[tuple[Kept, Message]]:
        await _on_the_way(self._process)
        return await self._store.pending()

    async def read(self, instances: Sequence[InstanceId]) -> tuple[Instance, ...]:
        return await self._store.read(instances)

    async def close(self) -> None: ...


class _CellTransaction:
    def __init__(self, inner: ConductorTransaction, process: SimProcess) -> None:
        self.inner = inner
        self._process = process
        self.rows: Sequence[Instance] = ()
        self.forgotten: Sequence[InstanceId] = ()

    async def load(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Instance]:
        return await self.inner.load(instances)

    async def take_due(self, now: datetime, limit: int) -> Mapping[InstanceId, Instance]:
        rows = await self.inner.take_due(now, limit)
        if rows:
            await self._process.point("in_timer")
        return rows

    async def save(self, rows: Sequence[Instance], forgotten: Sequence[InstanceId]) -> None:
        self.rows, self.forgotten = rows, forgotten
        await self.inner.save(rows, forgotten)


class WatchedComputeStore(MemoryComputeStore):
    """What is really on the hosts of a cell, as long as its process lives."""

    def __init__(self, process: SimProcess, commits: Commits) -> None:
        super().__init__(asyncio.get_running_loop().time)
        self._process = process
        self._commits = commits

    async def save(self, attempts: Iterable[Attempted]) -> None:
        saved = tuple(attempts)
        await super().save(saved)
        if not self._process.is_dead:
            self._commits.attempts_changed(saved)
