"""Handlers of orders and questions to placement: load, decide, save, answer. The rules are in core/."""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

from msgspec import structs

from bus.message import Message
from bus.messages.audit import (
    AskBooks,
    AskContradictions,
    BooksFound,
    ContradictionsFound,
    MendConsumer,
    RecountBooks,
)
from bus.messages.books import ConsumerState, Done, WriteAnswered
from bus.messages.cloud import VALUES_BYTES_MAX, page_that_fits
from bus.messages.hosts import (
    AskHostShape,
    HostHolder,
    HostReshaped,
    HostShapeFound,
    ReshapeHost,
    ReshapeVerdict,
)
from bus.messages.placement import (
    AskMembers,
    AskRevisions,
    AskSnapshot,
    ClaimAnswered,
    ClaimResources,
    InventoryRefused,
    LogPosition,
    ProvidersChanged,
    ReleaseClaim,
    ReportAccepted,
    ReportAnswered,
    ReportInventory,
    ReportOutdated,
    ReportVerdict,
    SnapshotPage,
    SwapClaim,
    TreeKept,
)
from bus.messages.together import AllClaimed, ClaimsAnswered, ClaimTogether, NoneClaimed, claims_of
from bus.workers.handlers import Answer, Bury, Handlers, ReadOnly, Received, Said, Tell, Weighed, answering
from bus.workers.metrics import ROWS_FAILED
from bus.workers.publisher import Outgoing, Publisher
from bus.workers.set_aside import SET_ASIDE
from engine.candidates.budget import SearchLimits
from engine.inventories import ConsumerId, ProviderId, ProviderState, Vocabulary
from engine.refusals import ClaimVerdict, NotAllowed, ShapeMoved
from kit.metrics import Readings
from kit.parts import Supervised, operational, wait_at_most
from placement_worker.admin_writes import question_handlers, reshape_by, write_handlers
from placement_worker.candidates import Searcher, candidate_handlers
from placement_worker.core.allocation_writes import decide_mends, keys_of_mends
from placement_worker.core.claims import (
    TogetherJudgement,
    decide_claims,
    decide_together,
    keys_of_orders,
)
from placement_worker.core.ledger import ClaimOrder, Sent
from placement_worker.core.owners import cells_leaving_tombstones, room_for_tombstones
from placement_worker.core.reports import decide_reports, keys_of_reports
from placement_worker.core.reshapes import decide_host_reshape, keys_of_host_reshape
from placement_worker.settings import FEED_PACE, FeedPace, PlacementSettings
from placement_worker.store import Unpublished
from placement_worker.store_sql import PlacementStore, PlacementTransaction
from placement_worker.store_sql.log import ChangeFeed
from placement_worker.view import KnownNames, ProviderView, bytes_of, how_many_fit

log = logging.getLogger(__name__)

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
    horizon = settings.horizon
    limits = SearchLimits(settings.search_steps_max, answer_bytes_max=VALUES_BYTES_MAX)

    async def on_claims(asks: Sequence[Received[ClaimOrder]], tx: PlacementTransaction) -> list[Said]:
        orders = [ask.message for ask in asks]
        ledger = await tx.lock_claims(keys_of_orders(orders))
        room: Mapping[str, int] | None = None
        releases = [order for order in orders if isinstance(order, ReleaseClaim)]
        if releases and (cells := cells_leaving_tombstones(ledger, releases)):
            counted = await tx.tombstones(cells, settings.tombstones_max)
            room = room_for_tombstones(counted, settings.tombstones_max)
        sent = [Sent(ask.message, ask.cell) for ask in asks]
        decision = decide_claims(ledger, sent, clock(), horizon, room)
        await tx.write_claims(decision.changes)
        trees = await _trees_of(decision.verdicts, tx)
        return [
            _claim_answered(ask, verdict, trees) for ask, verdict in zip(asks, decision.verdicts, strict=True)
        ]

    async def on_reports(asks: Sequence[Received[ReportInventory]], tx: PlacementTransaction) -> list[Said]:
        forest = await tx.lock_trees(keys_of_reports([ask.message for ask in asks]))
        decision = decide_reports(forest, [Sent(ask.message, ask.cell) for ask in asks], vocabulary)
        await tx.write_trees(decision.changes)
        said: list[Said] = []
        for ask, verdict in zip(asks, decision.verdicts, strict=True):
            said.append(Answer(ask, ReportAnswered(root=ask.message.root, verdict=verdict)))
            said += _report_refused(ask, verdict)
        return said

    return {
        ClaimResources: on_claims,
        SwapClaim: on_claims,
        ReleaseClaim: on_claims,
        **together_handlers(clock, horizon),
        ReportInventory: on_reports,
        AskSnapshot: answering(partial(_snapshot_page, store)),
        AskRevisions: answering(lambda ask: store.revisions_page(ask.after, ask.limit)),
        AskMembers: answering(lambda ask: store.members_page(ask.after, ask.limit)),
        **write_handlers(vocabulary, clock),
        **question_handlers(store),
        **books_handlers(store, vocabulary, clock),
        **host_shape_handlers(store, vocabulary, clock),
        **candidate_handlers(view, KnownNames(vocabulary, store), Searcher(limits)),
    }


async def _trees_of(
    verdicts: Sequence[ClaimVerdict], tx: PlacementTransaction
) -> Mapping[ProviderId, list[ProviderState]]:
    """Read the trees that have changed since the senders of these claims saw them, by their roots.

    They are read once for all claims of the batch.
    """
    roots = dict.fromkeys(
        root for verdict in verdicts if isinstance(verdict, ShapeMoved) for root in verdict.roots
    )
    trees: dict[ProviderId, list[ProviderState]] = {root: [] for root in roots}
    if roots:
        for provider in await tx.read_trees(tuple(roots)):
            trees[provider.root].append(provider)
    return trees


def _claim_answered(
    ask: Received[ClaimOrder],
    judgement: ClaimVerdict,
    trees: Mapping[ProviderId, list[ProviderState]],
) -> Said:
    order = ask.message
    verdict = _with_trees(judgement, trees) if isinstance(judgement, ShapeMoved) else judgement
    if isinstance(verdict, NotAllowed) and not ask.reply_to:
        # No one waits for an answer, and an invalid order must not vanish: it becomes a dead letter.
        return Bury(ask, f"{verdict.field}: {verdict.reason}")
    return Answer(ask, ClaimAnswered(consumer=order.consumer, attempt=order.attempt, verdict=verdict))


def _with_trees(verdict: ShapeMoved, trees: Mapping[ProviderId, list[ProviderState]]) -> ShapeMoved:
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
    return structs.replace(verdict, trees=tuple(states))


def _report_refused(ask: Received[ReportInventory], verdict: ReportVerdict) -> tuple[Tell, ...]:
    """The event `InventoryRefused` for a refused report, since most reporters do not wait for an answer.

    There is none for an outdated report, which may be a redelivered one, nor for `TreeKept`: only a reporter that waits
    for the answer gets that verdict.
    """
    if isinstance(verdict, ReportAccepted | ReportOutdated | TreeKept):
        return ()
    report = ask.message
    return (Tell(InventoryRefused(cell=report.cell, root=report.root, verdict=verdict), ask),)


# Pages of providers, for readers that keep a copy of all.

# Each page of changes repeats what is gone: a reader that missed more than this reads all providers instead.
GONE_PER_PAGE_MAX = 500
GONE_BYTES_MAX = 120
# The first page of changes has all members that joined or left server groups; beyond this, all members are read.
MEMBERS_PER_PAGE_MAX = 500
MEMBER_BYTES_MAX = 150


async def _snapshot_page(store: PlacementStore, ask: AskSnapshot) -> SnapshotPage:
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


# Answer claims in which one request asks for many consumers at once.

# How many consumers one transaction claims for at most: all its locks are held until the last of them is judged.
CONSUMERS_AT_ONCE_MAX = 2_000


def together_handlers(clock: Callable[[], datetime], horizon: timedelta) -> Handlers:
    async def on_claims(asks: Sequence[Received[ClaimTogether]], tx: PlacementTransaction) -> list[Said]:
        answers: dict[int, AllClaimed | NoneClaimed | NotAllowed] = {}
        readable: dict[int, list[Sent[ClaimResources]]] = {}
        for number, ask in enumerate(asks):
            claims = claims_of(ask.message)
            if isinstance(claims, NotAllowed):
                answers[number] = claims
            else:
                readable[number] = [Sent(claim, ask.cell) for claim in claims]
        if readable:
            ledger = await tx.lock_claims(
                keys_of_orders([sent.order for claims in readable.values() for sent in claims])
            )
            decision = decide_together(ledger, [*readable.values()], clock(), horizon)
            await tx.write_claims(decision.changes)
            answers |= zip(readable, map(_told, decision.verdicts), strict=True)
        return [
            Answer(ask, ClaimsAnswered(claim=ask.message.claim, verdict=answers[number]))
            for number, ask in enumerate(asks)
        ]

    return {ClaimTogether: Weighed(on_claims, lambda asked: len(asked.places), CONSUMERS_AT_ONCE_MAX)}


def _told(judgement: TogetherJudgement) -> AllClaimed | NoneClaimed:
    """The verdict as it is sent. It names as many of the refused consumers as one message has room for, and counts all of
    them.
    """
    if isinstance(judgement, AllClaimed):
        return judgement
    return NoneClaimed(refused=page_that_fits(judgement), count=len(judgement))


# Handlers of an audit's questions to placement, and of the writes that correct what the audit has found.

# How many contradictions an answer has; their number is always told.
CONTRADICTIONS_MAX = 500


def books_handlers(store: PlacementStore, vocabulary: Vocabulary, clock: Callable[[], datetime]) -> Handlers:
    async def on_contradictions(asks: Sequence[Received[AskContradictions]]) -> list[Said]:
        found = await store.audit()
        answer = ContradictionsFound(contradictions=found[:CONTRADICTIONS_MAX], count=len(found))
        return [Answer(ask, answer) for ask in asks]

    async def on_mends(asks: Sequence[Received[MendConsumer]], tx: PlacementTransaction) -> list[Said]:
        mends = [ask.message for ask in asks]
        ledger = await tx.lock_claims(keys_of_mends(mends))
        decision = decide_mends(ledger, mends, vocabulary, clock())
        await tx.write_claims(decision.changes)
        answered = zip(asks, decision.verdicts, strict=True)
        return [Answer(ask, WriteAnswered(verdict=verdict)) for ask, verdict in answered]

    async def on_recounts(asks: Sequence[Received[RecountBooks]], tx: PlacementTransaction) -> list[Said]:
        await tx.recount()
        return [Answer(ask, WriteAnswered(verdict=Done())) for ask in asks]

    return {
        AskBooks: answering(lambda ask: _books_page(store, ask, clock())),
        AskContradictions: ReadOnly(on_contradictions),
        MendConsumer: on_mends,
        RecountBooks: on_recounts,
    }


async def _books_page(store: PlacementStore, ask: AskBooks, now: datetime) -> BooksFound:
    """Answer an audit's question for consumers: as many as fit into one message.

    The next page starts after the last consumer of this one.
    """
    if ask.consumers:
        new_since = now - timedelta(seconds=ask.new_s) if ask.new_s else None
        wanted = [each for each in ask.consumers if ask.after is None or each > ask.after]
        found = await store.book_entries(wanted, new_since)
    else:
        found = await store.books_page(ask.after, ask.limit + 1)
    page = page_that_fits(found[: ask.limit])
    return BooksFound(consumers=page, next=page[-1].id if len(page) < len(found) else None)


# Handlers of computes that bring a host into a new shape: what its tree is now, and the reshape itself.
#
# The rules are in placement_worker/core/reshapes.py.

HOLDERS_PER_PAGE = 500


def host_shape_handlers(
    store: PlacementStore, vocabulary: Vocabulary, clock: Callable[[], datetime]
) -> Handlers:
    async def on_reshapes(asks: Sequence[Received[ReshapeHost]], tx: PlacementTransaction) -> list[Said]:
        said: list[Said] = []
        for ask in asks:
            verdict = await reshape(tx, Sent(ask.message, ask.cell), vocabulary, clock())
            said.append(Answer(ask, HostReshaped(root=ask.message.root, verdict=verdict)))
        return said

    async def on_questions(asks: Sequence[Received[AskHostShape]]) -> list[Said]:
        return [Answer(ask, await _host_shape(store, ask)) for ask in asks]

    return {
        # One in each transaction: a second one would lock its consumers after the trees of the first.
        ReshapeHost: Weighed(on_reshapes, lambda _: 1, 1),
        AskHostShape: ReadOnly(on_questions),
    }


async def answer_buried(asks: Sequence[Received[Message]], _: object) -> list[Said]:
    """Refuse what becomes a dead letter because workers failed at it: whoever asked would ask for ever."""
    refusal = NotAllowed(field="message", reason=SET_ASIDE)
    said: list[Said] = []
    for ask in asks:
        match message := ask.message:
            case ClaimResources() | SwapClaim() | ReleaseClaim():
                answer: Message = ClaimAnswered(
                    consumer=message.consumer, attempt=message.attempt, verdict=refusal
                )
            case ClaimTogether():
                answer = ClaimsAnswered(claim=message.claim, verdict=refusal)
            case ReportInventory():
                answer = ReportAnswered(root=message.root, verdict=refusal)
            case _:
                continue
        said.append(Answer(ask, answer))
    return said


async def reshape(
    tx: PlacementTransaction, sent: Sent[ReshapeHost], vocabulary: Vocabulary, now: datetime
) -> ReshapeVerdict:
    """Judge a reshape of a host, and write it if it is granted."""
    return await reshape_by(
        tx,
        keys_of_host_reshape(sent.order),
        lambda ledger, forest: decide_host_reshape(ledger, forest, sent, vocabulary, now),
    )


async def _host_shape(store: PlacementStore, ask: Received[AskHostShape]) -> HostShapeFound:
    """What placement has of a host's tree. Providers and holders are read one after another: if something changes meanwhile,
    the reshape that is based on it is refused.
    """
    question = ask.message
    if ask.cell not in (None, question.cell):
        return HostShapeFound(root=question.root)
    async with store.transaction() as tx:
        providers = await tx.read_trees((question.root,))
    if not providers or providers[0].cell != question.cell:
        return HostShapeFound(root=question.root)
    found: dict[ConsumerId, ConsumerState] = {}
    last: ConsumerId | None = None
    for provider in providers:
        some = await store.holders_of(provider.id, question.after, HOLDERS_PER_PAGE)
        if len(some) == HOLDERS_PER_PAGE:
            # There may be more: the page ends with the last one that is certain.
            last = some[-1].id if last is None else min(last, some[-1].id)
        found |= {each.id: each for each in some}
    ids = [each for each in sorted(found) if last is None or each <= last]
    inside = {provider.id for provider in providers}
    holders = [
        HostHolder(
            consumer=each,
            generation=found[each].generation,
            amounts=tuple([amount for amount in found[each].held if amount.provider in inside]),
        )
        for each in ids
    ]
    page = page_that_fits(holders) if holders else ()
    is_cut = last is not None or len(page) < len(holders)
    return HostShapeFound(
        root=question.root,
        providers=providers if question.after is None else (),
        holders=page,
        next=page[-1].consumer if is_cut and page else None,
    )


# Publishes the change log as messages `ProvidersChanged`. Handlers only write the log, and publish nothing of it.
#
# One process is the leader and publishes. The messages of a leader are numbered by positions, and each new leader starts a
# new term, so a reader notices when it has missed a message. The log is marked as published only after the broker has
# confirmed the messages. A crash between the two repeats them. Readers drop what they know already, by its revision.


HOLDERS_PER_MESSAGE = 400
# Members of server groups that joined or left have messages of their own: most claims are in no group.
MEMBERS_PER_MESSAGE = 400
# The pause after publishing, as a multiple of the time that publishing took; at most `FeedPace.rest_s_max`.
RESTS_PER_MESSAGE = 2.0
# Room that this many of each kind of holder leave in a message, at less than 100 bytes each: half of it for whole providers,
# half for usage.
CHANGES_ROOM = (VALUES_BYTES_MAX - 3 * HOLDERS_PER_MESSAGE * 100) // 2


def rest_s(unpublished: Unpublished, took_s: float, max_s: float) -> float:
    """How long to wait after these changes were published, which took `took_s`, before the log is read again.

    The pause lets further changes gather, since several often concern the same providers. It is a multiple of the time
    that publishing took, at most `max_s`. After the change of a single provider there is no pause: it would only delay
    the next change.
    """
    is_lone = len(unpublished.providers) + len(unpublished.usage) <= 1
    return 0.0 if is_lone else min(max_s, RESTS_PER_MESSAGE * took_s)


class ChangePublisher(Supervised):
    """A part of a placement worker that publishes the change log, whenever no other process is the leader that does so.

    It needs one publisher for each broker on which readers listen for changes.
    """

    def __init__(
        self,
        store: PlacementStore,
        publishers: tuple[Publisher, ...],
        chance: random.Random | None = None,
        *,
        pace: FeedPace = FEED_PACE,
    ) -> None:
        super().__init__("publish the feed of changes", self._take_part, is_cut_short=False, chance=chance)
        self._store = store
        self._publishers = publishers
        self._pace = pace
        self._written = asyncio.Event()
        self._failed = 0

    @property
    def readings(self) -> Readings:
        return (ROWS_FAILED.numbers({(self.status.name,): self._failed}),)

    def written(self) -> None:
        """Wake the publisher after a commit, so that it reads the change log at once and not at its next poll."""
        self._written.set()

    async def _take_part(self) -> None:
        while not self.stopping.is_set():
            async with self._store.lead_feed() as feed:
                self.status.well()
                if feed is not None:
                    await self._lead(feed)
            await wait_at_most(self.stopping, self._pace.lead_again_s)

    async def stop(self) -> None:
        await super().stop()
        self._written.set()

    async def _lead(self, feed: ChangeFeed) -> None:
        """As the leader, publish the change log until this part is stopped. All changes written before the stop are still
        published.
        """
        log.info("leading the feed", extra={"term": feed.published.term})
        loop = asyncio.get_running_loop()
        # After a bug, the entries are published one by one: the one at which it is met is passed over.
        entries_max = self._pace.entries_max
        while True:
            # Clear first, then read: a write during the reading is seen by the next one.
            self._written.clear()
            began_s = loop.time()
            unpublished = await feed.read(entries_max)
            try:
                has_said = await self._publish(feed, unpublished)
            except Exception as bug:
                if operational(bug) is not None:
                    raise
                if entries_max == 1:
                    # Readers find what they miss of it: they compare all revisions now and then.
                    self._failed += 1
                    log.critical("an entry of the change log is passed over: %r", unpublished, exc_info=bug)
                    await feed.mark(feed.published.position, unpublished.cursor)
                log.debug("a page of the change log has met a bug: its entries are published one by one")
                entries_max = 1
                continue
            entries_max = self._pace.entries_max
            if unpublished.is_cut:
                continue
            if self.stopping.is_set():
                return
            if not has_said:
                await wait_at_most(self._written, self._pace.poll_s)
            elif pause_s := rest_s(unpublished, loop.time() - began_s, self._pace.rest_s_max):
                await wait_at_most(self.stopping, pause_s)

    async def _publish(self, feed: ChangeFeed, unpublished: Unpublished) -> bool:
        messages = list(messages_of(unpublished, feed.published))
        if messages:
            outgoing = [Outgoing(message) for message in messages]
            await asyncio.gather(*(publisher.send_all(outgoing) for publisher in self._publishers))
            await feed.mark(messages[-1].at.position, unpublished.cursor)
        elif unpublished.is_cut:
            # All providers in these entries are gone by now: mark them, and read the next entries.
            await feed.mark(feed.published.position, unpublished.cursor)
        return bool(messages)


def messages_of(unpublished: Unpublished, after: LogPosition) -> Iterator[ProvidersChanged]:
    """Split changes into messages `ProvidersChanged`. The first one gets the position that follows `after`.

    Members of server groups come first, and whole providers follow. Then comes the usage of other providers, which
    refers to states that were published before. Claims come last. Schedulers need this order: when they read that a
    claim was taken or ended, they drop their own copy of it. By then they must know the usage and members that it stood
    for.
    """
    position = after.position
    providers, gone, usage = unpublished.providers, unpublished.gone, unpublished.usage
    claimed, ended = unpublished.claimed, unpublished.ended
    for of_members in _messages_of_members(unpublished, after):
        position = of_members.at.position
        yield of_members
    while providers or gone or usage or claimed or ended:
        position += 1
        is_last = not providers or how_many_fit(providers, CHANGES_ROOM) == len(providers)
        # One provider always fits alone: the size of a report is limited.
        fit = len(providers) if is_last else max(how_many_fit(providers), 1)
        told, providers = providers[:fit], providers[fit:]
        # After a lone claim there is one usage, and no need to measure it.
        fit = 1 if len(usage) == 1 else max(how_many_fit(usage, CHANGES_ROOM), 1)
        used, usage = (usage[:fit], usage[fit:]) if is_last else ((), usage)
        few = HOLDERS_PER_MESSAGE if is_last and not usage else 0
        left = (providers, gone[few:], usage, claimed[few:], ended[few:])
        yield ProvidersChanged(
            at=LogPosition(term=after.term, position=position),
            providers=told,
            gone=gone[:few],
            usage=used,
            claimed=claimed[:few],
            ended=ended[:few],
            # Only a reader that has all messages has reached the cursor.
            cursor="" if any(left) else unpublished.cursor,
        )
        providers, gone, usage, claimed, ended = left


def _messages_of_members(unpublished: Unpublished, after: LogPosition) -> Iterator[ProvidersChanged]:
    """The messages with members of server groups: first those that joined, then those that left.

    The same consumer may have joined and left. Only later messages have the claims of these members, and the cursor up
    to which a reader of all messages knows the log.
    """
    position, joined, left = after.position, unpublished.joined, unpublished.left
    while joined or left:
        position += 1
        few = MEMBERS_PER_MESSAGE if len(joined) <= MEMBERS_PER_MESSAGE else 0
        yield ProvidersChanged(
            at=LogPosition(term=after.term, position=position),
            joined=joined[:MEMBERS_PER_MESSAGE],
            left=left[:few],
        )
        joined, left = joined[MEMBERS_PER_MESSAGE:], left[few:]
