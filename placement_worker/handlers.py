"""Handlers of orders and questions to placement: load, decide, save, answer. The rules are in core/."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial

from msgspec import structs

from bus.message import ProviderId
from bus.messages.cells import VALUES_BYTES_MAX
from bus.messages.placement import (
    AskMembers,
    AskRevisions,
    AskSnapshot,
    ClaimAnswered,
    ClaimResources,
    InventoryRefused,
    NotAllowed,
    ProviderState,
    ReleaseClaim,
    ReportAccepted,
    ReportAnswered,
    ReportInventory,
    ReportOutdated,
    ReportVerdict,
    ShapeMoved,
    SnapshotPage,
    SwapClaim,
    TreeKept,
)
from bus.workers.handling import Answer, Bury, Handlers, Received, Said, Tell, answering
from placement_worker.admin_handlers import question_handlers, write_handlers
from placement_worker.all_or_nothing_handlers import together_handlers
from placement_worker.books_handlers import books_handlers
from placement_worker.candidate_handlers import candidate_handlers
from placement_worker.classes_and_traits import KnownNames
from placement_worker.core.claim_verdicts import ClaimJudgement
from placement_worker.core.claims import decide_claims
from placement_worker.core.ledger import ClaimOrder, SentOrder, SentReport
from placement_worker.core.ownership import Owner, owners_of_tombstones, room_for_tombstones
from placement_worker.core.reports import decide_reports, keys_of_reports
from placement_worker.core.shares import MovedRoots
from placement_worker.core.vocabulary import Vocabulary
from placement_worker.crowded_owners import CrowdedOwners
from placement_worker.host_shape_handlers import host_shape_handlers
from placement_worker.paging import bytes_of, how_many_fit
from placement_worker.searching import Searcher
from placement_worker.settings import PlacementSettings
from placement_worker.store import PlacementStore, PlacementTransaction
from placement_worker.view import ProviderView

# Each page of changes repeats what is gone: a reader that missed more than this reads all providers instead.
GONE_PER_PAGE_MAX = 500
GONE_BYTES_MAX = 120
# The first page of changes has all members that joined or left server groups; beyond this, all members are read.
MEMBERS_PER_PAGE_MAX = 500
MEMBER_BYTES_MAX = 150
# An id in a list of a message: 36 characters, quotes and a comma.
ID_BYTES = 39


def handlers(
    store: PlacementStore,
    view: ProviderView,
    settings: PlacementSettings,
    *,
    vocabulary: Vocabulary,
    clock: Callable[[], datetime],
) -> Handlers:
    """The handlers of all messages that placement takes, by message type."""
    crowded = CrowdedOwners(settings.tombstones_max)
    horizon = settings.horizon

    async def on_claims(asks: Sequence[Received[ClaimOrder]], tx: PlacementTransaction) -> list[Said]:
        orders = [ask.message for ask in asks]
        ledger = await tx.lock_claims(orders)
        room: Mapping[Owner, int] | None = None
        releases = [order for order in orders if isinstance(order, ReleaseClaim)]
        if releases and (owners := owners_of_tombstones(ledger, releases)):
            counted = await tx.tombstones(owners, settings.tombstones_max)
            room = room_for_tombstones(counted, settings.tombstones_max)
            crowded.tell(room, clock())
        sent = [SentOrder(ask.message, ask.cell) for ask in asks]
        decision = decide_claims(ledger, sent, clock(), horizon, room)
        await tx.write_claims(decision.changes)
        trees = await _trees_of(decision.verdicts, tx)
        return [
            _claim_answered(ask, verdict, trees) for ask, verdict in zip(asks, decision.verdicts, strict=True)
        ]

    async def on_reports(asks: Sequence[Received[ReportInventory]], tx: PlacementTransaction) -> list[Said]:
        forest = await tx.lock_trees(keys_of_reports([ask.message for ask in asks]))
        decision = decide_reports(forest, [SentReport(ask.message, ask.cell) for ask in asks], vocabulary)
        await tx.write_trees(decision.changes)
        said: list[Said] = []
        for ask, verdict in zip(asks, decision.verdicts, strict=True):
            said.append(Answer(ask, ReportAnswered(root=ask.message.root, verdict=verdict)))
            said += _refusal(ask, verdict)
        return said

    return {
        ClaimResources: on_claims,
        SwapClaim: on_claims,
        ReleaseClaim: on_claims,
        **together_handlers(clock, horizon),
        ReportInventory: on_reports,
        AskSnapshot: answering(partial(_page, store)),
        AskRevisions: answering(lambda ask: store.revisions_page(ask.after, ask.limit)),
        AskMembers: answering(lambda ask: store.members_page(ask.after, ask.limit)),
        **write_handlers(vocabulary, clock),
        **question_handlers(store),
        **books_handlers(store, vocabulary, clock),
        **host_shape_handlers(store, vocabulary, clock),
        **candidate_handlers(view, KnownNames(vocabulary, store), Searcher(settings.search_limits)),
    }


async def _page(store: PlacementStore, ask: AskSnapshot) -> SnapshotPage:
    """Answer a question for a page of providers, cut so that it fits into one message.

    The page has only what changed since the asker's cursor, if the change log reaches back so far and the changes are
    few. Otherwise it is a page of all providers.
    """
    if ask.since:
        changes = await store.changes_page(ask.since, ask.after, ask.limit)
        if changes is not None and len(changes.gone) <= GONE_PER_PAGE_MAX:
            if ask.after:
                return fitting(structs.replace(changes, joined=(), left=()))
            if len(changes.joined) + len(changes.left) <= MEMBERS_PER_PAGE_MAX:
                return fitting(changes)
    return fitting(await store.snapshot_page(ask.after, ask.limit))


def fitting(page: SnapshotPage) -> SnapshotPage:
    """Cut a page of providers so that it fits into one message. The next page then starts at the cut."""
    members = MEMBER_BYTES_MAX * (len(page.joined) + len(page.left))
    fit = how_many_fit(page.providers, VALUES_BYTES_MAX - GONE_BYTES_MAX * len(page.gone) - members)
    if fit == len(page.providers):
        return page
    kept = page.providers[:fit]
    return structs.replace(page, providers=kept, next=kept[-1].internal)


async def _trees_of(
    verdicts: Sequence[ClaimJudgement], tx: PlacementTransaction
) -> Mapping[ProviderId, list[ProviderState]]:
    """Read the trees that have changed since the senders of these claims saw them, by their roots.

    They are read once for all claims of the batch.
    """
    roots = dict.fromkeys(
        root for verdict in verdicts if isinstance(verdict, MovedRoots) for root in verdict.roots
    )
    trees: dict[ProviderId, list[ProviderState]] = {root: [] for root in roots}
    if roots:
        for provider in await tx.read_trees(tuple(roots)):
            trees[provider.root].append(provider)
    return trees


def _claim_answered(
    ask: Received[ClaimOrder],
    judgement: ClaimJudgement,
    trees: Mapping[ProviderId, list[ProviderState]],
) -> Said:
    order = ask.message
    verdict = _moved(judgement, trees) if isinstance(judgement, MovedRoots) else judgement
    if isinstance(verdict, NotAllowed) and not ask.reply_to:
        # No one waits for an answer, and an invalid order must not vanish: it becomes a dead letter.
        return Bury(ask, f"{verdict.field}: {verdict.reason}")
    return Answer(ask, ClaimAnswered(consumer=order.consumer, attempt=order.attempt, verdict=verdict))


def _moved(verdict: MovedRoots, trees: Mapping[ProviderId, list[ProviderState]]) -> ShapeMoved:
    """The refusal for a claim whose trees have changed, with their new state, so that the sender need not ask for it.

    Only as many trees as fit into one message are included. The sender reads the others itself.
    """
    states: list[ProviderState] = []
    room = VALUES_BYTES_MAX - ID_BYTES * (len(verdict.roots) + len(verdict.gone))
    for root in verdict.roots:
        size = sum(map(bytes_of, trees[root]))
        if size <= room:
            states += trees[root]
            room -= size
    return ShapeMoved(roots=verdict.roots, trees=tuple(states), gone=verdict.gone)


def _refusal(ask: Received[ReportInventory], verdict: ReportVerdict) -> tuple[Tell, ...]:
    """The event `InventoryRefused` for a refused report, since most reporters do not wait for an answer.

    There is none for an outdated report, which may be a redelivered one, nor for `TreeKept`: only a reporter that waits
    for the answer gets that verdict.
    """
    if isinstance(verdict, ReportAccepted | ReportOutdated | TreeKept):
        return ()
    report = ask.message
    return (Tell(InventoryRefused(cell=report.cell, root=report.root, verdict=verdict), ask),)
