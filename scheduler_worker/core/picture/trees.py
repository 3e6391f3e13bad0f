"""The providers' states, merged: which of two is later, what is gone, what stands under which root.

States come in any order and more than once. Of one provider the higher revision is later; a public id may be borne by
one provider after another, and then the higher internal id is the later one, since these are never used again.

What claims change of a provider is told by itself, and kept beside the state that it stands on: each of the two is
replaced by a later one of its kind, whichever comes first. So nothing is lost when what is used is heard of before the
change of the provider that came before it.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bus.message import ProviderId
from bus.messages.placement import INTEGER_MAX, InventoryState, ProviderState, ProviderUsage
from placement_worker.core.candidates.provider_index import SHARES, ProviderIndex
from placement_worker.core.capacity import capacity_of

# What is said of a provider after its end comes within seconds of it.
GONE_MAX = 100_000


class Tree:
    """The providers under one root by internal id. The picture drew these `classes` of it, in this `row`."""

    __slots__ = ("classes", "providers", "root", "row")

    def __init__(self, root: ProviderId) -> None:
        self.root = root
        self.row = -1
        self.providers: dict[int, ProviderState] = {}
        self.classes: frozenset[str] = frozenset()

    @property
    def top(self) -> ProviderState | None:
        """None while only children are known."""
        return next((state for state in self.providers.values() if state.id.int == self.root.int), None)

    @property
    def is_host(self) -> bool:
        """Roots that share what they have by aggregates are pools, not hosts."""
        top = self.top
        return top is not None and SHARES not in top.traits

    @property
    def traits(self) -> tuple[str, ...]:
        """Of all in it."""
        if len(self.providers) == 1:
            (only,) = self.providers.values()
            return only.traits
        return tuple(dict.fromkeys(trait for state in self.providers.values() for trait in state.traits))

    @property
    def shape(self) -> int:
        # A child's change may be told before its root's; both name the shape of the tree.
        return max((state.shape for state in self.providers.values()), default=0)


class Merged(NamedTuple):
    """Trees that are another shape now, and a tree of which nothing changed but what is used of one provider."""

    trees: tuple[Tree, ...] = ()
    used: Tree | None = None


NOTHING_NEW = Merged()


class Trees:
    """All of them; `index` has them as columns. Ids are looked up by their integers: a UUID hashes in Python, an integer
    does not.
    """

    def __init__(self) -> None:
        self.index = ProviderIndex()
        self.by_root: dict[int, Tree] = {}
        self._states: dict[int, ProviderState] = {}
        # Only those that are later than the state.
        self._usages: dict[int, ProviderUsage] = {}
        self._bearers: dict[int, int] = {}
        # Internal ids, in the order in which they went.
        self._gone: dict[int, None] = {}

    def merge(self, state: ProviderState) -> Merged:
        known = self._states.get(state.internal)
        if known is None:
            return self._meet(state)
        if state.revision <= known.revision:
            return NOTHING_NEW
        self._states[state.internal] = state
        self._tell_woods(state)
        tree = self.by_root[known.root.int]
        if known.shape == state.shape and known.root.int == state.root.int and known.name == state.name:
            tree.providers[state.internal] = state
            return Merged(used=tree)
        del tree.providers[state.internal]
        other = self._plant(state)
        return Merged((other,) if other is tree else (self._fell_if_empty(tree), other))

    def use(self, usages: Iterable[ProviderUsage]) -> list[tuple[Tree, ProviderUsage]]:
        """Those that are news, and the trees these stand in, as far as they are known."""
        news = [usage for usage in usages if self._learn(usage)]
        self.index.use_all((usage.internal, usage.used) for usage in news)
        return [
            (self.by_root[known.root.int], usage)
            for usage in news
            if (known := self._states.get(usage.internal)) is not None
        ]

    def _learn(self, usage: ProviderUsage) -> bool:
        internal = usage.internal
        known, before = self._states.get(internal), self._usages.get(internal)
        if (
            internal in self._gone
            or (before is not None and usage.revision <= before.revision)
            or (known is not None and usage.revision <= known.revision)
        ):
            return False
        self._usages[internal] = usage
        return True

    def stands(self, usage: ProviderUsage) -> bool:
        """Is the provider known as it was before, or known to be gone?"""
        known = self._states.get(usage.internal)
        return usage.internal in self._gone if known is None else known.revision >= usage.base

    def used(self, state: ProviderState) -> Mapping[str, int]:
        """How much of each class, as it was told last."""
        usage = self._usages.get(state.internal)
        if usage is not None:
            return usage.used
        return {resource: inventory.used for resource, inventory in state.inventories.items()}

    def living_on(self, state: ProviderState) -> int:
        """How many consumers, as it was told last."""
        usage = self._usages.get(state.internal)
        return state.consumers if usage is None else usage.consumers

    def stocked(self, tree: Tree) -> dict[str, tuple[InventoryState, int]]:
        """How much of each class a tree has and uses: in all, where it has more than a root."""
        if tree.top is None:
            return {}
        if len(tree.providers) == 1:
            used = self.used(tree.top)
            # A class that is not among what is used has gone in the meantime.
            return {
                resource: (inventory, used.get(resource, 0))
                for resource, inventory in tree.top.inventories.items()
            }
        capacities: dict[str, int] = {}
        for state in tree.providers.values():
            for resource, inventory in state.inventories.items():
                capacities[resource] = capacities.get(resource, 0) + capacity_of(inventory)
        return {
            resource: (InventoryState(total=capacity, max_unit=INTEGER_MAX), self.used_in_all(tree, resource))
            for resource, capacity in capacities.items()
        }

    def used_in_all(self, tree: Tree, resource: str) -> int:
        return sum(
            self.used(state).get(resource, 0)
            for state in tree.providers.values()
            if resource in state.inventories
        )

    def lose(self, internal: int) -> Tree | None:
        """The tree it stood in, if it was known."""
        self._usages.pop(internal, None)
        state = self._states.pop(internal, None)
        if state is None:
            return None
        self.index.drop(internal)
        if self._bearers.get(state.id.int) == internal:
            del self._bearers[state.id.int]
        tree = self.by_root[state.root.int]
        del tree.providers[internal]
        return self._fell_if_empty(tree)

    def bury(self, internal: int) -> Tree | None:
        """It is gone for good: what was said of it before is not believed when it comes late."""
        self._gone[internal] = None
        if len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]
        return self.lose(internal)

    def gone(self) -> frozenset[int]:
        return frozenset(self._gone)

    def exhume(self, internals: Iterable[int]) -> None:
        """They were taken for gone, and are not."""
        for internal in internals:
            self._gone.pop(internal, None)

    def internal_of(self, provider: ProviderId) -> int | None:
        return self._bearers.get(provider.int)

    def knows(self, internal: int) -> bool:
        return internal in self._states

    def lacks(self, internal: int, revision: int) -> bool:
        """Is this not known yet of a provider that is not known to be gone?"""
        state, usage = self._states.get(internal), self._usages.get(internal)
        if state is None:
            return internal not in self._gone
        if usage is None:
            return state.revision < revision
        return usage.revision < revision or not self.stands(usage)

    def internals(self) -> Iterable[int]:
        return self._states.keys()

    def _meet(self, state: ProviderState) -> Merged:
        bearer = self._bearers.get(state.id.int, -1)
        if state.internal in self._gone or bearer > state.internal:
            return NOTHING_NEW
        # Who bore this id before is gone, though we have not been told yet.
        left = self.bury(bearer) if bearer >= 0 else None
        self._states[state.internal] = state
        self._tell_woods(state)
        self._bearers[state.id.int] = state.internal
        tree = self._plant(state)
        return Merged((tree,) if left is None or left is tree else (left, tree))

    def _tell_woods(self, state: ProviderState) -> None:
        self.index.put(state)
        usage = self._usages.get(state.internal)
        if usage is None:
            return
        if usage.revision <= state.revision:
            del self._usages[state.internal]
        else:
            self.index.use(state.internal, usage.used)

    def _plant(self, state: ProviderState) -> Tree:
        tree = self.by_root.get(state.root.int)
        if tree is None:
            tree = self.by_root[state.root.int] = Tree(state.root)
        tree.providers[state.internal] = state
        return tree

    def _fell_if_empty(self, tree: Tree) -> Tree:
        if not tree.providers:
            del self.by_root[tree.root.int]
        return tree
