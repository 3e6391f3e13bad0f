"""Move inventories and their allocations together, for instance from a host to the NUMA nodes below it.

Neither can move first: an inventory in use cannot be removed, and an allocation needs an inventory. So the allocations
are judged on a ledger that has both the old and the new inventories. Then the old inventories may be removed.

One reshape is decided at a time. The providers whose inventories it writes are in its `TreeChanges`, with their usage; the
usage of all other providers is in its `ClaimChanges`.
"""

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct, structs

from bus.message import ProviderId
from bus.messages.administration import Done, ProviderInventories, Reshape, UnknownProvider, WriteVerdict
from bus.messages.placement import InventoryInUse, InventoryState, NotAllowed
from placement_worker.core.capacity import limits_in, used_in
from placement_worker.core.claim_keys import ClaimKeys
from placement_worker.core.drafts.forest_draft import ForestDraft
from placement_worker.core.drafts.ledger_draft import LedgerDraft
from placement_worker.core.ledger import (
    ClaimChanges,
    Forest,
    ForestKeys,
    Ledger,
    ProviderBook,
    TreeChanges,
)
from placement_worker.core.vocabulary import Vocabulary, unknown_names
from placement_worker.core.writes.allocation_writes import allocate, keys_of_allocations
from placement_worker.core.writes.provider_contents import impossible_inventory, moved_generation, with_usages


class ReshapeDecision(Struct, frozen=True):
    verdict: WriteVerdict
    trees: TreeChanges
    claims: ClaimChanges


def forest_keys_of(reshape: Reshape) -> ForestKeys:
    return ForestKeys(
        trees=frozenset(one.provider for one in reshape.inventories),
        classes=frozenset(name for one in reshape.inventories for name in one.inventories),
    )


def allocation_keys_of(reshape: Reshape) -> ClaimKeys:
    """The rows to lock: the consumers and providers of the allocations, and also the providers whose inventories change. So
    all roots are locked by one statement, in order.
    """
    return keys_of_allocations(reshape.allocations, providers=[one.provider for one in reshape.inventories])


def decide_reshape(
    ledger: Ledger, forest: Forest, reshape: Reshape, vocabulary: Vocabulary, now: datetime
) -> ReshapeDecision:
    """Judge a reshape: all its inventories and allocations are written, or nothing."""
    forest_draft = ForestDraft(forest)
    refused = _flaw(forest_draft, reshape.inventories)
    if refused:
        return _refusal(ledger, refused)
    books = [_book(forest_draft, one.provider) for one in reshape.inventories]
    draft = LedgerDraft(_with_both(ledger, books, reshape.inventories))
    resources = {amount.resource for one in reshape.allocations for amount in one.amounts}
    resources.update(resource for one in reshape.inventories for resource in one.inventories)
    unknown = unknown_names(resources, vocabulary.classes, ledger.classes | forest.classes)
    verdict = allocate(draft, reshape.allocations, unknown, now)
    # As in Placement, the client first learns that something moved since it read, then what its inventories lack.
    if isinstance(verdict, Done):
        verdict = _nonsense(reshape.inventories) or verdict
    if not isinstance(verdict, Done):
        return _refusal(ledger, verdict)
    for book, wanted in zip(books, reshape.inventories, strict=True):
        if lost := _lost(draft, book, wanted):
            return _refusal(ledger, lost)
        _reshape(forest_draft, draft, book, wanted)
    return ReshapeDecision(verdict, forest_draft.changes(), _without(draft.changes(), books))


def _flaw(forest_draft: ForestDraft, wanted: Sequence[ProviderInventories]) -> WriteVerdict | None:
    named: set[ProviderId] = set()
    for position, one in enumerate(wanted):
        if forest_draft.tree_of(one.provider) is None:
            return UnknownProvider(provider=one.provider, field="inventories")
        if moved := moved_generation(_book(forest_draft, one.provider), one.generation):
            return moved
        if one.provider in named:
            return NotAllowed(
                field=f"inventories[{position}].provider", reason=f"provider {one.provider} is named twice"
            )
        named.add(one.provider)
    return None


def _nonsense(wanted: Sequence[ProviderInventories]) -> NotAllowed | None:
    return next((nonsense for one in wanted if (nonsense := impossible_inventory(one.inventories))), None)


def _book(forest_draft: ForestDraft, provider: ProviderId) -> ProviderBook:
    return forest_draft.trees[forest_draft.root_of[provider]].providers[provider]


def _with_both(
    ledger: Ledger, books: Sequence[ProviderBook], wanted: Sequence[ProviderInventories]
) -> Ledger:
    """The ledger with the old and the new inventories of the reshaped providers; if both are of one class, the new one."""
    providers = dict(ledger.providers)
    for book, one in zip(books, wanted, strict=True):
        row = providers[book.id.int]
        both: dict[str, InventoryState] = {**book.inventories, **with_usages(book, one.inventories)}
        providers[book.id.int] = structs.replace(row, limits=limits_in(both), used=used_in(both))
    return structs.replace(ledger, providers=providers)


def _lost(draft: LedgerDraft, book: ProviderBook, wanted: ProviderInventories) -> InventoryInUse | None:
    """The refusal, if a removed inventory is in use after the allocations have moved; for the first such one."""
    usage = draft.existing_usage(book.id)
    return next(
        (
            InventoryInUse(provider=book.id, resource=resource, used=used)
            for resource in book.inventories
            if resource not in wanted.inventories and (used := usage.used[resource])
        ),
        None,
    )


def _reshape(
    forest_draft: ForestDraft, draft: LedgerDraft, book: ProviderBook, wanted: ProviderInventories
) -> None:
    usage = draft.existing_usage(book.id)
    stocks = with_usages(book, wanted.inventories)
    # Placement's API moves the generation once for the inventories it adds, and once for those that stay.
    generation = usage.generation + (2 if wanted.inventories else 1)
    reshaped = structs.replace(book, inventories=stocks, generation=generation)
    forest_draft.rewrite(reshaped)
    used = {name: structs.replace(stock, used=usage.used[name]) for name, stock in stocks.items()}
    forest_draft.recount(structs.replace(reshaped, inventories=used))


def _without(changes: ClaimChanges, written: Sequence[ProviderBook]) -> ClaimChanges:
    """The claim changes without the usage of these providers, which `TreeChanges` writes; only their counts of consumers
    stay, in `counted`.
    """
    by_trees = {book.id for book in written}
    return structs.replace(
        changes,
        touched=tuple([one for one in changes.touched if one.provider not in by_trees]),
        counted=tuple([(one.provider, one.consumers) for one in changes.touched if one.provider in by_trees]),
    )


def _refusal(ledger: Ledger, verdict: WriteVerdict) -> ReshapeDecision:
    # Rows that were made for its consumers are deleted again.
    return ReshapeDecision(verdict, TreeChanges(), LedgerDraft(ledger).changes())
