"""May these claims be granted, right now?

The orders of a batch are judged one after another, each on the ledger as the earlier ones left it. So duplicates, a
release followed by a claim, and two claims on one provider end as if they had come one by one.

A consumer's row has the highest attempt seen, and whether that attempt has ended. The row outlives the allocations. By
this row alone placement recognises a message that comes twice, late or in the wrong order:

    attempt of the order    the row is alive          the row has ended
    lower                   Superseded                Superseded
    the same                AlreadyClaimed            Superseded
    higher                  AlreadyClaimed: only a    judged as a new claim
                            swap takes from a living
                            consumer

A release ends each row of its own attempt or a lower one. Without a row it creates one, a tombstone, so that a claim of the
same owner which it overtook finds it. Before all that it is judged whose the consumer is (owners.py). Rows of ended
consumers are deleted after a horizon; a claim or release older than the horizon that finds no row is refused.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import structs

from bus.messages.placement import NO_OWNER, ClaimResources, ReleaseClaim, SwapClaim
from bus.messages.together import AllClaimed, RefusedPlace
from engine.inventories import ConsumerId, GroupId, ProviderId, ServerGroup, Share
from engine.refusals import (
    AlreadyClaimed,
    Claimed,
    ClaimVerdict,
    NotAllowed,
    Released,
    TooOld,
)
from placement_worker.core.drafts import (
    ConsumerDraft,
    LedgerDraft,
    ended_row,
    judge_place,
    merged_amounts,
)
from placement_worker.core.ledger import (
    BatchDecision,
    ClaimChanges,
    ClaimKeys,
    ClaimOrder,
    Consumer,
    Ledger,
    Sent,
)
from placement_worker.core.limits import counted, sums_of
from placement_worker.core.owners import ATTEMPT_AHEAD_MAX, binds, crowded, judge_owner, wrong_cell
from placement_worker.core.swaps import CLAIMED, already_claimed, superseded, swap


def decide_claims(
    ledger: Ledger,
    asked: Sequence[Sent[ClaimOrder]],
    now: datetime,
    horizon: timedelta,
    room: Mapping[str, int] | None = None,
) -> BatchDecision[ClaimVerdict, ClaimChanges]:
    """Judge each claim, swap and release on the ledger as the earlier orders of the batch left it. `room` is how many
    tombstones each cell may still leave; the API level, and a cell that is not in it, have no bound.
    """
    draft = LedgerDraft(ledger, room)
    verdicts = tuple([judge_order(draft, one, now, horizon) for one in asked])
    return BatchDecision(verdicts, draft.changes())


def judge_order(
    draft: LedgerDraft, asked: Sent[ClaimOrder], now: datetime, horizon: timedelta
) -> ClaimVerdict:
    """Judge one claim, swap or release on the draft of the ledger. If it is granted, the draft changes."""
    order = asked.order
    consumer = draft.consumer(order.consumer)
    is_known = _judge_sender(consumer, asked)
    if not isinstance(is_known, bool):
        return is_known
    match order:
        case ClaimResources():
            by_cell = asked.speaks_for is not None
            return _claim(draft, consumer, order, now, horizon, is_known=is_known, by_cell=by_cell)
        case SwapClaim():
            return swap(draft, consumer, order, now, by_cell=asked.speaks_for is not None)
        case ReleaseClaim() if order.leaves_group:
            return _leave_group(draft, consumer, order)
        case ReleaseClaim():
            return _release(draft, consumer, order, now, horizon, is_known=is_known)


def _judge_sender(consumer: ConsumerDraft, asked: Sent[ClaimOrder]) -> ClaimVerdict | bool:
    """Why the sender may not give this order about the consumer; or whether the consumer's row counts for it."""
    order = asked.order
    if asked.speaks_for is not None and asked.speaks_for != order.cell:
        return wrong_cell(f"the sender may act for cell {asked.speaks_for!r}, not for {order.cell!r}")
    is_known = not consumer.is_new
    if is_known:
        if refused := judge_owner(consumer.row, asked):
            return refused
        is_known = binds(consumer.row, asked)
    if order.attempt > ATTEMPT_AHEAD_MAX and (far := _too_far_ahead(consumer, order, is_known=is_known)):
        return far
    return is_known


def _claim(
    draft: LedgerDraft,
    consumer: ConsumerDraft,
    order: ClaimResources,
    now: datetime,
    horizon: timedelta,
    *,
    is_known: bool,
    by_cell: bool,
) -> ClaimVerdict:
    if not is_known:
        if now - order.issued_at > horizon:
            return _too_old(horizon)
    elif order.attempt < consumer.row.attempt:
        return superseded(consumer)
    elif not consumer.has_ended:
        return already_claimed(draft, consumer)
    elif order.attempt == consumer.row.attempt:
        return superseded(consumer)

    project = order.project or NO_OWNER
    # The quota before the place: another host would not help.
    over = draft.quotas and draft.quotas.judge(project, order.consumer_type, sums_of(order.share.amounts))
    wanted = over or judge_place(draft, order, {}, joins=project, by_cell=by_cell)
    if not isinstance(wanted, dict):
        return wanted
    draft.take(wanted)
    draft.gain(wanted)
    draft.claimed(order.consumer, order.attempt)
    draft.write(
        consumer, claimed_consumer(order, consumer.row.generation), merged_amounts(order.share, wanted)
    )
    return CLAIMED


def claimed_consumer(order: ClaimResources, generation: int) -> Consumer:
    """The consumer's row after this claim is granted; `generation` is that of the row before the claim."""
    return Consumer(
        id=order.consumer,
        type=order.consumer_type,
        project=order.project or NO_OWNER,
        user=order.user or NO_OWNER,
        cell=order.cell,
        # Not below the attempt: only a reshape or a program's write raises it above that without a claim (moor audit).
        generation=max(generation + 1, order.attempt),
        attempt=order.attempt,
        host=order.share.host,
        group=order.group.id if order.group else None,
    )


def _leave_group(draft: LedgerDraft, consumer: ConsumerDraft, order: ReleaseClaim) -> ClaimVerdict:
    """Take a consumer out of its server group. It keeps what it holds, and its attempt goes on."""
    row = consumer.row
    if order.attempt < row.attempt:
        return superseded(consumer)
    if consumer.held and row.group is not None:
        draft.write(consumer, structs.replace(row, group=None), consumer.held)
    return Released(freed=False)


def _release(
    draft: LedgerDraft,
    consumer: ConsumerDraft,
    order: ReleaseClaim,
    now: datetime,
    horizon: timedelta,
    *,
    is_known: bool,
) -> ClaimVerdict:
    row = consumer.row
    if not is_known:
        if now - order.issued_at > horizon:
            return _too_old(horizon)
        if not draft.takes_room(order.cell):
            return crowded(order.cell)
        # A tombstone: it names its sender, and no claim has made it.
        row = Consumer(id=row.id, project=order.project or NO_OWNER, cell=order.cell)
    elif order.attempt < row.attempt:
        return superseded(consumer)
    elif consumer.has_ended and order.attempt == row.attempt:
        return Released(freed=False)
    if consumer.held:
        draft.free(draft.amounts_of(consumer.held))
        draft.ended(row.id, row.attempt)
    freed = bool(consumer.held)
    draft.write(consumer, ended_row(row, order.attempt, now), ())
    return Released(freed=freed)


def _too_far_ahead(consumer: ConsumerDraft, order: ClaimOrder, *, is_known: bool) -> NotAllowed | None:
    last = consumer.row.attempt if is_known else 0
    if order.attempt <= last + ATTEMPT_AHEAD_MAX:
        return None
    return NotAllowed(
        field="attempt",
        reason=f"{order.attempt} is more than {ATTEMPT_AHEAD_MAX} after the last attempt of consumer {order.consumer}",
    )


def _too_old(horizon: timedelta) -> TooOld:
    return TooOld(horizon_s=int(horizon.total_seconds()))


def keys_of_orders(orders: Sequence[ClaimOrder]) -> ClaimKeys:
    consumers: dict[int, ConsumerId] = {}
    providers: dict[int, ProviderId] = {}
    groups: dict[GroupId, ServerGroup] = {}
    claims: dict[int, ClaimResources] = {}
    for order in orders:
        number = order.consumer.int
        if isinstance(order, ClaimResources):
            if number not in consumers:
                claims[number] = order
            consumers[number] = order.consumer
        else:
            consumers[number] = order.consumer
            if isinstance(order, ReleaseClaim):
                continue
            if order.heir is not None:
                consumers[order.heir.id.int] = order.heir.id
            if order.returns is not None:
                consumers[order.returns.int] = order.returns
        if order.group is not None:
            groups[order.group.id] = _defined_by(groups.get(order.group.id), order.group)
        share = order.share
        providers[share.host.int] = share.host
        for amount in share.amounts:
            providers[amount.provider.int] = amount.provider
        for seen in share.shapes:
            providers[seen.root.int] = seen.root
    return ClaimKeys(
        consumers=[consumers[number] for number in sorted(consumers)],
        providers=list(providers.values()),
        groups=[groups[group] for group in sorted(groups)],
        claims=claims,
        allocations={},
        owned=orders,
    )


def _defined_by(known: ServerGroup | None, named: ServerGroup) -> ServerGroup:
    """A group as the first order of a batch defines it; but an order of release 0.1.0 has no rules."""
    return named if known is None or (named.rules and not known.rules) else known


# May all of these claims be granted, right now? If not, none of them is.
#
# A claim for many consumers is one message (`ClaimTogether`). It has templates, each with what many shares have in common, and for
# each consumer a `ClaimPlace`, which adds the providers to a template (bus/messages/together.py). Its single claims are judged as all
# others are, one after another: each takes from what the earlier ones left free. If one is refused, all are.


# All consumers have their shares; or these may not have theirs, with the reason of each, and nothing is claimed.
TogetherJudgement = AllClaimed | tuple[RefusedPlace, ...]


def decide_together(
    ledger: Ledger, claims: Sequence[Sequence[Sent[ClaimResources]]], now: datetime, horizon: timedelta
) -> BatchDecision[TogetherJudgement, ClaimChanges]:
    """Judge each claim for many consumers on the ledger as the earlier such claims of the batch left it."""
    draft, granted = LedgerDraft(ledger), list[Sent[ClaimResources]]()
    verdicts: list[TogetherJudgement] = []
    for claim in claims:
        verdicts.append(verdict := _judge(draft, claim, now, horizon))
        if isinstance(verdict, AllClaimed):
            granted += claim if verdict.is_new else ()
        elif len(verdict) < len(claim):
            # Its other consumers are in the draft, and leave it again. That is rare, so nothing is noted to undo it.
            draft = _draft_with(ledger, granted, now, horizon)
    return BatchDecision(tuple(verdicts), draft.changes())


def _draft_with(
    ledger: Ledger, granted: Sequence[Sent[ClaimResources]], now: datetime, horizon: timedelta
) -> LedgerDraft:
    draft = LedgerDraft(ledger)
    for each in granted:
        judge_order(draft, each, now, horizon)
    return draft


def _judge(
    draft: LedgerDraft, claim: Sequence[Sent[ClaimResources]], now: datetime, horizon: timedelta
) -> TogetherJudgement:
    if over := _over_quota(draft, claim):
        return over
    judged = [judge_order(draft, each, now, horizon) for each in claim]
    refused = [
        (each.order, verdict)
        for each, verdict in zip(claim, judged, strict=True)
        # No verdict on a claim is `Released`.
        if not isinstance(verdict, Claimed | Released)
    ]
    if not refused:
        return AllClaimed(is_new=True)
    if len(refused) == len(claim) and all(_holds_just_that(order, verdict) for order, verdict in refused):
        return AllClaimed(is_new=False)
    return tuple([RefusedPlace(consumer=order.consumer, verdict=verdict) for order, verdict in refused])


def _over_quota(draft: LedgerDraft, claim: Sequence[Sent[ClaimResources]]) -> tuple[RefusedPlace, ...] | None:
    """The refusal of all, if what those of them count together that hold nothing yet is over the quota of their project."""
    new = [each.order for each in claim if not draft.consumer(each.order.consumer).held]
    if draft.quotas is None or not new:
        return None
    growth = Counter[str]()
    for order in new:
        growth.update(counted(order.consumer_type, (), sums_of(order.share.amounts)))
    # All claims of one message name the same project.
    over = draft.quotas.judge_growth(new[0].project or NO_OWNER, growth)
    return (
        None
        if over is None
        else tuple([RefusedPlace(consumer=order.consumer, verdict=over) for order in new])
    )


def _holds_just_that(order: ClaimResources, verdict: ClaimVerdict) -> bool:
    """Does the consumer already hold what the order claims, by the same attempt? Then the claim is a repetition."""
    return (
        isinstance(verdict, AlreadyClaimed)
        and (verdict.attempt, verdict.share.host) == (order.attempt, order.share.host)
        and _sums(verdict.share) == _sums(order.share)
    )


def _sums(share: Share) -> Counter[tuple[ProviderId, str]]:
    sums = Counter[tuple[ProviderId, str]]()
    for amount in share.amounts:
        sums[amount.provider, amount.resource] += amount.amount
    return sums
