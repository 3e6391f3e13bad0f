"""A row's columns, and the statements on rows and notes that run most often; row_codec.py has the values."""

from bus.sql import RowColumns
from cell_conductor.tables import cell_instances, cell_notes

_OF_CELL = ("cell",)
_ROW = RowColumns(cell_instances, "id", "state", "due_us", "body", "placed", shared=_OF_CELL)

LOAD = RowColumns(cell_instances, "body", shared=_OF_CELL).lock()
ADD = _ROW.insert("ON CONFLICT (id, cell) DO NOTHING")
REPLACE = _ROW.update(placed="coalesce(kept.placed, new.placed)")

NOTE = RowColumns(cell_notes, shared=("cell", "at_us", "said")).insert(returning=("number",))
NOTES = RowColumns(cell_notes, shared=_OF_CELL).select("said")
CLEAR = RowColumns(cell_notes).delete_unlocked("number")
