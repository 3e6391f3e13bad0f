"""How many providers fit into one message. No message of ours is larger than what a reader takes."""

from collections.abc import Sequence

from bus.broker import PARCEL_BYTES_MAX
from bus.messages.placement import ProviderState

# What an envelope and the other fields of its message take, generously.
ENVELOPE_BYTES_MAX = 8 * 1024
ROOM = PARCEL_BYTES_MAX - ENVELOPE_BYTES_MAX


def bytes_at_most(provider: ProviderState) -> int:
    """No less than what the provider takes as JSON, without writing it: each part at its longest."""
    return (
        700
        + 6 * len(provider.name)  # a character may be escaped
        + 300 * len(provider.inventories)
        + sum(map(len, provider.inventories))
        + sum(map(len, provider.traits))
        + 3 * len(provider.traits)
        + 40 * len(provider.aggregates)
    )


def how_many_fit(providers: Sequence[ProviderState], room: int = ROOM) -> int:
    """How many of these, from the first on, go into one message together."""
    for n, provider in enumerate(providers):
        room -= bytes_at_most(provider)
        if room < 0:
            return n
    return len(providers)
