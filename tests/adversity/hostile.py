"""Parcels as an attacker or a broken program would send them, drawn by a seeded generator.

Most lines start as a golden file, so that they pass the first checks; then a part of them is broken.
"""

import pathlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import structs

from bus import message
from bus.message import LINES, PARCEL_BYTES_MAX, PARCEL_ITEMS_MAX, PLAIN, Parcel

GOLDEN = tuple(
    msgspec.json.format(path.read_bytes(), indent=-1)
    for path in sorted((pathlib.Path(__file__).parents[1] / "golden").iterdir())
)
# A known bug: the decoder skips an unknown key, and with it bytes that are not UTF-8.
NO_UTF8 = (
    b'{"message":{"type":"instance.delete","instance":"0b6c3f9e-3c3c-4a0e-9d5e-2f1f6f0b7a11"},"x":"\xff"}'
)
DEEP = 1_200

# Values of JSON, or nearly.
ODD_VALUES = (
    *(b"null", b"true", b"-1", b"0", b"1.5", b"1e400", b"-1e400", b"NaN", b"Infinity", b"-0", b"01"),
    *(b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809", b"9" * 40, b"9" * 5_000),
    *(
        b'""',
        b'"\\u0000"',
        b'"a\\u0000b"',
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'"\\\\u0000"',
        b'"\0"',
        b'"\xff"',
    ),
    *(b'"\xed\xa0\x80"', b'"\xf0\x9f\x92\xa5"', b'"' + b"x" * 3_000 + b'"', b'"[/bold]\\u001b[2J"'),
    *(b'"0001-01-01T00:00:00+23:59"', b'"9999-12-31T23:59:59-23:59"', b'"2026-01-01T00:00:00"', b'"now"'),
    *(b"[]", b"[[]]", b"{}", b'{"":""}', b'{"\xff":1}', b'{"a\\u0000":1}'),
    *(b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP, b"[" * DEEP),
)
ENVELOPE_KEYS = (b"id", b"version", b"sent_at", b"cause", b"trace", b"attempts", b"message", b"type", b"x")
COUNTS = (b"0", b"1", b"2", b"19", b"20", b"21", b"2147483648", b"9" * 30, b"-1", b'"abc"', b"1.0", b"null")
CONTENT_TYPES = (
    PLAIN,
    LINES,
    LINES,
    "",
    "text/plain",
    "\\xff",
    "application/x-ndjson; charset=latin-1",
    "x" * 255,
)
ADDRESSES = ("", "", "answers.moor-client.p1", "a" * 255, "\u00e4" * 100, "#", "\0")
HEADER_NAMES = (
    *(message.REASON, message.QUEUE, message.ATTEMPTS, message.WHERE, message.SENDER, message.LETTER),
    *(
        message.WAITS,
        message.BROKER_REASON,
        message.BROKER_QUEUE,
        message.BROKER_EXCHANGE,
        "x-delivery-count",
    ),
    *("", "\0"),
)
HEADER_VALUES = ("abc", "", -1, 0, 2**63 - 1, -(2**63), "\0", "[/red]", "\x1b[2J", "\u00e4" * 500, "20")


def hostile_line(chance: random.Random) -> bytes:
    return chance.choice(_LINES)(chance)


def hostile_parcel(chance: random.Random, exchange: str, routing_key: str) -> Parcel:
    """A parcel that is hostile in its body, its properties, or both."""
    return Parcel(
        exchange,
        routing_key,
        chance.choice(_BODIES)(chance),
        content_type=chance.choice(CONTENT_TYPES),
        reply_to=chance.choice(ADDRESSES),
        headers={
            chance.choice(HEADER_NAMES): chance.choice(HEADER_VALUES)
            for _ in range(chance.choice((0, 0, 1, 4)))
        },
    )


def among(
    chance: random.Random, good: Sequence[bytes], parcel: Parcel, said: Mapping[str, str] | None = None
) -> Parcel:
    """A hostile parcel with good messages added, a line each. Properties for which the whole parcel would be refused
    are left out, and the count of tries, which a worker writes. `said` are the headers of a worker that returned it.
    """
    lines = [*good, *(hostile_line(chance).replace(b"\n", b" ") for _ in range(chance.randint(1, 4)))]
    chance.shuffle(lines)
    ours = (message.BROKER_REASON, message.ATTEMPTS)
    kept = {key: value for key, value in parcel.headers.items() if key not in ours}
    return structs.replace(
        parcel, body=b"\n".join(lines), content_type=LINES, reply_to="", headers=kept | dict(said or {})
    )


# Lines


def _random_bytes(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randint(1, 200))


def _broken(chance: random.Random) -> bytes:
    """A line with a byte changed, inserted or removed; or cut off."""
    line = bytearray(chance.choice(GOLDEN))
    at = chance.randrange(len(line))
    match chance.randrange(4):
        case 0:
            line[at] = chance.choice(b'\xff\x00\x80"\\{}[],:0')
        case 1:
            line[at:at] = chance.choice(
                (b"\xff", b"\0", b"\xed\xa0\x80", b"\\u0000", b"\\ud800", b"\\", b'"')
            )
        case 2:
            del line[at]
        case _:
            del line[at:]
    return bytes(line)


def _odd_value(chance: random.Random) -> bytes:
    """A message with one value replaced."""
    whole: Any = msgspec.json.decode(chance.choice(GOLDEN))
    place, keys = whole, [*whole]
    for _ in range(4):
        key = chance.choice(keys)
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or chance.random() < 0.2:
            break
        place, keys = inner, [*inner] if isinstance(inner, dict) else [*range(len(inner))]
    else:
        key = chance.choice(keys)
    place[key] = msgspec.Raw(chance.choice(ODD_VALUES))
    return msgspec.json.encode(whole)


def _odd_key(chance: random.Random) -> bytes:
    """A message with one more key, possibly a duplicate, inside the message or around it."""
    line = chance.choice(GOLDEN)
    key = chance.choice(ENVELOPE_KEYS)
    more = b'"' + key + b'":' + chance.choice((*ODD_VALUES, b'"claim"', b'"build.request"'))
    if chance.random() < 0.5:
        return line[:-1] + b"," + more + b"}"
    return line.replace(b'"type":', more + b',"type":', 1)


def _odd_count(chance: random.Random) -> bytes:
    line = chance.choice(GOLDEN)
    key = chance.choice((b"attempts", b"version"))
    return line[:-1] + b',"' + key + b'":' + chance.choice(COUNTS) + b"}"


def _no_message(chance: random.Random) -> bytes:
    return chance.choice(
        (*ODD_VALUES, b'{"message":3}', b'{"message":{"type":7}}', b'{"message":{"type":"x"}}', NO_UTF8)
    )


_LINES: tuple[Callable[[random.Random], bytes], ...] = (
    *(
        _random_bytes,
        _broken,
        _broken,
        _odd_value,
        _odd_value,
        _odd_value,
        _odd_key,
        _odd_key,
        _odd_count,
        _no_message,
    ),
)


# Bodies


def _lines(chance: random.Random) -> bytes:
    return b"\n".join(hostile_line(chance) for _ in range(chance.randint(2, 6)))


def _size(chance: random.Random) -> bytes:
    """An empty body, or one that is far too large."""
    if chance.random() < 0.9:
        return chance.choice((b"", b"\n", b" ", b"\n\n\n", b"\0", b"{}"))
    return chance.choice(
        (
            b"\n" * 1_000_000,
            b"x" * (PARCEL_BYTES_MAX + 1),
            b"1\n" * (PARCEL_ITEMS_MAX + 1),
            b"[" * PARCEL_BYTES_MAX,
            b'"' + b"\\u0000" * 40_000 + b'"',
        )
    )


_BODIES = (*(hostile_line,) * 12, *(_lines,) * 3, _size)
