"""Which guests keep a host from another shape: their CPUs, pages or cells are at a place of the machine, and cannot be told to be
elsewhere.
"""

from collections.abc import Set as AbstractSet

from bus.guests import HUGE_PAGES
from compute_sim.core.reshaping import Allocations, CannotReshape
from compute_sim.core.tree import ProviderTree


def bound_guests(
    new: ProviderTree, allocations: Allocations, celled: AbstractSet[int] = frozenset()
) -> CannotReshape | None:
    """The refusal of a new shape, if it moves dedicated CPUs or huge pages that a consumer has, or anything of an instance in
    `celled`: its guest has NUMA cells of its own, and each is bound to one of the host's.
    """
    for consumer in sorted(allocations):
        for each in allocations[consumer]:
            provider = new.providers.get(each.provider)
            has_it = provider is not None and each.resource in provider.inventories
            is_bound = (
                consumer.int in celled or each.resource == "PCPU" or each.resource.startswith(HUGE_PAGES)
            )
            if not has_it and is_bound:
                return CannotReshape(
                    f"{consumer} is bound to its {each.amount} {each.resource}: the shape can change when it has left the host"
                )
    return None
