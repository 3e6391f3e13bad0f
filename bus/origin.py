"""The origin of a message: its first sender, exchange and key, and where its answer goes. It is kept on every detour.

A worker that returns a message to its queue, or buries it, publishes it again as itself, so the broker then verifies
that worker. The first sender, exchange and key travel in headers. These headers are trusted only on retry exchanges and
among dead letters, where a user can write for its own queues alone. Elsewhere only the broker's data counts, whatever
the headers say.
"""

from msgspec import Struct

from bus import headers
from bus.broker import Delivery, Parcel
from bus.topology import DEAD, is_retry_exchange


class Origin(Struct, frozen=True):
    """`sender` is a user, empty if the message named none. `reply_to` is an answer queue, empty if no answer is wanted.
    `exchange` and `key` are where the message was first published. `astray` is the queue that the message was
    dead-lettered from, if that is not a valid way to arrive here.
    """

    sender: str = ""
    reply_to: str = ""
    exchange: str = ""
    key: str = ""
    astray: str = ""


def origin_of(delivery: Delivery) -> Origin:
    parcel = delivery.parcel
    if parcel.exchange == DEAD:
        return _origin_of_letter(delivery)
    astray = str(parcel.headers.get(headers.BROKER_QUEUE, "")) if _was_dead_lettered(parcel) else ""
    if is_retry_exchange(parcel.exchange):
        return _said_by_a_worker(parcel, astray)
    return Origin(delivery.sender, parcel.reply_to, parcel.exchange, parcel.routing_key, astray)


def _origin_of_letter(delivery: Delivery) -> Origin:
    """The first sender of this dead letter, and where that sent it. If the broker itself dead-lettered the parcel, the parcel's
    properties and the broker's headers tell; if a worker did, the worker's headers.
    """
    parcel = delivery.parcel
    if not _was_dead_lettered(parcel):
        return _said_by_a_worker(parcel, "")
    exchange = str(parcel.headers.get(headers.BROKER_EXCHANGE, ""))
    if is_retry_exchange(exchange):
        return _said_by_a_worker(parcel, "")
    return Origin(delivery.sender, parcel.reply_to, exchange, str(parcel.headers.get(headers.BROKER_KEY, "")))


def _said_by_a_worker(parcel: Parcel, astray: str) -> Origin:
    sender, exchange, key = (
        str(parcel.headers.get(name, "")) for name in (headers.SENDER, headers.EXCHANGE, headers.KEY)
    )
    return Origin(sender, parcel.reply_to, exchange, key, astray)


def _was_dead_lettered(parcel: Parcel) -> bool:
    return headers.BROKER_REASON in parcel.headers
