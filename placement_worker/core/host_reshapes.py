"""May a host's tree get a new shape, together with what consumers hold of it?

A reshape is three steps, each judged by the rules that hold for it alone:

1. The tree grows: it gets the new providers and inventories, and keeps the old ones.
2. The consumers' amounts move, as by a write by name. Of each class each consumer holds as much as before.
3. The report is judged as it came: the old inventories go, which is refused if anything still holds of them.

All three are judged here in memory. Only if all are granted, the caller writes them, one after another in one transaction; so
a refusal changes nothing. Between the steps nobody else sees the tree.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct, structs

from bus.messages.books import ConsumerAllocations, ConsumerMoved, Done, WriteVerdict
from bus.messages.hosts import ReshapeHost, ReshapeVerdict
from bus.messages.placement import ReportAccepted, ReportInventory, ReportVerdict, TreeKept
from engine.inventories import ProviderId, ReportedInventory, ReportedProvider, ResourceAmount, Vocabulary
from engine.refusals import DoesNotFit, NotAllowed, ShapeMoved
from placement_worker.core.allocation_writes import allocate
from placement_worker.core.drafts import LedgerDraft
from placement_worker.core.forest import limit_values
from placement_worker.core.ledger import (
    BatchDecision,
    ClaimChanges,
    ClaimKeys,
    Forest,
    ForestKeys,
    Ledger,
    ProviderBook,
    ProviderRow,
    Sent,
    TreeBook,
    TreeChanges,
    keys_of_shares,
    limits_in,
    used_in,
)
from placement_worker.core.reports import decide_reports, keys_of_reports

_NAME_MAX = 200


class MovesDecision(Struct, frozen=True):
    verdict: WriteVerdict
    changes: ClaimChanges


def consumer_keys_of(order: ReshapeHost) -> ClaimKeys:
    """The rows to lock first: the consumers that move, the root of the tree, and the providers that get something."""
    named = [amount.provider for one in order.moved for amount in one.amounts]
    return keys_of_shares(consumers=[one.consumer for one in order.moved], providers=[order.root, *named])


def tree_keys_of(order: ReshapeHost) -> ForestKeys:
    return keys_of_reports([_report_of(order)])


def judge_reshape(
    ledger: Ledger, forest: Forest, sent: Sent[ReshapeHost], vocabulary: Vocabulary, now: datetime
) -> ReshapeVerdict:
    """Judge all three steps in memory. `accepted` is the verdict on the last one."""
    order = sent.order
    tree = forest.trees.get(order.root)
    if tree is None or not tree.providers:
        return NotAllowed(field="root", reason=f"there is no tree of {order.root} to reshape: report it")
    growth = decide_growth(forest, sent, vocabulary)
    (grown,) = growth.verdicts
    if not isinstance(grown, ReportAccepted):
        return _as_reshape(grown)
    if tree.shape != order.shape:
        return ShapeMoved(roots=(order.root,))
    after = next((one for one in growth.changes.trees if one.root == order.root), tree)
    moves = decide_moves(_with_tree(ledger, after), order, now)
    if not isinstance(moves.verdict, Done):
        assert isinstance(moves.verdict, ConsumerMoved | DoesNotFit | NotAllowed), (
            f"a move got {moves.verdict!r}"
        )
        return moves.verdict
    moved = structs.replace(forest, trees={**forest.trees, order.root: _with_usage(after, moves.changes)})
    (verdict,) = decide_final_report(moved, sent, vocabulary).verdicts
    return _as_reshape(verdict)


def decide_growth(
    forest: Forest, sent: Sent[ReshapeHost], vocabulary: Vocabulary
) -> BatchDecision[ReportVerdict, TreeChanges]:
    """The first step: the tree with the old providers and inventories beside the new ones."""
    order = sent.order
    tree = forest.trees[order.root]
    names = {one.name: one.id for one in order.providers}
    reported = {one.id for one in order.providers}
    growing = [_grown(tree.providers.get(one.id), one) for one in order.providers]
    growing += [
        # Its name belongs to a new provider; both are there until the last step.
        ReportedProvider(id=book.id, name=f"{book.name[: _NAME_MAX - 37]}/{book.id}", parent=book.parent)
        for book in tree.providers.values()
        if book.id not in reported and names.get(book.name, book.id) != book.id
    ]
    # Without a sequence it does not count as a report.
    report = structs.replace(_report_of(order), providers=tuple(growing), whole=False, sequence=0)
    return decide_reports(forest, [Sent(report, sent.speaks_for)], vocabulary)


def decide_moves(ledger: Ledger, order: ReshapeHost, now: datetime) -> MovesDecision:
    """The second step: the consumers get their amounts from other providers of the tree."""
    draft = LedgerDraft(ledger)
    moving = []
    for position, one in enumerate(order.moved):
        row, held = ledger.consumers[one.consumer.int], ledger.held.get(one.consumer.int, ())
        if not held or row.generation != one.generation:
            current = row.generation if held else None
            return _refused(
                ledger, ConsumerMoved(consumer=one.consumer, seen=one.generation, current=current)
            )
        elsewhere = [each for each in held if not _is_in_tree(ledger, order, each.provider)]
        here = [each for each in held if _is_in_tree(ledger, order, each.provider)]
        if outside := next(
            (each.provider for each in one.amounts if not _is_in_tree(ledger, order, each.provider)), None
        ):
            reason = f"provider {outside} is not in the tree of {order.root}"
            return _refused(ledger, NotAllowed(field=f"moved[{position}].amounts", reason=reason))
        if (had := _by_class(here)) != (gets := _by_class(one.amounts)):
            reason = f"consumer {one.consumer} holds {_in_words(had)} of the tree, and would hold {_in_words(gets)}"
            return _refused(ledger, NotAllowed(field=f"moved[{position}].amounts", reason=reason))
        moving.append(
            ConsumerAllocations(
                consumer=one.consumer,
                amounts=(*elsewhere, *one.amounts),
                project=row.project,
                user=row.user,
                generation=one.generation,
            )
        )
    verdict = allocate(draft, moving, (), now)
    if not isinstance(verdict, Done):
        return _refused(ledger, verdict)
    return MovesDecision(verdict, draft.changes())


def decide_final_report(
    forest: Forest, sent: Sent[ReshapeHost], vocabulary: Vocabulary
) -> BatchDecision[ReportVerdict, TreeChanges]:
    """The last step: the report as it came."""
    return decide_reports(forest, [Sent(_report_of(sent.order), sent.speaks_for)], vocabulary)


def unused(ledger: Ledger) -> ClaimChanges:
    """What to write after a refusal: rows that were made for unknown consumers are deleted again."""
    return LedgerDraft(ledger).changes()


def _refused(ledger: Ledger, verdict: WriteVerdict) -> MovesDecision:
    return MovesDecision(verdict, unused(ledger))


def _as_reshape(verdict: ReportVerdict) -> ReshapeVerdict:
    assert not isinstance(verdict, TreeKept), "only reports with `foreign` leave a tree to others"
    return verdict


def _report_of(order: ReshapeHost) -> ReportInventory:
    return ReportInventory(
        cell=order.cell,
        root=order.root,
        providers=order.providers,
        sequence=order.sequence,
        whole=True,
    )


def _grown(book: ProviderBook | None, reported: ReportedProvider) -> ReportedProvider:
    """The provider with what it has beside what its reporter says now."""
    if book is None or reported.inventories is None:
        return reported
    before = {name: ReportedInventory(*limit_values(stock)) for name, stock in book.inventories.items()}
    return structs.replace(reported, inventories={**before, **reported.inventories})


def _with_tree(ledger: Ledger, tree: TreeBook) -> Ledger:
    """The ledger with the providers of this tree as they are in it."""
    rows = {
        book.id.int: ProviderRow(
            id=book.id,
            root=tree.root,
            cell=tree.cell,
            generation=book.generation,
            shape=tree.shape if book.id == tree.root else None,
            limits=limits_in(book.inventories),
            used=used_in(book.inventories),
        )
        for book in tree.providers.values()
    }
    return structs.replace(ledger, providers={**ledger.providers, **rows})


def _with_usage(tree: TreeBook, changes: ClaimChanges) -> TreeBook:
    """The tree with the usage after these changes."""
    used = {touched.provider: touched.used for touched in changes.touched}
    providers = {
        book.id: structs.replace(
            book,
            inventories={
                name: structs.replace(stock, used=used[book.id][name])
                for name, stock in book.inventories.items()
            },
        )
        if book.id in used
        else book
        for book in tree.providers.values()
    }
    return structs.replace(tree, providers=providers)


def _is_in_tree(ledger: Ledger, order: ReshapeHost, provider: ProviderId) -> bool:
    row = ledger.providers.get(provider.int)
    return row is not None and row.root == order.root


def _by_class(amounts: Iterable[ResourceAmount]) -> Counter[str]:
    sums = Counter[str]()
    for each in amounts:
        sums[each.resource] += each.amount
    return sums


def _in_words(sums: Counter[str]) -> str:
    return ", ".join(f"{resource} {amount}" for resource, amount in sorted(sums.items())) or "nothing"
