"""Parcels as AMQP frames, and back. Pure: bytes and values, no connection.

And decoders for AMQP fields that accept everything that RabbitMQ accepts. RabbitMQ lets any publisher send any bytes as
a name, any number as a time, and tables nested to any depth. The library's decoders raise at these and the connection
ends: at each delivery again, for every reader of the queue, dead letters included. The library looks up its decoders by type in a
table; ours replace three of them. They read the fields that are used here, skip the rest, and take time proportional to the bytes.
"""

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from pamqp import commands, decode
from pamqp.constants import FRAME_BODY, FRAME_HEADER
from pamqp.frame import marshal
from pamqp.header import ContentHeader

from bus.broker import NAME_BYTES_MAX, Delivery
from bus.message import BROKER_KEY, Parcel

# The parts of an AMQP frame around its payload: kind, channel and length before it, one byte after it.
FRAME_HEAD = struct.Struct(">BHI")
FRAME_END = b"\xce"
FRAME_OVERHEAD = FRAME_HEAD.size + len(FRAME_END)
_CONTENT_HEAD = struct.Struct(">HHQ")
_TRANSIENT, _PERSISTENT = 1, 2
# AMQP's limit, which the library enforces.
EXCHANGE_BYTES_MAX = 127
# A quorum queue counts the returns of a message in this header.
_RETURNS = "x-delivery-count"


def frames_of(parcel: Parcel, number: int, channel: int, user: str, content_size_max: int) -> bytes:
    """The AMQP frames that publish a parcel: a method frame, a header frame, and as many body frames as needed."""
    body = parcel.body
    properties = _CONTENT_HEAD.pack(60, 0, len(body)) + _properties_of(parcel, number, user)
    return b"".join(
        (
            _publish_frame(parcel.exchange, parcel.routing_key, parcel.mandatory, channel),
            _frame(FRAME_HEADER, channel, properties),
            *(
                _frame(FRAME_BODY, channel, body[start : start + content_size_max])
                for start in range(0, len(body), content_size_max)
            ),
        )
    )


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return b"".join((FRAME_HEAD.pack(kind, channel, len(payload)), payload, FRAME_END))


@lru_cache(maxsize=1024)
def _publish_frame(exchange: str, routing_key: str, mandatory: bool, channel: int) -> bytes:  # noqa: FBT001 - AMQP's
    return marshal(
        commands.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=mandatory), channel
    )


def _properties_of(parcel: Parcel, number: int, user: str) -> bytes:
    """Encode the AMQP properties of a parcel.

    The message id is the number of the parcel on its channel. By it, the publisher recognises a parcel that the
    broker returns as unroutable.
    """
    mode = _PERSISTENT if parcel.persistent else _TRANSIENT
    if parcel.headers:
        return commands.Basic.Properties(
            content_type=parcel.content_type,
            headers=dict(parcel.headers),
            delivery_mode=mode,
            reply_to=parcel.reply_to,
            message_id=str(number),
            user_id=user,
        ).marshal()
    before, after = _properties_around_name(parcel.content_type, mode, parcel.reply_to, user)
    name = str(number).encode()
    return b"".join((before, bytes((len(name),)), name, after))


@lru_cache(maxsize=256)
def _properties_around_name(content_type: str, mode: int, reply_to: str, user: str) -> tuple[bytes, bytes]:
    """The encoded AMQP properties of a parcel before and after its message id.

    They are cached: only the message id differs between parcels, and the rest is expensive to encode.
    """
    name = "the number comes here"
    whole = commands.Basic.Properties(
        content_type=content_type, delivery_mode=mode, reply_to=reply_to, message_id=name, user_id=user
    ).marshal()
    before, _, after = whole.rpartition(bytes((len(name),)) + name.encode())
    return before, after


def why_unfit(parcel: Parcel) -> str:
    """Say which field of a parcel is too long for an AMQP frame. Empty if none is."""
    names = (
        ("exchange", parcel.exchange, EXCHANGE_BYTES_MAX),
        ("routing_key", parcel.routing_key, NAME_BYTES_MAX),
        ("content_type", parcel.content_type, NAME_BYTES_MAX),
        ("reply_to", parcel.reply_to, NAME_BYTES_MAX),
    )
    for field, name, bytes_max in names:
        size = len(name.encode(errors="replace"))
        if size > bytes_max:
            return f"{field} has {size} bytes, at most {bytes_max} are allowed: {name[:40]!r}..."
    return ""


def delivery_of(queue: str, method: commands.Basic.Deliver, header: ContentHeader, body: bytes) -> Delivery:
    """The delivery in these frames, whatever properties and headers its sender set."""
    properties = header.properties
    headers = properties.headers or {}
    parcel = Parcel(
        exchange=method.exchange or "",
        routing_key=method.routing_key or "",
        encoded=body,
        content_type=properties.content_type or "",
        persistent=properties.delivery_mode == _PERSISTENT,
        reply_to=properties.reply_to or "",
        headers={
            **{
                key: value
                for key, value in headers.items()
                if isinstance(value, str | int) and not isinstance(value, bool) and key != _RETURNS
            },
            **_first_death_key(headers),
        },
    )
    return Delivery(
        tag=method.delivery_tag or 0,
        queue=queue,
        parcel=parcel,
        returns=_returns(headers) if method.redelivered else 0,
        sender=properties.user_id or "",
    )


def _first_death_key(headers: Mapping[str, Any]) -> dict[str, str]:
    """The routing key under which a dead letter was first published: that of its first death, the last one in the list."""
    match headers.get("x-death"):
        case [*_, {"routing-keys": [str(key), *_]}]:
            return {BROKER_KEY: key}
    return {}


def _returns(headers: Mapping[str, Any]) -> int:
    """How often a redelivered parcel was returned to its queue before; 1 if the headers have no count.

    Only quorum queues count. On a classic queue, a count can only come from the sender of the parcel.
    """
    count = headers.get(_RETURNS)
    return count if isinstance(count, int) and count > 0 else 1


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
