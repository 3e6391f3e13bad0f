"""How many providers fit into one message. No message may be larger than its readers accept."""

from collections.abc import Iterable
from itertools import accumulate, takewhile

from bus.broker import PARCEL_BYTES_MAX
from bus.messages.administration import ConsumerState
from bus.messages.books import BookEntry
from bus.messages.placement import ProviderState, ProviderUsage

# Room for the envelope and the other fields of the message, estimated high.
ENVELOPE_BYTES_MAX = 8 * 1024
ROOM = PARCEL_BYTES_MAX - ENVELOPE_BYTES_MAX


def bytes_at_most(provider: ProviderState) -> int:
    """An upper bound of the provider's size as JSON, without writing it: each part counts at its longest."""
    return (
        740
        + 6 * len(provider.name)  # a character may be escaped
        + 300 * len(provider.inventories)
        + sum(map(len, provider.inventories))
        + sum(map(len, provider.traits))
        + 3 * len(provider.traits)
        + 40 * len(provider.aggregates)
    )


def how_many_fit(providers: Iterable[ProviderState], room: int = ROOM) -> int:
    """How many of these, from the first one on, fit into one message."""
    return _how_many(map(bytes_at_most, providers), room)


def how_many_holders_fit(holders: Iterable[ConsumerState], room: int = ROOM) -> int:
    return _how_many(map(_bytes_of_holder, holders), room)


def _bytes_of_holder(holder: ConsumerState) -> int:
    # A character may be escaped.
    words = 6 * (len(holder.project) + len(holder.user) + len(holder.type))
    return 200 + words + sum(60 + len(amount.resource) for amount in holder.held)


def how_many_entries_fit(entries: Iterable[BookEntry], room: int = ROOM) -> int:
    return _how_many(map(_bytes_of_entry, entries), room)


def _bytes_of_entry(entry: BookEntry) -> int:
    words = 6 * (len(entry.project) + len(entry.user) + len(entry.type) + len(entry.cell))
    return 400 + words + sum(60 + len(amount.resource) for amount in entry.held)


def how_many_usages_fit(usages: Iterable[ProviderUsage], room: int = ROOM) -> int:
    return _how_many(map(_bytes_of_usage, usages), room)


def _bytes_of_usage(usage: ProviderUsage) -> int:
    return 240 + 25 * len(usage.used) + sum(map(len, usage.used))


def _how_many(sizes: Iterable[int], room: int) -> int:
    together = accumulate(sizes)
    return len([*takewhile(room.__ge__, together)])
