"""The origin of a message: its first sender, exchange and key, and where its answer goes.

A worker that returns a message to its queue, or dead-letters it, publishes it again under the worker's own user. So
the broker verifies the worker, and no longer the first sender. Therefore the first sender, exchange and key travel in
headers. These headers are trusted only on retry exchanges and among dead letters, where a user can write for its own
queues alone. Elsewhere only the broker's data counts, whatever the headers say.
"""

from msgspec import Struct

from bus import headers
from bus.broker import Delivery, Parcel
from bus.topology import DEAD, is_retry_exchange


class Origin(Struct, frozen=True, cache_hash=True):
    """Where a message comes from, and where its answer goes.

    `sender` is a user, empty if the message named none. `reply_to` is an answer queue, empty if no answer is wanted.
    `exchange` and `key` are where the message was first published. `astray` is set if the broker has dead-lettered the
    message and it arrived outside the dead-letter queue: it is the queue that the message came from.
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
    """The origin of a dead letter.

    If the broker dead-lettered the parcel, the origin is in the parcel's properties and in the broker's headers. If a
    worker did, it is in the worker's headers.
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
