"""The contract between a compute and its drivers. A new kind of hypervisor brings a driver, and nothing else changes.

Inventories go by `update_provider_tree`, as in Nova's drivers, but over values: a driver gets the known tree and returns
an edited copy, and the diff is reported. Instances go by orders: a driver begins the work, and is asked later how far it
is. Every driver must pass tests/contracts/driver_contract.py; simulated/driver.py has the one of the simulated hosts.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, assert_never

from bus.message import ProviderId
from bus.messages.cell import (
    DestroyInstance,
    ReceiveInstance,
    RespawnInstance,
    SpawnInstance,
    StartInstance,
    StopInstance,
)
from compute_sim.core.attempts import AttemptRecord, Condition, HostOrder, Work
from compute_sim.core.hosts import Host
from compute_sim.core.tree import ProviderTree


class Reported(Protocol):
    """Has a provider tree that its compute reports: a host, or a pool that shares with hosts."""

    @property
    def root(self) -> ProviderId:
        """The id of the root provider; it never changes."""

    def update_provider_tree(self, tree: ProviderTree, at_s: float) -> ProviderTree:
        """The tree as it is now, with foreign parts unchanged. If nothing has changed, a call with an earlier result
        returns an equal tree.
        """

    def condition(self, at_s: float) -> Condition:
        """Whether it works, and can send."""


class Driver(Reported, Protocol):
    """Controls one host. No method may block: long work goes on outside of them. `at_s` is the compute's clock."""

    @property
    def host(self) -> Host:
        """The host's description."""

    def next_change_s(self, at_s: float) -> float | None:
        """When to ask for the tree again, after `at_s`, though nothing was ordered; None: never."""

    def metrics(self, at_s: float) -> Mapping[str, float]:
        """Values that the host measures now, by names that weights of the scheduler use; empty: nothing is told."""

    def images(self) -> Sequence[str]:
        """The images that the host has cached, by their sources, at most 64: it builds sooner from these."""

    def spawn(self, order: SpawnInstance, at_s: float) -> Work:
        """Begin to build the instance. It is called once for an attempt."""

    def receive(self, order: ReceiveInstance, at_s: float) -> Work:
        """Begin to take the instance over from its source, which may be this host. It is called once for an attempt. If the
        work fails, nothing of the attempt is left here, and the source is as before.
        """

    def stop(self, order: StopInstance, at_s: float) -> Work:
        """Begin to stop the instance, even while it is being started. If the work fails, the instance runs on. With `save_as`,
        also save it as this image, even if it is stopped already. If that fails, it stays stopped.
        """

    def start(self, order: StartInstance, at_s: float) -> Work:
        """Begin to run the instance again, even while it is being stopped. If the work fails, the instance stays stopped."""

    def respawn(self, order: RespawnInstance, at_s: float) -> Work:
        """Begin to destroy the instance's disk and to build it anew, whatever is being done to it. If the work fails, nothing
        runs, and the host keeps the attempt.
        """

    def destroy(self, order: DestroyInstance, at_s: float) -> Work:
        """Begin to remove all of the attempt, whatever is being done to it, and even if it is unknown here. It may be repeated."""

    def look_at(self, attempt: AttemptRecord, at_s: float) -> Work:
        """How far the work for an attempt is. It is asked when the time that the last answer said is over, and after a
        restart of the process.
        """


def begin(driver: Driver, order: HostOrder, at_s: float) -> Work:
    match order:
        case SpawnInstance():
            return driver.spawn(order, at_s)
        case DestroyInstance():
            return driver.destroy(order, at_s)
        case ReceiveInstance():
            return driver.receive(order, at_s)
        case StopInstance():
            return driver.stop(order, at_s)
        case StartInstance():
            return driver.start(order, at_s)
        case RespawnInstance():
            return driver.respawn(order, at_s)
        case _:
            assert_never(order)
