"""The hot statements on SQLite. Whoever writes has the file to itself, so what is read is locked. An id is text there, as
SQLAlchemy writes and reads it.
"""

from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy import Connection

from bus.sql import SqliteTransaction, driver_of
from cell_conductor.store_sql.rows import Run, Stored, Values

_LOAD = (
    "SELECT body, unsaid_from FROM cell_instances WHERE cell = ? AND id IN (SELECT value FROM json_each(?))"
)
_ADD = """
INSERT INTO cell_instances (cell, id, state, due_us, unsaid_from, unsaid_to, body, placed)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id, cell) DO NOTHING
"""
_REPLACE = """
UPDATE cell_instances
SET state = ?3, due_us = ?4, unsaid_from = ?5, unsaid_to = ?6, body = ?7, placed = coalesce(placed, ?8)
WHERE cell = ?1 AND id = ?2
"""
_CLEAR = """
UPDATE cell_instances SET unsaid_from = NULL, unsaid_to = NULL
WHERE cell = ?1 AND id = ?2 AND unsaid_from >= ?3 AND unsaid_to <= ?4
"""

_encode = msgspec.json.Encoder(uuid_format="hex").encode


class SqliteRows:
    """Of one transaction, and one cell. What changes rows says how many it changed."""

    def __init__(self, transaction: SqliteTransaction, cell: str) -> None:
        self._transaction = transaction
        self._cell = cell

    async def load(self, ids: Sequence[UUID]) -> list[Stored]:
        def work(connection: Connection) -> list[Stored]:
            return driver_of(connection).execute(_LOAD, (self._cell, _encode(ids).decode())).fetchall()

        return await self._transaction.run(work)

    async def add(self, rows: Sequence[Values]) -> int:
        return await self._execute(_ADD, [(self._cell, id_.hex, *rest) for id_, *rest in rows])

    async def replace(self, rows: Sequence[Values]) -> int:
        return await self._execute(_REPLACE, [(self._cell, id_.hex, *rest) for id_, *rest in rows])

    async def clear(self, runs: Sequence[Run]) -> int:
        return await self._execute(_CLEAR, [(self._cell, *run) for run in runs])

    async def _execute(self, statement: str, rows: Sequence[Values]) -> int:
        def work(connection: Connection) -> int:
            return driver_of(connection).executemany(statement, rows).rowcount

        return await self._transaction.run(work)
