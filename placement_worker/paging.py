"""How much of an answer fits into one message. No message may be larger than its readers accept."""

from collections.abc import Iterable
from itertools import accumulate, takewhile

from bus.broker import PARCEL_BYTES_MAX
from bus.messages.administration import ConsumerState
from bus.messages.books import BookEntry
from bus.messages.placement import ProviderState, ProviderUsage

# Room for the envelope and the other fields of the message, estimated high.
ENVELOPE_BYTES_MAX = 8 * 1024
ROOM = PARCEL_BYTES_MAX - ENVELOPE_BYTES_MAX


def bytes_of_provider(provider: ProviderState) -> int:
    """An upper bound of the provider's size as JSON. It is computed without encoding the provider."""
    return (
        740
        + 6 * len(provider.name)  # a character may be escaped
        + 300 * len(provider.inventories)
        + sum(map(len, provider.inventories))
        + sum(map(len, provider.traits))
        + 3 * len(provider.traits)
        + 40 * len(provider.aggregates)
    )


def bytes_of_holder(holder: ConsumerState) -> int:
    # A character may be escaped.
    words = 6 * (len(holder.project) + len(holder.user) + len(holder.type))
    return 200 + words + sum(60 + len(amount.resource) for amount in holder.held)


def bytes_of_entry(entry: BookEntry) -> int:
    words = 6 * (len(entry.project) + len(entry.user) + len(entry.type) + len(entry.cell))
    return 400 + words + sum(60 + len(amount.resource) for amount in entry.held)


def bytes_of_usage(usage: ProviderUsage) -> int:
    return 240 + 25 * len(usage.used) + sum(map(len, usage.used))


def how_many_fit(sizes: Iterable[int], room: int = ROOM) -> int:
    """How many items of these sizes, counted from the first, fit into one message."""
    return len([*takewhile(room.__ge__, accumulate(sizes))])
