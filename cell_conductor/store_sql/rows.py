"""Converts rows to column values, the same for both databases."""

import struct
from collections.abc import Sequence
from typing import Any

from bus.moments import microseconds
from cell_conductor.core.instance import Instance
from cell_conductor.row_codec import encode_order
from cell_conductor.store import MessageKey

# The values of one row, one per column.
Values = Sequence[Any]

_SPOKEN = struct.Struct(">16sQ")


def values(row: Instance, body: bytes, *, has_order: bool) -> Values:
    """The values of a row's columns, in the order that all statements use. The cell is not among them.

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
