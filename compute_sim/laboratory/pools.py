"""Simulated pools: providers that share with hosts, such as a storage, or the addresses of a segment.

As in Placement, a pool is a root provider with the trait MISC_SHARES_VIA_AGGREGATE. It shares with the hosts that are in its
aggregate. The compute itself reports it, and not one of the hosts: so it stays while hosts die.
"""

from uuid import UUID, uuid5

from bus.message import AggregateId, ProviderId
from bus.messages.placement import ReportedInventory
from compute_sim.core.attempts import WELL, Condition
from compute_sim.core.pools import Pool
from compute_sim.core.tree import ProviderTree, TreeProvider

SHARES = "MISC_SHARES_VIA_AGGREGATE"
# A pool's id is derived from its name, and its aggregate's id from that: they survive a restart.
_POOLS = UUID("3f1a52c4-0b70-4d2e-9a38-56f1d0e7b9a4")


class SimulatedPool:
    """A simulated provider that shares an amount with hosts. It is reported like a host (`Reported`)."""

    def __init__(self, pool: Pool) -> None:
        self.root = ProviderId(uuid5(_POOLS, pool.name))
        provider = TreeProvider(
            id=self.root,
            name=pool.name,
            inventories={pool.resource: ReportedInventory(total=pool.total)},
            traits=frozenset({SHARES}),
            joins=frozenset({aggregate_of(pool)}),
        )
        self._tree = ProviderTree(self.root, {self.root: provider})

    def update_provider_tree(self, tree: ProviderTree, at_s: float) -> ProviderTree:  # noqa: ARG002 - it never changes
        return self._tree

    def condition(self, at_s: float) -> Condition:  # noqa: ARG002 - it has no faults
        return WELL


def aggregate_of(pool: Pool) -> AggregateId:
    """The id of the aggregate that has the pool and the hosts that share it."""
    return AggregateId(uuid5(uuid5(_POOLS, pool.name), "aggregate"))
