"""Settings of the bus and of databases with other constants, which no operator can change: shorter pauses and limits."""

from typing import Any, TypeVar

from msgspec import Struct, structs

S = TypeVar("S", bound=Struct)


def varied(settings: S, **changed: Any) -> S:
    """The same settings with these values of settings (`prefetch`) and of constants (`LINGER_MS`)."""
    fields = {name: changed.pop(name) for name in type(settings).__struct_fields__ if name in changed}
    unknown = [name for name in changed if not hasattr(settings, name)]
    assert not unknown, unknown
    made: Any = type(type(settings))
    kind = made(type(settings).__name__, (type(settings),), changed, frozen=True)
    return kind(**structs.asdict(settings) | fields)  # type: ignore[no-any-return]
