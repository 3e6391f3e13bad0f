"""The scheduler's rows in SQL: the few hot statements for each of the two databases, all others once for both.

`bus.sql.upgrade(url, "scheduler_worker")` creates the tables first. A batch is a constant number of statements.

    accepting.py     requests, each written once
    postgresql.py    the hot statements on PostgreSQL
    sqlite.py        the hot statements on SQLite
    rows.py          the codec between an instance's columns and its value
    reading.py       queries for instances and notes, and pruning
    hosts.py         rows of hosts
    applications.py  rows of applications
    aggregates.py    rows of aggregates
    groups.py        rows of server groups
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

from bus.errors import Bug, Transient
from bus.message import AggregateId, GroupId, ProviderId
from bus.messages.aggregates import Aggregate
from bus.messages.applications import KnownApplication
from bus.messages.build import InstanceId
from bus.messages.hosts import HostState
from bus.sql import POOL_SIZE, DatabaseSettings, PostgresTransaction, SqliteTransaction, open_database
from bus.workers.handling import OutboxKey
from scheduler_worker.core.instances.lifecycle import CellEvent
from scheduler_worker.core.instances.rows import NO_REQUEST, InstanceRow
from scheduler_worker.store import (
    Acceptance,
    GroupQuery,
    HostQuery,
    InstanceQuery,
    KnownGroup,
    NewRequest,
    Note,
    SchedulerTransaction,
)
from scheduler_worker.store_sql import reading
from scheduler_worker.store_sql.accepting import accept
from scheduler_worker.store_sql.aggregates import (
    delete_aggregate,
    find_aggregates,
    lock_aggregates,
    save_aggregate,
)
from scheduler_worker.store_sql.applications import find_applications, set_application
from scheduler_worker.store_sql.groups import create_group, delete_group, find_groups, prune_groups
from scheduler_worker.store_sql.hosts import find_hosts, forget_hosts, lock_hosts, save_hosts
from scheduler_worker.store_sql.postgresql import PostgresInstances
from scheduler_worker.store_sql.rows import (
    by_id,
    confirmed_in,
    event_values,
    new_values,
    note_values,
    row_of,
    values,
)
from scheduler_worker.store_sql.sqlite import SqliteInstances


class SqlSchedulerTransaction:
    def __init__(self, transaction: PostgresTransaction | SqliteTransaction) -> None:
        self._transaction = transaction
        self._instances = (
            PostgresInstances(transaction)
            if isinstance(transaction, PostgresTransaction)
            else SqliteInstances(transaction)
        )

    async def accept(self, requests: Sequence[NewRequest]) -> Sequence[Acceptance]:
        return await accept(self._instances, requests)

    async def lock(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, InstanceRow]:
        if not instances:
            return {}
        return {row.id: row for row in map(row_of, await self._instances.lock(instances))}

    async def decide(self, rows: Sequence[InstanceRow]) -> Mapping[InstanceId, InstanceRow]:
        if not rows:
            return {}
        decided = sorted(rows, key=by_id)
        if await self._instances.decide([values(row) for row in decided]) == len(decided):
            return {}
        stored = await self.lock([row.id for row in decided])
        return {row.id: stored[row.id] for row in decided if stored[row.id].told != row.told}

    async def save(self, rows: Sequence[InstanceRow]) -> None:
        new = [row for row in rows if row.told.request_id == NO_REQUEST]
        known = [row for row in rows if row.told.request_id != NO_REQUEST]
        if new and await self._instances.add(
            [new_values(row, None, b"") for row in sorted(new, key=by_id)]
        ) < len(new):
            # Another worker has just accepted the request of this delete, whose row must not be overwritten.
            raise Transient("a deleted instance without a row has got one from its request meanwhile")
        if known and (written := await self._instances.write([values(row) for row in known])) < len(known):
            raise Bug(f"only {written} of {len(known)} locked instances were written")

    async def apply_events(self, events: Sequence[CellEvent]) -> int:
        if not events:
            return 0
        ordered = sorted(events, key=lambda event: event.instance.id.int)
        return await self._instances.apply_events([event_values(event) for event in ordered])

    async def lock_hosts(self, ids: Sequence[ProviderId], names: Sequence[str]) -> Sequence[HostState]:
        return await self._transaction.run(lock_hosts, ids, names)

    async def save_hosts(self, hosts: Sequence[HostState], at: datetime) -> None:
        if hosts:
            await self._transaction.run(save_hosts, hosts, at)

    async def forget_hosts(self, hosts: Sequence[ProviderId]) -> None:
        if hosts:
            await self._transaction.run(forget_hosts, hosts)

    async def set_application(
        self, name: str, sent_at: datetime, application: KnownApplication | None
    ) -> KnownApplication | None:
        return await self._transaction.run(set_application, name, sent_at, application)

    async def lock_aggregates(self) -> Sequence[Aggregate]:
        return await self._transaction.run(lock_aggregates)

    async def save_aggregate(self, aggregate: Aggregate) -> None:
        await self._transaction.run(save_aggregate, aggregate)

    async def delete_aggregate(self, aggregate: AggregateId) -> None:
        await self._transaction.run(delete_aggregate, aggregate)

    async def create_group(self, group: KnownGroup) -> KnownGroup | None:
        return await self._transaction.run(create_group, group)

    async def delete_group(self, group: GroupId, project: str, at: datetime) -> KnownGroup | None:
        return await self._transaction.run(delete_group, group, project, at)

    async def note(self, groups: Sequence[Sequence[InstanceRow]]) -> Sequence[OutboxKey]:
        if not groups:
            return ()
        return [
            reading.name_of(number)
            for number in await self._instances.note([note_values(rows) for rows in groups])
        ]

    async def confirm(self, said: Sequence[OutboxKey]) -> None:
        if not said:
            return
        others = await self._instances.drop_notes(sorted({kept.sequence for kept in said}))
        if confirmed := confirmed_in(others):
            await self._instances.confirm(confirmed)

    async def drop_notes(self, names: Sequence[OutboxKey]) -> None:
        await self._instances.drop_notes(sorted({kept.sequence for kept in names}))


class SqlSchedulerStore:
    def __init__(
        self, url: str, *, pool_size: int = POOL_SIZE, settings: DatabaseSettings | None = None
    ) -> None:
        self._database = open_database(url, pool_size=pool_size, settings=settings)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[SchedulerTransaction]:
        async with self._database.writing() as transaction:
            yield SqlSchedulerTransaction(transaction)

    async def instances(self, query: InstanceQuery) -> Sequence[InstanceRow]:
        async with self._database.reading() as transaction:
            return await transaction.run(reading.find, query)

    async def overdue(self, now: datetime, limit: int) -> Sequence[InstanceId]:
        async with self._database.reading() as transaction:
            return await transaction.run(reading.find_overdue, now, limit)

    async def unsaid(self, before: datetime, after: OutboxKey | None, limit: int) -> Sequence[Note]:
        async with self._database.reading() as transaction:
            return await transaction.run(reading.find_unsaid, before, after, limit)

    async def hosts(self, query: HostQuery) -> Sequence[HostState]:
        async with self._database.reading() as transaction:
            return await transaction.run(find_hosts, query)

    async def applications(self) -> Sequence[KnownApplication]:
        async with self._database.reading() as transaction:
            return await transaction.run(find_applications)

    async def aggregates(self) -> Sequence[Aggregate]:
        async with self._database.reading() as transaction:
            return await transaction.run(find_aggregates)

    async def groups(self, query: GroupQuery) -> Sequence[KnownGroup]:
        async with self._database.reading() as transaction:
            return await transaction.run(find_groups, query)

    async def prune(self, ended_before: datetime, limit: int) -> int:
        async with self._database.writing() as transaction:
            await transaction.run(prune_groups, ended_before)
            return await transaction.run(reading.prune, ended_before, limit)

    async def close(self) -> None:
        await self._database.close()
