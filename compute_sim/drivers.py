"""The contract between a compute and its drivers. A new kind of hypervisor brings a driver, and nothing else changes.

Inventories go by `update_provider_tree`, as in Nova's drivers, but over values: a driver gets the known tree and returns
an edited copy, and the diff is reported. Instances go by orders: a driver begins the work, and is asked later how far it
is. Every driver must pass tests/contracts/driver_contract.py; simulated/driver.py has the one of the simulated hosts.
"""

from collections.abc import Mapping
from typing import Protocol

from bus.message import ProviderId
from bus.messages.cell import DestroyInstance, SpawnInstance
from compute_sim.core.attempts import AttemptRecord, Condition, Work
from compute_sim.core.hosts import Host
from compute_sim.core.tree import ProviderTree


class Driver(Protocol):
    """Controls one host. No method may block: long work goes on outside of them. `at_s` is the compute's clock."""

    @property
    def root(self) -> ProviderId:
        """The id of the host's root provider; it never changes."""

    @property
    def host(self) -> Host:
        """The host's description."""

    def update_provider_tree(self, tree: ProviderTree, at_s: float) -> ProviderTree:
        """The tree as this host is now, with foreign parts unchanged. If the host has not changed, a call with an
        earlier result returns an equal tree.
        """

    def next_change_s(self, at_s: float) -> float | None:
        """When to ask for the tree again, after `at_s`, though nothing was ordered; None: never."""

    def metrics(self, at_s: float) -> Mapping[str, float]:
        """Values that the host measures now, by names that weights of the scheduler use; empty: nothing is told."""

    def condition(self, at_s: float) -> Condition:
        """Whether the host works, and can send."""

    def spawn(self, order: SpawnInstance, at_s: float) -> Work:
        """Begin to build the instance. It is called once for an attempt."""

    def destroy(self, order: DestroyInstance, at_s: float) -> Work:
        """Begin to remove all of the attempt, even if it is still being built or is unknown here. It may be repeated."""

    def look_at(self, attempt: AttemptRecord, at_s: float) -> Work:
        """How far the work for an attempt is. It is asked when the time that the last answer said is over, and after a
        restart of the process.
        """
