"""A cell's instances in SQL: on PostgreSQL for many conductors, on SQLite for everything in one process.

What is rare is written once for both. What each boot needs is one statement a batch on PostgreSQL, spoken to asyncpg,
and one piece of work on SQLite.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
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
from bus.messages.cell import PlaceInCell
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
from cell_conductor.bodies import (
    Body,
    Orders,
    body_of,
    decoded,
    encoded_body,
    encoded_order,
    encoded_outbox,
    order_of,
)
from cell_conductor.core.instance import Instance
from cell_conductor.store import JUST_SAID, ConductorTransaction, by_entity, now
from cell_conductor.tables import cell_instances as table

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

# In the order in which they are named, which is that of the ids and everybody's: who waits for a lock waits for nobody
# who waits for him. And each looked for by itself, as everywhere here: left the choice, PostgreSQL may decide, while the
# table is small, to walk all of the cell's rows, and keep to it (measured: 6 ms a boot).
_POSTGRES_LOAD = """
SELECT kept.body, kept.outbox
FROM unnest($2::text::uuid[]) AS named (id)
CROSS JOIN LATERAL (
    SELECT body, outbox FROM cell_instances WHERE cell = $1 AND id = named.id FOR UPDATE
) AS kept
"""
_SQLITE_LOAD = """
SELECT body, outbox FROM cell_instances WHERE cell = ? AND id IN (SELECT value FROM json_each(?))
"""
_POSTGRES_ADD = """
INSERT INTO cell_instances (cell, id, state, due_us, unsaid_from, unsaid_to, body, outbox, placed)
SELECT $1, new.* FROM unnest($2::text::uuid[], $3::text::text[], $4::text::bigint[], $5::text::bigint[],
                             $6::text::bigint[], $7::bytea[], $8::bytea[], $9::bytea[]) AS new
ON CONFLICT (cell, id) DO NOTHING
"""
_POSTGRES_REPLACE = """
UPDATE cell_instances
SET state = new.state, due_us = new.due_us, unsaid_from = new.unsaid_from, unsaid_to = new.unsaid_to,
    body = new.body, outbox = new.outbox, placed = coalesce(cell_instances.placed, new.placed)
FROM (
    SELECT kept.place, given.*
    FROM unnest($2::text::uuid[], $3::text::text[], $4::text::bigint[], $5::text::bigint[], $6::text::bigint[],
                $7::bytea[], $8::bytea[], $9::bytea[])
         AS given (id, state, due_us, unsaid_from, unsaid_to, body, outbox, placed)
    CROSS JOIN LATERAL (
        SELECT ctid AS place FROM cell_instances WHERE cell = $1 AND id = given.id FOR UPDATE
    ) AS kept
) AS new
WHERE cell_instances.ctid = new.place
"""
# A row that another process has locked is left as it is: what it has said is said once more, and cleared then. The sum
# is there because nobody is to be looked for by what is unsaid: of a young table that looks as cheap as by the id.
_POSTGRES_CLEAR_WHOLE = """
WITH silent AS (
    SELECT kept.place
    FROM unnest($2::text::uuid[], $3::text::bigint[], $4::text::bigint[]) AS said (id, first, last)
    CROSS JOIN LATERAL (
        SELECT ctid AS place FROM cell_instances
        WHERE cell = $1 AND id = said.id AND unsaid_from + 0 >= said.first AND unsaid_to <= said.last
        FOR UPDATE SKIP LOCKED
    ) AS kept
)
UPDATE cell_instances SET outbox = NULL, unsaid_from = NULL, unsaid_to = NULL
FROM silent WHERE cell_instances.ctid = silent.place
"""
_SQLITE_ADD = """
INSERT INTO cell_instances (cell, id, state, due_us, unsaid_from, unsaid_to, body, outbox, placed)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (cell, id) DO NOTHING
"""
_SQLITE_REPLACE = """
UPDATE cell_instances
SET state = ?3, due_us = ?4, unsaid_from = ?5, unsaid_to = ?6, body = ?7, outbox = ?8, placed = coalesce(placed, ?9)
WHERE cell = ?1 AND id = ?2
"""
_SQLITE_CLEAR_WHOLE = """
UPDATE cell_instances SET outbox = NULL, unsaid_from = NULL, unsaid_to = NULL
WHERE cell = ?1 AND id = ?2 AND unsaid_from >= ?3 AND unsaid_to <= ?4
"""

Values = Sequence[Any]
# A row without its order, and its words as they are written.
Found = tuple[Body, bytes | None]
# Who has said what, all of it confirmed: the entity, and the first and the last of numbers without a gap.
Run = tuple[str, int, int]


class SqlConductorTransaction:
    """What is saved and cleared is written when the transaction ends, together and once."""

    def __init__(self, transaction: Transaction, cell: str, orders: Orders) -> None:
        self._transaction = transaction
        self._cell = cell
        self._orders = orders
        self._loaded: dict[int, Instance] = {}
        self._saved: dict[int, Instance] = {}
        self._forgotten: list[InstanceId] = []
        self._cleared: list[Kept] = []

    async def load(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Instance]:
        if not instances:
            return {}
        found = await self._with_orders(await self._load(instances))
        return {row.id: self._saved.get(row.id.int, row) for row in found}

    async def take_due(self, now: datetime, limit: int) -> Mapping[InstanceId, Instance]:
        due = await self._transaction.run(_take_due, self._cell, _microseconds(now), limit)
        return {row.id: row for row in await self._with_orders(due)}

    async def save(self, rows: Sequence[Instance], forgotten: Sequence[InstanceId]) -> None:
        self._saved |= {row.id.int: row for row in rows}
        self._forgotten += forgotten

    def clear(self, said: Sequence[Kept]) -> None:
        self._cleared += said

    async def write(self) -> None:
        """All that was saved; the transaction is about to be committed."""
        if self._saved or self._forgotten:
            await self._write()
        if self._cleared:
            # After what was saved: a row that says more since then is seen as it is now.
            await self._clear(by_entity(self._cleared))

    def committed(self) -> None:
        self._orders.remember(self._saved)

    async def _write(self) -> None:
        for gone in self._forgotten:
            self._saved.pop(gone.int, None)
        known = [
            _values(row, self._loaded[number])
            for number, row in self._saved.items()
            if number in self._loaded
        ]
        # In the order of their ids: two processes that meet the same newcomers wait for each other, not in a circle.
        new = [
            _values(row, None) for number, row in sorted(self._saved.items()) if number not in self._loaded
        ]
        if isinstance(self._transaction, SqliteTransaction):
            await self._transaction.run(_write_sqlite, self._cell, known, new)
        else:
            if known:
                await self._on_postgres(_POSTGRES_REPLACE, known, plain=5)
            if new:
                _all_added(await self._on_postgres(_POSTGRES_ADD, new, plain=5), len(new))
        if self._forgotten:
            await self._transaction.run(_forget, self._cell, self._forgotten)

    async def _clear(self, said: Mapping[str, set[int]]) -> None:
        """Nearly always all that a row has to say is confirmed when some of it is, which its numbers tell. Only of the
        others it must be found out what is left.
        """
        runs = [_last_run(entity, numbers) for entity, numbers in said.items()]
        if isinstance(self._transaction, SqliteTransaction):
            cleared = await self._transaction.run(_clear_sqlite, self._cell, runs)
        else:
            cleared = await self._on_postgres(_POSTGRES_CLEAR_WHOLE, runs, plain=3)
        if cleared < len(runs):
            await self._transaction.run(_clear_in_part, self._cell, said)

    async def _load(self, instances: Sequence[InstanceId]) -> list[Found]:
        if isinstance(self._transaction, PostgresTransaction):
            driver = await self._transaction.driver()
            (named,) = columns_of([(id_,) for id_ in sorted(instances, key=_number)], 1)
            return _bodies(await driver.fetch(_POSTGRES_LOAD, self._cell, named))
        return await self._transaction.run(_load_sqlite, self._cell, instances)

    async def _with_orders(self, found: Sequence[Found]) -> list[Instance]:
        """Remembered from when they were written; or read, by a process that did not write them."""
        orders = [self._orders.of(body) for body, _ in found]
        missing = [
            body.instance.id
            for (body, _), order in zip(found, orders, strict=True)
            if order is None and body.placed_at is not None
        ]
        read = await self._transaction.run(_orders_of, self._cell, missing) if missing else {}
        rows = [
            decoded(body, outbox, order or read.get(body.instance.id.int))
            for (body, outbox), order in zip(found, orders, strict=True)
        ]
        self._loaded |= {row.id.int: row for row in rows}
        return rows

    async def _on_postgres(self, statement: str, rows: Sequence[Values], *, plain: int) -> int:
        """How many rows there were to write."""
        assert isinstance(self._transaction, PostgresTransaction), "SQLite has its own way"
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
        self._orders = Orders()
        self._has_started = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[ConductorTransaction]:
        async with self._database.writing() as transaction:
            ours = SqlConductorTransaction(transaction, self._cell, self._orders)
            yield ours
            await ours.write()
        ours.committed()

    async def clear(self, tx: ConductorTransaction, said: Sequence[Kept]) -> None:
        assert isinstance(tx, SqlConductorTransaction), "a transaction of another store"
        tx.clear(said)

    async def pending(self) -> Sequence[tuple[Kept, Message]]:
        before = self._clock() - JUST_SAID if self._has_started else None
        async with self._database.reading() as transaction:
            unsaid = await transaction.run(_unsaid, self._cell)
        self._has_started = True
        return [
            (Kept(str(row.id), each.sequence), each.message)
            for row in unsaid
            for each in row.outbox
            if before is None or each.at < before
        ]

    async def read(self, instances: Sequence[InstanceId]) -> tuple[Instance, ...]:
        async with self._database.reading() as transaction:
            found = await transaction.run(_read, self._cell, instances)
        return tuple(sorted(found, key=lambda row: row.id))

    async def close(self) -> None:
        await self._database.close()


def _read(connection: Connection, cell: str, instances: Sequence[InstanceId]) -> list[Instance]:
    return _whole(connection, table.c.cell == cell, among(connection, table.c.id, instances))


def _unsaid(connection: Connection, cell: str) -> list[Instance]:
    return _whole(connection, table.c.cell == cell, table.c.unsaid_from.is_not(None))


def _whole(connection: Connection, *which: sa.ColumnElement[bool]) -> list[Instance]:
    return _rows(connection.execute(sa.select(table.c.body, table.c.outbox, table.c.placed).where(*which)))


def _rows(found: Iterable[Any]) -> list[Instance]:
    return [
        decoded(body_of(body), outbox, order_of(placed) if placed else None) for body, outbox, placed in found
    ]


def _number(id_: InstanceId) -> int:
    return id_.int


def _take_due(connection: Connection, cell: str, now_us: int, limit: int) -> list[Found]:
    query = sa.select(table.c.body, table.c.outbox)
    query = query.where(table.c.cell == cell, table.c.due_us <= now_us).order_by(table.c.due_us).limit(limit)
    return _bodies(connection.execute(query.with_for_update(skip_locked=True)))


def _load_sqlite(connection: Connection, cell: str, instances: Sequence[InstanceId]) -> list[Found]:
    named = msgspec.json.encode([id_.hex for id_ in instances]).decode()
    return _bodies(driver_of(connection).execute(_SQLITE_LOAD, (cell, named)))


def _bodies(found: Iterable[Any]) -> list[Found]:
    return [(body_of(body), outbox) for body, outbox in found]


def _orders_of(connection: Connection, cell: str, instances: Sequence[InstanceId]) -> dict[int, PlaceInCell]:
    query = sa.select(table.c.id, table.c.placed)
    query = query.where(table.c.cell == cell, among(connection, table.c.id, instances))
    return {id_.int: order_of(placed) for id_, placed in connection.execute(query)}


def _values(row: Instance, before: Instance | None) -> Values:
    due_at, outbox = row.due_at, row.outbox
    is_placed = row.order is not None and (before is None or before.order is None)
    return (
        row.id,
        row.state,
        _microseconds(due_at) if due_at else None,
        outbox[0].sequence if outbox else None,
        outbox[-1].sequence if outbox else None,
        encoded_body(row),
        encoded_outbox(row),
        encoded_order(row.order) if row.order is not None and is_placed else None,
    )


def _last_run(entity: str, numbers: set[int]) -> Run:
    first = last = max(numbers)
    while first - 1 in numbers:
        first -= 1
    return (entity, first, last)


def _clear_in_part(connection: Connection, cell: str, said: Mapping[str, set[int]]) -> None:
    """Of these, what was not confirmed stays to be said. One that another process has locked is left as it is."""
    query = sa.select(table.c.body, table.c.outbox, table.c.placed).where(
        table.c.cell == cell,
        among(connection, table.c.id, [UUID(entity) for entity in said]),
        table.c.unsaid_from.is_not(None),
    )
    for row in _rows(connection.execute(query.with_for_update(skip_locked=True)).all()):
        left = tuple([each for each in row.outbox if each.sequence not in said[str(row.id)]])
        if len(left) < len(row.outbox):
            _, _, _, first, last, _, outbox, _ = _values(structs.replace(row, outbox=left), row)
            changed = {"unsaid_from": first, "unsaid_to": last, "outbox": outbox}
            connection.execute(sa.update(table).where(table.c.cell == cell, table.c.id == row.id), changed)


def _forget(connection: Connection, cell: str, instances: Sequence[InstanceId]) -> None:
    connection.execute(sa.delete(table).where(table.c.cell == cell, among(connection, table.c.id, instances)))


def _write_sqlite(connection: Connection, cell: str, known: Sequence[Values], new: Sequence[Values]) -> None:
    driver = driver_of(connection)
    driver.executemany(_SQLITE_REPLACE, [_plain(cell, values) for values in known])
    _all_added(driver.executemany(_SQLITE_ADD, [_plain(cell, values) for values in new]).rowcount, len(new))


def _clear_sqlite(connection: Connection, cell: str, runs: Sequence[Run]) -> int:
    named = [(cell, entity.replace("-", ""), first, last) for entity, first, last in runs]
    return driver_of(connection).executemany(_SQLITE_CLEAR_WHOLE, named).rowcount


def _all_added(added: int, new: int) -> None:
    if added < new:
        raise Transient(f"{new - added} of {new} new instances have a row already")


def _plain(cell: str, values: Values) -> tuple[Any, ...]:
    """As SQLite has it: an id is text, as SQLAlchemy writes and reads it."""
    id_, *rest = values
    return (cell, id_.hex, *rest)


def _microseconds(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND
