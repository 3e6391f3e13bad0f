"""The scheduler's rows in SQL. Nearly all statements are made from one description of a row, for both databases.

The tables must exist: `kit.sql.upgrade(url, "scheduler_worker")` creates them. However large a batch is, it takes the
same number of statements.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from operator import attrgetter

from bus.workers.handling import OutboxKey
from engine.flavors import InstanceId
from engine.hosts import HostState
from kit.errors import Bug, Transient
from kit.sql import DatabaseSettings, Transaction, open_database, reads, runs
from scheduler_worker.core.hosts import HostLoad
from scheduler_worker.core.instances.lifecycle import CellEvent
from scheduler_worker.core.instances.rows import NO_REQUEST, InstanceRow
from scheduler_worker.store import (
    Acceptance,
    AdoptedRow,
    Known,
    NewRequest,
    SchedulerTransaction,
)
from scheduler_worker.store_sql import rows as rare_statements
from scheduler_worker.store_sql import waiting
from scheduler_worker.store_sql.named import (
    count_instances,
    count_work,
    create_group,
    create_named,
    delete_group,
    delete_named,
    find_aggregates,
    find_applications,
    find_cells,
    find_groups,
    find_hosts,
    find_loads,
    find_named,
    find_versions,
    forget_aggregate,
    forget_hosts,
    lock_aggregates,
    lock_hosts,
    lock_named,
    lock_orders,
    prune_groups,
    save_aggregate,
    save_cells,
    save_hosts,
    save_loads,
    save_named,
    set_application,
)
from scheduler_worker.store_sql.rows import (
    ADD,
    APPLY_EVENTS,
    CONFIRM,
    DECIDE,
    DROP_NOTES,
    LOCK,
    NOTE,
    WRITE,
    confirmed_in,
    event_values,
    judge_conflicts,
    new_values,
    note_values,
    row_of,
    values,
    values_of_new,
)
from scheduler_worker.store_sql.waiting import find_changes, lock_moves, write_changes

# All workers lock rows in this order.
_by_id = attrgetter("id.int")


class SqlSchedulerTransaction:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def accept(self, requests: Sequence[NewRequest]) -> Sequence[Acceptance]:
        added = [each for request in requests for each in values_of_new(request.digest, request.rows)]
        # In the order of ids, so that no two workers wait for each other.
        added.sort(key=lambda values: values[0].int)
        if await ADD.change(self._transaction, added) == len(added):
            return [Known(request.rows) for request in requests]
        return await judge_conflicts(self._transaction, requests)

    async def adopt(self, rows: Sequence[AdoptedRow]) -> Sequence[InstanceId]:
        # One by one: the first row of two that conflict counts, and there are few of them in a batch.
        return [
            each.row.id
            for each in sorted(rows, key=lambda adopted: adopted.row.id.int)
            if not await ADD.change(self._transaction, [new_values(each.row, each.number, each.digest)])
        ]

    lease_waking = runs(waiting.lease)
    lease_counting = runs(partial(waiting.lease, number=waiting.COUNTING))
    release_waking = runs(waiting.release_waking)
    next_waiting = runs(waiting.next_waiting)

    wake = runs(partial(waiting.wake, is_woken=True))
    woken = runs(waiting.woken)
    let_wait = runs(partial(waiting.wake, is_woken=None))

    async def unlist(self, instances: Sequence[InstanceId]) -> None:
        if instances:
            await self._transaction.run(waiting.unlist, instances)

    async def _list(self, rows: Sequence[InstanceRow]) -> None:
        if begun := [row for row in rows if row.kept is not None and row.told.waiting is not None]:
            await self._transaction.run(waiting.list_waiting, begun)
        await self.unlist([row.id for row in rows if row.has_waited])

    async def lock(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, InstanceRow]:
        return {row.id: row for row in map(row_of, await LOCK.fetch(self._transaction, instances))}

    async def decide(self, rows: Sequence[InstanceRow]) -> Mapping[InstanceId, InstanceRow]:
        if not rows:
            return {}
        decided = sorted(rows, key=_by_id)
        others: Mapping[InstanceId, InstanceRow] = {}
        if await DECIDE.change(self._transaction, [values(row) for row in decided]) < len(decided):
            stored = await self.lock([row.id for row in decided])
            others = {row.id: stored[row.id] for row in decided if stored[row.id].told != row.told}
        await self._list([row for row in decided if row.id not in others])
        return others

    async def save(self, rows: Sequence[InstanceRow]) -> None:
        new = [row for row in rows if row.told.request_id == NO_REQUEST]
        known = [row for row in rows if row.told.request_id != NO_REQUEST]
        added = [new_values(row, None, b"") for row in sorted(new, key=_by_id)]
        if await ADD.change(self._transaction, added) < len(added):
            # Another worker has just accepted the request of this delete, whose row must not be overwritten.
            raise Transient("a deleted instance without a row has got one from its request meanwhile")
        if (written := await WRITE.change(self._transaction, [values(row) for row in known])) < len(known):
            raise Bug(f"only {written} of {len(known)} locked instances were written")
        await self._list(known)
        if changes := [change for row in rows for change in row.history]:
            await self._transaction.run(write_changes, changes)

    async def apply_events(self, events: Sequence[CellEvent]) -> int:
        ordered = sorted(events, key=lambda event: event.instance.id.int)
        return await APPLY_EVENTS.change(self._transaction, [event_values(event) for event in ordered])

    lock_moves = runs(lock_moves)
    lock_hosts = runs(lock_hosts)

    async def save_hosts(self, hosts: Sequence[HostState], at: datetime) -> None:
        await save_hosts(self._transaction, hosts, at)

    async def save_loads(self, loads: Sequence[HostLoad]) -> int:
        return await save_loads(self._transaction, loads)

    forget_hosts = runs(forget_hosts)
    save_cells = runs(save_cells)
    set_application = runs(set_application)
    lock_aggregates = runs(lock_aggregates)
    save_aggregate = runs(save_aggregate)
    forget_aggregate = runs(forget_aggregate)
    create_group = runs(create_group)
    delete_group = runs(delete_group)
    create_named = runs(create_named)
    lock_named = runs(lock_named)
    save_named = runs(save_named)
    delete_named = runs(delete_named)

    async def note(self, groups: Sequence[Sequence[InstanceRow]]) -> Sequence[OutboxKey]:
        found = await NOTE.fetch(self._transaction, [note_values(rows) for rows in groups])
        # Notes are inserted, and get their numbers, in the order of the groups.
        return sorted([OutboxKey(number) for (number,) in found])

    async def confirm(self, said: Sequence[OutboxKey]) -> None:
        dropped = await DROP_NOTES.fetch(self._transaction, {*said})
        await CONFIRM.change(self._transaction, confirmed_in(dropped))

    async def drop_notes(self, names: Sequence[OutboxKey]) -> None:
        await DROP_NOTES.fetch(self._transaction, {*names})


class SqlSchedulerStore:
    def __init__(self, url: str, *, settings: DatabaseSettings | None = None) -> None:
        self._database = open_database(url, settings=settings)
        # Of this process; on PostgreSQL, workers that wait would hold sessions.
        self._ordering = asyncio.Lock()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[SchedulerTransaction]:
        async with self._database.writing() as transaction:
            yield SqlSchedulerTransaction(transaction)

    instances = reads(rare_statements.find)
    overdue = reads(rare_statements.find_overdue)
    waiting_digests = reads(waiting.digests_of)
    one_waiting_of_each = reads(waiting.one_of_each)
    some_are_woken = reads(waiting.some_are_woken)
    unsaid = reads(rare_statements.find_unsaid)
    hosts = reads(find_hosts)
    host_versions = reads(find_versions)
    host_loads = reads(find_loads)
    changes = reads(find_changes)
    cells = reads(find_cells)
    instance_counts = reads(count_instances)
    work_counts = reads(count_work)
    applications = reads(find_applications)
    aggregates = reads(find_aggregates)

    @asynccontextmanager
    async def ordering_aggregates(self) -> AsyncIterator[None]:
        async with self._ordering:
            if self._database.dialect != "postgresql":
                # One process has all workers of an SQLite file.
                yield
                return
            async with self._database.writing() as transaction:
                await transaction.run(lock_orders)
                yield

    groups = reads(find_groups)
    named = reads(find_named)

    async def prune(self, ended_before: datetime, limit: int) -> int:
        async with self._database.writing() as transaction:
            await transaction.run(prune_groups, ended_before)
            return await transaction.run(rare_statements.prune, ended_before, limit)

    async def close(self) -> None:
        await self._database.close()
