"""Cuts a sequence into chunks of limited weight."""

from collections.abc import Iterator, Sequence


def chunks(weights: Sequence[int], weight_max: int) -> Iterator[slice]:
    """Cut elements with these weights, in their order, into as few chunks of at most `weight_max` as possible.

    An element that is heavier than `weight_max` is a chunk by itself.
    """
    first = weight = 0
    for n, each in enumerate(weights):
        if weight + each > weight_max and n > first:
            yield slice(first, n)
            first, weight = n, 0
        weight += each
    yield slice(first, len(weights))
