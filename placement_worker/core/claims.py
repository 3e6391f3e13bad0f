"""May these claims be granted, right now?

A fold over the batch in its order: each order is judged by what the ones before it left behind, so that duplicates, a
release followed by a claim, and two claims on one provider end as if they had come one by one.

Every consumer lives by attempts. Its row tells the highest attempt seen and whether the life of that attempt has
ended, and outlives what was held; by this alone a message that comes twice, late or in the wrong order is known:

    attempt of the order    the row lives             the row has ended
    lower                   Superseded                Superseded
    the same                AlreadyClaimed            Superseded
    higher                  AlreadyClaimed: only a    a new life, judged as one
                            swap takes from the living

A release is obeyed by every row up to its own attempt; where there is none it leaves one behind, so that the claim it
overtook finds it. Rows are forgotten after a horizon, so an order older than that which finds no row is refused.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from bus.messages.placement import (
    NO_OWNER,
    AlreadyClaimed,
    Claimed,
    ClaimResources,
    DoesNotFit,
    NotAllowed,
    ReleaseClaim,
    Released,
    Share,
    Superseded,
    SwapClaim,
    TooOld,
)
from placement_worker.core.draft import Draft, Life
from placement_worker.core.ledger import Asked, ClaimChanges, Consumer, Ledger
from placement_worker.core.shares import MovedRoots, as_held, weigh, wrong_cell

ClaimJudgement = (
    Claimed | AlreadyClaimed | DoesNotFit | MovedRoots | Superseded | TooOld | Released | NotAllowed
)


class Decision(Struct, frozen=True):
    """A judgement for each order, in their order, and what all of them together write."""

    verdicts: tuple[ClaimJudgement, ...]
    changes: ClaimChanges


CLAIMED = Claimed()
# Who stands above cells ends by this name what may not have reached a cell yet, whichever that was to be; no cell bears
# it, so no cell can speak for another by it.
NO_CELL = "cell0"


def decide_claims(ledger: Ledger, asked: Sequence[Asked], now: datetime, horizon: timedelta) -> Decision:
    """Judge each order by the books as the orders before it left them."""
    draft = Draft(ledger)
    verdicts = tuple([_judge(draft, one, now, horizon) for one in asked])
    return Decision(verdicts, draft.changes())


def _judge(draft: Draft, asked: Asked, now: datetime, horizon: timedelta) -> ClaimJudgement:
    order = asked.order
    if asked.speaks_for is not None and asked.speaks_for != order.cell:
        return wrong_cell(f"the sender speaks for cell {asked.speaks_for!r}, not for {order.cell!r}")
    life = draft.life(order.consumer)
    # Who stands above cells may have chosen another one for the same request in an earlier life: it is told what is held.
    is_foreign = (
        not life.is_new and order.cell != life.row.cell and NO_CELL not in (order.cell, life.row.cell)
    )
    if is_foreign and not (asked.speaks_for is None and isinstance(order, ClaimResources)):
        return wrong_cell(f"consumer {life.row.id} is of cell {life.row.cell!r}, not of {order.cell!r}")
    match order:
        case ClaimResources():
            return _claim(draft, life, order, now, horizon)
        case SwapClaim():
            return _swap(draft, life, order)
        case ReleaseClaim():
            return _release(draft, life, order, now, horizon)


def _claim(
    draft: Draft, life: Life, order: ClaimResources, now: datetime, horizon: timedelta
) -> ClaimJudgement:
    if life.is_new:
        if now - order.issued_at > horizon:
            return _too_old(horizon)
    elif order.attempt < life.row.attempt:
        return _superseded(life)
    elif not life.has_ended:
        return _already_claimed(draft, life)
    elif order.attempt == life.row.attempt:
        return _superseded(life)

    wanted = weigh(draft, order.cell, order.share, {})
    if not isinstance(wanted, dict):
        return wanted
    draft.take(wanted)
    draft.gain(wanted)
    draft.join(order.group)
    draft.claimed(order.consumer, order.attempt)
    life.become(granted(order, life.row.generation), as_held(order.share, wanted))
    return CLAIMED


def granted(order: ClaimResources, generation: int) -> Consumer:
    """Its consumer as this claim makes it, from this generation on."""
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
    draft: Draft, life: Life, order: ReleaseClaim, now: datetime, horizon: timedelta
) -> ClaimJudgement:
    row = life.row
    if life.is_new and now - order.issued_at > horizon:
        return _too_old(horizon)
    if order.attempt < row.attempt:
        return _superseded(life)
    if life.has_ended and order.attempt == row.attempt:
        return Released(freed=False)
    if life.held:
        draft.free(draft.amounts_of(life.held))
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
    freed = bool(life.held)
    life.become(ended, ())
    return Released(freed=freed)


def _swap(draft: Draft, life: Life, order: SwapClaim) -> ClaimJudgement:
    if refused := _swap_refused(draft, life, order):
        return refused
    row = life.row
    heir = _heir_of(draft, order)
    if isinstance(heir, NotAllowed):
        return heir

    held = draft.amounts_of(life.held)
    # Who inherits keeps the place on the host as well.
    wanted = weigh(draft, order.cell, order.share, {} if heir else held, None if heir else row.host)
    if not isinstance(wanted, dict):
        return wanted
    draft.take(wanted)
    if heir:
        _hand_over(draft, life, heir)
        draft.gain((*wanted, *held))
    else:
        draft.free(held)
        draft.gain(wanted)
    draft.join(order.group)
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
    life.become(moved, as_held(order.share, wanted))
    return CLAIMED


def _swap_refused(draft: Draft, life: Life, order: SwapClaim) -> ClaimJudgement | None:
    """Why the attempts alone forbid it: what is to be given up must be what is held."""
    if order.attempt <= order.held_attempt:
        return NotAllowed(
            field="attempt",
            reason=f"a swap leads to a later attempt, but {order.attempt} does not come after {order.held_attempt}",
        )
    if life.is_new or life.has_ended:
        return _superseded(life)
    if life.row.attempt == order.attempt:
        return _already_claimed(draft, life)
    if life.row.attempt != order.held_attempt:
        return _superseded(life)
    return None


def _heir_of(draft: Draft, order: SwapClaim) -> Life | NotAllowed | None:
    """Who takes over what was held; None if it is to be freed.

    A cleanup that was released before its swap came is over: nothing is left to wait for, and what it would hold
    nobody would ever free.
    """
    if order.cleanup is None:
        return None
    if order.cleanup == order.consumer:
        return NotAllowed(field="cleanup", reason="a consumer cannot clean up after itself")
    heir = draft.life(order.cleanup)
    if heir.is_new:
        return heir
    if heir.row.cell != order.cell:
        return wrong_cell(f"consumer {heir.row.id} is of cell {heir.row.cell!r}, not of {order.cell!r}")
    if not heir.has_ended:
        return NotAllowed(
            field="cleanup",
            reason=f"consumer {heir.row.id} holds something else already, by attempt {heir.row.attempt}",
        )
    return heir if heir.row.attempt < order.held_attempt else None


def _hand_over(draft: Draft, life: Life, heir: Life) -> None:
    row = life.row
    inherited = Consumer(
        id=heir.row.id,
        type="CLEANUP",
        project=row.project,
        user=row.user,
        cell=row.cell,
        generation=heir.row.generation + 1,
        attempt=row.attempt,
        host=row.host,
    )
    heir.become(inherited, life.held)
    draft.claimed(inherited.id, inherited.attempt)


def _already_claimed(draft: Draft, life: Life) -> AlreadyClaimed:
    roots = [draft.standing_account(amount.provider).row.root for amount in life.held]
    # Who came by a way that knows no hosts lives where the first of what it holds stands; so does who lives on one that has
    # become a part of another tree.
    host = life.row.host if life.row.host in roots else roots[0]
    return AlreadyClaimed(attempt=life.row.attempt, share=Share(host=host, amounts=life.held))


def _superseded(life: Life) -> Superseded:
    return Superseded(attempt=life.row.attempt, ended=life.has_ended)


def _too_old(horizon: timedelta) -> TooOld:
    return TooOld(horizon_s=int(horizon.total_seconds()))
