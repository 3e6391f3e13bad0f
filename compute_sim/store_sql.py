"""A compute's attempts in SQL: hosts keep their instances over the end of the compute's process.

The tables must exist: `kit.sql.upgrade(url, "compute_sim")` creates them. One process has all hosts of a cell, so
all reads use memory. Writes go to the table before they go to memory; the table is read once, when the store is opened.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from msgspec import structs
from sqlalchemy import Connection

from compute_sim.core.attempts import AttemptKey, AttemptRecord
from compute_sim.handlers import ComputeStore, Elapsed
from compute_sim.tables import compute_attempts as table
from kit.sql import Database, DatabaseSettings, insert, open_database, read_once, upgrade, write_once

# There is one process, with one transaction at a time.
POOL_SIZE = 1

_encode = msgspec.json.Encoder().encode
_attempt = msgspec.json.Decoder(AttemptRecord).decode


class SqlComputeStore(ComputeStore):
    """Keeps a compute's attempts in memory and in a table. `kept_attempts` creates it and reads the table."""

    def __init__(self, database: Database, cell: str, clock_s: Callable[[], float]) -> None:
        super().__init__(clock_s)
        self._database = database
        self._cell = cell
        self._alone = asyncio.Lock()
        # What the transaction changes: it goes to the table, and then to memory, at its end.
        self._saved: dict[AttemptKey, AttemptRecord] = {}
        self._remembered: list[AttemptRecord] = []

    async def read(self) -> None:
        """Read the table. Work that goes on is asked for at once, since its end was measured by the clock of a process that no longer
        runs.
        """
        await super().save(
            attempt if attempt.ends_s is None else structs.replace(attempt, ends_s=0.0)
            for attempt in await read_once(self._database, _read, self._cell)
        )

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[ComputeStore]:
        # If the table cannot be written, the memory's transaction gives the attempts again.
        async with self._alone, super().transaction():
            self._saved, self._remembered = {}, []
            yield self
            if self._saved:
                attempts = [*self._saved.values()]
                await write_once(self._database, _save, self._cell, attempts)
                await super().save(attempts)
            await super().save(self._remembered)

    async def save(self, attempts: Iterable[AttemptRecord]) -> None:
        self._saved |= {attempt.key: attempt for attempt in attempts}

    async def remember(self, attempts: Iterable[AttemptRecord]) -> None:
        # In the table their work goes on, which is what a successor of this process must find.
        self._remembered += attempts

    async def forget(self, over_before_s: float) -> Sequence[AttemptKey]:
        async with self._alone:
            forgotten = await super().forget(over_before_s)
            if forgotten:
                await write_once(self._database, _delete, self._cell, forgotten)
            return forgotten

    async def close(self) -> None:
        await self._database.close()


@asynccontextmanager
async def kept_attempts(
    url: str, cell: str, settings: DatabaseSettings | None = None
) -> AsyncIterator[SqlComputeStore]:
    """The store of a cell's hosts with its content, and with its tables, which are made or brought up to date."""
    await upgrade(url, "compute_sim", settings)
    store = SqlComputeStore(open_database(url, pool_size=POOL_SIZE, settings=settings), cell, Elapsed())
    try:
        await store.read()
        yield store
    finally:
        await store.close()


def _read(connection: Connection, cell: str) -> list[AttemptRecord]:
    rows = sa.select(table.c.body).where(table.c.cell == cell)
    return [_attempt(body) for body in connection.scalars(rows)]


def _save(connection: Connection, cell: str, attempts: Sequence[AttemptRecord]) -> None:
    statement = insert(connection, table)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[*table.primary_key], set_={"body": statement.excluded.body}
        ),
        [{**_key(cell, attempt.key), "body": _encode(attempt)} for attempt in attempts],
    )


def _delete(connection: Connection, cell: str, forgotten: Sequence[AttemptKey]) -> None:
    connection.execute(
        sa.delete(table).where(
            *(column == sa.bindparam(f"key_{column.name}") for column in table.primary_key)
        ),
        [{f"key_{name}": value for name, value in _key(cell, key).items()} for key in forgotten],
    )


def _key(cell: str, key: AttemptKey) -> dict[str, Any]:
    host, instance, attempt = key
    return {"cell": cell, "host": UUID(int=host), "instance": UUID(int=instance), "attempt": attempt}
