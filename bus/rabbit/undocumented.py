"""What RabbitMQ needs of the libraries beyond what they document: two things, and what would end each.

The decoders. RabbitMQ lets any publisher send any bytes as a name, any number as a time, and tables nested to any depth. The
library's decoders raise at these and the connection ends: at each delivery again, for every reader of the queue, dead letters
included. pamqp looks up its decoders by type in a table; ours replace three of them. They read the fields that are used here, skip
the rest, and take time proportional to the bytes. If pamqp could be given decoders, this would be documented.

The alarms. aiormq tells whether the broker blocks only by `ready()`, which waits while it does. A task that watches it learns of the
end of an alarm, and never of its beginning. If aiormq's connection had a property for it, this would be documented.
"""

import struct
from collections.abc import Callable, Coroutine
from typing import Any

from aiormq import Connection
from pamqp import decode


def is_blocked(connection: Connection) -> bool:
    """Does the broker take nothing from publishers now? `ready()` is taken one step far."""
    waiting: Coroutine[Any, Any, None] = connection.ready()
    try:
        waiting.send(None)
    except StopIteration:
        return False
    waiting.close()
    return True


# The deaths of a dead letter are a list in a table in a list in a table; nothing used here is deeper.
DEPTH_MAX = 5

_LENGTH = struct.Struct(">I")
# Type letter and layout of each type. Times stay numbers, and for decimals only the length matters.
_FIXED = {
    each[0]: struct.Struct(f">{each[1:]}")
    for each in ("t?", "bb", "BB", "sh", "uH", "Ii", "iI", "lq", "Lq", "ff", "dd", "TQ", "D5s", "V", "\0")
}


def decode_leniently() -> None:
    """Make the AMQP library decode names, times and tables in this process by functions that accept all that RabbitMQ
    accepts. Its own functions raise at some of it, and the connection ends.
    """
    decode.METHODS.update(shortstr=short_string, table=table, timestamp=timestamp)


def short_string(value: bytes) -> tuple[int, str]:
    if not value:
        raise ValueError("a name is cut off")
    end = value[0] + 1
    return end, value[1:end].decode(errors="backslashreplace")


def timestamp(_: bytes) -> tuple[int, int]:
    """Skip a timestamp: returns its length in bytes, and 0 as its value, since no caller uses timestamps."""
    return 8, 0


def table(value: bytes) -> tuple[int, dict[str, Any]]:
    try:
        return _table(value, 0, DEPTH_MAX)
    except (struct.error, IndexError) as cut_off:
        raise ValueError("a table is cut off") from cut_off


def _table(data: bytes, start: int, depth: int) -> tuple[int, dict[str, Any]]:
    """Decode the AMQP table that begins at `start`. Returns where it ends, and its content."""
    at = start + _LENGTH.size
    end = at + _LENGTH.unpack_from(data, start)[0]
    if end > len(data):
        raise ValueError("a table is longer than what holds it")
    found: dict[str, Any] = {}
    while at < end:
        size = data[at]
        name = data[at + 1 : at + 1 + size].decode(errors="backslashreplace")
        at, found[name] = _value(data, at + 1 + size, depth)
    return end, found


def _value(data: bytes, at: int, depth: int) -> tuple[int, Any]:
    kind = chr(data[at])
    at += 1
    if (fixed := _FIXED.get(kind)) is not None:
        read = fixed.unpack_from(data, at)
        return at + fixed.size, read[0] if read else None
    if kind == "F" and depth > 1:
        return _table(data, at, depth - 1)
    if kind == "A" and depth > 1:
        return _list(data, at, depth - 1)
    if (long := _LONG.get(kind)) is None:
        raise ValueError(f"a table has a value of the unknown type {kind!r}")
    start = at + _LENGTH.size
    end = start + _LENGTH.unpack_from(data, at)[0]
    return end, long(data[start:end])


def _list(data: bytes, start: int, depth: int) -> tuple[int, list[Any]]:
    at = start + _LENGTH.size
    end = at + _LENGTH.unpack_from(data, start)[0]
    if end > len(data):
        raise ValueError("a list is longer than what holds it")
    found = []
    while at < end:
        at, value = _value(data, at, depth)
        found.append(value)
    return end, found


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


# Tables and lists that are nested too deep stay undecoded.
_LONG: dict[str, Callable[[bytes], str | bytes]] = {"S": _text, "x": bytes, "A": bytes, "F": bytes}
