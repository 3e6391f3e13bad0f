"""The trees of the providers that a scheduler knows: which root each belongs to, and what a tree has in all."""

from collections.abc import Iterable, Mapping

from bus.message import ProviderId
from bus.messages.placement import INTEGER_MAX, InventoryState, ProviderState
from placement_worker.core.candidates.provider_index import SHARES
from placement_worker.core.capacity import capacity_of
from placement_worker.core.known_providers import KnownProviders


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


class Trees(KnownProviders):
    """All provider trees. Ids are looked up by their integers, since the hash of a UUID is computed in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.by_root: dict[int, Tree] = {}
        # By the internal id of each of its providers.
        self.with_provider: dict[int, Tree] = {}
        # Trees of which more than usage changed since the picture was last written, in this order; and providers of which
        # only usage changed, with their trees.
        self._unwritten: dict[Tree, None] = {}
        self._used: list[tuple[Tree, ProviderState]] = []

    def take_changes(self) -> tuple[Iterable[Tree], list[tuple[Tree, ProviderState]]]:
        """The trees of which more than usage changed since the last call, and the providers of which only usage did."""
        taken = self._unwritten, self._used
        self._unwritten, self._used = {}, []
        return taken

    def _changed(self, before: ProviderState | None, after: ProviderState | None) -> None:
        if before is not None and after is not None and _is_usage_alone(before, after):
            tree = self.with_provider[after.internal]
            tree.providers[after.internal] = after
            self._used.append((tree, after))
            return
        left = None if before is None else self._leave_tree(before)
        if after is not None:
            self._join_tree(after)
        if left is not None and not left.providers:
            del self.by_root[left.root.int]

    def _leave_tree(self, state: ProviderState) -> Tree:
        tree = self.with_provider.pop(state.internal)
        del tree.providers[state.internal]
        self._unwritten[tree] = None
        return tree

    def _join_tree(self, state: ProviderState) -> None:
        tree = self.by_root.get(state.root.int)
        if tree is None:
            tree = self.by_root[state.root.int] = Tree(state.root)
        self.with_provider[state.internal] = tree
        tree.providers[state.internal] = state
        self._unwritten[tree] = None

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


def _is_usage_alone(before: ProviderState, after: ProviderState) -> bool:
    return before.shape == after.shape and before.root.int == after.root.int and before.name == after.name
