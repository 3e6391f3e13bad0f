"""Fields of a JSON object, read by type. A missing field, or one of another type, is refused by its path."""

from collections.abc import Iterable, Mapping
from uuid import UUID

from scheduler_worker.nova.refusals import RefusedError

# Lists longer than this are in no message of Nova's about one request.
ITEMS_MAX = 10_000
WHOLE_MAX = 2**31 - 1


class Fields:
    """The values of a JSON object, with the path at which it stands in the message. A field that is null counts as missing."""

    __slots__ = ("path", "values")

    def __init__(self, values: object, path: str) -> None:
        if not isinstance(values, dict):
            raise RefusedError(path, values, "it must be an object")
        self.values: Mapping[str, object] = values
        self.path = path

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def value(self, name: str) -> object:
        return self.values.get(name)

    def refuse(self, name: str, reason: str) -> RefusedError:
        return RefusedError(self.at(name), self.values.get(name), reason)

    def text(self, name: str, default: str | None = None) -> str:
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.refuse(name, "it must be a text")
        return value

    def whole(self, name: str, default: int | None = None) -> int:
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= WHOLE_MAX:
            raise self.refuse(name, f"it must be a whole number from 0 to {WHOLE_MAX}")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(name, "it must be true or false")
        return value

    def id(self, name: str) -> UUID:
        return id_in(self.values.get(name), self.at(name))

    def list(self, name: str) -> tuple[object, ...]:
        """The items of a list; none if the field is missing."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or len(value) > ITEMS_MAX:
            raise self.refuse(name, f"it must be a list of at most {ITEMS_MAX} items")
        return tuple(value)

    def texts(self, name: str) -> tuple[str, ...]:
        return texts_in(self.list(name), self.at(name))

    def object(self, name: str) -> "Fields":
        """The object in this field; an empty one if the field is missing."""
        value = self.values.get(name)
        return Fields({} if value is None else value, self.at(name))

    def text_values(self) -> dict[str, str]:
        """All fields of this object, each of which must be a text."""
        return {name: self.text(name) for name in self.values}

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Refuse a field that has a value and is none of these: a later release of Nova may mean something by it."""
        names = frozenset(known)
        for name, value in self.values.items():
            if name not in names and value not in (None, [], {}):
                raise self.refuse(name, "this field is unknown here, and may change which host is right")


def texts_in(items: Iterable[object], path: str) -> tuple[str, ...]:
    found: list[str] = []
    for number, item in enumerate(items):
        if not isinstance(item, str):
            raise RefusedError(f"{path}[{number}]", item, "it must be a text")
        found.append(item)
    return tuple(found)


def id_in(value: object, path: str) -> UUID:
    try:
        return UUID(value if isinstance(value, str) else "")
    except ValueError:
        raise RefusedError(path, value, "it must be a uuid") from None
