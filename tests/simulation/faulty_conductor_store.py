"""A conductor's store that injects faults, and a compute's store that reports what really runs on the hosts."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

from bus.message import Message
from bus.workers.handling import OutboxKey
from cell_conductor.core.rows import CellHost, HeardHost, Instance
from cell_conductor.store import ConductorStore, ConductorTransaction, MessageKey
from compute_sim.core.attempts import AttemptRecord
from compute_sim.handlers import ComputeStore
from engine.flavors import InstanceId
from engine.inventories import ProviderId
from tests.simulation.process import SimProcess
from tests.simulation.store_faults import (
    CommitObserver,
    after_commit,
    before_commit,
    fail_if_armed,
    reach_database,
)


class FaultyConductorStore:
    def __init__(self, store: ConductorStore, process: SimProcess, observer: CommitObserver) -> None:
        self._store = store
        self._process = process
        self._observer = observer

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["_CellTransaction"]:
        await reach_database(self._process)
        async with self._store.transaction() as inner:
            tx = _CellTransaction(inner, self._process)
            yield tx
            await before_commit(self._process)
        if tx.rows or tx.forgotten:
            self._observer.cell_written(tx.rows, tx.forgotten)
        if tx.hosts:
            self._observer.cell_hosts_written(tx.hosts)
        await after_commit(self._process)

    async def clear(self, tx: ConductorTransaction, said: Sequence[OutboxKey]) -> None:
        assert isinstance(tx, _CellTransaction), "a transaction of another store"
        await self._store.clear(tx.inner, said)

    async def pending(self, after: OutboxKey | None = None) -> Sequence[tuple[OutboxKey, Message]]:
        await reach_database(self._process)
        return await self._store.pending(after)

    async def read(
        self, instances: Sequence[InstanceId], after: InstanceId | None = None, limit: int | None = None
    ) -> Sequence[Instance]:
        await reach_database(self._process)
        return await self._store.read(instances, after, limit)

    async def host_writes(self) -> int:
        await reach_database(self._process)
        return await self._store.host_writes()

    async def hosts(self) -> Sequence[CellHost]:
        await reach_database(self._process)
        return await self._store.hosts()

    async def heard_hosts(self) -> Sequence[HeardHost]:
        await reach_database(self._process)
        return await self._store.heard_hosts()

    async def save_heard_hosts(self, hosts: Sequence[HeardHost]) -> None:
        await reach_database(self._process)
        await self._store.save_heard_hosts(hosts)

    async def waiting(
        self, until: datetime, after: tuple[datetime, InstanceId] | None = None
    ) -> tuple[Instance, ...]:
        await reach_database(self._process)
        return await self._store.waiting(until, after)

    async def close(self) -> None: ...


class _CellTransaction:
    def __init__(self, inner: ConductorTransaction, process: SimProcess) -> None:
        self.inner = inner
        self._process = process
        self.rows: Sequence[Instance] = ()
        self.forgotten: Sequence[InstanceId] = ()
        self.hosts: Sequence[CellHost] = ()

    async def lock_hosts(self, hosts: Sequence[ProviderId]) -> Mapping[ProviderId, CellHost]:
        return await self.inner.lock_hosts(hosts)

    async def save_hosts(self, hosts: Sequence[CellHost]) -> None:
        self.hosts = (*self.hosts, *hosts)
        await self.inner.save_hosts(hosts)

    async def load(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Instance]:
        fail_if_armed(self._process, "deadlock")
        return await self.inner.load(instances)

    async def take_due(self, now: datetime, limit: int) -> Mapping[InstanceId, Instance]:
        fail_if_armed(self._process, "deadlock")
        rows = await self.inner.take_due(now, limit)
        if rows:
            await self._process.point("in_timer")
        return rows

    async def save(
        self, rows: Sequence[Instance], forgotten: Sequence[InstanceId], said: Sequence[MessageKey]
    ) -> OutboxKey | None:
        self.rows, self.forgotten = rows, forgotten
        return await self.inner.save(rows, forgotten, said)


class WatchedComputeStore(ComputeStore):
    """Reports each change of an attempt on a cell's hosts while its process is alive."""

    def __init__(self, process: SimProcess, observer: CommitObserver) -> None:
        super().__init__(asyncio.get_running_loop().time)
        self._process = process
        self._observer = observer

    async def save(self, attempts: Iterable[AttemptRecord]) -> None:
        saved = tuple(attempts)
        await super().save(saved)
        if not self._process.is_dead:
            self._observer.attempts_changed(saved)
