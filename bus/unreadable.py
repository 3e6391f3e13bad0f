"""Describes a line of JSON in a parcel that is not a valid message: which field is wrong, and why.

`Unreadable` takes the place of the message, so that a handler can tell the sender.
"""

import functools
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from msgspec import inspect

from bus.message import Envelope, Message
from kit.errors import UNREADABLE, FieldProblem

VALUE_SHOWN_MAX = 200
REASON_SHOWN_MAX = 1_000
NUL = "\0"

# msgspec's error text says where the error is, "... - at `$.message.flavor.vcpus`", and which key is missing there.
_PATH = re.compile(r"`\$(?P<path>[^`]*)`")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_MISSING = re.compile(r"missing required field `(?P<key>[^`]+)`")


class Unreadable(Message, frozen=True, kw_only=False, tag="unreadable"):
    """A line that is not a valid message of a known type.

    It takes the place of the message, so that a handler can answer it; it is never sent. `kind`, `id` and
    `request_id` are what the line says about itself. `field` and `value` are what is wrong in it. Each of these is
    set as far as it can be found.
    """

    line: bytes
    reason: str
    kind: str = ""
    id: str = ""
    request_id: UUID | None = None
    field: str = ""
    value: str = ""
    # The project of its routing key. The broker has checked that the sender may speak for it.
    project: str = ""


def problem_in(problem: Exception, line: bytes) -> FieldProblem:
    """Explain why a line could not be decoded: the reason, and as far as they can be found, the wrong field and its
    value.
    """
    if isinstance(problem, UnicodeDecodeError):
        return _no_utf8_in(line)
    if isinstance(problem, RecursionError):
        return FieldProblem("nested too deep to be read")
    reason = str(problem)[:REASON_SHOWN_MAX]
    found = _PATH.search(reason)
    if found is None:
        return FieldProblem(reason)
    path = _field(found["path"])
    if missing := _MISSING.search(reason):
        return FieldProblem(reason, f"{path}.{missing['key']}".lstrip("."))
    try:
        value: Any = msgspec.json.decode(line)
        for key, index in _STEP.findall(found["path"]):
            value = value[key] if key else value[int(index)]
    except UNREADABLE:
        return FieldProblem(reason, path)
    return FieldProblem(f"{reason}: got {_json(value)}", path, _shown(value))


def unread_key(line: bytes, kind: type[Message]) -> FieldProblem | None:
    """Find the first key in a message of this type that is no field of it. None if there is none."""
    try:
        message = msgspec.json.decode(line)["message"]
        for at, key, value in _unread(message, _type_info(kind), ""):
            # The name of its tag never occurs inside a message, so this error is about the same level.
            known = ", ".join(sorted(_fields(at[1])))
            field = _field(f"{at[0]}.{key}")
            return FieldProblem(f"unknown field {field!r}: known are {known}", field, _shown(value))
    except UNREADABLE as problem:
        # The parts that the typed decoder skips may be invalid UTF-8 or invalid numbers.
        return problem_in(problem, line)
    return None


def nul_in(line: bytes) -> FieldProblem | None:
    """Find the first NUL character in a message. JSON allows it, and PostgreSQL does not. None if there is none."""
    if b"\\u0000" not in line:
        return None
    try:
        found = _text_with(NUL, msgspec.json.decode(line))
    except UNREADABLE as problem:
        return problem_in(problem, line)
    if found is None:
        return None
    field, text = found
    return FieldProblem(f"{field!r} contains the character NUL, which is not allowed", field, text)


def without_nul(text: str) -> str:
    """Replace NUL characters, so that a message may quote this text: messages with a NUL character are rejected."""
    return text.replace(NUL, r"\0")


def _no_utf8_in(line: bytes) -> FieldProblem:
    """Find the first byte that is not UTF-8 in the line of JSON of a message, and the field that has it.

    The whole line is searched, since the decoder skips parts of it.
    """
    try:
        line.decode()
    except UnicodeDecodeError as wrong:
        reason = f"no UTF-8: byte 0x{line[wrong.start]:02x} at {wrong.start}"
    else:
        reason = "no UTF-8"
    try:
        found = _text_with("\ufffd", msgspec.json.decode(line.decode(errors="replace")))
    except UNREADABLE:
        return FieldProblem(reason)
    return FieldProblem(reason, *(found or ()))


def _text_with(mark: str, value: Any) -> tuple[str, str] | None:
    """Find the first text, key or value, that contains this character. Returns its field and the text.

    This is not recursive: JSON may be nested as deep as the decoder allows.
    """
    waiting = [("", value)]
    while waiting:
        path, each = waiting.pop()
        if isinstance(each, str):
            if mark in each:
                return _field(path), _shown(each)
        elif isinstance(each, dict):
            waiting += [(f"{path}.{key}", key) for key in each if mark in key]
            waiting += [(f"{path}.{key}", inner) for key, inner in reversed(each.items())]
        elif isinstance(each, list):
            waiting += [(f"{path}[{place}]", inner) for place, inner in reversed([*enumerate(each)])]
    return None


def _field(path: str) -> str:
    """The path of a field inside the message, without the `message` of the envelope: as the sender knows it."""
    return path.removeprefix(".message").lstrip(".")[:VALUE_SHOWN_MAX]


def request_id_in(raw: msgspec.Raw) -> UUID | None:
    try:
        return msgspec.json.decode(raw, type=UUID | None)
    except UNREADABLE:
        return None


def _unread(value: Any, kind: inspect.Type, at: str) -> Iterator[tuple[tuple[str, type], str, Any]]:
    """Find the keys in this decoded JSON that are no fields of its type.

    Each is found with the path and the type of the object that contains it, and with its value.
    """
    match kind:
        case inspect.StructType(cls=struct) if isinstance(value, dict):
            fields = _fields(struct)
            for key, inner in value.items():
                if key not in fields:
                    yield (at, struct), key, inner
                elif isinstance(inner, dict | list):
                    yield from _unread(inner, fields[key], f"{at}.{key}")
        case inspect.Metadata(type=described):
            yield from _unread(value, described, at)
        case inspect.UnionType(types=types):
            for each in types:
                yield from _unread(value, each, at)
        case inspect.VarTupleType(item_type=item) if isinstance(value, list):
            for position, inner in enumerate(value):
                yield from _unread(inner, item, f"{at}[{position}]")
        case _:
            return


_type_info = functools.cache(inspect.type_info)


@functools.cache
def _fields(struct: type) -> dict[str, inspect.Type]:
    """The names and types of the fields that JSON for this struct may have. The tag that names the struct is one of them."""
    known = inspect.type_info(struct)
    assert isinstance(known, inspect.StructType)
    tag = {known.tag_field: inspect.StrType()} if known.tag_field else {}
    return {field.encode_name: field.type for field in known.fields} | tag


def _shown(value: object) -> str:
    return value[:VALUE_SHOWN_MAX] if isinstance(value, str) else _json(value)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()[:VALUE_SHOWN_MAX]


# Finds timestamps in messages that are too far in the past or future.
#
# JSON allows the years from 1 to 9999. Near these limits, adding a day or changing the time zone leaves the range of
# Python and of the database.


YEAR_MIN, YEAR_MAX = 1970, 8999

# The first timestamp that is too far away: its path and its value.
TooFar = tuple[str, datetime]
Finder = Callable[[Any], TooFar | None]


def too_far_in(envelope: Envelope[Message]) -> FieldProblem | None:
    """Describe the first timestamp that is before the year 1970 or after 8999. None if all can be used."""
    if (found := _finder_of(type(envelope.message))(envelope)) is None:
        return None
    field, moment = _field(found[0]), found[1].isoformat()
    return FieldProblem(
        f"{field} is {moment}: must be in the years from {YEAR_MIN} to {YEAR_MAX}", field, moment
    )


# Made for the first message of a type: those of all types take long.
@functools.cache
def _finder_of(kind: type[Message]) -> Finder:
    """Make a function that finds a timestamp that is too far away in envelopes with messages of this type."""
    fields: list[tuple[str, Finder]] = [("sent_at", _look_at)]
    if (of_message := _of(_type_info(kind))) is not None:
        fields.append(("message", of_message))
    return _of_fields(fields)


def _of(type_info: inspect.Type) -> Finder | None:
    match type_info:
        case inspect.DateTimeType():
            return _look_at
        case inspect.Metadata(type=inner):
            return _of(inner)
        case inspect.UnionType(types=types):
            return _of_union(types)
        case inspect.StructType(fields=fields):
            looked_at = [(field.name, finder) for field in fields if (finder := _of(field.type))]
            return _of_fields(looked_at) if looked_at else None
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


def _of_fields(fields: list[tuple[str, Finder]]) -> Finder:
    def look(value: Any) -> TooFar | None:
        for name, finder in fields:
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
