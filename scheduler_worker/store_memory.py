"""The scheduler's rows in the memory of one process, for the embedded mode, tests and simulation.

One transaction runs at a time, and readers see committed rows only. A transaction remembers how to undo each step.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct, structs

from bus.handling import OutboxKey
from bus.message import ProviderId
from bus.messages.applications import KnownApplication
from bus.messages.build import InstanceId, RequestId
from bus.messages.hosts import HostState
from scheduler_worker.core.instances.lifecycle import CellEvent, adopted, confirmed, heard
from scheduler_worker.core.instances.rows import DELETED, NO_REQUEST, PLACED, InstanceRow
from scheduler_worker.store import (
    Acceptance,
    InstanceQuery,
    InstancesTaken,
    Known,
    NewRequest,
    Note,
    OtherContent,
    SchedulerTransaction,
)

K = TypeVar("K")
V = TypeVar("V")


class _Request(Struct, frozen=True):
    digest: bytes
    instances: tuple[InstanceId, ...]


class _Note(Struct, frozen=True):
    """The sequence of each row that it names; None for placed rows."""

    at: datetime
    sequences: Mapping[InstanceId, int | None]


class _Rows:
    def __init__(self) -> None:
        self.requests: dict[RequestId, _Request] = {}
        self.instances: dict[InstanceId, InstanceRow] = {}
        self.hosts: dict[ProviderId, HostState] = {}
        self.hosts_changed: dict[ProviderId, datetime] = {}
        self.applications: dict[str, KnownApplication] = {}
        # When the latest order about each was sent.
        self.application_orders: dict[str, datetime] = {}
        # The open rows, so that looking for overdue ones costs nothing when there are none.
        self.open: dict[InstanceId, None] = {}
        self.notes: dict[int, _Note] = {}
        self.last_note = 0


class MemorySchedulerTransaction:
    """Writes in place, and remembers how to undo that."""

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows
        self._undo: list[Callable[[], None]] = []

    async def accept(self, requests: Sequence[NewRequest]) -> Sequence[Acceptance]:
        return [self._accept(request) for request in requests]

    def _accept(self, request: NewRequest) -> Acceptance:
        rows = self._rows
        known = rows.requests.get(request.id)
        if known is None:
            taken = tuple(
                row.id
                for row in request.rows
                if (there := rows.instances.get(row.id)) and there.told.request_id != NO_REQUEST
            )
            if taken:
                return InstancesTaken(taken)
            for row in request.rows:
                unseen = rows.instances.get(row.id)
                self._put(row if unseen is None else adopted(unseen, row))
            known = _Request(request.digest, tuple(row.id for row in request.rows))
            self._write(rows.requests, request.id, known)
        elif known.digest != request.digest:
            return OtherContent()
        return Known(tuple(rows.instances[instance] for instance in known.instances))

    async def lock(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, InstanceRow]:
        found = self._rows.instances
        return {
            instance: structs.replace(found[instance], order=None)
            for instance in instances
            if instance in found
        }

    async def decide(self, rows: Sequence[InstanceRow]) -> Mapping[InstanceId, InstanceRow]:
        known = await self.lock([row.id for row in rows])
        others = {id_: row for id_, row in known.items() if not row.is_open}
        await self.save([row for row in rows if row.id not in others])
        return others

    async def save(self, rows: Sequence[InstanceRow]) -> None:
        for row in rows:
            self._put(row)

    async def apply_events(self, events: Sequence[CellEvent]) -> int:
        written = 0
        for event in events:
            said, row = event.instance, self._rows.instances.get(event.instance.id)
            if row is None or row.told.state != PLACED or row.told.sequence >= said.sequence:
                continue
            now = heard(row, event, row.issued_at)
            if now is not None:
                self._put(now)
                written += 1
        return written

    async def lock_hosts(self, ids: Sequence[ProviderId], names: Sequence[str]) -> Sequence[HostState]:
        hosts = self._rows.hosts
        return (
            [host for host in hosts.values() if host.id in ids or host.name in names]
            if names
            else [hosts[host] for host in ids if host in hosts]
        )

    async def save_hosts(self, hosts: Sequence[HostState], at: datetime) -> None:
        for host in hosts:
            self._write(self._rows.hosts, host.id, host)
            self._write(self._rows.hosts_changed, host.id, at)

    async def forget_hosts(self, hosts: Sequence[ProviderId]) -> None:
        for host in hosts:
            self._delete(self._rows.hosts, host)
            self._delete(self._rows.hosts_changed, host)

    async def is_latest_order(self, name: str, sent_at: datetime) -> bool:
        latest = self._rows.application_orders.get(name)
        if latest is not None and sent_at < latest:
            return False
        self._write(self._rows.application_orders, name, sent_at)
        return True

    async def application(self, name: str) -> KnownApplication | None:
        return self._rows.applications.get(name)

    async def save_application(self, application: KnownApplication) -> None:
        self._write(self._rows.applications, application.name, application)

    async def remove_application(self, name: str) -> None:
        known = self._rows.applications.get(name)
        if known is not None:
            self._write(self._rows.applications, name, known, there=False)

    async def note(self, groups: Sequence[Sequence[InstanceRow]]) -> Sequence[OutboxKey]:
        return [self._note(rows) for rows in groups]

    def _note(self, rows: Sequence[InstanceRow]) -> OutboxKey:
        # Never undone: a number is never used again.
        self._rows.last_note = number = self._rows.last_note + 1
        at = max(row.told.changed_at or row.issued_at for row in rows)
        note = _Note(at, {row.id: None if row.told.state == PLACED else row.told.sequence for row in rows})
        self._write(self._rows.notes, number, note)
        return _name_of(number)

    async def confirm(self, said: Sequence[OutboxKey]) -> None:
        notes = [note for kept in said if (note := self._rows.notes.get(kept.sequence)) is not None]
        await self.drop_notes(said)
        for instance, sequence in [each for note in notes for each in note.sequences.items()]:
            row = self._rows.instances.get(instance)
            if row is not None and row.unsaid and sequence is not None:
                self._put(confirmed(row, sequence))

    async def drop_notes(self, names: Sequence[OutboxKey]) -> None:
        for kept in names:
            self._delete(self._rows.notes, kept.sequence)

    def roll_back(self) -> None:
        for undo in reversed(self._undo):
            undo()

    def _put(self, row: InstanceRow) -> None:
        self._write(self._rows.instances, row.id, row)
        self._write(self._rows.open, row.id, None, there=row.is_open)

    def _delete(self, rows: dict[K, V], key: K) -> None:
        self._undo.append(partial(_set, rows, key, rows.get(key), there=key in rows))
        _set(rows, key, None, there=False)

    def _write(self, rows: dict[K, V], key: K, row: V, *, there: bool = True) -> None:
        before = rows.get(key)
        self._undo.append(partial(_set, rows, key, before, there=key in rows))
        _set(rows, key, row, there=there)


def _set(rows: dict[K, V], key: K, row: Any, *, there: bool) -> None:
    if there:
        rows[key] = row
    else:
        rows.pop(key, None)


def _name_of(number: int) -> OutboxKey:
    return OutboxKey("note", number)


class MemorySchedulerStore:
    def __init__(self) -> None:
        self._rows = _Rows()
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[SchedulerTransaction]:
        async with self._lock:
            transaction = MemorySchedulerTransaction(self._rows)
            try:
                yield transaction
            except BaseException:
                # A cancellation undoes it, too.
                transaction.roll_back()
                raise

    async def instances(self, query: InstanceQuery) -> Sequence[InstanceRow]:
        async with self._lock:
            rows = self._rows.instances
            named = query.instances
            if query.request_id is not None:
                request = self._rows.requests.get(query.request_id)
                named = request.instances if request else ()
            wanted = named if query.instances or query.request_id is not None else rows
            found = [
                row
                for instance in sorted(wanted, key=_in_order)
                if (row := rows.get(instance)) is not None
                and row.told.request_id != NO_REQUEST
                and (query.after is None or instance.int > query.after.int)
                and query.state in ("", row.told.state)
                and query.project in ("", row.told.project)
            ]
            return found[: query.limit]

    async def overdue(self, now: datetime, limit: int) -> Sequence[InstanceId]:
        async with self._lock:
            rows = self._rows
            due = [instance for instance in rows.open if rows.instances[instance].ends_by <= now]
            return due[:limit]

    async def unsaid(self, before: datetime, after: OutboxKey | None, limit: int) -> Sequence[Note]:
        async with self._lock:
            found: list[Note] = []
            count = 0
            for number, note in sorted(self._rows.notes.items()):
                if note.at < before and (after is None or number > after.sequence) and count < limit:
                    count += len(note.sequences)
                    found.append(Note(_name_of(number), self._unsaid_of(note)))
            return found

    def _unsaid_of(self, note: _Note) -> tuple[InstanceRow, ...]:
        rows = [self._rows.instances.get(instance) for instance in sorted(note.sequences, key=_in_order)]
        return tuple(row for row in rows if row is not None and row.unsaid)

    async def hosts(self, name: str, after: str, limit: int) -> Sequence[HostState]:
        async with self._lock:
            hosts = self._rows.hosts.values()
            found = [host for host in hosts if (host.name == name if name else host.name > after)]
            return sorted(found, key=lambda host: (host.name, host.id.int))[:limit]

    async def hosts_of(self, ids: Sequence[ProviderId]) -> Sequence[HostState]:
        async with self._lock:
            return [self._rows.hosts[host] for host in ids if host in self._rows.hosts]

    async def hosts_changed(self, since: datetime) -> Sequence[HostState]:
        async with self._lock:
            rows = self._rows
            return [host for host in rows.hosts.values() if rows.hosts_changed[host.id] >= since]

    async def applications(self) -> Sequence[KnownApplication]:
        async with self._lock:
            return [each for _, each in sorted(self._rows.applications.items())]

    async def prune(self, ended_before: datetime, limit: int) -> int:
        async with self._lock:
            rows = self._rows

            def is_over(instance: InstanceId) -> bool:
                row = rows.instances[instance]
                ended_at = row.told.changed_at or row.issued_at
                return row.told.state == DELETED and not row.unsaid and ended_at < ended_before

            over = [id_ for id_, request in rows.requests.items() if all(map(is_over, request.instances))]
            for id_ in over[:limit]:
                for instance in rows.requests.pop(id_).instances:
                    del rows.instances[instance]
            unseen = [
                row.id
                for row in rows.instances.values()
                if row.told.request_id == NO_REQUEST and is_over(row.id)
            ]
            for instance in unseen[:limit]:
                del rows.instances[instance]
            return len(over[:limit]) + len(unseen[:limit])

    async def close(self) -> None:
        """Nothing to close."""


def _in_order(instance: InstanceId) -> int:
    return instance.int
