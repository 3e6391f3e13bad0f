"""May a consumer give up what it holds for another share, right now?

The table says what each consumer holds after the swap, of each provider and class. S is the share on the source of a move,
D the share on its destination. A swap with `returns` brings the instance back: the instance then gives up D, and the
migration that held the rest of S ends:

    swap                             instance     heir                 freed
    without heir                     D            -                    S, as far as D does not take it
    heir CLEANUP                     D            S                    nothing
    heir MIGRATION                   D            max(0, S - D)        nothing that S needs
    returns the migration            S            -                    D, as far as S does not need it
    returns it, heir CLEANUP         S            max(0, D - S)        nothing that D needs

So if both shares take from one provider (the same host, or a pool), instance and migration together hold the larger amount
of the two. They hold all of S, so nobody else can take it, and the instance can come back at any time. With a CLEANUP in
place of the migration both amounts are held, since the silent host may still use the old one.
"""

from collections.abc import Sequence
from datetime import datetime

from msgspec import structs

from bus.messages.placement import SwapClaim
from engine.inventories import ProviderId, Share
from engine.refusals import (
    AlreadyClaimed,
    Claimed,
    ClaimVerdict,
    GroupRefused,
    NotAllowed,
    QuotaExceeded,
    Superseded,
)
from placement_worker.core.drafts import (
    Amounts,
    ConsumerDraft,
    LedgerDraft,
    ShareRefused,
    amounts_in,
    judge_place,
    left_over,
    lives_on,
    merged_amounts,
    summed,
)
from placement_worker.core.ledger import Consumer
from placement_worker.core.limits import given_up, sums_of
from placement_worker.core.owners import is_of_same_owner, is_tombstone, taken

CLAIMED = Claimed()


def already_claimed(draft: LedgerDraft, consumer: ConsumerDraft) -> AlreadyClaimed:
    roots = [draft.existing_usage(amount.provider).row.root for amount in consumer.held]
    # A consumer made by an administrator has no host: it lives at the root of the first amount it holds. So does a consumer
    # whose host became a part of another tree.
    host = consumer.row.host if consumer.row.host in roots else roots[0]
    return AlreadyClaimed(attempt=consumer.row.attempt, share=Share(host=host, amounts=consumer.held))


def superseded(consumer: ConsumerDraft) -> Superseded:
    return Superseded(attempt=consumer.row.attempt, ended=consumer.has_ended)


def swap(
    draft: LedgerDraft,
    consumer: ConsumerDraft,
    order: SwapClaim,
    now: datetime,
    *,
    by_cell: bool = False,
) -> ClaimVerdict:
    """Judge one swap, and change the draft if it is granted. `by_cell`: a cell's sender gives the order."""
    if refused := _attempt_refused(draft, consumer, order) or _wrong_heir(order):
        return refused
    heir, returned = _heir_of(draft, consumer, order), _returned(draft, consumer, order)
    if isinstance(heir, NotAllowed):
        return heir
    if isinstance(returned, NotAllowed):
        return returned

    # A way back is never refused by a quota.
    if returned is None and (over := _over_quota(draft, consumer, order)):
        return over
    own = draft.amounts_of(consumer.held)
    given_back = own if returned is None else summed(own, draft.amounts_of(returned.held))
    leaving = (consumer.row,) if returned is None else (consumer.row, returned.row)
    # A cleanup that keeps the old share also keeps its place on the host and in the group.
    keeps_all = heir is not None and _takes_all(order)
    joins = consumer.row.project if consumer.row.group is None else None
    wanted = (
        judge_place(draft, order, {}, joins=joins, by_cell=by_cell)
        if keeps_all
        else _judge(draft, order, given_back, leaving, joins, by_cell=by_cell)
    )
    if not isinstance(wanted, dict):
        return wanted
    inherited = _inherited(order, own, wanted) if heir else {}
    after = summed(wanted, inherited)
    draft.take(left_over(after, given_back))
    draft.free(left_over(given_back, after))
    draft.gain((*wanted, *inherited))
    if returned is not None:
        draft.end(returned, now)
    if heir is not None and inherited:
        _hand_over(draft, consumer, heir, order, inherited)
    _move(draft, consumer, order, wanted)
    return CLAIMED


def _attempt_refused(draft: LedgerDraft, consumer: ConsumerDraft, order: SwapClaim) -> ClaimVerdict | None:
    """The verdict on a swap that its attempts (`held_attempt`, `attempt`) or its group decide alone; else None."""
    if order.attempt <= order.held_attempt:
        return NotAllowed(
            field="attempt",
            reason=f"a swap needs a later attempt than the one held; {order.attempt} does not come after {order.held_attempt}",
        )
    if consumer.is_new or consumer.has_ended:
        return superseded(consumer)
    if consumer.row.attempt == order.attempt:
        return already_claimed(draft, consumer)
    if consumer.row.attempt != order.held_attempt:
        return superseded(consumer)
    return _other_group(consumer.row, order)


def _other_group(row: Consumer, order: SwapClaim) -> NotAllowed | None:
    """The refusal of a swap that does not name its consumer's server group: the group is then not locked, and its policy
    could not be judged.
    """
    named = None if order.group is None else order.group.id
    if row.group in (None, named):
        return None
    return NotAllowed(
        field="group",
        reason=f"consumer {row.id} is a member of server group {row.group}, and the swap names {named or 'none'}",
    )


def _over_quota(draft: LedgerDraft, consumer: ConsumerDraft, order: SwapClaim) -> QuotaExceeded | None:
    """The refusal of a swap that makes its instance larger than its project's quota allows."""
    if draft.quotas is None:
        return None
    row, share = consumer.row, order.share
    return draft.quotas.judge(row.project, row.type, sums_of(share.amounts), sums_of(consumer.held))


def _wrong_heir(order: SwapClaim) -> NotAllowed | None:
    """The refusal of a swap that contradicts itself. Its consumer, its heir (which takes over the old share) and the migration
    that it ends must differ. If it ends a migration, its heir must have the type CLEANUP.
    """
    heir, returns = order.heir, order.returns
    if returns == order.consumer:
        return NotAllowed(field="returns", reason=f"{returns} is the consumer itself, not its migration")
    if heir is None:
        return None
    if heir.id == order.consumer:
        return NotAllowed(field="heir.id", reason=f"consumer {heir.id} cannot be its own heir")
    if heir.id == returns:
        return NotAllowed(
            field="heir.id", reason=f"migration {returns} ends by this swap, so it inherits nothing"
        )
    if returns is not None and heir.type != "CLEANUP":
        return NotAllowed(
            field="heir.type",
            reason=f"the heir of a swap that ends migration {returns} is a CLEANUP, not a {heir.type}",
        )
    return None


def _heir_of(
    draft: LedgerDraft, consumer: ConsumerDraft, order: SwapClaim
) -> ConsumerDraft | NotAllowed | None:
    """The consumer that takes over the old share; None if the share is freed.

    The share is also freed if the heir was released before its swap came: no further release of the heir would come. An id
    that another owner, or another kind of consumer, has is taken: the sender tries again with another one.
    """
    if order.heir is None:
        return None
    heir = draft.consumer(order.heir.id)
    row = heir.row
    if heir.is_new or (is_tombstone(row) and row.cell != order.cell):
        return heir
    is_own = is_tombstone(row) or (is_of_same_owner(row, consumer.row) and row.type == order.heir.type)
    if not (is_own and heir.has_ended):
        return taken("heir.id", row.id)
    return heir if row.attempt < order.held_attempt else None


def _returned(
    draft: LedgerDraft, consumer: ConsumerDraft, order: SwapClaim
) -> ConsumerDraft | NotAllowed | None:
    """The migration that the swap ends (`returns`); None if the swap names none, or the migration holds nothing. A consumer
    of another owner under this id is not the migration: that one never was.
    """
    if order.returns is None:
        return None
    migration = draft.consumer(order.returns)
    if not migration.held or not is_of_same_owner(migration.row, consumer.row):
        return None
    if migration.row.type != "MIGRATION":
        return NotAllowed(
            field="returns",
            reason=f"consumer {migration.row.id} is of type {migration.row.type}: a swap ends a MIGRATION only",
        )
    return migration


def _judge(
    draft: LedgerDraft,
    order: SwapClaim,
    given_up: Amounts,
    leaving: Sequence[Consumer],
    joins: str | None,
    *,
    by_cell: bool,
) -> Amounts | ShareRefused | GroupRefused:
    still_held = _still_held(draft, order, given_up, leaving) if order.returns is not None else None
    if still_held is not None:
        return still_held
    return judge_place(draft, order, given_up, leaving, joins=joins, by_cell=by_cell)


def _still_held(
    draft: LedgerDraft, order: SwapClaim, given_up: Amounts, leaving: Sequence[Consumer]
) -> Amounts | None:
    """The amounts that an instance gets back when its move is reverted, if the consumers that this swap ends hold at
    least as much. Then the swap is granted without judging limits again. Otherwise None.

    None too if none of the consumers in `leaving` (the instance and its migration) has the share's host as its host. If
    the swap names a server group, that consumer must also be a member of it.

    If a reshape has moved some of these amounts to other providers of the tree, the result names those providers.
    """
    group, share = order.group, order.share
    places = [one for one in leaving if lives_on(one, share.host)]
    if not any(group is None or one.group == group.id for one in places):
        return None
    there = [amount for amount in share.amounts if draft.usage(amount.provider) is not None]
    wanted = draft.amounts_of(there)
    moved: dict[tuple[ProviderId, str], int] = {}
    for usage, of_provider in left_over(wanted, given_up).items():
        for resource, amount in of_provider.items():
            _add(moved, (usage.row.root, resource), amount)
    for each in share.amounts:
        if each not in there:
            _add(moved, (share.host, each.resource), each.amount)
    if not moved:
        return wanted
    return _with_moved(left_over(wanted, left_over(wanted, given_up)), moved, given_up)


def _with_moved(
    wanted: Amounts, moved: dict[tuple[ProviderId, str], int], given_up: Amounts
) -> Amounts | None:
    """Add to `wanted` what a reshape has moved to other providers: the amounts in `moved`, by root and class.

    Each is taken from any provider of that tree of which `given_up` has something. None if `given_up` has too little.
    """
    found: Amounts = {}
    for usage, of_provider in left_over(given_up, wanted).items():
        for resource, amount in of_provider.items():
            key = usage.row.root, resource
            if part := min(amount, moved.get(key, 0)):
                found.setdefault(usage, {})[resource] = part
                moved[key] -= part
    return None if any(moved.values()) else summed(wanted, found)


def _add(sums: dict[tuple[ProviderId, str], int], key: tuple[ProviderId, str], amount: int) -> None:
    sums[key] = sums.get(key, 0) + amount


def _takes_all(order: SwapClaim) -> bool:
    return order.heir is not None and order.heir.type == "CLEANUP" and order.returns is None


def _inherited(order: SwapClaim, own: Amounts, wanted: Amounts) -> Amounts:
    return own if _takes_all(order) else left_over(own, wanted)


def _hand_over(
    draft: LedgerDraft, consumer: ConsumerDraft, heir: ConsumerDraft, order: SwapClaim, inherited: Amounts
) -> None:
    assert order.heir is not None, "an heir was named"
    row = consumer.row
    # On the host where the instance stays, the instance alone counts: it is one consumer and one member there.
    has_place = _takes_all(order) or not lives_on(row, order.share.host)
    after = structs.replace(
        row,
        id=heir.row.id,
        type=order.heir.type,
        generation=heir.row.generation + 1,
        host=row.host if has_place else None,
        group=row.group if has_place else None,
        kept=given_up(consumer.held, order.share.amounts) if order.heir.type == "MIGRATION" else (),
    )
    draft.write(heir, after, consumer.held if _takes_all(order) else amounts_in(inherited))
    draft.claimed(after.id, after.attempt)


def _move(draft: LedgerDraft, consumer: ConsumerDraft, order: SwapClaim, wanted: Amounts) -> None:
    row = consumer.row
    is_elsewhere = _is_elsewhere(draft, order, wanted)
    draft.ended(row.id, row.attempt)
    draft.claimed(row.id, order.attempt)
    moved = structs.replace(
        row,
        generation=max(row.generation + 1, order.attempt) + is_elsewhere,
        attempt=order.attempt,
        host=order.share.host,
        group=order.group.id if order.group else row.group,
    )
    draft.write(consumer, moved, amounts_in(wanted) if is_elsewhere else merged_amounts(order.share, wanted))


def _is_elsewhere(draft: LedgerDraft, order: SwapClaim, wanted: Amounts) -> bool:
    """Did a reshape move amounts of the share to which an instance returns? Then the instance's generation grows by one more,
    as if the instance had held them during the reshape.
    """
    if order.returns is None:
        return False
    there = [amount for amount in order.share.amounts if draft.usage(amount.provider) is not None]
    return len(there) < len(order.share.amounts) or draft.amounts_of(there) != wanted
