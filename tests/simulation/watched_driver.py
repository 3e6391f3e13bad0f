"""Simulated hosts that tell what they write onto the disks of instances, and which shares they cannot give; and what really runs on
them.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from bus.messages.cell import AdoptGuest, DestroyInstance, LeaveGuest, ReceiveInstance, SpawnInstance
from compute_sim.core.attempts import AttemptRecord, BuildOrder, HostOrder, Work
from compute_sim.core.hosts import Pool
from compute_sim.core.trees import ProviderTree
from compute_sim.handlers import ComputeStore
from laboratory.computes.driver import SimulatedDriver
from laboratory.computes.faults import FaultScript
from laboratory.computes.hosts import SimulatedHost
from tests.simulation.given_shares import GivenShares
from tests.simulation.plan import child_of
from tests.simulation.process import SimProcess

if TYPE_CHECKING:
    from tests.simulation.cloud import Cloud


class WatchedDriver(SimulatedDriver):
    """It builds nothing for which it would have to give something twice: the books should allow no such order."""

    def __init__(
        self, host: SimulatedHost, script: FaultScript, pools: Sequence[Pool], cloud: "Cloud"
    ) -> None:
        super().__init__(host, script, pools)
        self._cloud = cloud
        self._foreign = child_of(host.name)
        # None: the host has nothing that only one instance can have.
        self._given: GivenShares | None = None
        if host.size.pcpus or host.size.pages or host.size.devices:
            self._given = GivenShares(self.update_provider_tree(ProviderTree(self.root), 0))

    def begin(self, order: HostOrder, at_s: float) -> Work:
        if isinstance(order, BuildOrder):
            self._cloud.real_instances.disk_written(order)
        if self._given is None:
            return super().begin(order, at_s)
        if isinstance(order, DestroyInstance | LeaveGuest):
            self._given.take_back(order.instance, order.attempt)
        if isinstance(order, SpawnInstance | ReceiveInstance | AdoptGuest) and (
            wrong := "; ".join(self._given.give(order))
        ):
            # An administrator may have moved a part of the share to a provider that the host does not have. Then it cannot give that.
            if all(each.provider != self._foreign for each in order.share.amounts):
                self._cloud.cannot_give(order, wrong)
            return Work(failure=f"the share cannot be given: {wrong}")
        work = super().begin(order, at_s)
        if work.failure and isinstance(order, SpawnInstance | ReceiveInstance):
            self._given.take_back(order.instance, order.attempt)
        return work


class WatchedComputeStore(ComputeStore):
    """Reports each change of an attempt on a cell's hosts while its process is alive."""

    def __init__(self, process: SimProcess) -> None:
        super().__init__(asyncio.get_running_loop().time)
        self._process = process

    async def save(self, attempts: Iterable[AttemptRecord]) -> None:
        saved = tuple(attempts)
        await super().save(saved)
        if not self._process.is_dead:
            self._process.cloud.real_instances.attempts_changed(saved)
            self._process.cloud.hosts.attempts_changed(saved)
