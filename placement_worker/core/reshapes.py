"""May provider trees get another shape, together with what consumers hold of them?

Neither can change first: an inventory in use cannot be removed, and an allocation needs an inventory. So a reshape is three steps,
each judged by the rules that hold for it alone:

1. The trees grow: they get the new inventories, and keep the old ones.
2. The consumers' amounts move, as by a write by name.
3. The old inventories go, which is refused if anything still holds of them.

All steps are taken in memory, and their result is written at once, or nothing. Whatever changes of the providers of these trees, also
their usage, is in `trees`; the usage of all other providers is in `claims`.

An administrator's `Reshape` writes the inventories of some providers, and any allocations. A compute's `ReshapeHost` is a report of the
whole tree of its host, which may have other providers than before; of each class each consumer holds as much as before.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Generic, TypeVar

from msgspec import Struct, structs

from bus.messages.books import (
    ConsumerAllocations,
    ConsumerMoved,
    Done,
    ProviderInventories,
    Reshape,
    UnknownProvider,
    WriteVerdict,
)
from bus.messages.hosts import ReshapeHost, ReshapeVerdict
from bus.messages.placement import InventoryInUse, ReportAccepted, ReportInventory, ReportVerdict, TreeKept
from engine.inventories import (
    ProviderId,
    ReportedInventory,
    ReportedProvider,
    ResourceAmount,
    Vocabulary,
    unknown_names,
)
from engine.refusals import DoesNotFit, NotAllowed, ShapeMoved
from placement_worker.core.allocation_writes import allocate, keys_of_allocations
from placement_worker.core.drafts import LedgerDraft
from placement_worker.core.forest import ForestDraft, limit_values, lost_inventory
from placement_worker.core.ledger import (
    ClaimChanges,
    ClaimKeys,
    Forest,
    ForestKeys,
    Ledger,
    ProviderRow,
    Sent,
    TreeBook,
    TreeChanges,
    keys_of_shares,
    limits_in,
    used_in,
)
from placement_worker.core.provider_writes import (
    impossible_inventory,
    moved_generation,
    with_usages,
)
from placement_worker.core.reports import judge_report, keys_of_reports, name_with_id

Verdict = TypeVar("Verdict")
# The consumers and the roots of their providers are locked first, then the trees.
ReshapeKeys = tuple[ClaimKeys, ForestKeys]


class ReshapeDecision(Struct, Generic[Verdict], frozen=True):
    verdict: Verdict
    trees: TreeChanges
    claims: ClaimChanges


def _decided(
    verdict: Verdict, ledger: Ledger, forest: ForestDraft, claims: ClaimChanges
) -> ReshapeDecision[Verdict]:
    if isinstance(verdict, Done | ReportAccepted):
        # Providers that are gone have no row to count in.
        counted = tuple([each for each in claims.counted if each[0] in forest.root_of])
        return ReshapeDecision(verdict, forest.changes(), structs.replace(claims, counted=counted))
    # Rows that were made for its consumers are deleted again.
    return ReshapeDecision(verdict, TreeChanges(), LedgerDraft(ledger).changes())


def _move(
    ledger: Ledger,
    forest: ForestDraft,
    allocations: Sequence[ConsumerAllocations],
    unknown: tuple[str, ...],
    now: datetime,
) -> tuple[WriteVerdict, ClaimChanges]:
    """The second step: set what these consumers hold of the trees as they have grown. The trees get the usage that follows."""
    rows = {
        book.id.int: structs.replace(
            ledger.providers.get(book.id.int, ProviderRow(book.id, tree.root, tree.cell)),
            generation=book.generation,
            limits=limits_in(book.inventories),
            used=used_in(book.inventories),
        )
        for tree in forest.trees.values()
        for book in tree.providers.values()
    }
    draft = LedgerDraft(structs.replace(ledger, providers={**ledger.providers, **rows}))
    verdict = allocate(draft, allocations, unknown, now)
    changes = draft.changes()
    of_trees = {one.provider: one for one in changes.touched if one.provider.int in rows}
    for book in [forest.book_of(provider) for provider in of_trees]:
        usage = of_trees[book.id]
        stocks = {
            name: structs.replace(stock, used=usage.used[name]) for name, stock in book.inventories.items()
        }
        forest.recount(structs.replace(book, inventories=stocks, generation=usage.generation))
    return verdict, structs.replace(
        changes,
        touched=tuple([one for one in changes.touched if one.provider not in of_trees]),
        # A new provider is no consumer's host.
        counted=tuple(
            [(one, each.consumers) for one, each in of_trees.items() if one.int in ledger.providers]
        ),
    )


# An administrator's reshape.


def keys_of_reshape(reshape: Reshape) -> ReshapeKeys:
    """All roots are locked by one statement, in order: so the claims' keys have the providers of the inventories, too."""
    providers = [one.provider for one in reshape.inventories]
    classes = frozenset(name for one in reshape.inventories for name in one.inventories)
    return (
        keys_of_allocations(reshape.allocations, providers=providers),
        ForestKeys(trees=frozenset(providers), classes=classes),
    )


def decide_reshape(
    ledger: Ledger, forest: Forest, reshape: Reshape, vocabulary: Vocabulary, now: datetime
) -> ReshapeDecision[WriteVerdict]:
    """Judge a reshape: all its inventories and allocations are written, or nothing."""
    draft = ForestDraft(forest)
    if refused := _flaw(draft, reshape.inventories):
        return _decided(refused, ledger, draft, ClaimChanges())
    for one in reshape.inventories:
        book = draft.book_of(one.provider)
        both = {**book.inventories, **with_usages(book, one.inventories)}
        draft.rewrite(structs.replace(book, inventories=both))
    resources = {amount.resource for one in reshape.allocations for amount in one.amounts}
    resources.update(resource for one in reshape.inventories for resource in one.inventories)
    unknown = unknown_names(resources, vocabulary.classes, ledger.classes | forest.classes)
    verdict, claims = _move(ledger, draft, reshape.allocations, unknown, now)
    # As in Placement, the client first learns that something moved since it read, then what its inventories lack.
    if isinstance(verdict, Done):
        verdict = _nonsense(reshape.inventories) or _shrink(draft, reshape.inventories) or verdict
    return _decided(verdict, ledger, draft, claims)


def _flaw(draft: ForestDraft, wanted: Sequence[ProviderInventories]) -> WriteVerdict | None:
    named: set[ProviderId] = set()
    for position, one in enumerate(wanted):
        if draft.tree_of(one.provider) is None:
            return UnknownProvider(provider=one.provider, field="inventories")
        if moved := moved_generation(draft.book_of(one.provider), one.generation):
            return moved
        if one.provider in named:
            return NotAllowed(
                field=f"inventories[{position}].provider", reason=f"provider {one.provider} is named twice"
            )
        named.add(one.provider)
    return None


def _nonsense(wanted: Sequence[ProviderInventories]) -> NotAllowed | None:
    return next((nonsense for one in wanted if (nonsense := impossible_inventory(one.inventories))), None)


def _shrink(draft: ForestDraft, wanted: Sequence[ProviderInventories]) -> InventoryInUse | None:
    for one in wanted:
        book = draft.book_of(one.provider)
        if lost := lost_inventory(book, one.inventories):
            return lost
        kept = {name: book.inventories[name] for name in one.inventories}
        # Placement's API moves the generation once for the inventories it adds, and once for those that stay.
        generation = book.generation + (2 if kept else 1)
        draft.rewrite(structs.replace(book, inventories=kept, generation=generation))
    return None


# A compute's reshape of its host.


def keys_of_host_reshape(order: ReshapeHost) -> ReshapeKeys:
    named = [amount.provider for one in order.moved for amount in one.amounts]
    return (
        keys_of_shares(consumers=[one.consumer for one in order.moved], providers=[order.root, *named]),
        keys_of_reports([_report_of(order)]),
    )


def decide_host_reshape(
    ledger: Ledger, forest: Forest, sent: Sent[ReshapeHost], vocabulary: Vocabulary, now: datetime
) -> ReshapeDecision[ReshapeVerdict]:
    """Judge a reshape of a host. `accepted` is the verdict on its report."""
    draft, none = ForestDraft(forest), ClaimChanges()
    grown = _grow(draft, sent, vocabulary)
    if not isinstance(grown, ReportAccepted):
        return _decided(grown, ledger, draft, none)
    moving = _moving(ledger, draft, sent.order)
    if isinstance(moving, ConsumerMoved | NotAllowed):
        return _decided(moving, ledger, draft, none)
    moved, claims = _move(ledger, draft, moving, (), now)
    if not isinstance(moved, Done):
        assert isinstance(moved, DoesNotFit | NotAllowed), f"a move got {moved!r}"
        return _decided(moved, ledger, draft, none)
    verdict = _as_reshape(judge_report(draft, Sent(_report_of(sent.order), sent.speaks_for), vocabulary))
    if isinstance(verdict, ReportAccepted):
        verdict = structs.replace(verdict, shape_moved=True)
    return _decided(verdict, ledger, draft, claims)


def _grow(draft: ForestDraft, sent: Sent[ReshapeHost], vocabulary: Vocabulary) -> ReshapeVerdict:
    """The first step: the tree gets what is new."""
    order = sent.order
    tree = draft.trees.get(order.root)
    if tree is None or not tree.providers:
        return NotAllowed(field="root", reason=f"there is no tree of {order.root} to reshape: report it")
    verdict = judge_report(draft, Sent(_growth(tree, _report_of(order)), sent.speaks_for), vocabulary)
    if isinstance(verdict, ReportAccepted) and tree.shape != order.shape:
        return ShapeMoved(roots=(order.root,))
    return _as_reshape(verdict)


def _report_of(order: ReshapeHost) -> ReportInventory:
    return ReportInventory(
        cell=order.cell,
        root=order.root,
        providers=order.providers,
        sequence=order.sequence,
        whole=True,
    )


def _growth(tree: TreeBook, report: ReportInventory) -> ReportInventory:
    """The report of the tree with the old providers and inventories beside the new ones."""
    names = {one.name: one.id for one in report.providers}
    reported = {one.id for one in report.providers}
    growing = [_grown(tree, one) for one in report.providers]
    growing += [
        # Its name belongs to a new provider; both are there until the last step.
        ReportedProvider(id=book.id, name=name_with_id(book.name, book.id), parent=book.parent)
        for book in tree.providers.values()
        if book.id not in reported and names.get(book.name, book.id) != book.id
    ]
    # Without a sequence it does not count as a report.
    return structs.replace(report, providers=tuple(growing), whole=False, sequence=0)


def _grown(tree: TreeBook, reported: ReportedProvider) -> ReportedProvider:
    """The provider with what it has beside what its reporter says now."""
    book = tree.providers.get(reported.id)
    if book is None or reported.inventories is None:
        return reported
    before = {name: ReportedInventory(*limit_values(stock)) for name, stock in book.inventories.items()}
    return structs.replace(reported, inventories={**before, **reported.inventories})


def _moving(
    ledger: Ledger, draft: ForestDraft, order: ReshapeHost
) -> list[ConsumerAllocations] | ConsumerMoved | NotAllowed:
    """The allocations of the consumers after they got their amounts from other providers of the tree; or why they may not get them."""
    own = draft.trees[order.root].providers
    moving = []
    for position, one in enumerate(order.moved):
        row, held = ledger.consumers[one.consumer.int], ledger.held.get(one.consumer.int, ())
        if not held or row.generation != one.generation:
            current = row.generation if held else None
            return ConsumerMoved(consumer=one.consumer, seen=one.generation, current=current)
        field = f"moved[{position}].amounts"
        if outside := next((each.provider for each in one.amounts if each.provider not in own), None):
            return NotAllowed(field=field, reason=f"provider {outside} is not in the tree of {order.root}")
        had = _by_class(each for each in held if each.provider in own)
        if had != (gets := _by_class(one.amounts)):
            reason = f"consumer {one.consumer} holds {_in_words(had)} of the tree, and would hold {_in_words(gets)}"
            return NotAllowed(field=field, reason=reason)
        elsewhere = [each for each in held if each.provider not in own]
        moving.append(
            ConsumerAllocations(
                consumer=one.consumer,
                amounts=(*elsewhere, *one.amounts),
                project=row.project,
                user=row.user,
                generation=one.generation,
            )
        )
    return moving


def _as_reshape(verdict: ReportVerdict) -> ReshapeVerdict:
    assert not isinstance(verdict, TreeKept), "only reports with `foreign` leave a tree to others"
    return verdict


def _by_class(amounts: Iterable[ResourceAmount]) -> Counter[str]:
    sums = Counter[str]()
    for each in amounts:
        sums[each.resource] += each.amount
    return sums


def _in_words(sums: Counter[str]) -> str:
    return ", ".join(f"{resource} {amount}" for resource, amount in sorted(sums.items())) or "nothing"
