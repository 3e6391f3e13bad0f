"""The owner of a consumer. Only it claims more for the consumer, swaps it or releases it.

A consumer's type and project are fixed by the claim that makes it. Its owner is the cell of that claim (`Consumer.cell`): the
API level hands the consumer over to that cell. Only the API level gives a consumer whose claim has ended to another cell, by
a new claim of the same type and project. What is compared:

    sender       a claim                     a swap                        a release
    a cell       its cell, type, project     its cell; heir and returned   its cell
                                             consumer: cell, project
    API level    type, project               has no right to it            type (always INSTANCE), project

A consumer that was made over HTTP, and never claimed, belongs to the cell of its providers. If its program named no project
either, its owner is unknown, and any project's claim or release counts for it.

A release may come before its claim, and leaves a row then: a tombstone. No claim has made that row, so it has no owner
either. It binds only messages of its own sender: of the same cell, or of the API level for the same project. To all others
the id is unknown. Each cell has a bound on such rows (`room_for_tombstones`). Beyond it the release is refused, and becomes a
dead letter: without its tombstone, its claim would be granted when it comes, and nobody would hold what it took. The API level
has no such bound: each of its releases is of a row that a scheduler has written, and schedulers bound these by project.

A refusal does not say whose a consumer is. The API level's release of another's consumer is answered as if the consumer held
nothing: a client may name any id, and would fill the queue of dead letters.
"""

from collections.abc import Mapping, Sequence

from bus.messages.placement import NO_OWNER, ClaimResources, ReleaseClaim
from engine.refusals import NotAllowed, Released
from placement_worker.core.ledger import ClaimOrder, Consumer, Ledger, Sent

# API-level callers release claims that were never placed under this cell name, whichever cell was meant. No cell has this
# name, so no cell can act for another one by it.
NO_CELL = "cell0"
# The highest step from the last attempt of a consumer to the next one. Attempts grow one by one, and a row near the end of
# the number's range could not be written any more.
ATTEMPT_AHEAD_MAX = 1_000_000
# The only type of consumer that the API level claims and releases.
INSTANCE = "INSTANCE"


def wrong_cell(reason: str) -> NotAllowed:
    return NotAllowed(field="cell", reason=reason)


def taken(field: str, consumer: object) -> NotAllowed:
    return NotAllowed(field=field, reason=f"the id {consumer} is taken")


def is_tombstone(row: Consumer) -> bool:
    """Was this row made by a release, before any claim?"""
    return row.ended_at is not None and not row.generation


def cells_leaving_tombstones(ledger: Ledger, releases: Sequence[ReleaseClaim]) -> tuple[str, ...]:
    """The cells that may leave tombstones by these releases."""
    may_leave = [
        release.cell
        for release in releases
        if release.cell != NO_CELL and _may_leave(release, ledger.consumers[release.consumer.int])
    ]
    return tuple(dict.fromkeys(may_leave))


def _may_leave(release: ReleaseClaim, row: Consumer) -> bool:
    is_known = row.attempt and not (is_tombstone(row) and row.cell != release.cell)
    return not (is_known or release.leaves_group)


def room_for_tombstones(counted: Mapping[str, int], tombstones_max: int) -> dict[str, int]:
    """How many tombstones each of these cells may still leave."""
    return {cell: max(0, tombstones_max - count) for cell, count in counted.items()}


def crowded(cell: str) -> NotAllowed:
    """The refusal of a release that can leave no tombstone, and so would be forgotten when its claim comes."""
    return NotAllowed(
        field="consumer",
        reason=f"no claim of it has come, and cell {cell} has left as many rows by such releases as placement.tombstones_max allows: "
        "they are forgotten after twice placement.horizon_s; replay the release if its claim has come meanwhile",
    )


def binds(row: Consumer, sent: Sent[ClaimOrder]) -> bool:
    """Does this row count for the order? A tombstone counts only for orders of the owner whose release left it."""
    if not is_tombstone(row):
        return True
    order = sent.order
    if row.cell != NO_CELL:
        return row.cell == order.cell
    if sent.speaks_for is not None or not isinstance(order, ClaimResources | ReleaseClaim):
        return False
    return row.project == (order.project or NO_OWNER)


def judge_owner(row: Consumer, sent: Sent[ClaimOrder]) -> NotAllowed | Released | None:
    """Why the sender may not give this order about a consumer that has a row; None if it may."""
    order = sent.order
    if is_tombstone(row):
        is_cells = order.cell != NO_CELL and not isinstance(order, ClaimResources)
        return _of_other_cell(sent) if is_cells and not binds(row, sent) else None
    match order:
        case ClaimResources():
            if sent.speaks_for is not None and row.cell != order.cell:
                return _of_other_cell(sent)
            return None if _is_of_claim(row, order) else taken("consumer", row.id)
        case ReleaseClaim() if order.cell == NO_CELL:
            return None if _may_api_release(row, order) else Released(freed=False)
        case _:
            is_own = row.cell == order.cell or (row.cell == NO_CELL and sent.speaks_for is None)
            return None if is_own else _of_other_cell(sent)


def is_of_same_owner(row: Consumer, instance: Consumer) -> bool:
    """Does this row belong to the cell and the project of the instance?"""
    return (row.cell, row.project) == (instance.cell, instance.project)


def _is_of_claim(row: Consumer, claim: ClaimResources) -> bool:
    return row.type == claim.consumer_type and _is_of_project(row, claim.project)


def _may_api_release(row: Consumer, order: ReleaseClaim) -> bool:
    return row.type == INSTANCE and _is_of_project(row, order.project or "")


def _is_of_project(row: Consumer, project: str) -> bool:
    was_claimed = bool(row.attempt)
    return row.project == (project or NO_OWNER) or (row.project == NO_OWNER and not was_claimed)


def _of_other_cell(sent: Sent[ClaimOrder]) -> NotAllowed:
    return wrong_cell(f"consumer {sent.order.consumer} is not of cell {sent.order.cell!r}")
