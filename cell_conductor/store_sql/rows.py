"""A row's columns, the statements on rows and notes that run most often, and how rows and notes are encoded."""

import struct
from collections.abc import Sequence

from bus.moments import microseconds
from bus.sql import RowColumns, Values
from cell_conductor.core.instance import Instance
from cell_conductor.row_codec import encode_order
from cell_conductor.store import MessageKey
from cell_conductor.tables import cell_instances, cell_notes

_OF_CELL = ("cell",)
_ROW = RowColumns(cell_instances, "id", "state", "due_us", "body", "placed", shared=_OF_CELL)

LOAD = RowColumns(cell_instances, "body", shared=_OF_CELL).lock()
ADD = _ROW.insert("ON CONFLICT (id, cell) DO NOTHING")
REPLACE = _ROW.update(placed="coalesce(kept.placed, new.placed)")

NOTE = RowColumns(cell_notes, shared=("cell", "at_us", "said")).insert(returning=("number",))
NOTES = RowColumns(cell_notes, shared=_OF_CELL).select("said")
CLEAR = RowColumns(cell_notes).delete_unlocked("number")

_SPOKEN = struct.Struct(">16sQ")


def values(row: Instance, body: bytes, *, has_order: bool) -> Values:
    """The values of a row's columns, without the cell.

    The order to place the instance is written only once, so it is left out for a row that has it.
    """
    due_at = row.due_at
    return (
        row.id,
        row.state,
        microseconds(due_at) if due_at else None,
        body,
        encode_order(row.order) if row.order is not None and not has_order else None,
    )


def encode_note(said: Sequence[MessageKey]) -> bytes:
    return b"".join([_SPOKEN.pack(*each) for each in said])


def decode_note(note: bytes) -> set[MessageKey]:
    return set(_SPOKEN.iter_unpack(note))
