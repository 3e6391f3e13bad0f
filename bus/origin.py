"""Who said a message first, and who waits for its answer: kept through every detour the message takes.

A message that goes back to its queue, or to the dead letters, is published anew by whoever had it in hand, so the
broker's word on its sender is about that one. The first sender travels in a header beside it, which is believed only
where cells cannot write: what they publish themselves bears their own name, whatever their headers say.
"""

from msgspec import Struct

from bus import headers
from bus.broker import Delivery
from bus.topology import DEAD, is_retry_exchange


class Origin(Struct, frozen=True):
    """`sender` is a user, empty if it was not said; `reply_to` an answer queue, empty if nobody waits."""

    sender: str = ""
    reply_to: str = ""


def origin_of(delivery: Delivery) -> Origin:
    parcel = delivery.parcel
    by_a_worker = is_retry_exchange(parcel.exchange) or (
        # What the broker itself buries still has the properties, and any headers, that its sender gave it.
        parcel.exchange == DEAD and headers.BROKER_REASON not in parcel.headers
    )
    sender = str(parcel.headers.get(headers.SENDER, "")) if by_a_worker else delivery.sender
    return Origin(sender, parcel.reply_to)
