"""Inventories and what is held of them, moved together: from a host to the NUMA nodes below it, say.

Neither could go first: what is held keeps its inventory, and what is to be held needs one. So the allocations are judged
in a forest where both stand, the new inventories over the old ones, and only then may the old ones go.

One reshape is decided by itself. What it reshapes is written as trees, what is used of it included; all else as claims are.
"""

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct, structs

from bus.message import ProviderId
from bus.messages.administration import Done, ProviderInventories, Reshape, UnknownProvider, WriteVerdict
from bus.messages.placement import InventoryInUse, InventoryState, NotAllowed
from placement_worker.core.allocating import allocate, shares_named_by_consumers
from placement_worker.core.capacity import terms_in, used_in
from placement_worker.core.draft import Draft
from placement_worker.core.equipping import moved_generation, nonsense_of, stocked
from placement_worker.core.ledger import (
    ClaimChanges,
    Forest,
    Ledger,
    Named,
    NamedShares,
    ProviderBook,
    TreeChanges,
)
from placement_worker.core.planting import ForestDraft
from placement_worker.core.vocabulary import Vocabulary, unknown_classes


class ReshapeDecision(Struct, frozen=True):
    verdict: WriteVerdict
    trees: TreeChanges
    claims: ClaimChanges


def trees_named_by(reshape: Reshape) -> Named:
    return Named(
        trees=frozenset(one.provider for one in reshape.inventories),
        classes=frozenset(name for one in reshape.inventories for name in one.inventories),
    )


def shares_named_in(reshape: Reshape) -> NamedShares:
    """Whose inventories change is locked with those who are held of: all roots in one order."""
    named = shares_named_by_consumers(reshape.allocations)
    written = tuple(one.provider for one in reshape.inventories)
    return structs.replace(named, providers=tuple(dict.fromkeys(named.providers + written)))


def decide_reshape(
    ledger: Ledger, forest: Forest, reshape: Reshape, vocabulary: Vocabulary, now: datetime
) -> ReshapeDecision:
    """All of it, or nothing."""
    grove = ForestDraft(forest)
    refused = _flaw(grove, reshape.inventories)
    if refused:
        return _refusal(ledger, refused)
    books = [_book(grove, one.provider) for one in reshape.inventories]
    draft = Draft(_with_both(ledger, books, reshape.inventories))
    resources = {amount.resource for one in reshape.allocations for amount in one.amounts}
    resources.update(resource for one in reshape.inventories for resource in one.inventories)
    unknown = unknown_classes(resources, vocabulary, ledger.classes | forest.classes)
    verdict = allocate(draft, reshape.allocations, unknown, now)
    # What moved since the client read it is told before what its inventories lack, as Placement tells it.
    if isinstance(verdict, Done):
        verdict = _nonsense(reshape.inventories) or verdict
    if not isinstance(verdict, Done):
        return _refusal(ledger, verdict)
    for book, wanted in zip(books, reshape.inventories, strict=True):
        if lost := _lost(draft, book, wanted):
            return _refusal(ledger, lost)
        _reshape(grove, draft, book, wanted)
    return ReshapeDecision(verdict, grove.changes(), _without(draft.changes(), books))


def _flaw(grove: ForestDraft, wanted: Sequence[ProviderInventories]) -> WriteVerdict | None:
    named: set[ProviderId] = set()
    for position, one in enumerate(wanted):
        if grove.tree_of(one.provider) is None:
            return UnknownProvider(provider=one.provider, field="inventories")
        if moved := moved_generation(_book(grove, one.provider), one.generation):
            return moved
        if one.provider in named:
            return NotAllowed(
                field=f"inventories[{position}].provider", reason=f"provider {one.provider} is named twice"
            )
        named.add(one.provider)
    return None


def _nonsense(wanted: Sequence[ProviderInventories]) -> NotAllowed | None:
    return next((nonsense for one in wanted if (nonsense := nonsense_of(one.inventories))), None)


def _book(grove: ForestDraft, provider: ProviderId) -> ProviderBook:
    return grove.trees[grove.root_of[provider]].providers[provider]


def _with_both(
    ledger: Ledger, books: Sequence[ProviderBook], wanted: Sequence[ProviderInventories]
) -> Ledger:
    """The ledger as if the new inventories stood beside the old ones, those of the same class instead of them."""
    providers = dict(ledger.providers)
    for book, one in zip(books, wanted, strict=True):
        row = providers[book.id.int]
        both: dict[str, InventoryState] = {**book.inventories, **stocked(book, one.inventories)}
        providers[book.id.int] = structs.replace(row, terms=terms_in(both), used=used_in(both))
    return structs.replace(ledger, providers=providers)


def _lost(draft: Draft, book: ProviderBook, wanted: ProviderInventories) -> InventoryInUse | None:
    """The first inventory that would go while something of it is held, by who was not moved."""
    account = draft.standing_account(book.id)
    return next(
        (
            InventoryInUse(provider=book.id, resource=resource, used=used)
            for resource in book.inventories
            if resource not in wanted.inventories and (used := account.used[resource])
        ),
        None,
    )


def _reshape(grove: ForestDraft, draft: Draft, book: ProviderBook, wanted: ProviderInventories) -> None:
    account = draft.standing_account(book.id)
    stocks = stocked(book, wanted.inventories)
    # Placement's API moves it once for the inventories that are put over the old ones, and once for those that stay.
    generation = account.generation + (2 if wanted.inventories else 1)
    reshaped = structs.replace(book, inventories=stocks, generation=generation)
    grove.rewrite(reshaped)
    used = {name: structs.replace(stock, used=account.used[name]) for name, stock in stocks.items()}
    grove.recount(structs.replace(reshaped, inventories=used))


def _without(changes: ClaimChanges, written: Sequence[ProviderBook]) -> ClaimChanges:
    """These providers are written with their trees, and all that is used of them."""
    by_trees = {book.id for book in written}
    return structs.replace(
        changes,
        touched=tuple([one for one in changes.touched if one.provider not in by_trees]),
        counted=tuple([(one.provider, one.consumers) for one in changes.touched if one.provider in by_trees]),
    )


def _refusal(ledger: Ledger, verdict: WriteVerdict) -> ReshapeDecision:
    # Rows that were made for its consumers go again.
    return ReshapeDecision(verdict, TreeChanges(), Draft(ledger).changes())
