"""Simulated pools: providers that share with hosts, such as a storage, or the addresses of a segment.

The compute itself reports a pool, and not one of the hosts: so it stays while hosts die.
"""

from compute_sim.core.attempts import WELL, Condition
from compute_sim.core.pools import Pool, tree_of_pool
from compute_sim.core.tree import ProviderTree


class SimulatedPool:
    """A simulated provider that shares an amount with hosts. It is reported like a host (`Reported`)."""

    def __init__(self, pool: Pool) -> None:
        self._tree = tree_of_pool(pool)
        self.root = self._tree.root

    def update_provider_tree(self, tree: ProviderTree, at_s: float) -> ProviderTree:  # noqa: ARG002 - it never changes
        return self._tree

    def condition(self, at_s: float) -> Condition:  # noqa: ARG002 - it has no faults
        return WELL
