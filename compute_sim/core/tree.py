"""The provider tree of a host, as its driver edits it.

A driver gets the tree that placement last accepted, and returns the tree as it is now. Providers and traits that others have
added to it in placement are not in it, and a report leaves them alone. If a driver gives a provider a set of `aggregates`,
these replace all aggregates of the provider. With None they stay as they are, and the provider only joins those in `joins`.
"""

from collections.abc import Mapping

from msgspec import Struct

from bus.message import AggregateId, ProviderId
from bus.messages.placement import ReportedInventory


class TreeProvider(Struct, frozen=True):
    id: ProviderId
    name: str
    parent: ProviderId | None = None
    inventories: Mapping[str, ReportedInventory] = {}
    traits: frozenset[str] = frozenset()
    # None: they stay as they are.
    aggregates: frozenset[AggregateId] | None = None
    joins: frozenset[AggregateId] = frozenset()


class ProviderTree(Struct, frozen=True):
    root: ProviderId
    providers: Mapping[ProviderId, TreeProvider] = {}


def flaw_of(given: ProviderTree, edited: ProviderTree) -> str | None:
    """A sentence that says what is wrong with the tree that a driver has returned; None if nothing is wrong."""
    if edited.root != given.root:
        return f"the tree of {given.root} has another root now"
    own = edited.providers
    if own and edited.root not in own:
        return f"the tree of {edited.root} has providers, but not its root"
    for each in own.values():
        if (each.parent is None) != (each.id == edited.root):
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
