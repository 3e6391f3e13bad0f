"""Simulated hosts that tell what they write onto the disks of instances, and which shares they cannot give."""

from collections.abc import Callable, Sequence

from compute_sim.core.attempts import BuildOrder, HostOrder, Work
from compute_sim.core.hosts import Pool
from laboratory.computes.faults import FaultScript
from laboratory.computes.hosts import SimulatedHost
from tests.simulation.fixtures import child_of
from tests.simulation.given_shares import CountingDriver


class WatchedDriver(CountingDriver):
    def __init__(
        self,
        host: SimulatedHost,
        script: FaultScript,
        pools: Sequence[Pool],
        disk_written: Callable[[BuildOrder], None],
        cannot_give: Callable[[HostOrder, str], None],
    ) -> None:
        super().__init__(host, script, pools)
        self._disk_written = disk_written
        self._cannot_give = cannot_give
        self._foreign = child_of(host.name)

    def begin(self, order: HostOrder, at_s: float) -> Work:
        if isinstance(order, BuildOrder):
            self._disk_written(order)
        return super().begin(order, at_s)

    def complain(self, order: HostOrder, words: str) -> None:
        # An administrator may have moved a part of the share to a provider that the host does not have. Then it cannot give that.
        if not isinstance(order, BuildOrder) or all(
            each.provider != self._foreign for each in order.share.amounts
        ):
            self._cannot_give(order, words)
