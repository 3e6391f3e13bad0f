"""A cell's instances in memory, for tests and the simulation.

One transaction runs at a time; its writes are applied when it commits.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from heapq import nsmallest
from itertools import count
from uuid import UUID

from msgspec import Struct

from bus.message import Message
from bus.workers.handling import OutboxKey
from cell_conductor.core.rows import CellHost, HeardHost, Instance
from cell_conductor.store import (
    JUST_SAID,
    NOTES_PAGE,
    SILENT_KEPT,
    WAITING_PAGE,
    ConductorTransaction,
    MessageKey,
)
from cell_conductor.store_sql import without_confirmed
from engine.flavors import InstanceId
from engine.inventories import ProviderId
from kit.errors import Transient
from kit.times import now


class _Note(Struct, frozen=True):
    at: datetime
    said: frozenset[MessageKey]


class _Cell:
    """The data of a cell, shared by all stores of it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.rows: dict[InstanceId, Instance] = {}
        self.notes: dict[int, _Note] = {}
        self.numbers = count(1)
        self.hosts: dict[ProviderId, CellHost] = {}
        self.host_writes = 0
        self.heard: dict[ProviderId, HeardHost] = {}

    def unconfirmed(self) -> set[MessageKey]:
        return {each for note in self.notes.values() for each in note.said}


class _Transaction:
    def __init__(self, cell: _Cell, now: datetime) -> None:
        self._cell = cell
        self._now = now
        self._loaded: set[InstanceId] = set()
        self.written: dict[InstanceId, Instance] = {}
        self.forgotten: set[InstanceId] = set()
        self.noted: dict[int, _Note] = {}
        self.cleared: set[int] = set()
        self.hosts: dict[ProviderId, CellHost] = {}
        self._locked: set[ProviderId] = set()

    async def lock_hosts(self, hosts: Sequence[ProviderId]) -> Mapping[ProviderId, CellHost]:
        known = self._cell.hosts | self.hosts
        found = {each: known[each] for each in hosts if each in known}
        self._locked |= found.keys()
        return found

    async def save_hosts(self, hosts: Sequence[CellHost]) -> None:
        for host in hosts:
            id_ = host.word.host
            if id_ not in self._locked and id_ in self._cell.hosts:
                raise Transient(f"host {host.word.name} has a row already")
            self._locked.add(id_)
            self.hosts[id_] = host

    async def load(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Instance]:
        unconfirmed = self._cell.unconfirmed() | {each for note in self.noted.values() for each in note.said}
        found = {
            each: without_confirmed(row, unconfirmed)
            for each in instances
            if (row := self._row(each)) is not None
        }
        self._loaded |= found.keys()
        return found

    async def take_due(self, now: datetime, limit: int) -> Mapping[InstanceId, Instance]:
        due = [
            (at, row.id) for row in self._cell.rows.values() if (at := row.due_at) is not None and at <= now
        ]
        return await self.load([each for _, each in nsmallest(limit, due)])

    async def save(
        self, rows: Sequence[Instance], forgotten: Sequence[InstanceId], said: Sequence[MessageKey]
    ) -> OutboxKey | None:
        for row in rows:
            if row.id not in self._loaded and self._row(row.id) is not None:
                raise Transient(f"instance {row.id} has a row already")
            self.written[row.id] = row
            self._loaded.add(row.id)
        self.forgotten.update(forgotten)
        if not said:
            return None
        number = next(self._cell.numbers)
        self.noted[number] = _Note(self._now, frozenset(said))
        return OutboxKey(number)

    def _row(self, instance: InstanceId) -> Instance | None:
        return self.written.get(instance) or self._cell.rows.get(instance)


class MemoryConductorStore:
    def __init__(self, clock: Callable[[], datetime] = now, cell: _Cell | None = None) -> None:
        self._clock = clock
        self._cell = cell or _Cell()
        self._has_started = False

    def of_another_process(self, clock: Callable[[], datetime]) -> "MemoryConductorStore":
        """A store of the same rows, as for a process that starts now."""
        return MemoryConductorStore(clock, self._cell)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[ConductorTransaction]:
        cell = self._cell
        async with cell.lock:
            transaction = _Transaction(cell, self._clock())
            yield transaction
            cell.rows |= transaction.written
            for gone in transaction.forgotten:
                cell.rows.pop(gone, None)
            cell.notes |= transaction.noted
            cell.hosts |= transaction.hosts
            cell.host_writes += len(transaction.hosts)
            for number in transaction.cleared:
                cell.notes.pop(number, None)

    async def clear(self, tx: ConductorTransaction, said: Sequence[OutboxKey]) -> None:
        assert isinstance(tx, _Transaction), "a transaction of another store"
        tx.cleared |= {*said}

    async def pending(self, after: OutboxKey | None = None) -> Sequence[tuple[OutboxKey, Message]]:
        first = after or 0
        async with self._cell.lock:
            before = self._clock() - JUST_SAID if self._has_started else None
            kept: list[tuple[OutboxKey, Message]] = []
            names = 0
            for number, note in sorted(self._cell.notes.items()):
                if number > first and names < NOTES_PAGE and (before is None or note.at < before):
                    left = self._unconfirmed_in(note)
                    kept += [(OutboxKey(number), message) for message in left]
                    names += bool(left)
                    if not left:
                        del self._cell.notes[number]
            self._has_started |= names < NOTES_PAGE
            return kept

    async def read(
        self, instances: Sequence[InstanceId], after: InstanceId | None = None, limit: int | None = None
    ) -> Sequence[Instance]:
        async with self._cell.lock:
            rows = self._cell.rows
            named = [each for each in {*instances} if each in rows] if instances else rows
            following = sorted(each for each in named if after is None or each > after)
            return [rows[each] for each in following[:limit]]

    async def host_writes(self) -> int:
        return self._cell.host_writes

    async def hosts(self) -> Sequence[CellHost]:
        return [*self._cell.hosts.values()]

    async def heard_hosts(self) -> Sequence[HeardHost]:
        before = self._clock() - SILENT_KEPT
        for host in [*self._cell.heard.values()]:
            if host.silent_since is not None and host.silent_since < before:
                del self._cell.heard[host.id]
        return [*self._cell.heard.values()]

    async def save_heard_hosts(self, hosts: Sequence[HeardHost]) -> None:
        self._cell.heard |= {host.id: host for host in hosts}

    async def waiting(
        self, until: datetime, after: tuple[datetime, InstanceId] | None = None
    ) -> tuple[Instance, ...]:
        due = sorted(
            (at, row.id)
            for row in self._cell.rows.values()
            if (at := row.due_at) is not None and at <= until and (after is None or (at, row.id) > after)
        )
        return tuple(without_confirmed(self._cell.rows[id_], frozenset()) for _, id_ in due[:WAITING_PAGE])

    async def close(self) -> None:
        """Nothing to release."""

    def _unconfirmed_in(self, note: _Note) -> list[Message]:
        """The unconfirmed messages of this note. Messages that are no longer on their rows were withdrawn."""
        rows = self._cell.rows
        ids = sorted({id_ for id_, _ in note.said})
        found = [row for id_ in ids if (row := rows.get(InstanceId(UUID(bytes=id_)))) is not None]
        return [each.message for row in found for each in without_confirmed(row, note.said).outbox]
