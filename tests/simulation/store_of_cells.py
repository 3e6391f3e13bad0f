"""A conductor's way to its cell's rows, and what is really on a cell's hosts."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

from bus.handling import Kept
from bus.message import Message
from bus.messages.build import InstanceId
from cell_conductor.core.instance import Instance
from cell_conductor.store import ConductorStore, ConductorTransaction, Spoken
from compute_sim.core.attempts import Attempted
from compute_sim.store_memory import MemoryComputeStore
from tests.simulation.process import SimProcess
from tests.simulation.stores import Commits, committed, committing, meets, on_the_way


class ConductorDoor:
    def __init__(self, store: ConductorStore, process: SimProcess, commits: Commits) -> None:
        self._store = store
        self._process = process
        self._commits = commits

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["_CellTransaction"]:
        await on_the_way(self._process)
        async with self._store.transaction() as inner:
            tx = _CellTransaction(inner, self._process)
            yield tx
            await committing(self._process)
        if tx.rows or tx.forgotten:
            self._commits.cell_written(tx.rows, tx.forgotten)
        await committed(self._process)

    async def clear(self, tx: ConductorTransaction, said: Sequence[Kept]) -> None:
        assert isinstance(tx, _CellTransaction), "a transaction of another store"
        await self._store.clear(tx.inner, said)

    async def pending(self, after: Kept | None = None) -> Sequence[tuple[Kept, Message]]:
        await on_the_way(self._process)
        return await self._store.pending(after)

    async def read(self, instances: Sequence[InstanceId]) -> tuple[Instance, ...]:
        await on_the_way(self._process)
        return await self._store.read(instances)

    async def close(self) -> None: ...


class _CellTransaction:
    def __init__(self, inner: ConductorTransaction, process: SimProcess) -> None:
        self.inner = inner
        self._process = process
        self.rows: Sequence[Instance] = ()
        self.forgotten: Sequence[InstanceId] = ()

    async def load(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Instance]:
        meets(self._process, "deadlock")
        return await self.inner.load(instances)

    async def take_due(self, now: datetime, limit: int) -> Mapping[InstanceId, Instance]:
        meets(self._process, "deadlock")
        rows = await self.inner.take_due(now, limit)
        if rows:
            await self._process.point("in_timer")
        return rows

    async def save(
        self, rows: Sequence[Instance], forgotten: Sequence[InstanceId], said: Sequence[Spoken]
    ) -> Kept | None:
        self.rows, self.forgotten = rows, forgotten
        return await self.inner.save(rows, forgotten, said)


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
