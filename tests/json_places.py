"""The places of a JSON document, and documents with something else there."""

from collections.abc import Iterator
from typing import Any

Path = tuple[str | int, ...]


def places_in(value: Any, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The path to each value in it, and the value."""
    yield at, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places_in(inner, (*at, key))


def with_replaced(value: Any, path: Path, odd: object) -> Any:
    if not path:
        return odd
    changed = value.copy()
    changed[path[0]] = with_replaced(value[path[0]], path[1:], odd)
    return changed
