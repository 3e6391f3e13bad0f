"""The hot statements on PostgreSQL, through asyncpg. Each takes a batch, one array per column.

Each row is looked up by its id alone (bus/sql/postgresql.py). Otherwise PostgreSQL may choose, while the table is
small, to walk all rows of the cell, and keep that plan (measured: 2 to 6 ms a boot).
"""

from collections.abc import Sequence
from uuid import UUID

from bus.sql import PostgresTransaction, columns_of
from cell_conductor.store_sql.rows import Values

# Locks are taken in the order of ids, as everywhere, so transactions cannot deadlock.
_LOAD = """
SELECT kept.body
FROM unnest($2::uuid[]) AS named (id)
CROSS JOIN LATERAL (
    SELECT body FROM cell_instances WHERE cell = $1 AND id = named.id FOR UPDATE
) AS kept
"""
# As columns of a SELECT the arrays are read side by side; in FROM each would first be copied row by row.
_ADD = """
INSERT INTO cell_instances (cell, id, state, due_us, body, placed)
SELECT $1, unnest($2::uuid[]), unnest($3::text::text[]), unnest($4::text::bigint[]), unnest($5::bytea[]),
       unnest($6::bytea[])
ON CONFLICT (id, cell) DO NOTHING
"""
_REPLACE = """
UPDATE cell_instances
SET state = new.state, due_us = new.due_us, body = new.body, placed = coalesce(cell_instances.placed, new.placed)
FROM unnest($2::uuid[], $3::text::text[], $4::text::bigint[], $5::bytea[], $6::bytea[])
     AS new (id, state, due_us, body, placed)
WHERE cell_instances.id = ANY (ARRAY[new.id]) AND cell_instances.cell || '' = $1
"""
_NOTE = "INSERT INTO cell_notes (cell, at_us, said) VALUES ($1, $2, $3) RETURNING number"
_NOTES = "SELECT said FROM cell_notes WHERE cell = $1"
# A note that another process is deleting now counts as deleted.
_CLEAR = """
DELETE FROM cell_notes WHERE number = ANY(
    ARRAY(SELECT number FROM cell_notes WHERE number = ANY($1::bigint[]) FOR UPDATE SKIP LOCKED)
)
"""


class PostgresRows:
    """The statements of one transaction for one cell. Statements that change rows return how many they changed."""

    def __init__(self, transaction: PostgresTransaction, cell: str) -> None:
        self._transaction = transaction
        self._cell = cell

    async def load(self, ids: Sequence[UUID]) -> list[bytes]:
        found = await self._transaction.fetch(_LOAD, self._cell, sorted(ids, key=lambda id_: id_.int))
        return [body for (body,) in found]

    async def add(self, rows: Sequence[Values]) -> int:
        return await self._transaction.change(_ADD, self._cell, *columns_of(rows, 2, ids=1))

    async def replace(self, rows: Sequence[Values]) -> int:
        """Overwrite rows that this transaction has locked. Returns how many were written."""
        return await self._transaction.change(_REPLACE, self._cell, *columns_of(rows, 2, ids=1))

    async def note(self, at_us: int, said: bytes) -> int:
        ((number,),) = await self._transaction.fetch(_NOTE, self._cell, at_us, said)
        return int(number)

    async def notes(self) -> list[bytes]:
        return [said for (said,) in await self._transaction.fetch(_NOTES, self._cell)]

    async def clear(self, numbers: Sequence[int]) -> None:
        await self._transaction.change(_CLEAR, numbers)
