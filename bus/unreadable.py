"""What stands for a line that is no message, and what is wrong with it: the field and its value, for whoever wrote it."""

import functools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from msgspec import inspect

from bus.message import Message

VALUE_SHOWN_MAX = 200

# As msgspec says where it found something: "... - at `$.message.flavor.vcpus`", and which key is missing there.
_PATH = re.compile(r"`\$(?P<path>[^`]*)`")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_MISSING = re.compile(r"missing required field `(?P<key>[^`]+)`")

NOT_JSON = (msgspec.MsgspecError, ValueError, RecursionError)


class Unreadable(Message, frozen=True, kw_only=False, tag="unreadable"):
    """Not a message that we know, and it will not become one.

    It stands where the message would, so that a handler may answer it; it is never sent. `kind`, `id` and `request_id`
    are what it says of itself, `field` and `value` what is wrong in it, each as far as that can be told.
    """

    line: bytes
    reason: str
    kind: str = ""
    id: str = ""
    request_id: UUID | None = None
    field: str = ""
    value: str = ""
    # The project of the key that it came under, which is one that its sender may speak for.
    project: str = ""


class Culprit(NamedTuple):
    """What is wrong, in which field, with which value; a field that is missing has none."""

    reason: str
    field: str = ""
    value: str = ""


def culprit_of(problem: Exception, line: bytes) -> Culprit:
    """What the decoder complains about."""
    reason = str(problem)
    found = _PATH.search(reason)
    if found is None:
        return Culprit(reason)
    path = found["path"].removeprefix(".message").lstrip(".")
    if missing := _MISSING.search(reason):
        return Culprit(reason, f"{path}.{missing['key']}".lstrip("."))
    try:
        value: Any = msgspec.json.decode(line)
        for key, index in _STEP.findall(found["path"]):
            value = value[key] if key else value[int(index)]
    except (*NOT_JSON, KeyError, IndexError, TypeError):
        return Culprit(reason, path)
    return Culprit(f"{reason}: got {_json(value)}", path, _shown(value))


def unread_key(line: bytes, kind: type[Message]) -> Culprit | None:
    """The first key in this message that nobody reads; None if all are."""
    for at, key, value in _unread(msgspec.json.decode(line)["message"], _type(kind), ""):
        # Parts of a message never bear the name of its tag, so this is about the same level.
        known = ", ".join(sorted(_fields(at[1])))
        field = f"{at[0]}.{key}".lstrip(".")
        return Culprit(f"nothing here reads {field!r}: known are {known}", field, _shown(value))
    return None


def request_id_in(raw: msgspec.Raw) -> UUID | None:
    try:
        return msgspec.json.decode(raw, type=UUID | None)
    except msgspec.MsgspecError:
        return None


def _unread(value: Any, kind: inspect.Type, at: str) -> Iterator[tuple[tuple[str, type], str, Any]]:
    """Every key that is no field, with the path to its object and what that object is."""
    match kind:
        case inspect.StructType(cls=struct) if isinstance(value, dict):
            fields = _fields(struct)
            for key, inner in value.items():
                if key not in fields:
                    yield (at, struct), key, inner
                elif isinstance(inner, dict | list):
                    yield from _unread(inner, fields[key], f"{at}.{key}")
        case inspect.UnionType(types=types):
            for each in types:
                yield from _unread(value, each, at)
        case inspect.VarTupleType(item_type=item) if isinstance(value, list):
            for position, inner in enumerate(value):
                yield from _unread(inner, item, f"{at}[{position}]")
        case _:
            return


@functools.cache
def _type(kind: type[Message]) -> inspect.Type:
    return inspect.type_info(kind)


@functools.cache
def _fields(struct: type) -> dict[str, inspect.Type]:
    """What may stand in this object, its tag included."""
    known = inspect.type_info(struct)
    assert isinstance(known, inspect.StructType)
    tag = {known.tag_field: inspect.StrType()} if known.tag_field else {}
    return {field.encode_name: field.type for field in known.fields} | tag


def _shown(value: object) -> str:
    return value[:VALUE_SHOWN_MAX] if isinstance(value, str) else _json(value)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()[:VALUE_SHOWN_MAX]
