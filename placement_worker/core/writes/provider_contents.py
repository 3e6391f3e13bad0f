"""Administrators' writes of what a provider has: its inventories, traits and aggregates.

Generations move as in Placement's API: with each write of inventories, with traits only if they change, with aggregates
where the request asks for it.
"""

from collections.abc import Iterable, Mapping

from msgspec import structs

from bus.message import ProviderId
from bus.messages.administration import (
    DropInventory,
    GenerationMoved,
    InventoryAbsent,
    InventoryPresent,
    ProviderWritten,
    PutInventory,
    SetAggregates,
    SetInventories,
    SetTraits,
    UnknownClass,
    UnknownTrait,
    WriteVerdict,
)
from bus.messages.placement import InventoryState, NotAllowed, ReportedInventory
from placement_worker.core.apply_report import lost_inventory, with_usage
from placement_worker.core.drafts.forest_draft import ForestDraft
from placement_worker.core.ledger import ProviderBook, TreeBook
from placement_worker.core.vocabulary import Vocabulary, unknown_names


def impossible_inventory(inventories: Mapping[str, ReportedInventory]) -> NotAllowed | None:
    """The refusal of inventories of which one reserves more than its total, for the first such one; None if there is none."""
    return next(
        (
            NotAllowed(
                field=f"inventories.{resource}",
                reason=f"reserved is {inventory.reserved}, more than the total of {inventory.total}",
            )
            for resource, inventory in inventories.items()
            if inventory.reserved > inventory.total
        ),
        None,
    )


def moved_generation(book: ProviderBook, seen: int | None) -> GenerationMoved | None:
    if seen is None or seen == book.generation:
        return None
    return GenerationMoved(provider=book.id, seen=seen, current=book.generation)


def write_contents(
    draft: ForestDraft,
    standard: Vocabulary,
    book: ProviderBook,
    write: SetInventories | PutInventory | DropInventory | SetTraits | SetAggregates,
) -> WriteVerdict:
    """Apply one write to this provider's inventories, traits or aggregates."""
    match write:
        case SetInventories():
            return _set_inventories(draft, standard, book, write)
        case PutInventory():
            return _put_inventory(draft, standard, book, write)
        case DropInventory():
            return _drop_inventory(draft, standard, book, write)
        case SetTraits():
            return _set_traits(draft, standard, book, write)
        case SetAggregates():
            return _set_aggregates(draft, book, write)


def _unknown_class(draft: ForestDraft, standard: Vocabulary, resources: Iterable[str]) -> UnknownClass | None:
    unknown = unknown_names(resources, standard.classes, draft.stored.classes)
    return UnknownClass(names=unknown) if unknown else None


def _set_inventories(
    draft: ForestDraft, standard: Vocabulary, book: ProviderBook, write: SetInventories
) -> WriteVerdict:
    refused = (
        moved_generation(book, write.generation)
        or impossible_inventory(write.inventories)
        or _unknown_class(draft, standard, write.inventories)
        or lost_inventory(book, write.inventories)
    )
    return refused or _write_inventories(draft, book, with_usages(book, write.inventories))


def _put_inventory(
    draft: ForestDraft, standard: Vocabulary, book: ProviderBook, write: PutInventory
) -> WriteVerdict:
    wanted = {write.resource: write.inventory}
    refused = (
        moved_generation(book, write.generation)
        or impossible_inventory(wanted)
        or _unknown_class(draft, standard, wanted)
    )
    if refused:
        return refused
    if write.is_new and write.resource in book.inventories:
        return InventoryPresent(provider=book.id, resource=write.resource)
    if not write.is_new and write.resource not in book.inventories:
        return InventoryAbsent(provider=book.id, resource=write.resource)
    return _write_inventories(draft, book, {**book.inventories, **with_usages(book, wanted)})


def _drop_inventory(
    draft: ForestDraft, standard: Vocabulary, book: ProviderBook, write: DropInventory
) -> WriteVerdict:
    left = {name: stock for name, stock in book.inventories.items() if name != write.resource}
    if len(left) < len(book.inventories):
        return lost_inventory(book, left) or _write_inventories(draft, book, left)
    return _unknown_class(draft, standard, (write.resource,)) or InventoryAbsent(
        provider=book.id, resource=write.resource
    )


def _set_traits(
    draft: ForestDraft, standard: Vocabulary, book: ProviderBook, write: SetTraits
) -> WriteVerdict:
    if moved := moved_generation(book, write.generation):
        return moved
    if unknown := unknown_names(write.traits, standard.traits, draft.stored.traits):
        return UnknownTrait(names=unknown)
    wanted = frozenset(write.traits)
    if wanted == book.traits | book.operator_traits:
        return written(draft.trees[draft.root_of[book.id]], book.id)
    # Traits set by the reporter stay the reporter's, which may remove them. All others outlive every report.
    after = structs.replace(
        book,
        traits=book.traits & wanted,
        operator_traits=wanted - (book.traits - book.operator_traits),
        generation=book.generation + 1,
    )
    return written(draft.rewrite(after), book.id)


def _set_aggregates(draft: ForestDraft, book: ProviderBook, write: SetAggregates) -> WriteVerdict:
    if moved := moved_generation(book, write.generation):
        return moved
    after = structs.replace(
        book,
        aggregates=frozenset(write.aggregates),
        generation=book.generation + write.moves_generation,
    )
    return written(draft.rewrite(after), book.id)


def with_usages(book: ProviderBook, wanted: Mapping[str, ReportedInventory]) -> dict[str, InventoryState]:
    """These new inventories, each with the current usage of its class."""
    return {
        resource: with_usage(book.inventories.get(resource), inventory)
        for resource, inventory in wanted.items()
    }


def _write_inventories(
    draft: ForestDraft, book: ProviderBook, inventories: Mapping[str, InventoryState]
) -> WriteVerdict:
    after = structs.replace(book, inventories=inventories, generation=book.generation + 1)
    return written(draft.rewrite(after), book.id)


def written(tree: TreeBook, provider: ProviderId) -> ProviderWritten:
    book = tree.providers[provider]
    return ProviderWritten(
        provider=provider,
        name=book.name,
        generation=book.generation,
        root=tree.root,
        parent=book.parent,
    )
