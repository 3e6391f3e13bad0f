"""How many providers fit into one message. No message may be larger than its readers accept."""

from collections.abc import Iterable
from itertools import accumulate, takewhile

import msgspec

from bus.messages.cells import VALUES_BYTES_MAX
from bus.messages.placement import ProviderState, ProviderUsage

_encode = msgspec.json.Encoder().encode


def bytes_of(value: ProviderState | ProviderUsage) -> int:
    """The size of a value in a list of a message, with the comma behind it."""
    return len(_encode(value)) + len(",")


def how_many_fit(values: Iterable[ProviderState | ProviderUsage], room: int = VALUES_BYTES_MAX) -> int:
    """How many of these values, counted from the first, fit into one message."""
    return len([*takewhile(room.__ge__, accumulate(map(bytes_of, values)))])
