"""A row's columns, and the statements on rows and notes that run most often; row_codec.py has the values."""

import re

from bus.sql import RowColumns
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
# The notes of a cell after this number, at most so many, by the index of their numbers. Notes come and go with each batch:
# an index scan skips those that an earlier one found gone, and a scan of the table would read them all.
NOTES = RowColumns(cell_notes).statement(
    "SELECT number, said FROM cell_notes WHERE cell = $1 AND number > $2 ORDER BY number LIMIT $3",
    "SELECT number, said FROM cell_notes WHERE cell = ?1 AND number > ?2 ORDER BY number LIMIT ?3",
    ("number", "said"),
)
CLEAR = RowColumns(cell_notes).delete_unlocked("number")

ADD = _ROW.insert("ON CONFLICT (id, cell) DO NOTHING")
REPLACE = _ROW.update(placed="coalesce(kept.placed, new.placed)")
NOTE = RowColumns(cell_notes, shared=("cell", "at_us", "said")).insert(returning=("number",))

# A round trip to PostgreSQL costs as much as twenty rows, so it gets all three at once: $1 is the cell, then come the columns of known
# rows, those of new rows, and the note.
WRITE_ON_POSTGRESQL = """
WITH kept AS (KNOWN), added AS (NEW RETURNING 1), noted AS (
    INSERT INTO cell_notes (cell, at_us, said) SELECT $1, $12::bigint, $13::bytea WHERE $13::bytea IS NOT NULL
    RETURNING number
)
SELECT (SELECT count(*) FROM added), (SELECT number FROM noted)
""".replace("KNOWN", REPLACE.on_postgresql).replace(
    "NEW", re.sub(r"\$([2-6])", lambda place: f"${int(place[1]) + 5}", ADD.on_postgresql)
)
