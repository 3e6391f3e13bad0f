"""The hot statements on SQLite. A writer has the file to itself, so rows that it reads are locked. Ids are texts, as
SQLAlchemy writes and reads them.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Connection

from bus.sql import SqliteTransaction, driver_of
from cell_conductor.store_sql.rows import Values

_LOAD = "SELECT body FROM cell_instances WHERE cell = ? AND id IN (SELECT value FROM json_each(?))"
_ADD = """
INSERT INTO cell_instances (cell, id, state, due_us, body, placed)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (id, cell) DO NOTHING
"""
_REPLACE = """
UPDATE cell_instances
SET state = ?3, due_us = ?4, body = ?5, placed = coalesce(placed, ?6)
WHERE cell = ?1 AND id = ?2
"""
_NOTE = "INSERT INTO cell_notes (cell, at_us, said) VALUES (?, ?, ?) RETURNING number"
_NOTES = "SELECT said FROM cell_notes WHERE cell = ?"
_CLEAR = "DELETE FROM cell_notes WHERE number = ?"

_encode = msgspec.json.Encoder(uuid_format="hex").encode


class SqliteRows:
    """The statements of one transaction for one cell. Statements that change rows return how many they changed."""

    def __init__(self, transaction: SqliteTransaction, cell: str) -> None:
        self._transaction = transaction
        self._cell = cell

    async def load(self, ids: Sequence[UUID]) -> list[bytes]:
        return await self._column(_LOAD, (self._cell, _encode(ids).decode()))

    async def add(self, rows: Sequence[Values]) -> int:
        return await self._execute(_ADD, [(self._cell, id_.hex, *rest) for id_, *rest in rows])

    async def replace(self, rows: Sequence[Values]) -> int:
        return await self._execute(_REPLACE, [(self._cell, id_.hex, *rest) for id_, *rest in rows])

    async def note(self, at_us: int, said: bytes) -> int:
        number: int
        (number,) = await self._column(_NOTE, (self._cell, at_us, said))
        return number

    async def notes(self) -> list[bytes]:
        return await self._column(_NOTES, (self._cell,))

    async def clear(self, numbers: Sequence[int]) -> None:
        await self._execute(_CLEAR, [(number,) for number in numbers])

    async def _execute(self, statement: str, rows: Sequence[Values]) -> int:
        def work(connection: Connection) -> int:
            return driver_of(connection).executemany(statement, rows).rowcount

        return await self._transaction.run(work)

    async def _column(self, statement: str, values: Values) -> list[Any]:
        def work(connection: Connection) -> list[Any]:
            return [value for (value,) in driver_of(connection).execute(statement, values)]

        return await self._transaction.run(work)
