"""The hot statements on SQLite. A writer has the file to itself, so rows that it reads are locked."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from bus.sql import SqliteTransaction
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
        found = await self._transaction.fetch(_LOAD, self._cell, _encode(ids).decode())
        return [body for (body,) in found]

    async def add(self, rows: Sequence[Values]) -> int:
        return await self._transaction.change(_ADD, [(self._cell, *row) for row in rows])

    async def replace(self, rows: Sequence[Values]) -> int:
        return await self._transaction.change(_REPLACE, [(self._cell, *row) for row in rows])

    async def note(self, at_us: int, said: bytes) -> int:
        ((number,),) = await self._transaction.fetch(_NOTE, self._cell, at_us, said)
        return int(number)

    async def notes(self) -> list[bytes]:
        return [said for (said,) in await self._transaction.fetch(_NOTES, self._cell)]

    async def clear(self, numbers: Sequence[int]) -> None:
        await self._transaction.change(_CLEAR, [(number,) for number in numbers])
