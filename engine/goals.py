"""What hosts may be evened for, and what they are like: the values of plans of balance, without what makes these (balancing.py)."""

from typing import Annotated, Literal

from msgspec import Meta

from engine.inventories import Natural, Value

# even: all hosts are used alike. fill: as many hosts as possible are empty. room: no host has memory left and no processor, or the other way
# round. ratio: no host has more than its capacity. rules: server groups are as their rules say.
BalanceGoal = Literal["even", "fill", "room", "ratio", "rules"]

# A whole is 1; of many hosts the sum.
Portion = Annotated[float, Meta(ge=0, le=1e9)]


class BalanceFigures(Value, frozen=True):
    """The state of some hosts. Shares are from 0 to 1. `peak` is the largest load, `spread` the standard deviation of the loads. `stranded` is the
    part of processors and memory that cannot be used, since its host has less of the other. `overfull` hosts have more than their
    capacity, together `excess` times that of one. `broken` members of server groups are where their rules do not let them be.
    """

    hosts: Natural = 0
    empty: Natural = 0
    overfull: Natural = 0
    peak: Portion = 0.0
    spread: Portion = 0.0
    stranded: Portion = 0.0
    excess: Portion = 0.0
    broken: Natural = 0

    def of(self, goal: BalanceGoal) -> float:
        """What this goal makes smaller."""
        match goal:
            case "even":
                return self.spread
            case "fill":
                return float(self.hosts - self.empty)
            case "room":
                return self.stranded
            case "ratio":
                return self.excess
            case "rules":
                return float(self.broken)
