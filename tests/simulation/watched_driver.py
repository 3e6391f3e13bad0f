"""Simulated hosts that tell what they write onto the disks of instances."""

from collections.abc import Callable, Sequence

from bus.messages.cell import ReceiveInstance, RespawnInstance, SpawnInstance
from compute_sim.core.attempts import BuildOrder, Work
from compute_sim.core.pools import Pool
from compute_sim.simulated.driver import SimulatedDriver
from compute_sim.simulated.faults import FaultScript
from compute_sim.simulated.hosts import SimulatedHost


class WatchedDriver(SimulatedDriver):
    def __init__(
        self,
        host: SimulatedHost,
        script: FaultScript,
        pools: Sequence[Pool],
        disk_written: Callable[[BuildOrder], None],
    ) -> None:
        super().__init__(host, script, pools)
        self._disk_written = disk_written

    def spawn(self, order: SpawnInstance, at_s: float) -> Work:
        self._disk_written(order)
        return super().spawn(order, at_s)

    def receive(self, order: ReceiveInstance, at_s: float) -> Work:
        self._disk_written(order)
        return super().receive(order, at_s)

    def respawn(self, order: RespawnInstance, at_s: float) -> Work:
        self._disk_written(order)
        return super().respawn(order, at_s)
