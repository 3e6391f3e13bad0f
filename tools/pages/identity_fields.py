"""The fields of messages that name something which belongs to somebody: instances and other consumers, providers, hosts, cells,
projects, groups and requests. Found by their types and names, so a new message or field is never forgotten.
"""

import types
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Struct, structs

from bus.message import Message

# A kind of identity, by the name of its type.
_BY_TYPE = {
    "InstanceId": "instance",
    "ConsumerId": "instance",
    "ProviderId": "provider",
    "GroupId": "group",
    "RequestId": "request",
}
# Texts have no type of their own: the kind of identity by the name of the field.
_BY_NAME = {
    "cell": "cell",
    "project": "project",
    "projects": "project",
    "host": "host",
    "hosts": "host",
    "source": "host",
    "destination": "host",
    "name": "host",
}


class Leaf(Struct, frozen=True):
    """A field at any depth of a message. `with_value` makes the same message with another value in it."""

    path: str
    kind: str
    with_value: Callable[[Any], Any]


def leaves_of(message: Message) -> list[Leaf]:
    """The fields of this message that name something, also those that are empty."""
    return [*_leaves(message, type(message), "")]


def paths_of(kind: type[Message]) -> dict[str, str]:
    """The path of each such field that messages of this type may have, and its kind."""
    found: dict[str, str] = {}
    _paths(kind, (), found, frozenset())
    return found


def as_of_now(value: Any, now: datetime, attempt: int, name: str = "") -> Any:
    """The value with times of now and this attempt; its sequence is later than any other, or the next one that is plausible."""
    if isinstance(value, Struct):
        fields = {each: getattr(value, each) for each in value.__struct_fields__}
        return structs.replace(
            value, **{each: as_of_now(field, now, attempt, each) for each, field in fields.items()}
        )
    if isinstance(value, tuple):
        return tuple(as_of_now(each, now, attempt, name) for each in value)
    if isinstance(value, datetime):
        return now + timedelta(hours=1) if name == "ends_by" else now
    if isinstance(value, int) and not isinstance(value, bool):
        return {
            "attempt": attempt,
            "held_attempt": max(1, attempt - 1),
            "sequence": 2**40 if attempt == 1 else 1_000,
        }.get(name, value)
    return value


def without_options(message: Message) -> Message:
    """The message with the default value of each field that has one and names nothing."""
    kind, hints = type(message), _hints(type(message))
    plain = {
        each.name: each.default if each.default is not NODEFAULT else each.default_factory()
        for each in structs.fields(kind)
        if not each.required and not _kind_of(hints[each.name], each.name)
    }
    return structs.replace(message, **plain)


@cache
def _hints(kind: type[Struct]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _bare(hint: Any) -> Any:
    return _bare(get_args(hint)[0]) if get_origin(hint) is Annotated else hint


def _kind_of(hint: Any, name: str) -> str:
    bare = _bare(hint)
    if get_origin(bare) in (Union, types.UnionType):
        found = {_kind_of(each, name) for each in get_args(bare) if each is not types.NoneType}
        return found.pop() if len(found) == 1 else ""
    while hasattr(bare, "__supertype__"):
        if known := _BY_TYPE.get(bare.__name__):
            return known
        bare = _bare(bare.__supertype__)
    return _BY_NAME.get(name, "") if bare is str else ""


def _paths(hint: Any, path: tuple[str, ...], found: dict[str, str], seen: frozenset[type]) -> None:
    bare = _bare(hint)
    if path and (kind := _kind_of(hint, path[-1])):
        found[".".join(path)] = kind
    elif isinstance(bare, type) and issubclass(bare, Struct):
        if bare not in seen:
            for name, inner in _hints(bare).items():
                if name in bare.__struct_fields__:
                    _paths(inner, (*path, name), found, seen | {bare})
    else:
        for each in get_args(bare):
            _paths(each, path, found, seen)


def _leaves(value: Any, hint: Any, path: str) -> Iterator[Leaf]:
    name = path.rpartition(".")[2]
    bare = _bare(hint)
    if path and (kind := _kind_of(hint, name)):
        yield Leaf(path, kind, lambda new: new)
    elif isinstance(value, Struct):
        for field in value.__struct_fields__:
            inner = f"{path}.{field}" if path else field
            for leaf in _leaves(getattr(value, field), _hints(type(value))[field], inner):
                yield Leaf(leaf.path, leaf.kind, _in_struct(value, field, leaf))
    elif get_origin(bare) is tuple:
        yield from _in_tuple(value, get_args(bare)[0], path)
    elif get_origin(bare) is dict and value and (kind := _kind_of(get_args(bare)[0], name)):
        yield Leaf(path, kind, lambda new: {new: next(iter(value.values()))})
    for each in get_args(bare) if get_origin(bare) in (Union, types.UnionType) else ():
        if get_origin(_bare(each)) is tuple:
            yield from _leaves(value or (), each, path)


def _in_struct(value: Struct, field: str, leaf: Leaf) -> Callable[[Any], Any]:
    return lambda new: structs.replace(value, **{field: leaf.with_value(new)})


def _in_tuple(value: tuple[Any, ...], hint: Any, path: str) -> Iterator[Leaf]:
    if kind := _kind_of(hint, path.rpartition(".")[2]):
        yield Leaf(path, kind, lambda new: (new,))
        return
    for number, each in enumerate(value):
        for leaf in _leaves(each, hint, path):
            yield Leaf(leaf.path, leaf.kind, _at(value, number, leaf))


def _at(value: tuple[Any, ...], number: int, leaf: Leaf) -> Callable[[Any], Any]:
    return lambda new: (*value[:number], leaf.with_value(new), *value[number + 1 :])
