"""The states of providers, merged: which of two states is later, which provider is gone, which root it belongs to.

States arrive in any order and more than once. The higher revision of one provider is later. One provider after another
may have the same public id; then the higher internal id is later, since internal ids are never used again.

Usage, which claims change, arrives by itself and is stored beside the provider's state. A later state replaces a state,
and a later usage replaces a usage, whichever comes first. So nothing is lost when usage arrives before the state that it
belongs to.

A message of the feed may be false: a placement worker has a bug, or somebody forged the message. By its revision such a
state would win against all true ones for a long time. What placement answers is true. A provider's revision only grows,
so a state that was here before placement was asked, and that is later than the one in the answer, was never written.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bus.message import ProviderId
from bus.messages.placement import INTEGER_MAX, InventoryState, ProviderState, ProviderUsage
from placement_worker.core.candidates.provider_index import SHARES, ProviderIndex
from placement_worker.core.capacity import capacity_of

# Late messages about a deleted provider arrive within seconds; so many deleted providers are remembered.
GONE_MAX = 100_000


class Tree:
    """A root provider and all providers below it, by internal id. `row` is the tree's row in the picture's columns (-1:
    none), and `classes` are its resource classes there.
    """

    __slots__ = ("classes", "providers", "root", "row")

    def __init__(self, root: ProviderId) -> None:
        self.root = root
        self.row = -1
        self.providers: dict[int, ProviderState] = {}
        self.classes: frozenset[str] = frozenset()

    @property
    def top(self) -> ProviderState | None:
        """The state of the root provider; None while only children are known."""
        return next((state for state in self.providers.values() if state.id.int == self.root.int), None)

    @property
    def is_host(self) -> bool:
        """Is this tree a host? A root that shares its inventories by aggregates is none."""
        top = self.top
        return top is not None and SHARES not in top.traits

    @property
    def traits(self) -> tuple[str, ...]:
        """The traits of all providers in this tree."""
        return tuple(dict.fromkeys(trait for state in self.providers.values() for trait in state.traits))

    @property
    def shape(self) -> int:
        # A child's state may arrive before its root's; both name the shape of the tree.
        return max([state.shape for state in self.providers.values()], default=0)


class Merged(NamedTuple):
    """The trees that a provider's new state has changed: in `trees` those of which more than usage changed, in `used`
    the tree of which only one provider's usage did.
    """

    trees: tuple[Tree, ...] = ()
    used: Tree | None = None


NOTHING_NEW = Merged()


class KnownBefore(NamedTuple):
    """What was known before placement was asked: the revisions of providers, by internal id, and how many deletions had
    been told.
    """

    revisions: Mapping[int, int]
    deletions: int


class Trees:
    """All provider trees. `index` has their providers as columns, for the search. Ids are looked up by their integers,
    since the hash of a UUID is computed in Python.
    """

    def __init__(self) -> None:
        self.index = ProviderIndex()
        self.by_root: dict[int, Tree] = {}
        self._states: dict[int, ProviderState] = {}
        # Only usages that are later than the state.
        self._usages: dict[int, ProviderUsage] = {}
        # The internal ids of deleted providers, in the order of their deletion, each with its number in that order.
        self._gone: dict[int, int] = {}
        self._deletions = 0

    def merge(self, state: ProviderState) -> Merged:
        known = self._states.get(state.internal)
        if known is None:
            return self._add(state)
        # An internal id is never used again, so a message that gives it to another provider is wrong.
        if state.revision <= known.revision or state.id.int != known.id.int:
            return NOTHING_NEW
        self._states[state.internal] = state
        self._put_in_index(state)
        tree = self.by_root[known.root.int]
        if known.shape == state.shape and known.root.int == state.root.int and known.name == state.name:
            tree.providers[state.internal] = state
            return Merged(used=tree)
        del tree.providers[state.internal]
        other = self._attach(state)
        return Merged((other,) if other is tree else (self._without_empty(tree), other))

    def use(self, usages: Iterable[ProviderUsage]) -> list[tuple[Tree, ProviderUsage]]:
        """Merge usages. Returns those that are new, with their trees; without those whose trees are not known yet."""
        news = [usage for usage in usages if self._is_news(usage)]
        self.index.use_all((usage.internal, usage.used) for usage in news)
        return [
            (self.by_root[known.root.int], usage)
            for usage in news
            if (known := self._states.get(usage.internal)) is not None
        ]

    def _is_news(self, usage: ProviderUsage) -> bool:
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

    def has_base_of(self, usage: ProviderUsage) -> bool:
        """Is the state that this usage is based on known, or the provider known to be gone?"""
        known = self._states.get(usage.internal)
        return usage.internal in self._gone if known is None else known.revision >= usage.base

    def used(self, state: ProviderState) -> Mapping[str, int]:
        """The latest known used amount of each class at this provider."""
        usage = self._usages.get(state.internal)
        if usage is not None:
            return usage.used
        return {resource: inventory.used for resource, inventory in state.inventories.items()}

    def generation_of(self, root: ProviderId) -> int:
        """The latest known generation of this root provider."""
        top = self.by_root[root.int].top
        assert top is not None, "the root is known"
        usage = self._usages.get(top.internal)
        return top.generation if usage is None else max(top.generation, usage.generation)

    def consumers_of(self, state: ProviderState) -> int:
        """The number of consumers in the latest known usage of this provider."""
        usage = self._usages.get(state.internal)
        return state.consumers if usage is None else usage.consumers

    def stocked(self, tree: Tree) -> dict[str, tuple[InventoryState, int]]:
        """For each class in the tree, the inventory and the used amount. If the tree has children, both are sums over
        all providers; such an inventory lacks the limits of single providers, such as max_unit.
        """
        if tree.top is None:
            return {}
        if len(tree.providers) == 1:
            used = self.used(tree.top)
            # The usage may be later, and lack a class that is gone by now.
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

    def drop(self, internal: int) -> Tree | None:
        """Drop the state of a provider. Returns its tree, if it was known."""
        self._usages.pop(internal, None)
        state = self._states.pop(internal, None)
        if state is None:
            return None
        self.index.drop(internal)
        tree = self.by_root[state.root.int]
        del tree.providers[internal]
        return self._without_empty(tree)

    def delete(self, internal: int) -> Tree | None:
        """Drop a provider that is deleted for good, and ignore late messages about it. Returns its tree, if it was known."""
        self._deletions += 1
        self._gone[internal] = self._deletions
        if len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]
        return self.drop(internal)

    def gone(self) -> frozenset[int]:
        """The internal ids of providers that are known to be deleted."""
        return frozenset(self._gone)

    def undelete(self, internals: Iterable[int]) -> None:
        """Accept messages about these providers again: contrary to an earlier message, they are not deleted."""
        for internal in internals:
            self._gone.pop(internal, None)

    def internal_of(self, provider: ProviderId) -> int:
        """The internal id of the provider that has this id now; -1 if none is known."""
        row = self.index.row_of(provider)
        return -1 if row is None else self.index.state(row).internal

    def knows(self, internal: int) -> bool:
        return internal in self._states

    def lacks(self, internal: int, revision: int) -> bool:
        """Is a provider, which is not known to be gone, older here than this revision?"""
        state, usage = self._states.get(internal), self._usages.get(internal)
        if state is None:
            return internal not in self._gone
        if usage is None:
            return state.revision < revision
        return usage.revision < revision or not self.has_base_of(usage)

    def internals(self) -> frozenset[int]:
        """The internal ids of all known providers."""
        return frozenset(self._states)

    def known_now(self) -> KnownBefore:
        """The latest known revision of each provider, also of those of which only usage is known."""
        usages = {internal: usage.revision for internal, usage in self._usages.items()}
        states = {internal: state.revision for internal, state in self._states.items()}
        return KnownBefore(states | usages, self._deletions)

    def deleted_now(self) -> KnownBefore:
        """As `known_now`, without revisions."""
        return KnownBefore({}, self._deletions)

    def drop_false(self, read: ProviderState, before: KnownBefore) -> list[Tree]:
        """Drop what was known before placement was asked, and contradicts this state that it answered. Returns the trees
        that have lost a provider.
        """
        if self._gone.get(read.internal, before.deletions + 1) <= before.deletions:
            del self._gone[read.internal]
        false = []
        known = self._states.get(read.internal)
        is_other = known is not None and (
            known.id.int != read.id.int or (known.revision == read.revision and known != read)
        )
        if is_other or before.revisions.get(read.internal, 0) > read.revision:
            false.append(read.internal)
        namesake = self.internal_of(read.id)
        if namesake > read.internal and namesake in before.revisions:
            # Internal ids grow, so it would be the id's later provider. But placement has the earlier one.
            false.append(namesake)
        return [tree for internal in false if (tree := self.drop(internal)) is not None]

    def _add(self, state: ProviderState) -> Merged:
        earlier = self.internal_of(state.id)
        if state.internal in self._gone or earlier > state.internal:
            return NOTHING_NEW
        # The provider that had this id before is gone, though its deletion has not arrived yet.
        left = self.delete(earlier) if earlier >= 0 else None
        self._states[state.internal] = state
        self._put_in_index(state)
        tree = self._attach(state)
        return Merged((tree,) if left is None or left is tree else (left, tree))

    def _put_in_index(self, state: ProviderState) -> None:
        self.index.put(state)
        usage = self._usages.get(state.internal)
        if usage is None:
            return
        if usage.revision <= state.revision:
            del self._usages[state.internal]
        else:
            self.index.use(state.internal, usage.used)

    def _attach(self, state: ProviderState) -> Tree:
        tree = self.by_root.get(state.root.int)
        if tree is None:
            tree = self.by_root[state.root.int] = Tree(state.root)
        tree.providers[state.internal] = state
        return tree

    def _without_empty(self, tree: Tree) -> Tree:
        if not tree.providers:
            del self.by_root[tree.root.int]
        return tree
