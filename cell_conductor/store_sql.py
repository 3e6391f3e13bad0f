"""A cell's instances in SQL: on PostgreSQL for many conductors, on SQLite for everything in one process.

Reads are written once for both. Writes are one statement a batch on PostgreSQL, spoken to asyncpg, and one piece of
work on SQLite.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from msgspec import structs
from sqlalchemy import Connection

from bus.errors import Transient
from bus.handling import Kept
from bus.message import Message
from bus.messages.build import InstanceId
from bus.sql import (
    POOL_SIZE,
    PostgresTransaction,
    Transaction,
    among,
    driver_of,
    open_database,
)
from cell_conductor.core.instance import Instance, Pending
from cell_conductor.store import JUST_SAID, ConductorTransaction, by_instance, now
from cell_conductor.tables import cell_instances as table

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_encode = msgspec.json.Encoder().encode
_row_of = msgspec.json.Decoder(Instance).decode
_outbox_of = msgspec.json.Decoder(tuple[Pending, ...]).decode

_POSTGRES_ADD = """
INSERT INTO cell_instances (cell, id, request_id, state, attempt, changed_us, due_us, body, outbox)
SELECT $1, new.* FROM unnest($2::uuid[], $3::uuid[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[],
                             $8::bytea[], $9::bytea[]) AS new
ON CONFLICT (cell, id) DO NOTHING
"""
_POSTGRES_REPLACE = """
UPDATE cell_instances
SET request_id = new.request_id, state = new.state, attempt = new.attempt, changed_us = new.changed_us,
    due_us = new.due_us, body = new.body, outbox = new.outbox
FROM unnest($2::uuid[], $3::uuid[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bytea[], $9::bytea[])
     AS new (id, request_id, state, attempt, changed_us, due_us, body, outbox)
WHERE cell_instances.cell = $1 AND cell_instances.id = new.id
"""
_POSTGRES_CLEAR = """
UPDATE cell_instances SET outbox = new.outbox
FROM unnest($2::uuid[], $3::bytea[]) AS new (id, outbox)
WHERE cell_instances.cell = $1 AND cell_instances.id = new.id
"""
_SQLITE_ADD = """
INSERT INTO cell_instances (cell, id, request_id, state, attempt, changed_us, due_us, body, outbox)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (cell, id) DO NOTHING
"""
_SQLITE_REPLACE = """
UPDATE cell_instances
SET request_id = ?3, state = ?4, attempt = ?5, changed_us = ?6, due_us = ?7, body = ?8, outbox = ?9
WHERE cell = ?1 AND id = ?2
"""
_SQLITE_CLEAR = "UPDATE cell_instances SET outbox = ?3 WHERE cell = ?1 AND id = ?2"

Values = Sequence[Any]


class SqlConductorTransaction:
    def __init__(self, transaction: Transaction, cell: str) -> None:
        self._transaction = transaction
        self._cell = cell
        self._loaded: set[InstanceId] = set()

    async def load(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Instance]:
        found = await self._transaction.run(_load, self._cell, instances) if instances else {}
        self._loaded |= found.keys()
        return found

    async def take_due(self, now: datetime, limit: int) -> Mapping[InstanceId, Instance]:
        found = await self._transaction.run(_take_due, self._cell, _microseconds(now), limit)
        self._loaded |= found.keys()
        return found

    async def save(self, rows: Sequence[Instance], forgotten: Sequence[InstanceId]) -> None:
        known = [_values(row) for row in rows if row.id in self._loaded]
        # In the order of their ids: two processes that meet the same newcomers wait for each other, not in a circle.
        new = sorted(
            (_values(row) for row in rows if row.id not in self._loaded), key=lambda values: values[0].int
        )
        if known:
            await self._write(_POSTGRES_REPLACE, _SQLITE_REPLACE, known)
        if new:
            added = await self._write(_POSTGRES_ADD, _SQLITE_ADD, new)
            if added < len(new):
                raise Transient(f"{len(new) - added} of {len(new)} new instances have a row already")
            self._loaded |= {row.id for row in rows}
        if forgotten:
            await self._transaction.run(_forget, self._cell, forgotten)

    async def clear(self, said: Sequence[Kept]) -> None:
        by_whom = by_instance(said)
        left = await self._transaction.run(_left_after, self._cell, by_whom)
        if left:
            await self._write(_POSTGRES_CLEAR, _SQLITE_CLEAR, left)

    async def _write(self, on_postgres: str, on_sqlite: str, rows: Sequence[Values]) -> int:
        """How many rows there were to write."""
        if isinstance(self._transaction, PostgresTransaction):
            driver = await self._transaction.driver()
            done: str = await driver.execute(on_postgres, self._cell, *map(list, zip(*rows, strict=True)))
            return int(done.rpartition(" ")[2])
        return await self._transaction.run(_write_sqlite, on_sqlite, self._cell, rows)


class SqlConductorStore:
    """On tables that stand: `bus.sql.upgrade(url, "cell_conductor")` makes them."""

    def __init__(
        self, url: str, cell: str, *, clock: Callable[[], datetime] = now, pool_size: int = POOL_SIZE
    ) -> None:
        self._database = open_database(url, pool_size=pool_size)
        self._cell = cell
        self._clock = clock
        self._has_started = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[ConductorTransaction]:
        async with self._database.writing() as transaction:
            yield SqlConductorTransaction(transaction, self._cell)

    async def clear(self, tx: ConductorTransaction, said: Sequence[Kept]) -> None:
        assert isinstance(tx, SqlConductorTransaction), "a transaction of another store"
        await tx.clear(said)

    async def pending(self) -> Sequence[tuple[Kept, Message]]:
        before = self._clock() - JUST_SAID if self._has_started else None
        async with self._database.reading() as transaction:
            unsaid = await transaction.run(_unsaid, self._cell)
        self._has_started = True
        return [
            (Kept(str(instance), each.sequence), each.message)
            for instance, outbox in unsaid
            for each in outbox
            if before is None or each.at < before
        ]

    async def read(self, instances: Sequence[InstanceId]) -> tuple[Instance, ...]:
        async with self._database.reading() as transaction:
            found = await transaction.run(_load, self._cell, instances, is_locking=False)
        return tuple(found[each] for each in sorted(found))

    async def close(self) -> None:
        await self._database.close()


def _load(
    connection: Connection, cell: str, instances: Sequence[InstanceId], *, is_locking: bool = True
) -> dict[InstanceId, Instance]:
    """Locks are taken in the order of the ids, which is everybody's."""
    query = sa.select(table.c.id, table.c.body, table.c.outbox)
    query = query.where(table.c.cell == cell, among(connection, table.c.id, instances)).order_by(table.c.id)
    return _rows(connection, query.with_for_update() if is_locking else query)


def _take_due(connection: Connection, cell: str, now_us: int, limit: int) -> dict[InstanceId, Instance]:
    query = sa.select(table.c.id, table.c.body, table.c.outbox)
    query = query.where(table.c.cell == cell, table.c.due_us <= now_us).order_by(table.c.due_us).limit(limit)
    return _rows(connection, query.with_for_update(skip_locked=True))


def _rows(connection: Connection, query: sa.Select[Any]) -> dict[InstanceId, Instance]:
    return {id_: _instance(body, outbox) for id_, body, outbox in connection.execute(query)}


def _instance(body: bytes, outbox: bytes | None) -> Instance:
    row = _row_of(body)
    return structs.replace(row, outbox=_outbox_of(outbox)) if outbox else row


def _values(row: Instance) -> Values:
    return (
        row.id,
        row.request_id,
        row.state,
        row.attempt,
        _microseconds(row.changed_at),
        _microseconds(row.due_at) if row.due_at else None,
        _encode(structs.replace(row, outbox=())),
        _encode(row.outbox) if row.outbox else None,
    )


def _left_after(connection: Connection, cell: str, said: Mapping[InstanceId, frozenset[int]]) -> list[Values]:
    """What stays to be said of those who said something. A row that another process has locked is left as it is: what
    it has said is said once more, and cleared then.
    """
    query = sa.select(table.c.id, table.c.outbox).where(
        table.c.cell == cell, among(connection, table.c.id, list(said)), table.c.outbox.is_not(None)
    )
    changed: list[Values] = []
    for id_, outbox in connection.execute(query.with_for_update(skip_locked=True)):
        pending = _outbox_of(outbox)
        left = tuple(each for each in pending if each.sequence not in said[id_])
        if len(left) < len(pending):
            changed.append((id_, _encode(left) if left else None))
    return changed


def _unsaid(connection: Connection, cell: str) -> list[tuple[InstanceId, tuple[Pending, ...]]]:
    query = sa.select(table.c.id, table.c.outbox).where(table.c.cell == cell, table.c.outbox.is_not(None))
    return [(id_, _outbox_of(outbox)) for id_, outbox in connection.execute(query.order_by(table.c.id))]


def _forget(connection: Connection, cell: str, instances: Sequence[InstanceId]) -> None:
    connection.execute(sa.delete(table).where(table.c.cell == cell, among(connection, table.c.id, instances)))


def _write_sqlite(connection: Connection, statement: str, cell: str, rows: Sequence[Values]) -> int:
    plain = [(cell, id_.hex, *map(_plain, rest)) for id_, *rest in rows]
    return driver_of(connection).executemany(statement, plain).rowcount


def _plain(value: Any) -> Any:
    """As SQLite has it: an id is text, as SQLAlchemy writes and reads it."""
    return value.hex if isinstance(value, UUID) else value


def _microseconds(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND
