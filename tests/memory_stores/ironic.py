"""Nodes and daemons in the memory of one process, for tests and simulation.

One transaction runs at a time; what it writes is kept aside until it commits. All daemons of the process share a store.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import islice

from msgspec import Struct, structs

from engine.inventories import ProviderId
from ironic_sync.core.ring import Member, NodeHandover, Owned
from ironic_sync.core.rows import NodeRow
from ironic_sync.store import (
    FORGOTTEN_AFTER,
    IronicTransaction,
    Need,
    RingView,
    SavedRows,
    check_name,
    name_taken,
)
from kit.times import now


class _Daemon(Struct, frozen=True):
    incarnation: str
    lease_ends_at: datetime
    joined_at: datetime
    is_draining: bool = False


class _Transaction:
    def __init__(self, rows: Mapping[ProviderId, NodeRow]) -> None:
        self._rows = rows
        self.written: dict[ProviderId, NodeRow] = {}
        self.forgotten: set[ProviderId] = set()

    async def load(self, ids: Collection[ProviderId]) -> Mapping[ProviderId, NodeRow]:
        return {each: row for each in sorted(ids) if (row := self._row(each)) is not None}

    async def save(self, rows: Sequence[NodeRow]) -> SavedRows:
        assert len({row.id for row in rows}) == len(rows), "a row is saved twice at once"
        saved: list[NodeRow] = []
        lost: list[ProviderId] = []
        for row in rows:
            before = self._row(row.id)
            if row.version != (0 if before is None else before.version):
                lost.append(row.id)
                continue
            self.forgotten.discard(row.id)
            self.written[row.id] = structs.replace(row, version=row.version + 1)
            saved.append(self.written[row.id])
        return SavedRows(tuple(saved), tuple(lost))

    async def forget(self, rows: Sequence[NodeRow]) -> int:
        same = {row.id for row in rows if (kept := self._row(row.id)) and kept.version == row.version}
        self.forgotten |= same
        return len(same)

    def _row(self, node: ProviderId) -> NodeRow | None:
        if node in self.forgotten:
            return None
        return self.written.get(node) or self._rows.get(node)


class MemoryIronicStore:
    def __init__(self, clock: Callable[[], datetime] = now) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._rows: dict[ProviderId, NodeRow] = {}
        self._daemons: dict[str, _Daemon] = {}

    @asynccontextmanager
    async def transaction(self, *, is_lazy: bool = False) -> AsyncIterator[IronicTransaction]:  # noqa: ARG002 - no disk
        async with self._lock:
            transaction = _Transaction(self._rows)
            yield transaction
            self._rows |= transaction.written
            for node in transaction.forgotten:
                self._rows.pop(node, None)

    async def read(self, ids: Collection[ProviderId]) -> Mapping[ProviderId, NodeRow]:
        return {each: self._rows[each] for each in sorted(ids) if each in self._rows}

    async def page_of(
        self, owner: str, limit: int, after: ProviderId | None = None, *, needs: Need | None = None
    ) -> tuple[NodeRow, ...]:
        found = sorted(self._of(owner), key=lambda row: row.id)
        wanted = (row for row in found if after is None or row.id > after)
        return tuple(islice((row for row in wanted if needs is None or _does_need(row, needs)), limit))

    async def due(self, owner: str, now: datetime, beyond: datetime, limit: int) -> tuple[NodeRow, ...]:
        due = [
            (row.due_at, row.id, row)
            for row in self._of(owner)
            if row.due_at and (row.due_at <= now or row.due_at > beyond)
        ]
        return tuple(row for _, _, row in sorted(due, key=lambda each: each[:2])[:limit])

    async def join(self, name: str, incarnation: str, lease_s: float) -> None:
        check_name(name)
        at = self._clock()
        self._daemons = {
            each: daemon
            for each, daemon in self._daemons.items()
            if daemon.lease_ends_at > at - FORGOTTEN_AFTER
        }
        known = self._daemons.get(name)
        if known and known.incarnation != incarnation and known.lease_ends_at > at:
            raise name_taken(name, self._member(name, known))
        self._daemons[name] = _Daemon(incarnation, at + timedelta(seconds=lease_s), at)

    async def renew(self, name: str, incarnation: str, lease_s: float) -> bool:
        known, at = self._daemons.get(name), self._clock()
        if known is None or known.incarnation != incarnation or known.lease_ends_at <= at:
            return False
        self._daemons[name] = structs.replace(known, lease_ends_at=at + timedelta(seconds=lease_s))
        return True

    async def leave(self, name: str, incarnation: str) -> None:
        known = self._daemons.get(name)
        if known is not None and known.incarnation == incarnation:
            del self._daemons[name]

    async def set_draining(self, name: str, *, draining: bool) -> bool:
        if (known := self._daemons.get(name)) is None:
            return False
        self._daemons[name] = structs.replace(known, is_draining=draining)
        return True

    async def members(self) -> tuple[Member, ...]:
        return tuple(self._member(name, daemon) for name, daemon in sorted(self._daemons.items()))

    async def look(self, name: str, limit: int, after: ProviderId | None = None) -> RingView:
        unread = await self.page_of(name, limit, after, needs="read")
        return RingView(
            members=await self.members(),
            owner_names=tuple(sorted({row.owner for row in self._rows.values()})),
            unread=tuple(map(_owned, unread)),
        )

    async def owners(self, names: Collection[str] | None = None) -> tuple[Owned, ...]:
        rows = (self._rows[each] for each in sorted(self._rows))
        return tuple(_owned(row) for row in rows if names is None or row.owner in names)

    async def give(self, moves: Sequence[NodeHandover]) -> tuple[Owned, ...]:
        async with self._lock:
            moved = [
                structs.replace(
                    row, owner=move.to, epoch=max(row.epoch, move.above) + 1, version=row.version + 1
                )
                for move in moves
                if (row := self._rows.get(move.id)) is not None
                and (row.owner, row.epoch) == (move.owner, move.epoch)
                and not (move.only_free and row.holds_instance)
            ]
            self._rows |= {row.id: row for row in moved}
        return tuple(_owned(row) for row in moved)

    async def close(self) -> None:
        """Nothing to let go of."""

    def _of(self, owner: str) -> Iterable[NodeRow]:
        return (row for row in self._rows.values() if row.owner == owner)

    def _member(self, name: str, daemon: _Daemon) -> Member:
        return Member(
            name=name,
            incarnation=daemon.incarnation,
            lease_left_s=(daemon.lease_ends_at - self._clock()).total_seconds(),
            is_draining=daemon.is_draining,
            joined_at=daemon.joined_at,
        )


def _does_need(row: NodeRow, needs: Need) -> bool:
    return row.needs_report if needs == "report" else row.needs_read


def _owned(row: NodeRow) -> Owned:
    return Owned(row.id, row.owner, row.epoch, row.holds_instance)
