"""Nodes and daemons in SQL: on PostgreSQL for a ring of daemons, on SQLite for everything on one machine.

The tables must exist: `bus.sql.upgrade(url, "ironic_sync")` makes them. On PostgreSQL, a batch is a constant number
of statements.

    postgresql.py, sqlite.py   the statements that run most often, for each database
    rows.py                    converts a row to the values of its columns, and back
    reading.py                 queries that take no lock, for both databases
    daemons.py                 the members of the ring and their leases, for both databases
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol
from uuid import UUID

from msgspec import structs
from sqlalchemy import Connection

from bus.message import ProviderId
from bus.sql import (
    POOL_SIZE,
    DatabaseSettings,
    PostgresDatabase,
    PostgresTransaction,
    SqliteTransaction,
    open_database,
    read_once,
    reads,
    write_once,
)
from ironic_sync.core.ring import Member, Move, Owned
from ironic_sync.core.rows import NodeRow
from ironic_sync.store import IronicTransaction, RingView, Saved, check_name
from ironic_sync.store_sql import daemons, reading
from ironic_sync.store_sql.postgresql import PostgresRows
from ironic_sync.store_sql.rows import Stored, Values, number, row_of, values
from ironic_sync.store_sql.sqlite import SqliteRows

# A daemon that stands still inside a transaction is thrown out of it before its lease is over.
SETTINGS = DatabaseSettings(idle_in_transaction_s=5.0)
# For leases: one renews while another looks.
LEASE_SESSIONS = 2


class Rows(Protocol):
    """The statements on nodes' rows that run most often; each database has its own."""

    async def load(self, ids: Sequence[UUID]) -> Sequence[Stored]: ...

    async def write(self, rows: Sequence[Values], *, are_new: bool) -> set[UUID]:
        """Insert these rows if they are new, otherwise update them. Returns the ids of those that were written: a new
        row only if there is none of its id, another only if it still has the version that was read.
        """

    async def give(self, moves: Sequence[Move]) -> tuple[Owned, ...]: ...

    async def forget(self, ids: Sequence[UUID], versions: Sequence[int]) -> int: ...


class SqlIronicTransaction:
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def load(self, ids: Collection[ProviderId]) -> Mapping[ProviderId, NodeRow]:
        found = await self._rows.load(sorted(ids, key=number)) if ids else ()
        return {row.id: row for row in map(row_of, found)}

    async def save(self, rows: Sequence[NodeRow]) -> Saved:
        assert len({row.id for row in rows}) == len(rows), "a row is saved twice at once"
        ordered = sorted(rows, key=lambda row: number(row.id))
        written = set[UUID]()
        for are_new in (False, True):
            if some := [values(row) for row in ordered if (not row.version) == are_new]:
                written |= await self._rows.write(some, are_new=are_new)
        return Saved(
            tuple(structs.replace(row, version=row.version + 1) for row in rows if row.id in written),
            tuple(row.id for row in rows if row.id not in written),
        )

    async def forget(self, rows: Sequence[NodeRow]) -> int:
        ordered = sorted(rows, key=lambda row: number(row.id))
        return await self._rows.forget([row.id for row in ordered], [row.version for row in ordered])


class SqlIronicStore:
    def __init__(
        self, url: str, *, pool_size: int = POOL_SIZE, settings: DatabaseSettings = SETTINGS
    ) -> None:
        self._database = open_database(url, pool_size=pool_size, settings=settings)
        # Of their own, so that a renewal never waits behind the rows of nodes. SQLite has one writer anyway.
        own = open_database(url, pool_size=LEASE_SESSIONS, settings=settings)
        self._leases = own if isinstance(own, PostgresDatabase) else self._database

    @asynccontextmanager
    async def transaction(self, *, is_lazy: bool = False) -> AsyncIterator[IronicTransaction]:
        async with self._database.writing(is_lazy=is_lazy) as transaction:
            yield SqlIronicTransaction(_rows(transaction))

    async def read(self, ids: Collection[ProviderId]) -> Mapping[ProviderId, NodeRow]:
        return {row.id: row for row in await read_once(self._database, reading.read, ids)}

    page_of = reads(reading.page_of)
    due = reads(reading.due)

    async def join(self, name: str, incarnation: str, lease_s: float) -> None:
        check_name(name)
        await write_once(self._leases, daemons.join, name, incarnation, lease_s)

    async def renew(self, name: str, incarnation: str, lease_s: float) -> bool:
        return await write_once(self._leases, daemons.renew, name, incarnation, lease_s)

    async def leave(self, name: str, incarnation: str) -> None:
        await write_once(self._leases, daemons.leave, name, incarnation)

    async def set_draining(self, name: str, *, draining: bool) -> bool:
        return await write_once(self._leases, daemons.set_draining, name, draining)

    async def members(self) -> tuple[Member, ...]:
        return await read_once(self._leases, daemons.members)

    async def look(self, name: str, limit: int, after: ProviderId | None = None) -> RingView:
        return await read_once(self._leases, _look, name, limit, after)

    owners = reads(reading.owners)

    async def give(self, moves: Sequence[Move]) -> tuple[Owned, ...]:
        if not moves:
            return ()
        async with self._database.writing() as transaction:
            return await _rows(transaction).give(moves)

    has_tables = reads(reading.has_tables)

    async def close(self) -> None:
        await self._database.close()
        if self._leases is not self._database:
            await self._leases.close()


def _rows(transaction: PostgresTransaction | SqliteTransaction) -> Rows:
    if isinstance(transaction, PostgresTransaction):
        return PostgresRows(transaction)
    return SqliteRows(transaction)


def _look(connection: Connection, name: str, limit: int, after: ProviderId | None) -> RingView:
    return RingView(
        members=daemons.members(connection),
        owner_names=reading.owner_names(connection),
        unread=reading.unread_of(connection, name, limit, after),
    )
