"""The interface of plugins that judge the ways of a host: the providers that an instance could take its amounts from."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from placement_worker.core.candidates.provider_index import ProviderIndex
from placement_worker.core.candidates.ways import TreeWay
from scheduler_worker.core.choosing.compound.provider_room import ProviderRoom
from scheduler_worker.core.choosing.needs import Needs


class Way:
    """One way to take what an instance needs from the providers of a host. The providers have the numbers 0, 1, 2 and
    so on; `amounts` has what each of them gives. A provider that only has to be there gives nothing.
    """

    __slots__ = ("_index", "_room", "_way", "amounts")

    def __init__(self, index: ProviderIndex, room: ProviderRoom, way: TreeWay) -> None:
        self.amounts = way.pattern.amounts
        self._way = way
        self._index = index
        self._room = room

    @property
    def groups(self) -> Mapping[str, Sequence[int]]:
        """The numbers of the providers that serve each granular group, by its suffix; the rest of the request has an
        empty suffix.
        """
        return dict(self._way.pattern.mappings)

    def free(self, provider: int, resource: str) -> int:
        """The free amount of a class, before the instance takes its own."""
        return self._room.free(self._way.rows[provider], resource)

    @property
    def left(self) -> list[float]:
        """Of each provider that gives something, the part of its capacity that stays free afterwards: the mean of the classes."""
        room = self._room
        return [
            room.part_left(row, amounts)
            for row, amounts in zip(self._way.rows, self.amounts, strict=True)
            if amounts
        ]

    def is_under(self, provider: int, other: int) -> bool:
        """Is the first provider the second one, or below it in the host's tree?"""
        return self._index.is_under(self._way.rows[provider], self._way.rows[other])

    def has(self, provider: int, trait: str) -> bool:
        return trait in self._index.state(self._way.rows[provider]).traits


class WayJudge(Protocol):
    """A plugin that values ways to take the needed amounts from a host's providers. It keeps no state."""

    # Does it strike any way? Then refusals and plans ask it about the ways of all hosts, which costs time.
    may_strike: bool

    def reads(self, needs: Needs) -> bool:
        """Does it judge such a request? Only then several ways of a host are searched, which costs time."""

    def judge(self, way: Way, needs: Needs) -> float:
        """The value of a way, higher is better, about -1 to 1; NaN strikes it."""
