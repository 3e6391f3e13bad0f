"""Cuts a sequence into chunks of limited weight."""

from collections.abc import Iterator, Sequence


def chunks(weights: Sequence[int], weight_max: int) -> Iterator[slice]:
    """As few chunks as possible, in order. An element that is too heavy has its own."""
    first = weight = 0
    for n, each in enumerate(weights):
        if weight + each > weight_max and n > first:
            yield slice(first, n)
            first, weight = n, 0
        weight += each
    yield slice(first, len(weights))
