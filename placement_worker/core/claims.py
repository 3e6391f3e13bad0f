"""May these claims be granted, right now?

The orders of a batch are judged one after another, each on the ledger as the earlier ones left it. So duplicates, a
release followed by a claim, and two claims on one provider end as if they had come one by one.

Each consumer lives by attempts. Its row has the highest attempt seen, and whether that attempt has ended. The row
outlives the allocations. By this row alone placement recognises a message that comes twice, late or in the wrong order:

    attempt of the order    the row is alive          the row has ended
    lower                   Superseded                Superseded
    the same                AlreadyClaimed            Superseded
    higher                  AlreadyClaimed: only a    a new life, judged as a new claim
                            swap takes from a living
                            consumer

A release ends each row of its own attempt or a lower one. Without a row it creates one, so that a claim which it overtook
finds it. Rows are forgotten after a horizon; an order older than the horizon that finds no row is refused.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from bus.message import ProviderId
from bus.messages.placement import (
    NO_OWNER,
    AlreadyClaimed,
    Claimed,
    ClaimResources,
    DoesNotFit,
    GroupRefused,
    NotAllowed,
    ReleaseClaim,
    Released,
    Share,
    Superseded,
    SwapClaim,
    TooOld,
)
from placement_worker.core.ledger import ClaimChanges, Consumer, Decision, Ledger, SentOrder
from placement_worker.core.ledger_draft import Amounts, ConsumerDraft, LedgerDraft
from placement_worker.core.shares import (
    MovedRoots,
    ShareRefused,
    judge_share,
    merged_amounts,
    wrong_cell,
)

ClaimJudgement = (
    Claimed
    | AlreadyClaimed
    | DoesNotFit
    | GroupRefused
    | MovedRoots
    | Superseded
    | TooOld
    | Released
    | NotAllowed
)


CLAIMED = Claimed()
# API-level callers release claims that were never placed under this cell name, whichever cell was meant. No cell has this
# name, so no cell can act for another one by it.
NO_CELL = "cell0"


def decide_claims(
    ledger: Ledger, asked: Sequence[SentOrder], now: datetime, horizon: timedelta
) -> Decision[ClaimJudgement, ClaimChanges]:
    """Judge each order on the ledger as the earlier orders of the batch left it."""
    draft = LedgerDraft(ledger)
    verdicts = tuple([_judge(draft, one, now, horizon) for one in asked])
    return Decision(verdicts, draft.changes())


def _judge(draft: LedgerDraft, asked: SentOrder, now: datetime, horizon: timedelta) -> ClaimJudgement:
    order = asked.order
    if asked.speaks_for is not None and asked.speaks_for != order.cell:
        return wrong_cell(f"the sender may act for cell {asked.speaks_for!r}, not for {order.cell!r}")
    consumer = draft.consumer(order.consumer)
    # In an earlier attempt, the API level may have chosen another cell for the same request: the answer says what is held.
    is_foreign = (
        not consumer.is_new
        and order.cell != consumer.row.cell
        and NO_CELL not in (order.cell, consumer.row.cell)
    )
    if is_foreign and not (asked.speaks_for is None and isinstance(order, ClaimResources)):
        return wrong_cell(
            f"consumer {consumer.row.id} is of cell {consumer.row.cell!r}, not of {order.cell!r}"
        )
    match order:
        case ClaimResources():
            return _claim(draft, consumer, order, now, horizon)
        case SwapClaim():
            return _swap(draft, consumer, order)
        case ReleaseClaim():
            return _release(draft, consumer, order, now, horizon)


def _claim(
    draft: LedgerDraft, consumer: ConsumerDraft, order: ClaimResources, now: datetime, horizon: timedelta
) -> ClaimJudgement:
    if consumer.is_new:
        if now - order.issued_at > horizon:
            return _too_old(horizon)
    elif order.attempt < consumer.row.attempt:
        return _superseded(consumer)
    elif not consumer.has_ended:
        return _already_claimed(draft, consumer)
    elif order.attempt == consumer.row.attempt:
        return _superseded(consumer)

    wanted = _judge_place(draft, order, {}, None)
    if not isinstance(wanted, dict):
        return wanted
    draft.take(wanted)
    draft.gain(wanted)
    draft.claimed(order.consumer, order.attempt)
    consumer.become(claimed_consumer(order, consumer.row.generation), merged_amounts(order.share, wanted))
    return CLAIMED


def _judge_place(
    draft: LedgerDraft, order: ClaimResources | SwapClaim, held: Amounts, leaves: ProviderId | None
) -> Amounts | ShareRefused | GroupRefused:
    """As `judge_share`, then by the server group. A consumer that is granted its place defines a new group."""
    wanted = judge_share(draft, order.cell, order.share, held, leaves)
    group = order.group
    if group is None or not isinstance(wanted, dict):
        return wanted
    against = draft.groups.judge(group, order.share.host, order.consumer, leaves=leaves is not None)
    if against is not None:
        return against
    draft.groups.define(group)
    return wanted


def claimed_consumer(order: ClaimResources, generation: int) -> Consumer:
    """The consumer's row after this claim, continuing from this generation."""
    return Consumer(
        id=order.consumer,
        type=order.consumer_type,
        project=order.project or NO_OWNER,
        user=order.user or NO_OWNER,
        cell=order.cell,
        generation=generation + 1,
        attempt=order.attempt,
        host=order.share.host,
        group=order.group.id if order.group else None,
    )


def _release(
    draft: LedgerDraft, consumer: ConsumerDraft, order: ReleaseClaim, now: datetime, horizon: timedelta
) -> ClaimJudgement:
    row = consumer.row
    if consumer.is_new and now - order.issued_at > horizon:
        return _too_old(horizon)
    if order.attempt < row.attempt:
        return _superseded(consumer)
    if consumer.has_ended and order.attempt == row.attempt:
        return Released(freed=False)
    if consumer.held:
        draft.free(draft.amounts_of(consumer.held))
        draft.ended(row.id, row.attempt)
    ended = Consumer(
        id=row.id,
        type=row.type,
        project=row.project,
        user=row.user,
        cell=order.cell,
        generation=row.generation,
        attempt=order.attempt,
        ended_at=now,
    )
    freed = bool(consumer.held)
    consumer.become(ended, ())
    return Released(freed=freed)


def _swap(draft: LedgerDraft, consumer: ConsumerDraft, order: SwapClaim) -> ClaimJudgement:
    if refused := _swap_refused(draft, consumer, order):
        return refused
    row = consumer.row
    cleanup_consumer = _cleanup_consumer_of(draft, order)
    if isinstance(cleanup_consumer, NotAllowed):
        return cleanup_consumer

    held = draft.amounts_of(consumer.held)
    # A cleanup consumer that takes over the old share also keeps its place on the host, and in the group.
    wanted = (
        _judge_place(draft, order, {}, None)
        if cleanup_consumer
        else _judge_place(draft, order, held, row.host)
    )
    if not isinstance(wanted, dict):
        return wanted
    draft.take(wanted)
    if cleanup_consumer:
        _hand_over(draft, consumer, cleanup_consumer)
        draft.gain((*wanted, *held))
    else:
        draft.free(held)
        draft.gain(wanted)
    draft.ended(row.id, row.attempt)
    draft.claimed(row.id, order.attempt)
    moved = Consumer(
        id=row.id,
        type=row.type,
        project=row.project,
        user=row.user,
        cell=row.cell,
        generation=row.generation + 1,
        attempt=order.attempt,
        host=order.share.host,
        group=order.group.id if order.group else row.group,
    )
    consumer.become(moved, merged_amounts(order.share, wanted))
    return CLAIMED


def _swap_refused(draft: LedgerDraft, consumer: ConsumerDraft, order: SwapClaim) -> ClaimJudgement | None:
    """Why the attempts alone forbid the swap: it must give up what the consumer holds."""
    if order.attempt <= order.held_attempt:
        return NotAllowed(
            field="attempt",
            reason=f"a swap needs a later attempt than the one held; {order.attempt} does not come after {order.held_attempt}",
        )
    if consumer.is_new or consumer.has_ended:
        return _superseded(consumer)
    if consumer.row.attempt == order.attempt:
        return _already_claimed(draft, consumer)
    if consumer.row.attempt != order.held_attempt:
        return _superseded(consumer)
    return _other_group(consumer.row, order)


def _other_group(row: Consumer, order: SwapClaim) -> NotAllowed | None:
    """A swap that does not name the group of its consumer has not locked it, so nothing could be judged."""
    named = None if order.group is None else order.group.id
    if row.group in (None, named):
        return None
    return NotAllowed(
        field="group",
        reason=f"consumer {row.id} is a member of server group {row.group}, and the swap names {named or 'none'}",
    )


def _cleanup_consumer_of(draft: LedgerDraft, order: SwapClaim) -> ConsumerDraft | NotAllowed | None:
    """The consumer that takes over the old share; None if the share is freed.

    A cleanup that was released before its swap came is over: nothing is left to wait for, and a share that it took over
    would never be freed.
    """
    if order.cleanup is None:
        return None
    if order.cleanup == order.consumer:
        return NotAllowed(field="cleanup", reason="a consumer cannot clean up after itself")
    cleanup_consumer = draft.consumer(order.cleanup)
    if cleanup_consumer.is_new:
        return cleanup_consumer
    if cleanup_consumer.row.cell != order.cell:
        return wrong_cell(
            f"consumer {cleanup_consumer.row.id} is of cell {cleanup_consumer.row.cell!r}, not of {order.cell!r}"
        )
    if not cleanup_consumer.has_ended:
        return NotAllowed(
            field="cleanup",
            reason=f"consumer {cleanup_consumer.row.id} holds something else already, by attempt {cleanup_consumer.row.attempt}",
        )
    return cleanup_consumer if cleanup_consumer.row.attempt < order.held_attempt else None


def _hand_over(draft: LedgerDraft, consumer: ConsumerDraft, cleanup_consumer: ConsumerDraft) -> None:
    row = consumer.row
    inherited = Consumer(
        id=cleanup_consumer.row.id,
        type="CLEANUP",
        project=row.project,
        user=row.user,
        cell=row.cell,
        generation=cleanup_consumer.row.generation + 1,
        attempt=row.attempt,
        host=row.host,
        group=row.group,
    )
    cleanup_consumer.become(inherited, consumer.held)
    draft.claimed(inherited.id, inherited.attempt)


def _already_claimed(draft: LedgerDraft, consumer: ConsumerDraft) -> AlreadyClaimed:
    roots = [draft.existing_usage(amount.provider).row.root for amount in consumer.held]
    # A consumer made by an administrator has no host: it lives at the root of the first amount it holds. So does a consumer
    # whose host became a part of another tree.
    host = consumer.row.host if consumer.row.host in roots else roots[0]
    return AlreadyClaimed(attempt=consumer.row.attempt, share=Share(host=host, amounts=consumer.held))


def _superseded(consumer: ConsumerDraft) -> Superseded:
    return Superseded(attempt=consumer.row.attempt, ended=consumer.has_ended)


def _too_old(horizon: timedelta) -> TooOld:
    return TooOld(horizon_s=int(horizon.total_seconds()))
