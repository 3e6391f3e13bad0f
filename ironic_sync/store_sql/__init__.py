"""Nodes and daemons in SQL: on PostgreSQL for a ring of daemons, on SQLite for everything on one machine.

The tables must exist: `bus.sql.upgrade(url, "ironic_sync")` makes them. On PostgreSQL, a batch is a constant number
of statements.

    rows.py      the columns of a node's row, and the statements that run most often
    queries.py   queries that take no lock
    daemons.py   the members of the ring and their leases
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from operator import attrgetter
from uuid import UUID

from msgspec import structs
from sqlalchemy import Connection

from bus.message import ProviderId
from bus.sql import (
    POOL_SIZE,
    DatabaseSettings,
    PostgresDatabase,
    Transaction,
    open_database,
    read_once,
    reads,
    write_once,
)
from ironic_sync.core.ring import Member, NodeHandover, Owned
from ironic_sync.core.rows import NodeRow
from ironic_sync.store import IronicTransaction, RingView, SavedRows, check_name
from ironic_sync.store_sql import daemons, queries
from ironic_sync.store_sql.rows import ADD, FORGET, GIVE, LOAD, REPLACE, owned_of, row_of, values

# A daemon that stands still inside a transaction is thrown out of it before its lease is over.
SETTINGS = DatabaseSettings(idle_in_transaction_s=5.0)
# For leases: one renews while another looks.
LEASE_SESSIONS = 2
# All daemons lock rows in the order of these ids.
_by_id = attrgetter("id")


class SqlIronicTransaction:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def load(self, ids: Collection[ProviderId]) -> Mapping[ProviderId, NodeRow]:
        return {row.id: row for row in map(row_of, await LOAD.fetch(self._transaction, ids))}

    async def save(self, rows: Sequence[NodeRow]) -> SavedRows:
        assert len({row.id for row in rows}) == len(rows), "a row is saved twice at once"
        ordered = sorted(rows, key=_by_id)
        written = set[UUID]()
        for statement, are_new in ((REPLACE, False), (ADD, True)):
            if some := [values(row) for row in ordered if (not row.version) == are_new]:
                written.update(id_ for (id_,) in await statement.fetch(self._transaction, some))
        return SavedRows(
            tuple(structs.replace(row, version=row.version + 1) for row in rows if row.id in written),
            tuple(row.id for row in rows if row.id not in written),
        )

    async def forget(self, rows: Sequence[NodeRow]) -> int:
        ordered = sorted(rows, key=_by_id)
        return await FORGET.change(self._transaction, [(row.id, row.version) for row in ordered])


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
            yield SqlIronicTransaction(transaction)

    async def read(self, ids: Collection[ProviderId]) -> Mapping[ProviderId, NodeRow]:
        return {row.id: row for row in await read_once(self._database, queries.read, ids)}

    page_of = reads(queries.page_of)
    due = reads(queries.due)

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

    owners = reads(queries.owners)

    async def give(self, moves: Sequence[NodeHandover]) -> tuple[Owned, ...]:
        if not moves:
            return ()
        async with self._database.writing() as transaction:
            rows = [
                (each.id, each.owner, each.epoch, each.to, each.only_free, each.above)
                for each in sorted(moves, key=_by_id)
            ]
            return owned_of(await GIVE.fetch(transaction, rows))

    versions = reads(queries.versions)
    has_tables = reads(queries.has_tables)

    async def close(self) -> None:
        await self._database.close()
        if self._leases is not self._database:
            await self._leases.close()


def _look(connection: Connection, name: str, limit: int, after: ProviderId | None) -> RingView:
    return RingView(
        members=daemons.members(connection),
        owner_names=queries.owner_names(connection),
        unread=queries.unread_of(connection, name, limit, after),
    )
