"""A cell's instances in SQL: on PostgreSQL for many conductors, on SQLite for everything in one process.

Reads are written once for both. Writes are one statement a batch on PostgreSQL, spoken to asyncpg, and one piece of
work on SQLite.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
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
    SqliteTransaction,
    Transaction,
    among,
    columns_of,
    driver_of,
    open_database,
)
from cell_conductor.bodies import decoded, encoded, encoded_outbox, outbox_of
from cell_conductor.core.instance import Instance, Pending
from cell_conductor.store import JUST_SAID, ConductorTransaction, by_instance, now
from cell_conductor.tables import cell_instances as table

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

# In the order of their ids, which is everybody's: who waits for a lock waits for nobody who waits for him.
_POSTGRES_LOAD = """
SELECT body, outbox FROM cell_instances WHERE cell = $1 AND id = ANY($2::text::uuid[]) ORDER BY id FOR UPDATE
"""
_SQLITE_LOAD = """
SELECT body, outbox FROM cell_instances WHERE cell = ? AND id IN (SELECT value FROM json_each(?))
"""
_POSTGRES_ADD = """
INSERT INTO cell_instances (cell, id, request_id, state, attempt, changed_us, due_us, body, outbox)
SELECT $1, new.* FROM unnest($2::text::uuid[], $3::text::uuid[], $4::text::text[], $5::text::bigint[],
                             $6::text::bigint[], $7::text::bigint[], $8::bytea[], $9::bytea[]) AS new
ON CONFLICT (cell, id) DO NOTHING
"""
_POSTGRES_REPLACE = """
UPDATE cell_instances
SET request_id = new.request_id, state = new.state, attempt = new.attempt, changed_us = new.changed_us,
    due_us = new.due_us, body = new.body, outbox = new.outbox
FROM unnest($2::text::uuid[], $3::text::uuid[], $4::text::text[], $5::text::bigint[], $6::text::bigint[],
            $7::text::bigint[], $8::bytea[], $9::bytea[])
     AS new (id, request_id, state, attempt, changed_us, due_us, body, outbox)
WHERE cell_instances.cell = $1 AND cell_instances.id = new.id
"""
_POSTGRES_CLEAR = """
UPDATE cell_instances SET outbox = new.outbox
FROM unnest($2::text::uuid[], $3::bytea[]) AS new (id, outbox)
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
    """What is saved is written when the transaction ends, together and once: on SQLite with the commit, in one hop."""

    def __init__(self, transaction: Transaction, cell: str) -> None:
        self._transaction = transaction
        self._cell = cell
        self._loaded: dict[InstanceId, Instance] = {}
        self._saved: dict[InstanceId, Instance] = {}
        self._forgotten: list[InstanceId] = []

    async def load(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Instance]:
        if not instances:
            return {}
        found = await self._load(instances)
        self._loaded |= found
        return found | {each: self._saved[each] for each in instances if each in self._saved}

    async def take_due(self, now: datetime, limit: int) -> Mapping[InstanceId, Instance]:
        found = await self._transaction.run(_take_due, self._cell, _microseconds(now), limit)
        self._loaded |= found
        return found

    async def save(self, rows: Sequence[Instance], forgotten: Sequence[InstanceId]) -> None:
        self._saved |= {row.id: row for row in rows}
        self._forgotten += forgotten

    async def clear(self, said: Sequence[Kept]) -> None:
        """Rows that are at hand are written without it; the others are looked up for it."""
        elsewhere: dict[InstanceId, frozenset[int]] = {}
        for instance, sequences in by_instance(said).items():
            row = self._saved.get(instance) or self._loaded.get(instance)
            if row is None:
                elsewhere[instance] = sequences
            elif len(left := _left_of(row.outbox, sequences)) < len(row.outbox):
                self._saved[instance] = structs.replace(row, outbox=left)
        if not elsewhere:
            return
        if isinstance(self._transaction, SqliteTransaction):
            self._transaction.later(partial(_clear_sqlite, cell=self._cell, said=elsewhere))
        elif left_there := await self._transaction.run(_left_after, self._cell, elsewhere):
            await self._on_postgres(_POSTGRES_CLEAR, left_there, plain=1)

    async def write(self) -> None:
        """All that was saved; the transaction is about to be committed."""
        if not (self._saved or self._forgotten):
            return
        gone = set(self._forgotten)
        rows = [row for row in self._saved.values() if row.id not in gone]
        known = [_values(row) for row in rows if row.id in self._loaded]
        # In the order of their ids: two processes that meet the same newcomers wait for each other, not in a circle.
        new = sorted(
            [_values(row) for row in rows if row.id not in self._loaded], key=lambda values: values[0].int
        )
        if isinstance(self._transaction, SqliteTransaction):
            work = partial(_write_sqlite, cell=self._cell, known=known, new=new, gone=self._forgotten)
            self._transaction.later(work)
            return
        if known:
            await self._on_postgres(_POSTGRES_REPLACE, known, plain=6)
        if new:
            _all_added(await self._on_postgres(_POSTGRES_ADD, new, plain=6), len(new))
        if self._forgotten:
            await self._transaction.run(_forget, self._cell, self._forgotten)

    async def _load(self, instances: Sequence[InstanceId]) -> dict[InstanceId, Instance]:
        if isinstance(self._transaction, PostgresTransaction):
            driver = await self._transaction.driver()
            (named,) = columns_of([(id_,) for id_ in instances], 1)
            return _by_id(await driver.fetch(_POSTGRES_LOAD, self._cell, named))
        return await self._transaction.run(_load_sqlite, self._cell, instances)

    async def _on_postgres(self, statement: str, rows: Sequence[Values], *, plain: int) -> int:
        """How many rows there were to write."""
        assert isinstance(self._transaction, PostgresTransaction), "SQLite is written to with the commit"
        driver = await self._transaction.driver()
        done: str = await driver.execute(statement, self._cell, *columns_of(rows, plain))
        return int(done.rpartition(" ")[2])


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
            ours = SqlConductorTransaction(transaction, self._cell)
            yield ours
            await ours.write()

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
            found = await transaction.run(_read, self._cell, instances)
        return tuple(found[each] for each in sorted(found))

    async def close(self) -> None:
        await self._database.close()


def _read(connection: Connection, cell: str, instances: Sequence[InstanceId]) -> dict[InstanceId, Instance]:
    query = sa.select(table.c.body, table.c.outbox)
    query = query.where(table.c.cell == cell, among(connection, table.c.id, instances))
    return _by_id(connection.execute(query))


def _take_due(connection: Connection, cell: str, now_us: int, limit: int) -> dict[InstanceId, Instance]:
    query = sa.select(table.c.body, table.c.outbox)
    query = query.where(table.c.cell == cell, table.c.due_us <= now_us).order_by(table.c.due_us).limit(limit)
    return _by_id(connection.execute(query.with_for_update(skip_locked=True)))


def _load_sqlite(
    connection: Connection, cell: str, instances: Sequence[InstanceId]
) -> dict[InstanceId, Instance]:
    named = msgspec.json.encode([id_.hex for id_ in instances]).decode()
    return _by_id(driver_of(connection).execute(_SQLITE_LOAD, (cell, named)))


def _by_id(found: Iterable[Any]) -> dict[InstanceId, Instance]:
    rows = [decoded(body, outbox) for body, outbox in found]
    return {row.id: row for row in rows}


def _values(row: Instance) -> Values:
    body, outbox = encoded(row)
    return (
        row.id,
        row.request_id,
        row.state,
        row.attempt,
        _microseconds(row.changed_at),
        _microseconds(row.due_at) if row.due_at else None,
        body,
        outbox,
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
        pending = outbox_of(outbox)
        left = _left_of(pending, said[id_])
        if len(left) < len(pending):
            changed.append((id_, encoded_outbox(left)))
    return changed


def _left_of(pending: tuple[Pending, ...], said: frozenset[int]) -> tuple[Pending, ...]:
    return tuple([each for each in pending if each.sequence not in said])


def _unsaid(connection: Connection, cell: str) -> list[tuple[InstanceId, tuple[Pending, ...]]]:
    query = sa.select(table.c.id, table.c.outbox).where(table.c.cell == cell, table.c.outbox.is_not(None))
    return [(id_, outbox_of(outbox)) for id_, outbox in connection.execute(query.order_by(table.c.id))]


def _forget(connection: Connection, cell: str, instances: Sequence[InstanceId]) -> None:
    connection.execute(sa.delete(table).where(table.c.cell == cell, among(connection, table.c.id, instances)))


def _write_sqlite(
    connection: Connection,
    *,
    cell: str,
    known: Sequence[Values],
    new: Sequence[Values],
    gone: Sequence[InstanceId],
) -> None:
    driver = driver_of(connection)
    driver.executemany(_SQLITE_REPLACE, [_plain(cell, values) for values in known])
    _all_added(driver.executemany(_SQLITE_ADD, [_plain(cell, values) for values in new]).rowcount, len(new))
    if gone:
        _forget(connection, cell, gone)


def _clear_sqlite(connection: Connection, *, cell: str, said: Mapping[InstanceId, frozenset[int]]) -> None:
    left = [_plain(cell, values) for values in _left_after(connection, cell, said)]
    driver_of(connection).executemany(_SQLITE_CLEAR, left)


def _all_added(added: int, new: int) -> None:
    if added < new:
        raise Transient(f"{new - added} of {new} new instances have a row already")


def _plain(cell: str, values: Values) -> tuple[Any, ...]:
    """As SQLite has it: an id is text, as SQLAlchemy writes and reads it."""
    return (cell, *[value.hex if isinstance(value, UUID) else value for value in values])


def _microseconds(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND
