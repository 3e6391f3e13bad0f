"""Parcels as AMQP frames, and back. Pure: bytes and values, no connection."""

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pamqp import commands
from pamqp.constants import FRAME_BODY, FRAME_HEADER
from pamqp.frame import marshal
from pamqp.header import ContentHeader

from bus.broker import NAME_BYTES_MAX, Delivery, Parcel
from bus.message import BROKER_KEY

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
