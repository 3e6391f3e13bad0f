"""Hostile messages of every type, made from a good example: each position of it gets odd values of JSON in its place.

Many of them cannot be read. The others are read, and say something extreme: no name, the year 9999, an id of another kind.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from bus.message import Envelope, Message

DEEP = 1_200
MANY = 3_000

_MOMENTS = ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-23:59")
_TEXTS = (
    *("", " ", "-", "a.b.#", "\u00c4\u00d6\u00fc MiXed \U0001f4a5", "\x1b[2J\x07", "a\0b", "x" * MANY),
    *("HOST-1", "00000000-0000-4000-8000-0000000000FF", *_MOMENTS),
)
_NUMBERS = (-1, 0, 1, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 10**40, 1.5)
_OTHERS: tuple[object, ...] = (
    None,
    True,
    [],
    [[]],
    {},
    {"": ""},
    Raw(b"1e400"),
    Raw(b"[" * DEEP + b"]" * DEEP),
)

Path = tuple[str | int, ...]


class Line(msgspec.Struct, frozen=True):
    """A hostile message and the id in its envelope."""

    id: str
    body: bytes


def hostile_lines(example: Message, names: Mapping[str, str]) -> list[Line]:
    """The first one is the good message. `names` replaces names and ids of the example, so that it is about what exists; each
    of them also stands where another one is expected.
    """
    text = msgspec.json.encode(example).decode()
    for old, new in names.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    message = msgspec.json.decode(text)
    # Each position gets one value of another type, by turns.
    others = itertools.cycle(_OTHERS)
    made = [message]
    for path, value in _positions(message):
        odd = (next(others), *_odd_of_its_type(value, names.values()))
        made += [_replaced(message, path, each) for each in odd]
        if path:
            made.append(_without(message, path))
    return [_line(each, number) for number, each in enumerate(made)]


def _line(message: object, number: int) -> Line:
    id_ = f"hostile-{number}"
    return Line(id_, msgspec.json.encode(Envelope(message=message, id=id_)))


def _odd_of_its_type(value: object, names: Iterable[str]) -> Iterator[object]:
    """Values at the limits of its range, and beyond."""
    match value:
        case str():
            yield from (0, *_TEXTS, *names)
        case bool():
            yield not value
        case int() | float():
            yield from ("1", *_NUMBERS)
        case list() if value:
            yield from (value * 2, value * MANY, value[::-1])
        case dict() if value:
            key, inner = next(iter(value.items()))
            yield value | {"no_such_field": 1}
            yield value | {"\u00e4 \0": inner}
            yield value | {f"{key}{number}": inner for number in range(MANY)}


def _positions(value: Any, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    if at != ("type",):
        yield at, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _positions(inner, (*at, key))


def _replaced(value: Any, path: Path, odd: object) -> Any:
    if not path:
        return odd
    changed = value.copy()
    changed[path[0]] = _replaced(value[path[0]], path[1:], odd)
    return changed


def _without(value: Any, path: Path) -> Any:
    changed = value.copy()
    if len(path) == 1:
        del changed[path[0]]
    else:
        changed[path[0]] = _without(value[path[0]], path[1:])
    return changed
