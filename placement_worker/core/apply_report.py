"""The provider tree as an inventory report changes it, and whether the result is a valid tree.

The new tree is built beside the current one and checked as a whole. So a report is accepted or refused as a whole, and
a report may name its providers in any order.
"""

from collections.abc import Container, Iterator, Mapping
from operator import attrgetter

from msgspec import structs

from bus.message import ProviderId
from bus.messages.placement import (
    InventoryInUse,
    InventoryState,
    NotAllowed,
    ReportedInventory,
    ReportedProvider,
    ReportInventory,
)
from placement_worker.core.ledger import ProviderBook

Providers = Mapping[ProviderId, ProviderBook]

# The values of an inventory without its usage, in the order of `ReportedInventory` and of the table's columns.
limit_values = attrgetter(*ReportedInventory.__struct_fields__)


def reported_tree(standing: Providers, report: ReportInventory) -> dict[ProviderId, ProviderBook]:
    """The tree's providers after the report. A provider that the report does not change stays the same object."""
    providers = dict(standing)
    for reported in report.providers:
        providers[reported.id] = _rewritten(standing.get(reported.id), reported)
    for removed in report.removed:
        providers.pop(removed, None)
    return providers


def flaw_of(providers: Providers, report: ReportInventory) -> NotAllowed | None:
    """Why these providers do not form one tree under the report's root. None if they do, or if there are no providers."""
    if not providers:
        return None
    if report.root not in providers:
        return NotAllowed(
            field="root",
            reason=f"provider {report.root} would be missing from its own tree: it neither exists nor is reported, "
            "or it is removed while others stay",
        )
    return next(_flaws(providers, report), None)


def lost_in_tree(standing: Providers, providers: Providers) -> InventoryInUse | None:
    """The refusal of a report that would remove an inventory in use, for the first one. A smaller inventory is no loss."""
    kept = {provider: book.inventories for provider, book in providers.items()}
    losses = (lost_inventory(book, kept.get(book.id, ())) for book in standing.values())
    return next(filter(None, losses), None)


def lost_inventory(book: ProviderBook, kept: Container[str]) -> InventoryInUse | None:
    """The refusal of a write that would leave this provider only the classes in `kept`, although another one is in use.

    It names the first such class. None if there is none.
    """
    return next(
        (
            InventoryInUse(provider=book.id, resource=resource, used=inventory.used)
            for resource, inventory in book.inventories.items()
            if inventory.used and resource not in kept
        ),
        None,
    )


def depths_under(root: ProviderId, providers: Providers) -> dict[ProviderId, int]:
    """The depth of each provider below the root. A provider that is not below the root is missing."""
    children: dict[ProviderId | None, list[ProviderId]] = {}
    for book in providers.values():
        children.setdefault(book.parent, []).append(book.id)
    depths, waiting = {root: 0}, [root]
    while waiting:
        parent = waiting.pop()
        for child in children.get(parent, ()):
            depths[child] = depths[parent] + 1
            waiting.append(child)
    return depths


def is_same_to_claims(one: ProviderBook, other: ProviderBook) -> bool:
    """Is everything equal that a claim may rely on: inventories, traits, aggregates, the parent?"""
    return (
        one.parent == other.parent
        and one.inventories == other.inventories
        # It does not matter whether the reporter or an operator set a trait.
        and one.traits | one.operator_traits == other.traits | other.operator_traits
        and one.aggregates == other.aggregates
    )


def with_usage(old: InventoryState | None, reported: ReportedInventory) -> InventoryState:
    """A new inventory of a class: its limits as reported, its usage as in the old inventory (0 without one)."""
    used = old.used if old else 0
    return InventoryState(*(*limit_values(reported), used))


def _rewritten(book: ProviderBook | None, reported: ReportedProvider) -> ProviderBook:
    old = book or ProviderBook(id=reported.id, name=reported.name)
    new = structs.replace(
        old if reported.inventories is None else _restocked(old, reported.inventories),
        name=reported.name,
        parent=old.parent if reported.parent is None else reported.parent,
        traits=old.traits if reported.traits is None else frozenset(reported.traits),
        aggregates=(old.aggregates if reported.aggregates is None else frozenset(reported.aggregates)).union(
            reported.joins
        ),
    )
    if book and new.name == book.name and is_same_to_claims(new, book):
        # Nothing visible changed, even if a trait that an operator set is now also the reporter's.
        return new
    return structs.replace(new, generation=old.generation + 1)


def _restocked(old: ProviderBook, reported: Mapping[str, ReportedInventory]) -> ProviderBook:
    """The provider with the reported inventories, and no others: from now on it is its reporter's."""
    inventories = {
        name: with_usage(old.inventories.get(name), inventory) for name, inventory in reported.items()
    }
    return structs.replace(old, inventories=inventories, made_by_name=False)


def _flaws(providers: Providers, report: ReportInventory) -> Iterator[NotAllowed]:
    for position, reported in enumerate(report.providers):
        parent = providers[reported.id].parent
        field = f"providers[{position}].parent"
        if reported.id == report.root:
            if parent is not None:
                yield NotAllowed(field=field, reason=f"provider {reported.id} is the root, and has no parent")
        elif parent is None:
            yield NotAllowed(
                field=field, reason=f"provider {reported.id} is not the root, and needs a parent"
            )
        elif parent not in providers:
            yield NotAllowed(
                field=field, reason=f"provider {parent} is neither in the tree of {report.root} nor reported"
            )
    removed = {provider: position for position, provider in enumerate(report.removed)}
    for book in providers.values():
        if book.parent in removed:
            yield NotAllowed(
                field=f"removed[{removed[book.parent]}]",
                reason=f"provider {book.parent} still has a child, {book.id}",
            )
    under_root = depths_under(report.root, providers)
    for position, reported in enumerate(report.providers):
        if reported.id not in under_root:
            yield NotAllowed(
                field=f"providers[{position}].parent",
                reason=f"provider {reported.id} would be below itself, not below the root",
            )
