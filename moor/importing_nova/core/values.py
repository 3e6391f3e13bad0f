"""Values of Nova's rows: columns may be NULL, SQLite keeps anything in any column, and JSON has no schema. What cannot be is named by
table, column, row and value.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from msgspec import ValidationError

from bus.message import Message
from moor.importing_nova.core.records import ContradictionError

SHOWN_MAX = 40


def wrong(what: str, value: object, must_be: str) -> ContradictionError:
    shown = repr(value)
    if len(shown) > SHOWN_MAX:
        shown = f"{shown[:SHOWN_MAX]}... ({len(shown)} characters)"
    return ContradictionError(f"{what} is {shown}, and must be {must_be}")


def whole_in(row: Mapping[str, Any], column: str, what: str) -> int:
    value = row[column]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        try:
            # MySQL has sums and counts as decimals.
            found = int(value)
        except (TypeError, ValueError, OverflowError):
            found = -1
        if found < 0 or found != value:
            raise wrong(what, value, "a whole number, at least 0")
        return found
    return value


def ratio_in(row: Mapping[str, Any], column: str, what: str) -> float | None:
    """Nova leaves it NULL where its settings say it."""
    value = row[column]
    if value is None:
        return None
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise wrong(what, value, "a number") from None
    if not 0 <= found < float("inf"):
        raise wrong(what, value, "a number, at least 0")
    return found


def text_in(row: Mapping[str, Any], column: str, what: str) -> str:
    value = row[column]
    if not isinstance(value, str) or not value:
        raise wrong(what, value, "a text")
    return value


def moment_in(row: Mapping[str, Any], column: str, what: str) -> datetime | None:
    """A time of Nova's, which are all in UTC. SQLite stores them as text."""
    value = row[column]
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        found = None
    if not isinstance(found, datetime):
        raise wrong(what, value, "a time")
    return found.replace(tzinfo=UTC)


def id_of(value: object, what: str) -> UUID:
    try:
        return UUID(value if isinstance(value, str) else "")
    except ValueError:
        raise wrong(what, value, "a uuid") from None


def check_message(message: Message, columns: Mapping[str, str], whose: str) -> None:
    """Raise `ContradictionError` if no worker could read this message. `columns` has the table and column of each of its fields."""
    plain = msgspec.to_builtins(message)
    try:
        msgspec.convert(plain, type(message))
    except ValidationError as refused:
        must_be, _, path = str(refused).partition(" - at `$.")
        path = path.rstrip("`")
        field = path.partition(".")[0].partition("[")[0]
        below = path[len(field) :].lstrip(".")
        what = columns.get(field, field)
        raise wrong(
            f"{whose}{what}{f': {below}' if below else ''}", _value_at(plain, path), f"right: {must_be}"
        ) from None


def _value_at(plain: Any, path: str) -> object:
    for step in path.split("."):
        if not isinstance(plain, dict) or step not in plain:
            break
        plain = plain[step]
    return plain
