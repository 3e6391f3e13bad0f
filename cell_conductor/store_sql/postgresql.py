"""The hot statements on PostgreSQL, spoken to asyncpg: each takes a batch as arrays, a column an array.

Each row is looked for by itself, by the key, which begins with the id: left the choice, PostgreSQL may decide, while the
table is small, to walk all of the cell's rows, and keep to it (measured: 6 ms a boot).
"""

from collections.abc import Sequence
from uuid import UUID

from bus.sql import PostgresTransaction, columns_of
from cell_conductor.store_sql.rows import Run, Stored, Values

# In the order in which they are named, which is that of the ids and everybody's: who waits for a lock waits for nobody
# who waits for him.
_LOAD = """
SELECT kept.body, kept.unsaid_from
FROM unnest($2::uuid[]) AS named (id)
CROSS JOIN LATERAL (
    SELECT body, unsaid_from FROM cell_instances WHERE cell = $1 AND id = named.id FOR UPDATE
) AS kept
"""
_ADD = """
INSERT INTO cell_instances (cell, id, state, due_us, unsaid_from, unsaid_to, body, placed)
SELECT $1, new.* FROM unnest($2::uuid[], $3::text::text[], $4::text::bigint[], $5::text::bigint[],
                             $6::text::bigint[], $7::bytea[], $8::bytea[]) AS new
ON CONFLICT (id, cell) DO NOTHING
"""
_REPLACE = """
UPDATE cell_instances
SET state = new.state, due_us = new.due_us, unsaid_from = new.unsaid_from, unsaid_to = new.unsaid_to,
    body = new.body, placed = coalesce(cell_instances.placed, new.placed)
FROM unnest($2::uuid[], $3::text::text[], $4::text::bigint[], $5::text::bigint[], $6::text::bigint[],
            $7::bytea[], $8::bytea[])
     AS new (id, state, due_us, unsaid_from, unsaid_to, body, placed)
WHERE cell_instances.id = new.id AND cell_instances.cell = $1
"""
# A row that another process has locked is left as it is: what it has said is said once more, and cleared then. The sum
# is there because nobody is to be looked for by what is unsaid: of a young table that looks as cheap as by the id.
_CLEAR = """
WITH silent AS (
    SELECT kept.place
    FROM unnest($2::uuid[], $3::text::bigint[], $4::text::bigint[]) AS said (id, first, last)
    CROSS JOIN LATERAL (
        SELECT ctid AS place FROM cell_instances
        WHERE cell = $1 AND id = said.id AND unsaid_from + 0 >= said.first AND unsaid_to <= said.last
        FOR UPDATE SKIP LOCKED
    ) AS kept
)
UPDATE cell_instances SET unsaid_from = NULL, unsaid_to = NULL
FROM silent WHERE cell_instances.ctid = silent.place
"""


class PostgresRows:
    """Of one transaction, and one cell. What changes rows says how many it changed."""

    def __init__(self, transaction: PostgresTransaction, cell: str) -> None:
        self._transaction = transaction
        self._cell = cell

    async def load(self, ids: Sequence[UUID]) -> list[Stored]:
        driver = await self._transaction.driver()
        found = await driver.fetch(_LOAD, self._cell, sorted(ids, key=_number))
        return [(body, unsaid_from) for body, unsaid_from in found]

    async def add(self, rows: Sequence[Values]) -> int:
        return await self._execute(_ADD, rows, words=4)

    async def replace(self, rows: Sequence[Values]) -> int:
        """Rows that are locked."""
        return await self._execute(_REPLACE, rows, words=4)

    async def clear(self, runs: Sequence[Run]) -> int:
        return await self._execute(_CLEAR, runs, words=2)

    async def _execute(self, statement: str, rows: Sequence[Values], *, words: int) -> int:
        driver = await self._transaction.driver()
        # What it did, in words, and how many: UPDATE 5.
        done: str = await driver.execute(statement, self._cell, *columns_of(rows, words, ids=1))
        return int(done.rpartition(" ")[2])


def _number(id_: UUID) -> int:
    return id_.int
