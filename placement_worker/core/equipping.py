"""What a provider has, as it is written by name: its inventories, traits and aggregates.

Generations move as Placement's API moves them: at every write of inventories, at traits only if they change, at aggregates
where it is asked for.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct, structs

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
from bus.messages.placement import InventoryInUse, InventoryState, NotAllowed, ReportedInventory
from placement_worker.core.ledger import ProviderBook, TreeBook
from placement_worker.core.planting import ForestDraft
from placement_worker.core.regrowth import restocked
from placement_worker.core.vocabulary import Vocabulary, unknown_classes, unknown_traits


class Words(Struct, frozen=True):
    """The names of classes and traits that exist: standard ones, and of the custom ones those that were looked up."""

    standard: Vocabulary
    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()

    def stranger_in(self, resources: Iterable[str]) -> UnknownClass | None:
        unknown = unknown_classes(resources, self.standard, self.classes)
        return UnknownClass(names=unknown) if unknown else None


def nonsense_of(inventories: Mapping[str, ReportedInventory]) -> NotAllowed | None:
    """The first inventory of which nothing could ever be handed out."""
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


def stock_lost(book: ProviderBook, inventories: Iterable[str]) -> InventoryInUse | None:
    """The first class that is held, and is none of these."""
    kept = set(inventories)
    return next(
        (
            InventoryInUse(provider=book.id, resource=resource, used=inventory.used)
            for resource, inventory in book.inventories.items()
            if inventory.used and resource not in kept
        ),
        None,
    )


def equip(
    draft: ForestDraft,
    words: Words,
    book: ProviderBook,
    write: SetInventories | PutInventory | DropInventory | SetTraits | SetAggregates,
) -> WriteVerdict:
    """What becomes of this provider's inventories, traits or aggregates."""
    match write:
        case SetInventories():
            return _set_inventories(draft, words, book, write)
        case PutInventory():
            return _put_inventory(draft, words, book, write)
        case DropInventory():
            return _drop_inventory(draft, words, book, write)
        case SetTraits():
            return _set_traits(draft, words, book, write)
        case SetAggregates():
            return _set_aggregates(draft, book, write)


def _set_inventories(
    draft: ForestDraft, words: Words, book: ProviderBook, write: SetInventories
) -> WriteVerdict:
    refused = (
        moved_generation(book, write.generation)
        or nonsense_of(write.inventories)
        or words.stranger_in(write.inventories)
        or stock_lost(book, write.inventories)
    )
    return refused or _restock(draft, book, stocked(book, write.inventories))


def _put_inventory(draft: ForestDraft, words: Words, book: ProviderBook, write: PutInventory) -> WriteVerdict:
    wanted = {write.resource: write.inventory}
    refused = moved_generation(book, write.generation) or nonsense_of(wanted) or words.stranger_in(wanted)
    if refused:
        return refused
    if write.is_new and write.resource in book.inventories:
        return InventoryPresent(provider=book.id, resource=write.resource)
    if not write.is_new and write.resource not in book.inventories:
        return InventoryAbsent(provider=book.id, resource=write.resource)
    return _restock(draft, book, {**book.inventories, **stocked(book, wanted)})


def _drop_inventory(
    draft: ForestDraft, words: Words, book: ProviderBook, write: DropInventory
) -> WriteVerdict:
    left = {name: stock for name, stock in book.inventories.items() if name != write.resource}
    if len(left) < len(book.inventories):
        return stock_lost(book, left) or _restock(draft, book, left)
    return words.stranger_in((write.resource,)) or InventoryAbsent(provider=book.id, resource=write.resource)


def _set_traits(draft: ForestDraft, words: Words, book: ProviderBook, write: SetTraits) -> WriteVerdict:
    if moved := moved_generation(book, write.generation):
        return moved
    if unknown := unknown_traits(write.traits, words.standard, words.traits):
        return UnknownTrait(names=unknown)
    wanted = frozenset(write.traits)
    if wanted == book.traits | book.operator_traits:
        return written(draft.trees[draft.root_of[book.id]], book.id)
    # What its reporter set stays the reporter's, who may take it back; the rest outlives every report.
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


def stocked(book: ProviderBook, wanted: Mapping[str, ReportedInventory]) -> dict[str, InventoryState]:
    """These inventories, with what is used of them now."""
    return {
        resource: restocked(book.inventories.get(resource), inventory)
        for resource, inventory in wanted.items()
    }


def _restock(
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
