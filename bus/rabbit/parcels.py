"""Parcels as what the client library takes and gives: properties and delivered messages. Pure."""

from collections.abc import Mapping
from typing import Any

from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic

from bus.broker import NAME_BYTES_MAX, Delivery
from bus.message import BROKER_EXCHANGE, BROKER_KEY, BROKER_QUEUE, BROKER_REASON, Parcel
from bus.queues import DEAD

_TRANSIENT, PERSISTENT = 1, 2
# AMQP's limit, which the library enforces.
EXCHANGE_BYTES_MAX = 127
# A quorum queue counts the returns of a message in this header.
_RETURNS = "x-delivery-count"


def properties_of(parcel: Parcel, number: int, user: str) -> Basic.Properties:
    """The AMQP properties of a parcel. By its number on its channel, the library recognises one that the broker returns."""
    return Basic.Properties(
        content_type=parcel.content_type,
        headers=dict(parcel.headers) or None,
        delivery_mode=PERSISTENT if parcel.persistent else _TRANSIENT,
        reply_to=parcel.reply_to or None,
        message_id=str(number),
        user_id=user,
    )


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


def delivery_of(queue: str, message: DeliveredMessage) -> Delivery:
    """The delivery in this message, whatever properties and headers its sender set."""
    properties = message.header.properties
    headers = properties.headers or {}
    parcel = Parcel(
        exchange=message.exchange or "",
        routing_key=message.routing_key or "",
        body=message.body,
        content_type=properties.content_type or "",
        persistent=properties.delivery_mode == PERSISTENT,
        reply_to=properties.reply_to or "",
        headers={
            **{
                key: value
                for key, value in headers.items()
                if isinstance(value, str | int) and not isinstance(value, bool) and key != _RETURNS
            },
            **(_death(headers) if message.exchange == DEAD else {}),
        },
    )
    return Delivery(
        tag=message.delivery_tag or 0,
        queue=queue,
        parcel=parcel,
        returns=_returns(headers) if message.redelivered else 0,
        sender=properties.user_id or "",
        expiration=properties.expiration or "",
    )


def _death(headers: Mapping[str, Any]) -> dict[str, str]:
    """How the broker has dead-lettered a parcel; nothing if a worker has.

    The first table is of the last death, and its reason is RabbitMQ's own. A publisher may write such tables too: then RabbitMQ has no
    headers of a first death, and where such a table names the same queue and reason, RabbitMQ keeps what else is in it.
    """
    match headers.get("x-death"):
        case [{} as death, *_]:
            keys = death.get("routing-keys")
            said = {
                BROKER_REASON: death.get("reason"),
                BROKER_QUEUE: death.get("queue"),
                BROKER_EXCHANGE: death.get("exchange"),
                BROKER_KEY: keys[0] if isinstance(keys, list) and keys else "",
            }
            return {name: value if isinstance(value, str) else "" for name, value in said.items()}
    return {}


def _returns(headers: Mapping[str, Any]) -> int:
    """How often a redelivered parcel was returned to its queue before; 1 if the headers have no count.

    Only quorum queues count. On a classic queue, a count can only come from the sender of the parcel.
    """
    count = headers.get(_RETURNS)
    return count if isinstance(count, int) and count > 0 else 1
