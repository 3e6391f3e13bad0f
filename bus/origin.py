"""Who said a message first, where, and who waits for its answer: kept through every detour the message takes.

A message that goes back to its queue, or to the dead letters, is published anew by the worker that had it in hand, so the
broker's word on its sender is about that worker. The first sender, exchange and key travel in headers beside it. They are
believed only on retry exchanges and among dead letters, where a user can write for its own queues alone; what a user
publishes elsewhere is judged by what the broker says of it, whatever its headers say.
"""

from msgspec import Struct

from bus import headers
from bus.broker import Delivery, Parcel
from bus.topology import DEAD, is_retry_exchange


class Origin(Struct, frozen=True):
    """`sender` is a user, empty if the message did not say; `reply_to` an answer queue, empty if nobody waits; `exchange` and
    `key` are where the message was published first. `astray` is the queue that it was dead-lettered from, if that is not
    how the message should have come here.
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
    """What the broker itself buries still has the properties, and any headers, that its sender gave it."""
    parcel = delivery.parcel
    if not _was_dead_lettered(parcel):
        return _said_by_a_worker(parcel, "")
    exchange = str(parcel.headers.get(headers.BROKER_EXCHANGE, ""))
    if is_retry_exchange(exchange):
        return _said_by_a_worker(parcel, "")
    key = str(parcel.headers.get(headers.BROKER_KEY, ""))
    return Origin(delivery.sender, parcel.reply_to, exchange, key)


def _said_by_a_worker(parcel: Parcel, astray: str) -> Origin:
    sender, exchange, key = (
        str(parcel.headers.get(name, "")) for name in (headers.SENDER, headers.EXCHANGE, headers.KEY)
    )
    return Origin(sender, parcel.reply_to, exchange, key, astray)


def _was_dead_lettered(parcel: Parcel) -> bool:
    return headers.BROKER_REASON in parcel.headers
