"""A row between its columns and its value, alike on both databases."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import structs

from cell_conductor.bodies import encoded_order
from cell_conductor.core.instance import Instance

# As each database takes them, one for each column.
Values = Sequence[Any]
# What is read of a row: its body, and the number of the first word that is not confirmed.
Stored = tuple[bytes, int | None]
# Who has said what, all of it confirmed: the entity, and the first and the last of numbers without a gap.
Run = tuple[str, int, int]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def values(row: Instance, body: bytes, *, has_order: bool) -> Values:
    """In the order in which all statements have them, after the cell. The order is written once: not of a row that has
    it already.
    """
    due_at = row.due_at
    return (
        row.id,
        row.state,
        microseconds(due_at) if due_at else None,
        *unsaid_values(row),
        body,
        encoded_order(row.order) if row.order is not None and not has_order else None,
    )


def unsaid_values(row: Instance) -> tuple[int | None, int | None]:
    """The numbers of the first and the last word that is not confirmed."""
    return (row.outbox[0].sequence, row.outbox[-1].sequence) if row.outbox else (None, None)


def as_read(row: Instance, unsaid_from: int | None) -> Instance:
    """As it was written; but that all its words were confirmed since then is noted beside it."""
    return structs.replace(row, outbox=()) if unsaid_from is None and row.outbox else row


def last_run(entity: str, numbers: set[int]) -> Run:
    first = last = max(numbers)
    while first - 1 in numbers:
        first -= 1
    return (entity, first, last)


def microseconds(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND
