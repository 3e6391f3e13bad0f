"""A scheduler's store that injects faults."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from uuid import UUID

from bus.messages.cloud import InstanceCount
from bus.messages.moves import Change
from bus.messages.stored_names import KnownApplication
from bus.workers.handling import OutboxKey
from engine.flavors import InstanceId
from engine.hosts import Aggregate, HostState
from engine.inventories import AggregateId, GroupId, ProviderId
from kit.errors import Transient
from scheduler_worker.core.aggregates import KeptAggregate
from scheduler_worker.core.hosts import HostLoad
from scheduler_worker.core.instances.lifecycle import CellEvent
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.store import (
    Acceptance,
    AdoptedRow,
    ChangeQuery,
    GroupQuery,
    HostQuery,
    HostVersion,
    InstanceQuery,
    Known,
    KnownCell,
    KnownGroup,
    Named,
    NameQuery,
    NewRequest,
    OutboxNote,
    SchedulerStore,
    SchedulerTransaction,
    WaitingInstance,
    WorkCounts,
)
from tests.simulation.faults import CURSED, CURSED_IDS
from tests.simulation.process import SimProcess
from tests.simulation.store_faults import (
    CommitObserver,
    after_commit,
    before_commit,
    fail_if_armed,
    reach_database,
)


class FaultySchedulerStore:
    def __init__(self, store: SchedulerStore, process: SimProcess, observer: CommitObserver) -> None:
        self._store = store
        self._process = process
        self._observer = observer

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["RequestsTransaction"]:
        await reach_database(self._process)
        async with self._store.transaction() as inner:
            tx = RequestsTransaction(inner, self._process)
            yield tx
            assert tx.unsaid <= tx.noted, (
                "a transaction writes an outbox note for everything it has to publish"
            )
            await before_commit(self._process)
        if tx.rows or tx.hosts:
            self._observer.requests_written(tx.rows.values(), tx.hosts)
        if tx.aggregates:
            self._observer.aggregates_written(tx.aggregates)
        await after_commit(self._process)

    async def instances(self, query: InstanceQuery) -> Sequence[InstanceRow]:
        await reach_database(self._process)
        return await self._store.instances(query)

    async def overdue(self, now: datetime, limit: int) -> Sequence[InstanceId]:
        await reach_database(self._process)
        late = await self._store.overdue(now, limit)
        if late:
            await self._process.point("in_timer")
        return late

    async def unconfirmed(
        self, before: datetime, after: OutboxKey | None, limit: int
    ) -> Sequence[OutboxNote]:
        await reach_database(self._process)
        notes = await self._store.unconfirmed(before, after, limit)
        if notes:
            await self._process.point("in_timer")
        return notes

    async def hosts(self, query: HostQuery) -> Sequence[HostState]:
        await reach_database(self._process)
        return await self._store.hosts(query)

    async def host_versions(self, changed_since: datetime) -> Sequence[tuple[ProviderId, HostVersion]]:
        await reach_database(self._process)
        return await self._store.host_versions(changed_since)

    async def host_loads(self) -> Sequence[HostLoad]:
        await reach_database(self._process)
        return await self._store.host_loads()

    async def prune(self, ended_before: datetime, limit: int) -> int:
        await reach_database(self._process)
        return await self._store.prune(ended_before, limit)

    async def changes(self, query: ChangeQuery) -> Sequence[Change]:
        return await self._store.changes(query)

    async def cells(self) -> Sequence[KnownCell]:
        await reach_database(self._process)
        return await self._store.cells()

    async def instance_counts(self) -> Sequence[InstanceCount]:
        await reach_database(self._process)
        return await self._store.instance_counts()

    async def work_counts(self) -> WorkCounts:
        await reach_database(self._process)
        return await self._store.work_counts()

    async def applications(self) -> Sequence[KnownApplication]:
        return await self._store.applications()

    async def aggregates(self) -> Sequence[Aggregate]:
        return await self._store.aggregates()

    @asynccontextmanager
    async def ordering_aggregates(self) -> AsyncIterator[None]:
        # The transactions inside reach the database.
        async with self._store.ordering_aggregates():
            yield

    async def named(self, kind: type[Named], query: NameQuery) -> Sequence[Named]:
        return await self._store.named(kind, query)

    async def groups(self, query: GroupQuery) -> Sequence[KnownGroup]:
        return await self._store.groups(query)

    async def waiting_digests(self, instances: Collection[InstanceId] | None) -> Collection[bytes]:
        return await self._store.waiting_digests(instances)

    async def one_waiting_of_each(self, digests: Sequence[bytes]) -> Sequence[WaitingInstance]:
        await reach_database(self._process)
        return await self._store.one_waiting_of_each(digests)

    async def some_are_woken(self) -> bool:
        await reach_database(self._process)
        return await self._store.some_are_woken()

    async def close(self) -> None: ...


class RequestsTransaction:
    def __init__(self, inner: SchedulerTransaction, process: SimProcess) -> None:
        self._inner = inner
        self._process = process
        self.rows: dict[InstanceId, InstanceRow] = {}
        self.hosts: list[HostState] = []
        self.aggregates: list[KeptAggregate] = []
        # Instances that get something to publish by this transaction, and had nothing before.
        self.unsaid: set[InstanceId] = set()
        self.noted: set[InstanceId] = set()
        self._unsaid_before: set[InstanceId] = set()

    async def adopt(self, rows: Sequence[AdoptedRow]) -> Sequence[InstanceId]:
        return await self._inner.adopt(rows)

    async def accept(self, requests: Sequence[NewRequest]) -> Sequence[Acceptance]:
        fail_if_armed(self._process, "deadlock")
        if any(_is_cursed(row) for request in requests for row in request.rows):
            raise Transient("database: this row is always refused")
        acceptances = await self._inner.accept(requests)
        for request, each in zip(requests, acceptances, strict=True):
            if isinstance(each, Known):
                self.rows |= {row.id: row for row in each.rows}
                self._written([row for row in request.rows if row in each.rows])
        return acceptances

    async def lock(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, InstanceRow]:
        fail_if_armed(self._process, "deadlock")
        found = await self._inner.lock(instances)
        self._unsaid_before |= {row.id for row in found.values() if row.unsaid}
        return found

    async def decide(self, rows: Sequence[InstanceRow]) -> Mapping[InstanceId, InstanceRow]:
        others = await self._inner.decide(rows)
        self.rows |= {row.id: row for row in rows if row.id not in others}
        self._written([row for row in rows if row.id not in others])
        return others

    async def save(self, rows: Sequence[InstanceRow]) -> None:
        self.rows |= {row.id: row for row in rows}
        await self._inner.save(rows)
        self._written(rows)

    def _written(self, rows: Sequence[InstanceRow]) -> None:
        self.unsaid |= {row.id for row in rows if row.has_to_say} - self._unsaid_before

    async def apply_events(self, words: Sequence[CellEvent]) -> int:
        fail_if_armed(self._process, "deadlock")
        spoken_of = [word.instance.id for word in words]
        before = await self._inner.lock(spoken_of)
        heard_of = await self._inner.apply_events(words)
        after = await self._inner.lock(spoken_of)
        self.rows |= {id_: row for id_, row in after.items() if row != before[id_]}
        return heard_of

    async def lock_moves(self) -> Sequence[Change]:
        return await self._inner.lock_moves()

    async def lock_hosts(self, ids: Sequence[ProviderId], names: Sequence[str]) -> Sequence[HostState]:
        fail_if_armed(self._process, "deadlock")
        return await self._inner.lock_hosts(ids, names)

    async def save_loads(self, loads: Sequence[HostLoad]) -> int:
        fail_if_armed(self._process, "deadlock")
        return await self._inner.save_loads(loads)

    async def forget_hosts(self, hosts: Sequence[ProviderId]) -> None:
        await self._inner.forget_hosts(hosts)

    async def save_hosts(self, hosts: Sequence[HostState], at: datetime) -> None:
        self.hosts += hosts
        await self._inner.save_hosts(hosts, at)

    async def save_cells(self, cells: Sequence[KnownCell]) -> None:
        await self._inner.save_cells(cells)

    async def set_application(
        self, name: str, sent_at: datetime, application: KnownApplication | None
    ) -> KnownApplication | None:
        return await self._inner.set_application(name, sent_at, application)

    async def lock_aggregates(self) -> Sequence[KeptAggregate]:
        return await self._inner.lock_aggregates()

    async def save_aggregate(self, aggregate: KeptAggregate) -> None:
        self.aggregates.append(aggregate)
        await self._inner.save_aggregate(aggregate)

    async def forget_aggregate(self, aggregate: AggregateId) -> None:
        await self._inner.forget_aggregate(aggregate)

    async def create_named(self, named: Named) -> Named:
        return await self._inner.create_named(named)

    async def lock_named(self, kind: type[Named], name: str) -> Named | None:
        return await self._inner.lock_named(kind, name)

    async def save_named(self, named: Named) -> None:
        await self._inner.save_named(named)

    async def delete_named(self, kind: type[Named], name: str) -> Named | None:
        return await self._inner.delete_named(kind, name)

    async def create_group(self, group: KnownGroup) -> KnownGroup | None:
        return await self._inner.create_group(group)

    async def delete_group(self, group: GroupId, project: str, at: datetime) -> KnownGroup | None:
        return await self._inner.delete_group(group, project, at)

    async def lease_waking(self, holder: UUID, now: datetime, until: datetime) -> datetime | None:
        return await self._inner.lease_waking(holder, now, until)

    async def lease_counting(self, holder: UUID, now: datetime, until: datetime) -> datetime | None:
        return await self._inner.lease_counting(holder, now, until)

    async def release_waking(self, holder: UUID) -> None:
        await self._inner.release_waking(holder)

    async def next_waiting(self, digests: Sequence[bytes], limit: int) -> Sequence[WaitingInstance]:
        fail_if_armed(self._process, "deadlock")
        return await self._inner.next_waiting(digests, limit)

    async def wake(self, instances: Sequence[InstanceId]) -> None:
        await self._inner.wake(instances)

    async def woken(self, limit: int) -> Sequence[WaitingInstance]:
        return await self._inner.woken(limit)

    async def let_wait(self, instances: Sequence[InstanceId]) -> None:
        await self._inner.let_wait(instances)

    async def unlist(self, instances: Sequence[InstanceId]) -> None:
        await self._inner.unlist(instances)

    async def note(self, groups: Sequence[Sequence[InstanceRow]]) -> Sequence[OutboxKey]:
        self.noted |= {row.id for rows in groups for row in rows}
        return await self._inner.note(groups)

    async def confirm(self, said: Sequence[OutboxKey]) -> None:
        await self._inner.confirm(said)

    async def drop_notes(self, names: Sequence[OutboxKey]) -> None:
        await self._inner.drop_notes(names)


def _is_cursed(row: InstanceRow) -> bool:
    """Whether the database refuses this row of an intruder's request. Half of these requests are refused at their
    first write, because of their name; the others at every write.
    """
    request = row.told.request_id.int
    return row.told.name.startswith(CURSED) or (request in CURSED_IDS and request % 2 == 1)
