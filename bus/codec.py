"""Messages to bytes and back.

On the wire a message is one JSON object, its envelope. A parcel of several is one such object a line, so that a line
that is broken says nothing about its neighbours. A line that cannot be read is a value with a reason, not an exception:
what becomes of it is the worker loop's to decide, once.
"""

import functools
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs

from bus.broker import LINES, PARCEL_BYTES_MAX, PARCEL_ITEMS_MAX, Parcel
from bus.message import Envelope, Message, type_of
from bus.messages import ALL

VALUE_SHOWN_MAX = 200

Json = dict[str, Any]
Upgrade = Callable[[Json], Json]


class Unreadable(Struct, frozen=True):
    """Not a message that we know, and it will not become one."""

    line: bytes
    reason: str


class FromNewer(Struct, frozen=True):
    """A message of a higher version than ours: for a worker of a later release, not for us."""

    line: bytes
    type: str
    version: int


class _Wrapped(Struct, frozen=True, omit_defaults=True):
    """An envelope whose message is not looked into, so that it can be judged by its type or put back unchanged."""

    message: msgspec.Raw
    id: str = ""
    version: int = 1
    sent_at: str | None = None
    cause: str = ""
    trace: str = ""
    attempts: int = 0


class _Typed(Struct, frozen=True):
    type: str


_wrapped = msgspec.json.Decoder(_Wrapped)
_typed = msgspec.json.Decoder(_Typed)
_encoder = msgspec.json.Encoder()


class Codec:
    """Reads a set of messages: each in its version, and in the one before by an upgrade of its JSON."""

    def __init__(
        self,
        messages: Iterable[type[Message]] = ALL,
        upgrades: Mapping[tuple[str, int], Upgrade] | None = None,
    ) -> None:
        self._kinds = {type_of(kind): kind for kind in messages}
        self._upgrades = dict(upgrades or {})
        any_message: Any = functools.reduce(operator.or_, self._kinds.values())
        self._envelope: type[Envelope[Message]] = Envelope[any_message]
        self._decoder = msgspec.json.Decoder(self._envelope)

    def decode(self, line: bytes) -> Envelope[Message] | Unreadable | FromNewer:
        """The message in a line, or why there is none."""
        try:
            envelope: Envelope[Message] = self._decoder.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
            return self._decode_carefully(line, problem)
        if envelope.version == envelope.message.VERSION:
            return envelope
        return self._decode_carefully(line, None)

    def _decode_carefully(
        self, line: bytes, problem: Exception | None
    ) -> Envelope[Message] | Unreadable | FromNewer:
        """Not what the fast path took for granted: find out whether it is old, new, unknown or broken."""
        try:
            wrapped = _wrapped.decode(line)
            name = _typed.decode(wrapped.message).type
        except (msgspec.MsgspecError, ValueError, RecursionError) as broken:
            return Unreadable(line, describe(broken, line))
        kind = self._kinds.get(name)
        if kind is None:
            return Unreadable(line, f"unknown message type {name!r}")
        if wrapped.version > kind.VERSION:
            return FromNewer(line, name, wrapped.version)
        if wrapped.version == kind.VERSION:
            return Unreadable(line, describe(problem, line))
        upgrade = self._upgrades.get((name, wrapped.version))
        if upgrade is None:
            return Unreadable(
                line,
                f"version {wrapped.version} of {name!r} is no longer read: the version now is {kind.VERSION}",
            )
        return self._upgraded(line, kind, upgrade)

    def _upgraded(self, line: bytes, kind: type[Message], upgrade: Upgrade) -> Envelope[Message] | Unreadable:
        envelope: Json = msgspec.json.decode(line)
        try:
            message = upgrade(envelope["message"])
            return msgspec.convert(envelope | {"message": message, "version": kind.VERSION}, self._envelope)
        except (msgspec.MsgspecError, ValueError, KeyError) as problem:
            return Unreadable(line, describe(problem, line))


CODEC = Codec()


def encode(envelope: Envelope[Message]) -> bytes:
    """One line."""
    return _encoder.encode(envelope)


def put_back(line: bytes) -> bytes:
    """The same message, tried once more; whatever we do not know of it stays in it."""
    try:
        wrapped = _wrapped.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return line
    return _encoder.encode(structs.replace(wrapped, attempts=wrapped.attempts + 1))


def revived(line: bytes) -> bytes:
    """The same message as if it had never been tried; a line that cannot be read stays as it is."""
    try:
        return _encoder.encode(structs.replace(_wrapped.decode(line), attempts=0))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return line


def attempts_of(line: bytes) -> int:
    """How often the message in this line was put back; 0 if the line cannot be read."""
    try:
        return _wrapped.decode(line).attempts
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return 0


def lines_of(parcel: Parcel) -> Sequence[bytes] | Unreadable:
    """The messages in a parcel, still as bytes; or why the parcel as a whole will not be looked into."""
    size = len(parcel.body)
    if size > PARCEL_BYTES_MAX:
        return Unreadable(parcel.body, f"oversized: {size} bytes, at most {PARCEL_BYTES_MAX} are taken")
    if parcel.content_type != LINES:
        return (parcel.body,)
    lines = [line for line in parcel.body.split(b"\n") if line]
    if len(lines) > PARCEL_ITEMS_MAX:
        return Unreadable(
            parcel.body, f"oversized: {len(lines)} messages, at most {PARCEL_ITEMS_MAX} are taken"
        )
    return lines


def known_messages(parcel: Parcel, codec: Codec) -> list[Envelope[Message]]:
    """The messages that can be read, for readers to whom the others do not matter: of answers and feeds."""
    lines = lines_of(parcel)
    if isinstance(lines, Unreadable):
        return []
    return [read for read in map(codec.decode, lines) if isinstance(read, Envelope)]


def describe(problem: Exception | None, line: bytes) -> str:
    """What is wrong with a line, naming the field and its value."""
    text = str(problem)
    found = re.search(r"`\$(?P<path>[^`]*)`", text)
    if not found:
        return text
    try:
        value: Any = msgspec.json.decode(line)
        for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", found["path"]):
            value = value[key] if key else value[int(index)]
    except (msgspec.MsgspecError, ValueError, KeyError, IndexError, TypeError, RecursionError):
        return text
    shown = msgspec.json.encode(value).decode()
    return f"{text}: got {shown[:VALUE_SHOWN_MAX]}"
