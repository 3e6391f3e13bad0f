"""How long to pause before work that failed is tried again: the one formula of all rooms.

Tenacity's own waits are not used, for two reasons. They draw from the global random generator, and not from one that is
given. And they belong to a loop of tenacity, but most tries are counted on a row, in a message or by a part.
"""

from datetime import timedelta
from typing import Protocol, TypeVar

from msgspec import Struct

Pause = TypeVar("Pause", float, timedelta)

# A server may be away for any number of tries, and neither a float nor a timedelta holds any number of doublings.
_DOUBLINGS_MAX = 30


class Chance(Protocol):
    """A random generator, or the module `random`."""

    def uniform(self, a: float, b: float) -> float: ...


def grown(first: Pause, longest: Pause, failures: int) -> Pause:
    """The pause after so many failures in a row: it doubles with each, up to the longest."""
    return min(first * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), longest)


def drawn(pause: float, chance: Chance, *, least: float = 0.5) -> float:
    """Draw a pause between this share of the given one and all of it, so that those that failed together do not try
    again together.
    """
    return pause * chance.uniform(least, 1.0)


class Pauses(Struct, frozen=True):
    """The growing pauses of work that is tried until it succeeds."""

    first_s: float = 0.05
    max_s: float = 5.0

    def after(self, failures: int, chance: Chance) -> float:
        return drawn(grown(self.first_s, self.max_s, failures), chance)
