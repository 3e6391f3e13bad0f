"""AMQP that no library would send: hand-made frames with arbitrary bytes in properties and tables."""

import random
import struct
from collections.abc import Mapping, Sequence

import aio_pika
from aiormq.abc import ChannelFrame
from msgspec import Struct

HEADERS, REPLY_TO = 13, 9
SHORT_NAMES = (b"", b"\xff" * 255, b"a" * 255, b"\0", b"\xed\xa0\x80", b"application/x-ndjson", b"\xc3")
# No NaN and no infinity: the broker closes a connection that sends one.
KINDS = (
    *(b"t\xff", b"b\x80", b"B\xff", b"s\x80\0", b"u\xff\xff", b"I\x80\0\0\0", b"i\xff\xff\xff\xff"),
    *(b"l\x80" + b"\0" * 7, b"f\x7f\x7f\xff\xff", b"d\x7f\xef" + b"\xff" * 6),
    *(b"D\xff\xff\xff\xff\xff", b"T" + b"\xff" * 8, b"T\x7f" + b"\xff" * 7, b"V"),
)
NAMES = (
    *(b"moor-attempts", b"moor-reason", b"moor-sender", b"moor-queue", b"moor-where", b"moor-newer-waits"),
    *(b"x-delivery-count", b"x-first-death-reason", b"x-death", b"\xff\xfe", b"", b"a" * 128),
)


class RawParcel(Struct, frozen=True):
    exchange: bytes
    routing_key: bytes
    properties: bytes
    body: bytes


class RawChannel:
    """A channel that sends any bytes and waits for the confirms."""

    def __init__(self, connection: aio_pika.abc.AbstractConnection, number: int) -> None:
        assert connection.transport is not None
        self._queue = connection.transport.connection.write_queue
        self._number = number

    async def send(self, parcels: Sequence[RawParcel]) -> None:
        payload = b"".join(_frames(self._number, parcel) for parcel in parcels)
        await self._queue.put(ChannelFrame(payload, should_close=False))


def hostile_properties(
    chance: random.Random, *, content_type: bytes = b"", said: Mapping[bytes, bytes] | None = None
) -> bytes:
    """The flags of some properties, and the properties. With `said`, the headers of a worker that returned it, there is
    no reason to refuse the parcel as a whole.
    """
    flags, parts = 0, []
    for bit, kind in _PROPERTIES:
        if bit == 15 and content_type:
            value = short(content_type)
        elif said is not None and bit == HEADERS:
            value = hostile_table(chance, said)
        elif (said is not None and bit == REPLY_TO) or chance.random() < 0.6:
            continue
        elif kind == "name":
            value = short(chance.choice(SHORT_NAMES))
        elif kind == "table":
            value = hostile_table(chance)
        elif kind == "time":
            value = chance.choice((b"\xff" * 8, b"\0" * 8, b"\x7f" + b"\xff" * 7, b"\0\0\x10" + b"\0" * 5))
        else:
            value = chance.choice((b"\x01", b"\x02"))
        flags |= 1 << bit
        parts.append(value)
    return struct.pack(">H", flags) + b"".join(parts)


def hostile_table(chance: random.Random, said: Mapping[bytes, bytes] | None = None) -> bytes:
    names = [
        name
        for name in chance.sample(NAMES, chance.randint(0, 6))
        if said is None or name not in (*said, b"x-first-death-reason")
    ]
    entries = [short(name) + b"S" + _counted(value) for name, value in (said or {}).items()]
    entries += [short(name) + hostile_value(chance) for name in names]
    if chance.random() < 0.1:
        entries.append(short(b"deep") + _nested(chance.choice((3, 600, 2_000))))
    return _counted(b"".join(entries))


def hostile_value(chance: random.Random) -> bytes:
    drawn = chance.randrange(5)
    if drawn == 0:
        return b"S" + _counted(chance.choice((b"abc", b"\xff\xfe", b"", b"\0", b"20", b"x" * 5_000)))
    if drawn == 1:
        return b"x" + _counted(chance.randbytes(20))
    if drawn == 2:
        return b"A" + _counted(b"".join(chance.choices(KINDS, k=3)))
    return chance.choice(KINDS)


def short(name: bytes) -> bytes:
    return bytes((len(name),)) + name


# All except the user's name, which the broker checks, and the expiration, which it reads as a number.
_PROPERTIES = (
    *((15, "name"), (14, "name"), (13, "table"), (12, "number"), (11, "number"), (10, "name"), (9, "name")),
    *((7, "name"), (6, "time"), (5, "name"), (3, "name")),
)


def _nested(depth: int) -> bytes:
    value = b"F" + _counted(b"")
    for _ in range(depth):
        value = b"F" + _counted(short(b"a") + value)
    return value


def _counted(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def _frames(channel: int, parcel: RawParcel) -> bytes:
    publish = struct.pack(">HHH", 60, 40, 0) + short(parcel.exchange) + short(parcel.routing_key) + b"\0"
    header = struct.pack(">HHQ", 60, 0, len(parcel.body)) + parcel.properties
    bodies = [parcel.body[at : at + 100_000] for at in range(0, len(parcel.body), 100_000)]
    return b"".join(
        struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"
        for kind, payload in ((1, publish), (2, header), *((3, body) for body in bodies))
    )
