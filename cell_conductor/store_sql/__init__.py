"""A cell's instances in SQL: on PostgreSQL for many conductors, on SQLite for everything in one process.

On tables that stand: `bus.sql.upgrade(url, "cell_conductor")` makes them. A batch is a constant number of statements.

    postgresql.py   the hot statements there, and sqlite.py there
    rows.py         an instance between columns and value
    reading.py      what is rare, once for both
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Protocol
from uuid import UUID

from msgspec import Struct

from bus.errors import Transient
from bus.handling import Kept
from bus.message import Message
from bus.messages.build import InstanceId
from bus.sql import POOL_SIZE, PostgresTransaction, SqliteTransaction, open_database
from cell_conductor.bodies import Remembered, body_of, decoded, encoded_body
from cell_conductor.core.instance import Instance
from cell_conductor.store import JUST_SAID, ConductorTransaction, by_entity, kept_of, now
from cell_conductor.store_sql import reading
from cell_conductor.store_sql.postgresql import PostgresRows
from cell_conductor.store_sql.rows import Run, Stored, Values, as_read, last_run, microseconds, values
from cell_conductor.store_sql.sqlite import SqliteRows


class Rows(Protocol):
    """The hot statements."""

    async def load(self, ids: Sequence[UUID]) -> list[Stored]: ...

    async def add(self, rows: Sequence[Values]) -> int: ...

    async def replace(self, rows: Sequence[Values]) -> int: ...

    async def clear(self, runs: Sequence[Run]) -> int: ...


class Loaded(Struct, frozen=True, gc=False):
    body: bytes
    row: Instance


class SqlConductorTransaction:
    """What is saved and cleared is written when the transaction ends, together and once."""

    def __init__(
        self, transaction: PostgresTransaction | SqliteTransaction, cell: str, remembered: Remembered
    ) -> None:
        self._transaction = transaction
        self._rows: Rows = (
            PostgresRows(transaction, cell)
            if isinstance(transaction, PostgresTransaction)
            else SqliteRows(transaction, cell)
        )
        self._cell = cell
        self._remembered = remembered
        self._loaded: dict[int, Loaded] = {}
        self._saved: dict[int, Instance] = {}
        self._written: dict[int, bytes] = {}
        self._forgotten: list[InstanceId] = []
        self._cleared: list[Kept] = []

    async def load(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Instance]:
        if not instances:
            return {}
        found = await self._as_rows(await self._rows.load(instances))
        return {row.id: self._saved.get(row.id.int, row) for row in found}

    async def take_due(self, now: datetime, limit: int) -> Mapping[InstanceId, Instance]:
        due = await self._transaction.run(reading.take_due, self._cell, microseconds(now), limit)
        return {row.id: row for row in await self._as_rows(due)}

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
        for number, body in self._written.items():
            before = self._loaded.get(number)
            self._remembered.replace(before.body if before else None, body, self._saved[number])

    async def _write(self) -> None:
        for gone in self._forgotten:
            self._saved.pop(gone.int, None)
        self._written = {number: encoded_body(row) for number, row in self._saved.items()}
        known = [
            values(row, self._written[number], has_order=before.row.order is not None)
            for number, row in self._saved.items()
            if (before := self._loaded.get(number)) is not None
        ]
        # In the order of their ids: two processes that meet the same newcomers wait for each other, not in a circle.
        new = [
            values(row, self._written[number], has_order=False)
            for number, row in sorted(self._saved.items())
            if number not in self._loaded
        ]
        if known:
            await self._rows.replace(known)
        if new and (added := await self._rows.add(new)) < len(new):
            raise Transient(f"{len(new) - added} of {len(new)} new instances have a row already")
        if self._forgotten:
            await self._transaction.run(reading.forget, self._cell, self._forgotten)

    async def _clear(self, said: Mapping[str, set[int]]) -> None:
        """Nearly always all that a row has to say is confirmed when some of it is, which its numbers tell. Only of the
        others it must be found out what is left.
        """
        runs = [last_run(entity, numbers) for entity, numbers in said.items()]
        if await self._rows.clear(runs) < len(runs):
            await self._transaction.run(reading.clear_in_part, self._cell, said)

    async def _as_rows(self, stored: Sequence[Stored]) -> list[Instance]:
        """Remembered from when they were written; or read, by a process that did not write them."""
        rows = [self._remembered.row_of(body) for body, _ in stored]
        unknown = [body for (body, _), row in zip(stored, rows, strict=True) if row is None]
        read = iter(await self._read(unknown) if unknown else ())
        found = [row or next(read) for row in rows]
        now = [as_read(row, unsaid_from) for row, (_, unsaid_from) in zip(found, stored, strict=True)]
        self._loaded |= {row.id.int: Loaded(body, row) for row, (body, _) in zip(now, stored, strict=True)}
        return now

    async def _read(self, stored: Sequence[bytes]) -> list[Instance]:
        bodies = [body_of(body) for body in stored]
        placed = [body.instance.id for body in bodies if body.placed_at is not None]
        orders = await self._transaction.run(reading.orders_of, self._cell, placed) if placed else {}
        return [decoded(body, orders.get(body.instance.id.int)) for body in bodies]


class SqlConductorStore:
    def __init__(
        self, url: str, cell: str, *, clock: Callable[[], datetime] = now, pool_size: int = POOL_SIZE
    ) -> None:
        self._database = open_database(url, pool_size=pool_size)
        self._cell = cell
        self._clock = clock
        self._remembered = Remembered()
        self._has_started = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[ConductorTransaction]:
        async with self._database.writing() as transaction:
            ours = SqlConductorTransaction(transaction, self._cell, self._remembered)
            yield ours
            await ours.write()
        ours.committed()

    async def clear(self, tx: ConductorTransaction, said: Sequence[Kept]) -> None:
        assert isinstance(tx, SqlConductorTransaction), "a transaction of another store"
        tx.clear(said)

    async def pending(self) -> Sequence[tuple[Kept, Message]]:
        before = self._clock() - JUST_SAID if self._has_started else None
        async with self._database.reading() as transaction:
            unsaid = await transaction.run(reading.find_unsaid, self._cell)
        self._has_started = True
        return [
            (kept_of(row.id, each.sequence), each.message)
            for row in unsaid
            for each in row.outbox
            if before is None or each.at < before
        ]

    async def read(self, instances: Sequence[InstanceId]) -> tuple[Instance, ...]:
        async with self._database.reading() as transaction:
            found = await transaction.run(reading.read, self._cell, instances)
        return tuple(sorted(found, key=lambda row: row.id))

    async def close(self) -> None:
        await self._database.close()
