"""A store that injects faults, for a daemon's nodes and for the ring."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

from engine.inventories import ProviderId
from ironic_sync.core.ring import Member, NodeHandover, Owned
from ironic_sync.core.rows import NodeRow
from ironic_sync.store import IronicStore, IronicTransaction, Need, RingView, SavedRows
from tests.simulation.nodes_checker import NodesChecker
from tests.simulation.process import SimProcess
from tests.simulation.store_faults import after_commit, before_commit, fail_if_armed, reach_database


class FaultyIronicStore:
    def __init__(self, store: IronicStore, process: SimProcess, nodes: NodesChecker) -> None:
        self._store = store
        self._process = process
        self._nodes = nodes

    @asynccontextmanager
    async def transaction(self, *, is_lazy: bool = False) -> AsyncIterator["_NodesTransaction"]:
        await reach_database(self._process)
        async with self._store.transaction(is_lazy=is_lazy) as inner:
            tx = _NodesTransaction(inner, self._process)
            yield tx
            await before_commit(self._process)
        if tx.saved:
            self._nodes.saved(self._process, tx.loaded, tx.saved)
        await after_commit(self._process)

    async def read(self, ids: Collection[ProviderId]) -> Mapping[ProviderId, NodeRow]:
        await reach_database(self._process)
        return await self._store.read(ids)

    async def page_of(
        self, owner: str, limit: int, after: ProviderId | None = None, *, needs: Need | None = None
    ) -> tuple[NodeRow, ...]:
        await reach_database(self._process)
        return await self._store.page_of(owner, limit, after, needs=needs)

    async def due(self, owner: str, now: datetime, beyond: datetime, limit: int) -> tuple[NodeRow, ...]:
        await reach_database(self._process)
        rows = await self._store.due(owner, now, beyond, limit)
        if rows:
            await self._process.point("in_timer")
        return rows

    async def join(self, name: str, incarnation: str, lease_s: float) -> None:
        await reach_database(self._process)
        await self._store.join(name, incarnation, lease_s)
        await after_commit(self._process)

    async def renew(self, name: str, incarnation: str, lease_s: float) -> bool:
        await reach_database(self._process)
        is_renewed = await self._store.renew(name, incarnation, lease_s)
        await after_commit(self._process)
        return is_renewed

    async def leave(self, name: str, incarnation: str) -> None:
        await reach_database(self._process)
        await self._store.leave(name, incarnation)

    async def set_draining(self, name: str, *, draining: bool) -> bool:
        await reach_database(self._process)
        return await self._store.set_draining(name, draining=draining)

    async def members(self) -> tuple[Member, ...]:
        await reach_database(self._process)
        return await self._store.members()

    async def look(self, name: str, limit: int, after: ProviderId | None = None) -> RingView:
        await reach_database(self._process)
        return await self._store.look(name, limit, after)

    async def owners(self, names: Collection[str] | None = None) -> tuple[Owned, ...]:
        await reach_database(self._process)
        return await self._store.owners(names)

    async def give(self, moves: Sequence[NodeHandover]) -> tuple[Owned, ...]:
        await reach_database(self._process)
        await self._process.point("before_commit")
        fail_if_armed(self._process, "serialisation_failure", "lost_before_commit")
        members = await self._store.members()
        moved = await self._store.give(moves)
        self._nodes.owners_changed(self._process, moves, moved, members)
        await after_commit(self._process)
        return moved

    async def close(self) -> None: ...


class _NodesTransaction:
    def __init__(self, inner: IronicTransaction, process: SimProcess) -> None:
        self._inner = inner
        self._process = process
        self.loaded: dict[ProviderId, NodeRow] = {}
        self.saved: list[NodeRow] = []

    async def load(self, ids: Collection[ProviderId]) -> Mapping[ProviderId, NodeRow]:
        fail_if_armed(self._process, "deadlock")
        rows = await self._inner.load(ids)
        self.loaded |= rows
        return rows

    async def save(self, rows: Sequence[NodeRow]) -> SavedRows:
        saved = await self._inner.save(rows)
        self.saved += saved.rows
        return saved

    async def forget(self, rows: Sequence[NodeRow]) -> int:
        return await self._inner.forget(rows)
