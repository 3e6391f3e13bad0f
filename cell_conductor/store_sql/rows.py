"""A row between its columns and its value, alike on both databases."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from cell_conductor.bodies import Body, body_of, encoded_body, encoded_order
from cell_conductor.core.instance import Instance

# As each database takes them, one for each column.
Values = Sequence[Any]
# Who has said what, all of it confirmed: the entity, and the first and the last of numbers without a gap.
Run = tuple[str, int, int]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def values(row: Instance, before: Instance | None) -> Values:
    """In the order in which all statements have them, after the cell."""
    due_at = row.due_at
    is_placed = row.order is not None and (before is None or before.order is None)
    return (
        row.id,
        row.state,
        microseconds(due_at) if due_at else None,
        *unsaid_values(row),
        encoded_body(row),
        encoded_order(row.order) if row.order is not None and is_placed else None,
    )


def unsaid_values(row: Instance) -> tuple[int | None, int | None]:
    """The numbers of the first and the last word that is not confirmed."""
    return (row.outbox[0].sequence, row.outbox[-1].sequence) if row.outbox else (None, None)


def bodies_of(read: Iterable[Any]) -> list[Body]:
    """Of what was read of rows: the body, and the number of the first word that is not confirmed."""
    return [body_of(body, unsaid_from) for body, unsaid_from in read]


def last_run(entity: str, numbers: set[int]) -> Run:
    first = last = max(numbers)
    while first - 1 in numbers:
        first -= 1
    return (entity, first, last)


def microseconds(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND
