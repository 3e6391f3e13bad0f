"""The interface of plugins that judge the ways of a host: the providers that an instance could take its amounts from."""

from collections.abc import Callable
from typing import Protocol

from placement_worker.core.candidates.columns import Floats, Ints, Rows
from placement_worker.core.candidates.found import Block
from placement_worker.core.candidates.provider_index import ProviderIndex
from scheduler_worker.core.choosing.needs import Needs


class Ways:
    """One way for each of some hosts that are alike: a line a host, a column a provider. All lines take the same amounts, and
    `amounts` has them by column; a provider that only has to be there gives nothing.
    """

    def __init__(self, index: ProviderIndex, block: Block, free: Callable[[str], Ints]) -> None:
        self.index = index
        self.rows: Rows = block.rows
        self.amounts = block.pattern.amounts
        # Which columns serve which granular group; the rest of the request has an empty name.
        self.groups = dict(block.pattern.mappings)
        self._free = free

    def __len__(self) -> int:
        return len(self.rows)

    def free(self, resource: str, column: int) -> Ints:
        """The free amount of a class at the providers of a column, before the instance takes its own."""
        free: Ints = self._free(resource)[self.rows[:, column]]
        return free

    def capacity(self, resource: str, column: int) -> Ints:
        capacity: Ints = self.index.stocks[resource].capacity[self.rows[:, column]]
        return capacity


class WayJudge(Protocol):
    """It decides by the ways and the needs alone, and keeps no state."""

    @property
    def name(self) -> str: ...

    def reads(self, needs: Needs) -> bool:
        """Does it judge such a request? Only then several ways of each host are searched, which costs time."""

    def judge(self, ways: Ways, needs: Needs) -> Floats:
        """A value for each way, higher is better, about -1 to 1; NaN strikes the way."""
