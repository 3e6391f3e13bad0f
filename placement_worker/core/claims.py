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
same owner which it overtook finds it. Before all that it is judged whose the consumer is (ownership.py). Rows of ended consumers are deleted after a horizon; a claim or release older than the horizon that finds no row
is refused.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import structs

from bus.messages.placement import (
    NO_OWNER,
    Claimed,
    ClaimResources,
    NotAllowed,
    ReleaseClaim,
    Released,
    SwapClaim,
    TooOld,
    single_swaps,
)
from placement_worker.core.claim_verdicts import CLAIMED, ClaimJudgement, already_claimed, superseded
from placement_worker.core.drafts.ledger_draft import ConsumerDraft, LedgerDraft, consumers_of, ended_row
from placement_worker.core.drafts.quota_draft import sums_of
from placement_worker.core.ledger import BatchDecision, ClaimChanges, ClaimOrder, Consumer, Ledger, SentOrder
from placement_worker.core.ownership import ATTEMPT_AHEAD_MAX, Owner, binds, judge_owner, owner_of, wrong_cell
from placement_worker.core.shares import judge_place, merged_amounts
from placement_worker.core.swaps import swap


def decide_claims(
    ledger: Ledger,
    asked: Sequence[SentOrder],
    now: datetime,
    horizon: timedelta,
    room: Mapping[Owner, int] | None = None,
) -> BatchDecision[ClaimJudgement, ClaimChanges]:
    """Judge each claim, swap and release on the ledger as the earlier orders of the batch left it. `room` is how many
    tombstones each owner may still leave; an owner that is not in it has no bound.
    """
    draft = LedgerDraft(ledger, room)
    verdicts = tuple([judge_order(draft, one, now, horizon) for one in asked])
    return BatchDecision(verdicts, draft.changes())


def judge_order(draft: LedgerDraft, asked: SentOrder, now: datetime, horizon: timedelta) -> ClaimJudgement:
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
        case SwapClaim() if order.together:
            return _swap_together(draft, asked, order, now)
        case SwapClaim():
            return swap(draft, consumer, order, now, by_cell=asked.speaks_for is not None)
        case ReleaseClaim() if order.leaves_group:
            return _leave_group(draft, consumer, order)
        case ReleaseClaim():
            return _release(draft, consumer, order, now, horizon, is_known=is_known)


def _judge_sender(consumer: ConsumerDraft, asked: SentOrder) -> ClaimJudgement | bool:
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
) -> ClaimJudgement:
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


def _swap_together(draft: LedgerDraft, asked: SentOrder, first: SwapClaim, now: datetime) -> ClaimJudgement:
    """Grant a swap and all that are to be granted together with it; or none, for the first reason.

    For the others, a consumer whose swap is still to be judged has left its host already. No heir counts on the host that
    is left, and no migration that ends.
    """
    swaps = single_swaps(first)
    leaving = {who for each in swaps for who in consumers_of(each)}
    before = draft.saved(swaps)
    for each in swaps:
        leaving.discard(each.consumer)
        verdict: ClaimJudgement
        consumer = draft.consumer(each.consumer)
        is_known = _judge_sender(consumer, structs.replace(asked, order=each))
        if not isinstance(is_known, bool):
            verdict = is_known
        else:
            by_cell = asked.speaks_for is not None
            verdict = swap(draft, consumer, each, now, by_cell=by_cell, beside=leaving)
        if not isinstance(verdict, Claimed):
            draft.restore(before)
            return verdict
    return CLAIMED


def _leave_group(draft: LedgerDraft, consumer: ConsumerDraft, order: ReleaseClaim) -> ClaimJudgement:
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
) -> ClaimJudgement:
    row = consumer.row
    if not is_known:
        if now - order.issued_at > horizon:
            return _too_old(horizon)
        if not draft.takes_room(owner_of(order)):
            return Released(freed=False)
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
