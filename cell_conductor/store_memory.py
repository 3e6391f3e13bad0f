"""A cell's instances in the memory of one process, for the embedded mode, tests and simulation.

One transaction runs at a time; what it writes is kept aside until it commits.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from heapq import nsmallest
from uuid import UUID

from msgspec import structs

from bus.errors import Transient
from bus.handling import Kept
from bus.message import Message
from bus.messages.build import InstanceId
from cell_conductor.core.instance import Instance
from cell_conductor.store import JUST_SAID, ConductorTransaction, by_entity, kept_of, now


class _Transaction:
    def __init__(self, rows: Mapping[InstanceId, Instance], due: Mapping[InstanceId, datetime]) -> None:
        self._rows = rows
        self._due = due
        self._loaded: set[InstanceId] = set()
        self.written: dict[InstanceId, Instance | None] = {}

    async def load(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Instance]:
        found = {each: row for each in instances if (row := self._row(each)) is not None}
        self._loaded |= found.keys()
        return found

    async def take_due(self, now: datetime, limit: int) -> Mapping[InstanceId, Instance]:
        due = [(at, each) for each, at in self._due.items() if at <= now]
        return await self.load([each for _, each in nsmallest(limit, due)])

    async def save(self, rows: Sequence[Instance], forgotten: Sequence[InstanceId]) -> None:
        for row in rows:
            if row.id not in self._loaded and self._row(row.id) is not None:
                raise Transient(f"instance {row.id} has a row already")
            self.written[row.id] = row
            self._loaded.add(row.id)
        for each in forgotten:
            self.written[each] = None

    def clear(self, said: Sequence[Kept]) -> None:
        for entity, sequences in by_entity(said).items():
            instance = InstanceId(UUID(entity))
            row = self._row(instance)
            if row is not None and any(each.sequence in sequences for each in row.outbox):
                left = tuple(each for each in row.outbox if each.sequence not in sequences)
                self.written[instance] = structs.replace(row, outbox=left)

    def _row(self, instance: InstanceId) -> Instance | None:
        return self.written[instance] if instance in self.written else self._rows.get(instance)


class MemoryConductorStore:
    def __init__(self, clock: Callable[[], datetime] = now) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._rows: dict[InstanceId, Instance] = {}
        # Who is due when, and who has something to say: so that looking for them costs what there is to be found.
        self._due: dict[InstanceId, datetime] = {}
        self._unsaid: dict[InstanceId, None] = {}
        self._has_started = False

    def of_another_process(self, clock: Callable[[], datetime]) -> "MemoryConductorStore":
        """The same rows, for a process that starts now."""
        other = MemoryConductorStore(clock)
        other._lock, other._rows, other._due, other._unsaid = self._lock, self._rows, self._due, self._unsaid
        return other

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[ConductorTransaction]:
        async with self._lock:
            transaction = _Transaction(self._rows, self._due)
            yield transaction
            for instance, row in transaction.written.items():
                self._write(instance, row)

    async def clear(self, tx: ConductorTransaction, said: Sequence[Kept]) -> None:
        assert isinstance(tx, _Transaction), "a transaction of another store"
        tx.clear(said)

    async def pending(self) -> Sequence[tuple[Kept, Message]]:
        async with self._lock:
            before = self._clock() - JUST_SAID if self._has_started else None
            self._has_started = True
            return [
                (kept_of(instance, each.sequence), each.message)
                for instance in self._unsaid
                for each in self._rows[instance].outbox
                if before is None or each.at < before
            ]

    async def read(self, instances: Sequence[InstanceId]) -> tuple[Instance, ...]:
        async with self._lock:
            return tuple(self._rows[each] for each in sorted(set(instances)) if each in self._rows)

    async def close(self) -> None:
        """Nothing to let go of."""

    def _write(self, instance: InstanceId, row: Instance | None) -> None:
        for index in (self._rows, self._due, self._unsaid):
            index.pop(instance, None)
        if row is None:
            return
        self._rows[instance] = row
        if row.due_at is not None:
            self._due[instance] = row.due_at
        if row.outbox:
            self._unsaid[instance] = None
