"""The provider tree of a host, as its driver edits it.

A driver gets the known tree and returns an edited copy. Providers in `foreign` belong to others (those that share with
the host), and `foreign_traits` of a provider to an operator: the driver sees them and returns them unchanged.
Aggregates stay as they are unless the driver makes them a set. It may also join some, and leave the others as they are.
"""

from collections.abc import Mapping

from msgspec import Struct, structs

from bus.message import AggregateId, ProviderId
from bus.messages.placement import ReportedInventory


class TreeProvider(Struct, frozen=True):
    id: ProviderId
    name: str
    parent: ProviderId | None = None
    inventories: Mapping[str, ReportedInventory] = {}
    traits: frozenset[str] = frozenset()
    foreign_traits: frozenset[str] = frozenset()
    # None: they stay as they are.
    aggregates: frozenset[AggregateId] | None = None
    joins: frozenset[AggregateId] = frozenset()


class ProviderTree(Struct, frozen=True):
    root: ProviderId
    providers: Mapping[ProviderId, TreeProvider] = {}
    foreign: frozenset[ProviderId] = frozenset()

    @property
    def own(self) -> dict[ProviderId, TreeProvider]:
        return {id_: each for id_, each in self.providers.items() if id_ not in self.foreign}


def with_provider(tree: ProviderTree, provider: TreeProvider) -> ProviderTree:
    """The tree with this provider; foreign traits that were known stay."""
    known = tree.providers.get(provider.id)
    kept = structs.replace(provider, foreign_traits=known.foreign_traits) if known else provider
    return structs.replace(tree, providers={**tree.providers, provider.id: kept})


def with_only(tree: ProviderTree, own: frozenset[ProviderId]) -> ProviderTree:
    """The tree without the driver's providers that are not in `own`."""
    kept = {id_: each for id_, each in tree.providers.items() if id_ in own or id_ in tree.foreign}
    return structs.replace(tree, providers=kept)


def flaw_of(given: ProviderTree, edited: ProviderTree) -> str | None:
    """Finds a change that a driver must not make, and describes it as a sentence; None if there is none."""
    if (edited.root, edited.foreign) != (given.root, given.foreign):
        return f"the tree of {given.root} has another root or other foreign providers now"
    for id_ in sorted(given.foreign):
        if edited.providers.get(id_) != given.providers.get(id_):
            return f"provider {id_} is foreign, and was changed"
    for id_, before in given.providers.items():
        after = edited.providers.get(id_)
        if after is not None and after.foreign_traits != before.foreign_traits:
            return f"traits of provider {before.name!r} that are foreign were changed"
    return _rootless(edited)


def _rootless(tree: ProviderTree) -> str | None:
    own = tree.own
    if own and tree.root not in own:
        return f"the tree of {tree.root} has providers, but not its root"
    for each in own.values():
        if (each.parent is None) != (each.id == tree.root):
            return (
                f"provider {each.name!r} has no parent, and is not the root"
                if each.parent is None
                else (f"provider {each.name!r} is the root, and has a parent")
            )
        above, seen = each.parent, {each.id}
        while above is not None:
            if above in seen or above not in own:
                return f"provider {each.name!r} is not connected to the root"
            seen.add(above)
            above = own[above].parent
    return None
