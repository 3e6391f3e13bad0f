"""Encodes messages to bytes and decodes them.

On the wire a message is one JSON object, its envelope. A parcel of several messages has one such object per
line, so that a broken line does not affect its neighbours. A line that cannot be read becomes a value with a
reason, not an exception; the worker loop alone decides what happens to it.
"""

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from bus.message import LINES, PARCEL_BYTES_MAX, PARCEL_ITEMS_MAX, Envelope, Message, Parcel, type_of
from bus.messages import ALL
from bus.unreadable import (
    VALUE_SHOWN_MAX,
    Unreadable,
    nul_in,
    problem_in,
    request_id_in,
    too_far_in,
    unread_key,
    without_nul,
)
from engine.inventories import Count
from kit.errors import UNREADABLE, FieldProblem

Json = dict[str, Any]
Upgrade = Callable[[Json], Json]


class NewerVersion(Struct, frozen=True):
    """An encoded message of a higher version than this release can read. A worker of a later release can read it."""

    line: bytes
    type: str
    version: int


class _Wrapped(Struct, frozen=True, omit_defaults=True):
    """An envelope whose message stays encoded: for reading the type alone."""

    message: msgspec.Raw
    id: str = ""
    version: Count = 1
    sent_at: str | None = None
    cause: str = ""
    trace: str = ""


class _Typed(Struct, frozen=True):
    type: str
    # Not decoded: it may be the invalid part.
    request_id: msgspec.Raw = msgspec.Raw(b"null")


_BACKSLASH = ord("\\")

_wrapped = msgspec.json.Decoder(_Wrapped)
_typed = msgspec.json.Decoder(_Typed)


class Codec:
    """Decodes a set of message types: the current version of each, and older versions that `upgrades` can convert."""

    def __init__(
        self,
        messages: Iterable[type[Message]] = ALL,
        upgrades: Mapping[tuple[str, int], Upgrade] | None = None,
    ) -> None:
        self._kinds = {type_of(kind): kind for kind in messages}
        self._upgrades = dict(upgrades or {})

    # Made for the first message: that takes as long as loading the rest of a short command.
    @functools.cached_property
    def _envelope(self) -> type[Envelope[Message]]:
        any_message: Any = functools.reduce(operator.or_, self._kinds.values())
        return Envelope[any_message]

    @functools.cached_property
    def _decoder(self) -> msgspec.json.Decoder[Envelope[Message]]:
        return msgspec.json.Decoder(self._envelope)

    def decode(self, line: bytes) -> Envelope[Message] | Unreadable | NewerVersion:
        """Decode one message, or say why it cannot be decoded. Does not raise, whatever the bytes are."""
        try:
            envelope: Envelope[Message] = self._decoder.decode(line)
        except UNREADABLE as problem:
            return self._decode_carefully(line, problem_in(problem, line))
        message = envelope.message
        # If re-encoding gives the same bytes, the message has no unknown keys. Encoding costs a fifth of
        # searching for them.
        is_ours = not message.IS_STRICT or encode(envelope) == line
        # Only a line with a backslash can contain an escaped NUL. Searching for this one byte is many times faster than
        # searching for the six of the escape, and four times faster as a number than as bytes of length one.
        wrong = nul_in(line) if _BACKSLASH in line else None
        wrong = wrong or too_far_in(envelope)
        if wrong is None and not is_ours:
            wrong = unread_key(line, type(message))
        if envelope.version == message.VERSION and wrong is None:
            return envelope
        return self._decode_carefully(line, wrong)

    def _decode_carefully(
        self, line: bytes, wrong: FieldProblem | None
    ) -> Envelope[Message] | Unreadable | NewerVersion:
        """Find out why a message could not be decoded the fast way: it is old, new, unknown or broken."""
        try:
            wrapped = _wrapped.decode(line)
            typed = _typed.decode(wrapped.message)
        except UNREADABLE as broken:
            return _unreadable(line, problem_in(broken, line))
        name = typed.type
        kind = self._kinds.get(name)
        if kind is None:
            shown = name[:VALUE_SHOWN_MAX]
            unknown = FieldProblem(f"unknown message type {shown!r}", "type", shown)
            return _unreadable(line, unknown, wrapped, typed)
        if wrapped.version > kind.VERSION:
            return NewerVersion(line, name, wrapped.version)
        if wrapped.version == kind.VERSION:
            # Nothing is wrong in it, so the fast path decoded it as another type.
            twice = FieldProblem(f"the message names two types, the last is {name!r}: name one", "type", name)
            return _unreadable(line, wrong or twice, wrapped, typed)
        upgrade = self._upgrades.get((name, wrapped.version))
        if upgrade is None:
            why = (
                f"version {wrapped.version} of {name!r} is no longer read: the version now is {kind.VERSION}"
            )
            return _unreadable(line, FieldProblem(why, "version", str(wrapped.version)), wrapped, typed)
        return self._upgraded(line, wrapped, typed, upgrade)

    def _upgraded(
        self, line: bytes, wrapped: _Wrapped, typed: _Typed, upgrade: Upgrade
    ) -> Envelope[Message] | Unreadable:
        version = self._kinds[typed.type].VERSION
        try:
            envelope: Json = msgspec.json.decode(line)
            message = upgrade(envelope["message"])
            upgraded: Envelope[Message] = msgspec.convert(
                envelope | {"message": message, "version": version}, self._envelope
            )
        except UNREADABLE as problem:
            return _unreadable(line, problem_in(problem, line), wrapped, typed)
        wrong = nul_in(line) or too_far_in(upgraded)
        return upgraded if wrong is None else _unreadable(line, wrong, wrapped, typed)


CODEC = Codec()


class FewTypesCodec(Codec):
    """Decodes the same as `CODEC`, for a short program that gets few types of messages. It makes a decoder only for the types
    that come: one for all types takes longer than such a program's work. It reads each message twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self._of = functools.cache(lambda name: Codec((self._kinds[name],), self._upgrades))

    def decode(self, line: bytes) -> Envelope[Message] | Unreadable | NewerVersion:
        with suppress(*UNREADABLE):
            name = _typed.decode(_wrapped.decode(line).message).type
            if name in self._kinds:
                return self._of(name).decode(line)
        return super().decode(line)


# One message as one line.
encode: Callable[[Envelope[Message]], bytes] = msgspec.json.Encoder().encode


def lines_of(parcel: Parcel) -> Sequence[bytes] | Unreadable:
    """Split the body of a parcel into encoded messages; or say why the parcel as a whole is not decoded."""
    size = len(parcel.body)
    if size > PARCEL_BYTES_MAX:
        return Unreadable(parcel.body, f"oversized: {size} bytes, at most {PARCEL_BYTES_MAX} are allowed")
    if parcel.content_type != LINES:
        return (parcel.body,)
    lines = [line for line in parcel.body.split(b"\n") if line]
    if len(lines) > PARCEL_ITEMS_MAX:
        return Unreadable(
            parcel.body, f"oversized: {len(lines)} messages, at most {PARCEL_ITEMS_MAX} are allowed"
        )
    return lines


def known_messages(parcel: Parcel, codec: Codec) -> list[Envelope[Message]]:
    """Decode the messages of a parcel, and skip those that cannot be read. For readers of answers and feeds."""
    lines = lines_of(parcel)
    if isinstance(lines, Unreadable):
        return []
    return [read for read in map(codec.decode, lines) if isinstance(read, Envelope)]


def _unreadable(
    line: bytes, wrong: FieldProblem, wrapped: _Wrapped | None = None, typed: _Typed | None = None
) -> Unreadable:
    return Unreadable(
        line,
        without_nul(wrong.reason),
        kind=typed.type[:VALUE_SHOWN_MAX] if typed else "",
        id=wrapped.id[:VALUE_SHOWN_MAX] if wrapped else "",
        request_id=request_id_in(typed.request_id) if typed else None,
        field=without_nul(wrong.field),
        value=without_nul(wrong.value),
    )
