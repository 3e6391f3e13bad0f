"""A row's columns, and the statements on rows and notes that run most often; row_codec.py has the values."""

import re
from collections.abc import Sequence

from bus.errors import Transient
from bus.sql import ONCE, PostgresTransaction, RowColumns, Transaction, Values
from cell_conductor.tables import cell_instances, cell_notes

_OF_CELL = ("cell",)
_ROW = RowColumns(cell_instances, "id", "state", "due_us", "body", "placed", shared=_OF_CELL)

LOAD = RowColumns(cell_instances, "body", shared=_OF_CELL).lock()
# The rows that have been due for longest, of a cell, by a time, at most so many.
DUE = RowColumns(cell_instances).statement(
    "SELECT body FROM cell_instances WHERE cell = $1 AND due_us <= $2 ORDER BY due_us LIMIT $3 FOR UPDATE SKIP LOCKED",
    # The writer has the file to itself.
    "SELECT body FROM cell_instances WHERE cell = ?1 AND due_us <= ?2 ORDER BY due_us LIMIT ?3",
    ("body",),
)
NOTES = RowColumns(cell_notes, shared=_OF_CELL).select("said")
CLEAR = RowColumns(cell_notes).delete_unlocked("number")

_ADD = _ROW.insert("ON CONFLICT (id, cell) DO NOTHING")
_REPLACE = _ROW.update(placed="coalesce(kept.placed, new.placed)")
_NOTE = RowColumns(cell_notes, shared=("cell", "at_us", "said")).insert(returning=("number",))

# A round trip to PostgreSQL costs as much as twenty rows, so it gets all three at once: $1 is the cell, then come the columns of known
# rows, those of new rows, and the note.
_WRITE_ON_POSTGRESQL = """
WITH kept AS (REPLACE), added AS (ADD RETURNING 1), noted AS (
    INSERT INTO cell_notes (cell, at_us, said) SELECT $1, $12::bigint, $13::bytea WHERE $13::bytea IS NOT NULL
    RETURNING number
)
SELECT (SELECT count(*) FROM added), (SELECT number FROM noted)
""".replace("REPLACE", _REPLACE.on_postgresql).replace(
    "ADD", re.sub(r"\$([2-6])", lambda place: f"${int(place[1]) + 5}", _ADD.on_postgresql)
)


async def write_rows(
    transaction: Transaction,
    cell: str,
    known: Sequence[Values],
    new: Sequence[Values],
    *,
    at_us: int,
    said: bytes | None,
) -> int | None:
    """Replace the known rows of a cell, add new ones (`Transient` if another process has added some of them), and add a note of the
    messages sent. Returns the note's number.
    """
    number: int | None = None
    if isinstance(transaction, PostgresTransaction):
        ((added, number),) = await transaction.fetch(
            _WRITE_ON_POSTGRESQL, cell, *_REPLACE.arrays(known), *_ADD.arrays(new), at_us, said
        )
    else:
        await _REPLACE.change(transaction, known, cell)
        added = await _ADD.change(transaction, new, cell)
        if said is not None:
            ((number,),) = await _NOTE.fetch(transaction, ONCE, cell, at_us, said)
    if added < len(new):
        raise Transient(f"{len(new) - added} of {len(new)} new instances have a row already")
    return number
