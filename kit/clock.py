"""The wall clock of every worker, times as numbers, and times that are too far away.

Functions that make decisions do not read the clock: they get the time as an argument.
"""

import functools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import inspect

from kit.errors import FieldProblem


def now() -> datetime:
    return datetime.now(UTC)


# Converts times between datetimes and whole microseconds since 1970, as rows have them.


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND_US = 1_000_000
_MICROSECOND = timedelta(microseconds=1)


def microseconds(at: datetime) -> int:
    return (at - EPOCH) // _MICROSECOND


def moment(at_us: int) -> datetime:
    return EPOCH + at_us * _MICROSECOND


# Finds timestamps in messages that are too far in the past or future.
#
# JSON allows the years from 1 to 9999. Near these limits, adding a day or changing the time zone leaves the range of
# Python and of the database.


YEAR_MIN, YEAR_MAX = 1970, 8999

# The first timestamp that is too far away: its path and its value.
TooFar = tuple[str, datetime]
Finder = Callable[[Any], TooFar | None]


# Made for the first message of a type: those of all types take long.
@functools.cache
def finder_of(kind: type) -> Finder | None:
    """Make a function that finds a timestamp before the year 1970 or after 8999 in values of this type.

    Returns None if values of the type contain no timestamps.
    """
    return _of(inspect.type_info(kind))


def too_far(found: TooFar) -> FieldProblem:
    path, moment = found
    field = path.removeprefix(".")
    return FieldProblem(
        f"{field} is {moment.isoformat()}: must be in the years from {YEAR_MIN} to {YEAR_MAX}",
        field,
        moment.isoformat(),
    )


def _of(type_info: inspect.Type) -> Finder | None:
    match type_info:
        case inspect.DateTimeType():
            return _look_at
        case inspect.Metadata(type=inner):
            return _of(inner)
        case inspect.UnionType(types=types):
            return _of_union(types)
        case inspect.StructType(fields=fields):
            return _of_fields([(field.name, _of(field.type)) for field in fields])
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item) if finder := _of(item):
            return _of_items(finder)
        case _:
            return None


def _look_at(moment: datetime | None) -> TooFar | None:
    return None if moment is None or YEAR_MIN <= moment.year <= YEAR_MAX else ("", moment)


def _of_union(types: tuple[inspect.Type, ...]) -> Finder | None:
    """A finder for values of a union type: it takes the finder of the type that the value's class shows.

    None if no type of the union has timestamps. A union may have several structs, None, and at most one other type.
    """
    by_class = {
        each.cls: finder for each in types if isinstance(each, inspect.StructType) and (finder := _of(each))
    }
    others = [finder for each in types if not isinstance(each, inspect.StructType) and (finder := _of(each))]
    if not by_class and not others:
        return None
    assert len(others) <= 1, "a union may have several structs, told apart by class, and one other type"

    def look(value: Any) -> TooFar | None:
        if value is None:
            return None
        finder = by_class.get(type(value)) or (others[0] if others else None)
        return finder(value) if finder else None

    return look


def _of_fields(fields: list[tuple[str, Finder | None]]) -> Finder | None:
    looked_at = [(name, finder) for name, finder in fields if finder is not None]
    if not looked_at:
        return None

    def look(value: Any) -> TooFar | None:
        for name, finder in looked_at:
            if (found := finder(getattr(value, name))) is not None:
                return f".{name}{found[0]}", found[1]
        return None

    return look


def _of_items(finder: Finder) -> Finder:
    def look(values: Any) -> TooFar | None:
        for number, each in enumerate(values):
            if (found := finder(each)) is not None:
                return f"[{number}]{found[0]}", found[1]
        return None

    return look
