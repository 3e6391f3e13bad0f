"""The scheduler's store, in SQL. Nearly all statements are made from one description of a row, for both databases.

The tables must exist: `kit.sql.upgrade(url, "scheduler_worker")` creates them. However large a batch is, it takes the
same number of statements.

Requests and instances are locked, each kind in the order of its ids, before they are decided (core/instances/). So the
row that is written is the row that was decided on, and only one of several workers with the same request decides.

A note names the rows of a transaction that have messages to send; it is deleted when all of these are confirmed. To find
such rows without notes would take an index that the database writes twice for each instance.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from operator import attrgetter

from bus.workers.handlers import OutboxKey
from engine.flavors import InstanceId
from engine.hosts import HostState
from kit.errors import Bug, Transient
from kit.sql import Database, DatabaseSettings, Transaction, open_database, reads, runs
from scheduler_worker.core.hosts import HostLoad
from scheduler_worker.core.instances.lifecycle import CellEvent
from scheduler_worker.core.instances.rows import NO_REQUEST, InstanceRow
from scheduler_worker.store_sql import waiting
from scheduler_worker.store_sql.named import (
    count_groups,
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
    count_found,
    count_unplaced,
    event_values,
    find,
    find_overdue,
    find_page,
    find_unconfirmed,
    judge_conflicts,
    new_values,
    note_values,
    prune,
    put_names_in_order,
    row_of,
    values,
    values_of_new,
)
from scheduler_worker.store_sql.values import (
    READ_MAX,
    Acceptance,
    AdoptedRow,
    ChangeQuery,
    GroupQuery,
    HostQuery,
    HostVersion,
    InstancePage,
    InstanceQuery,
    InstancesTaken,
    Known,
    KnownCell,
    KnownGroup,
    Named,
    NameQuery,
    NewRequest,
    OtherContent,
    OutboxNote,
    WaitingInstance,
    WorkCounts,
)
from scheduler_worker.store_sql.waiting import find_changes, lock_moves, write_changes

# The store, and the values that go into it and come out of it.
__all__ = [
    "READ_MAX",
    "Acceptance",
    "AdoptedRow",
    "ChangeQuery",
    "GroupQuery",
    "HostQuery",
    "HostVersion",
    "InstancePage",
    "InstanceQuery",
    "InstancesTaken",
    "Known",
    "KnownCell",
    "KnownGroup",
    "NameQuery",
    "Named",
    "NewRequest",
    "OtherContent",
    "OutboxNote",
    "SchedulerStore",
    "SchedulerTransaction",
    "WaitingInstance",
    "WorkCounts",
]

# All workers lock rows in this order.
_by_id = attrgetter("id.int")


class SchedulerTransaction:
    """One transaction on the schedulers' tables: all of its writes take effect, or none."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def accept(self, requests: Sequence[NewRequest]) -> Sequence[Acceptance]:
        """Write the new requests, of which no two have one id. Returns, for each in its place, whether it is accepted."""
        added = [each for request in requests for each in values_of_new(request.digest, request.rows)]
        # In the order of ids, so that no two workers wait for each other.
        added.sort(key=lambda values: values[0].int)
        if await ADD.change(self._transaction, added) == len(added):
            return [Known(request.rows) for request in requests]
        return await judge_conflicts(self._transaction, requests)

    async def adopt(self, rows: Sequence[AdoptedRow]) -> Sequence[InstanceId]:
        """Write the rows of instances that are taken over from another cloud. Returns those instances that have a row already, and
        those whose number in their request belongs to another instance: nothing is written of these.
        """
        # One by one: the first row of two that conflict counts, and there are few of them in a batch.
        return [
            each.row.id
            for each in sorted(rows, key=lambda adopted: adopted.row.id.int)
            if not await ADD.change(self._transaction, [new_values(each.row, each.number, each.digest)])
        ]

    lease_waking = runs(waiting.lease)
    """Take the lease to try waiting instances, which one worker has at a time. Returns None if `holder` has it
    until `until`; otherwise when the lease of the other worker ends.

    A lease that ends far later than `until` was written by a worker with a wrong clock, and is taken over.
    """
    lease_counting = runs(partial(waiting.lease, number=waiting.COUNTING))
    """Take the lease to count the cloud for the metrics, in the same way."""
    release_waking = runs(waiting.release_waking)
    """End the lease to try waiting instances, if `holder` has it."""
    next_waiting = runs(waiting.next_waiting)
    """The next instances that wait for a host, of those whose specs have these digests: the highest priority first,
    then the oldest. Rows that another transaction has locked are skipped.
    """

    wake = runs(waiting.wake)
    """Mark these instances before a host is sought for them. If the worker dies after a claim was granted, the mark
    shows that the instance must be tried again.
    """
    woken = runs(waiting.woken)
    """Marked instances, in the order of `next_waiting`. The holder of the lease finds only those whose trial was
    interrupted.
    """
    end_wakes = runs(waiting.end_wakes)
    """Drop the marks of these instances, which were tried; what does not wait any more is no more listed."""

    async def unlist(self, instances: Sequence[InstanceId]) -> None:
        """Remove these instances from the list of those that wait for a host. `accept`, `decide` and `save` do this by
        themselves for rows that `has_waited`.
        """
        if instances:
            await self._transaction.run(waiting.unlist, instances)

    async def _list(self, rows: Sequence[InstanceRow]) -> None:
        if begun := [row for row in rows if row.kept is not None and row.told.waiting is not None]:
            await self._transaction.run(waiting.list_waiting, begun)
        await self.unlist([row.id for row in rows if row.has_waited])

    async def lock(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, InstanceRow]:
        """The rows of those instances that exist, locked and up to date. The orders that a row still has to send to its
        cell are left out: a worker that changes a row does not send them.
        """
        return {row.id: row for row in map(row_of, await LOCK.fetch(self._transaction, instances))}

    async def decide(self, rows: Sequence[InstanceRow]) -> Mapping[InstanceId, InstanceRow]:
        """Write these rows, if the stored ones are still `accepted`. Returns the stored rows, locked, that another worker has
        decided meanwhile.
        """
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
        """Write rows that this transaction has locked. A row that belongs to no request is inserted; `Transient` is
        raised if another worker has inserted it meanwhile.
        """
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
        """Write cells' events into the rows of their instances, except rows without a host and rows that have a later
        event.

        An event says everything that the row shows, so the row need not be read first. Returns how many rows were
        written. If that is fewer than the events, the caller locks the rows and decides each event by itself, as if
        nothing had been written.
        """
        ordered = sorted(events, key=lambda event: event.instance.id.int)
        return await APPLY_EVENTS.change(self._transaction, [event_values(event) for event in ordered])

    lock_moves = runs(lock_moves)
    """The moves that go on, in no order, without those that wait for room. Until this transaction commits, other transactions that call this wait."""
    lock_hosts = runs(lock_hosts)
    """The hosts with these ids or names that exist, locked and up to date."""

    async def save_hosts(self, hosts: Sequence[HostState], at: datetime) -> None:
        """Write these hosts: each is new, or this transaction has locked its row. `up` and other facts that follow from
        heartbeats are not stored.
        """
        await save_hosts(self._transaction, hosts, at)

    async def save_loads(self, loads: Sequence[HostLoad]) -> int:
        """Write these loads beside the rows of their hosts: of each host whose row still is the one that the load names, and
        has no later load. Returns how many were written. If
        that is fewer than the loads, the caller locks the rows and decides each report by itself, as if nothing had been
        written.
        """
        return await save_loads(self._transaction, loads)

    forget_hosts = runs(forget_hosts)
    """Delete these hosts, which were locked."""
    save_cells = runs(save_cells)
    """Write when these cells were last heard, except where a later time is stored."""
    set_application = runs(set_application)
    """Write the application, or delete it (None), unless a later order was sent before. Returns it as it is then."""
    lock_aggregates = runs(lock_aggregates)
    """All aggregates, deleted ones too, in the order of their names, locked and up to date."""
    save_aggregate = runs(save_aggregate)
    """Write this aggregate, which is new, or was locked. The name of a deleted aggregate becomes free. `Transient`
    is raised if another worker has just created an aggregate with the same name.
    """
    forget_aggregate = runs(forget_aggregate)
    """Delete the row of this aggregate."""
    create_group = runs(create_group)
    """Write the server group, unless there is a group with its id. Returns the group that is stored then, or None
    if a group with this id was deleted.
    """
    count_groups = runs(count_groups)
    """How many groups the project has, with those that were deleted and not pruned yet; counting stops at `limit`. 0 if the group
    `new` is there.
    """
    delete_group = runs(delete_group)
    """Delete the server group, if it belongs to this project; an empty project allows every group. Returns the
    deleted group, or None. No new group can have the id until `prune` removes the row.
    """
    create_named = runs(create_named)
    """Write the flavor or the image, unless there is one with its name. Returns the one that is stored then."""
    lock_named = runs(lock_named)
    save_named = runs(save_named)
    """Write anew what was locked."""
    delete_named = runs(delete_named)
    """Delete the flavor or the image. Returns it, or None if there was none."""

    async def note(self, groups: Sequence[Sequence[InstanceRow]]) -> Sequence[OutboxKey]:
        """Write one outbox note for each group of rows that have messages to send. A worker that writes rows with
        messages also notes them in the same transaction; otherwise a crash would lose the messages. Returns the notes'
        names.
        """
        found = await NOTE.fetch(self._transaction, [note_values(rows) for rows in groups])
        # Notes are inserted, and get their numbers, in the order of the groups.
        return sorted([OutboxKey(number) for (number,) in found])

    async def confirm(self, said: Sequence[OutboxKey]) -> None:
        """Delete these outbox notes: all of their messages have reached the broker."""
        dropped = await DROP_NOTES.fetch(self._transaction, {*said})
        await CONFIRM.change(self._transaction, confirmed_in(dropped))

    async def drop_notes(self, names: Sequence[OutboxKey]) -> None:
        """Delete these outbox notes, although their messages are not confirmed: newer notes name the same rows."""
        await DROP_NOTES.fetch(self._transaction, {*names})


class SchedulerStore:
    def __init__(self, url: str | Database, *, settings: DatabaseSettings | None = None) -> None:
        self._database = open_database(url, settings=settings)
        # Of this process; on PostgreSQL, workers that wait would hold sessions.
        self._ordering = asyncio.Lock()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[SchedulerTransaction]:
        """A new transaction. It commits at the end of its context, and rolls back on any exception. Any step may raise
        `Transient`; the caller then tries the whole transaction again.
        """
        async with self._database.writing() as transaction:
            yield SchedulerTransaction(transaction)

    instances = reads(find)
    """The instances of the first page."""

    async def rows_of(self, instances: Iterable[InstanceId]) -> dict[InstanceId, InstanceRow]:
        """The rows of those of these instances that exist, not locked."""
        ids = tuple(dict.fromkeys(instances))
        found = await self.instances(InstanceQuery(instances=ids, limit=len(ids))) if ids else ()
        return {row.id: row for row in found}

    instance_page = reads(find_page)
    """None if the row of the instance `after` is not there any more."""
    counted = reads(count_found)
    """How many instances are found on all pages, among the rows that are read; and whether there are rows that were not."""
    unplaced = reads(count_unplaced)
    """How many instances of the project have no host, since they are open or in error; and how many were deleted without one, and
    are not pruned yet. Counting stops at `limit`.
    """
    overdue = reads(find_overdue)
    """The instances that are accepted or waiting, not decided, and past their deadline."""
    waiting_digests = reads(waiting.all_digests)
    """The digests of all needs for which instances wait."""
    one_waiting_of_each = reads(waiting.one_of_each)
    """For each of these digests any waiting instance whose spec has it; for some there may be none."""
    find_waiting = reads(waiting.find_waiting)
    """Those of these instances that wait."""
    some_are_woken = reads(waiting.some_are_woken)
    unconfirmed = reads(find_unconfirmed)
    """A page of the outbox notes that were written before `before`, in the order of their names, after the note
    `after`.

    Each has those of its rows whose messages are not confirmed yet; there may be none. The page ends with the note
    that brings it to `limit` rows, or earlier. It has at least one note, if there is one.
    """
    hosts = reads(find_hosts)
    """The hosts in the order of their names, with their last loads."""
    host_versions = reads(find_versions)
    """The hosts whose rows were written since then, each with the version of its row."""
    host_loads = reads(find_loads)
    """All loads that are written beside rows of hosts."""
    changes = reads(find_changes)
    cells = reads(find_cells)
    """All cells, in the order of their names."""
    instance_counts = reads(count_instances)
    """The counts of the instances that are not deleted, in the order of states and cells. Reads all rows."""
    work_counts = reads(count_work)
    applications = reads(find_applications)
    """All applications, in the order of their names."""
    aggregates = reads(find_aggregates)
    """All aggregates that are not deleted, in the order of their names."""

    @asynccontextmanager
    async def ordering_aggregates(self) -> AsyncIterator[None]:
        """A context in which a worker follows an order about an aggregate: only one worker at a time can be in it.

        May raise `Transient` at its start and at its end.
        """
        async with self._ordering:
            if self._database.dialect != "postgresql":
                # One process has all workers of an SQLite file.
                yield
                return
            async with self._database.writing() as transaction:
                await transaction.run(lock_orders)
                yield

    groups = reads(find_groups)
    """Groups that are not deleted."""
    named = reads(find_named)

    async def prune(self, ended_before: datetime, limit: int) -> int:
        """Delete requests with their instances, if every instance was deleted before `ended_before` and has no message
        left to send; and deletes of that time whose request never came. At most `limit` of each. Returns how many of
        both.

        Server groups that were deleted before then are deleted, too.
        """
        async with self._database.writing() as transaction:
            await transaction.run(prune_groups, ended_before)
            return await transaction.run(prune, ended_before, limit)

    async def put_names_in_order(self, limit: int) -> int:
        """Complete rows that release 0.1.0 has written, so that they are found by their names. Returns how many were completed, at
        most `limit`.
        """
        async with self._database.writing() as transaction:
            return await transaction.run(put_names_in_order, limit)

    async def close(self) -> None:
        await self._database.close()
