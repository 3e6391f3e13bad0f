"""Orders to rebuild an instance: each is accepted once, answered again when it is repeated, or refused.

An instance can be rebuilt while it is active, or in error if its host still has it: after a rebuild or a move that failed. Its
host must be up. There is one rebuild at a time. A delete ends it, and later events of the cell about it do not count.
"""

import hashlib
from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec
from msgspec import structs

from bus.messages.build import BuildRejected, InstanceState, Rebuild, RebuildInstance
from bus.messages.moves import EndMove, MoveInstance
from scheduler_worker.core.instances.rows import (
    ACTIVE,
    ERROR,
    MOVED,
    MOVING,
    NO_REQUEST,
    REBUILDING,
    InstanceRow,
    is_of,
)
from scheduler_worker.core.requests.checking import DEADLINE_S_MAX

# How many requests for rebuilds and moves a row remembers. An older one would be done again if it was delivered again.
CHANGES_MAX = 16
DIGEST_BYTES = 16

_canonical = msgspec.json.Encoder(order="deterministic").encode


def rebuilt(
    row: InstanceRow | None,
    order: RebuildInstance,
    now: datetime,
    *,
    timeout_s: int,
    why_no_work: Callable[[str, str], str],
) -> InstanceRow | BuildRejected:
    """The row with the rebuild on its way to the cell; the same object if the order was accepted before. `why_no_work` says
    why a cell's host of this name cannot work now.
    """
    if row is None or row.told.request_id == NO_REQUEST or not is_of(row, order.project):
        return refused(order, "instance", order.instance, "there is no such instance")
    told, last = row.told, row.told.rebuild
    if order.request_id in row.changes:
        if last is not None and last.request_id == order.request_id and last.image != order.image:
            return refused(
                order,
                "request_id",
                order.request_id,
                "duplicate id: a rebuild with this id and another image was taken before",
            )
        return problem_with_repeat(row, order) or row
    if order.deadline_s is not None and not 1 <= order.deadline_s <= DEADLINE_S_MAX:
        reason = f"a deadline is 1 to {DEADLINE_S_MAX} seconds away"
        return refused(order, "deadline_s", order.deadline_s, reason)
    if reason := _why_not(told) or why_no_work(told.cell, told.host):
        return refused(order, "instance", order.instance, reason)
    number = told.sequence + 1
    rebuild = Rebuild(
        request_id=order.request_id,
        number=number,
        image=order.image,
        ends_by=now + timedelta(seconds=timeout_s if order.deadline_s is None else order.deadline_s),
    )
    return structs.replace(
        with_order(row, order),
        told=structs.replace(
            told,
            sequence=number,
            state=REBUILDING,
            reason="",
            keeps_share=False,
            rebuild=rebuild,
            changed_at=now,
        ),
        order=None,
        unsaid=True,
    )


def with_order(row: InstanceRow, order: RebuildInstance | MoveInstance) -> InstanceRow:
    """The row, which remembers this order from now on."""
    return structs.replace(
        row,
        changes=(*row.changes, order.request_id)[-CHANGES_MAX:],
        change_digests=(*row.change_digests, _digest(order))[-CHANGES_MAX:],
    )


def problem_with_repeat(row: InstanceRow, order: RebuildInstance | MoveInstance) -> BuildRejected | None:
    """Why this order is refused, though an order with its id was taken: that one had other content. None if it is that
    order again, or if a release took it that kept no digests.
    """
    # The newest are last in both. A row of an earlier release has fewer digests.
    digests = dict(zip(reversed(row.changes), reversed(row.change_digests), strict=False))
    if digests.get(order.request_id, _digest(order)) == _digest(order):
        return None
    reason = "duplicate id: an order with this id and other content was taken before"
    return refused(order, "request_id", order.request_id, reason)


def _digest(order: RebuildInstance | MoveInstance) -> bytes:
    """A digest of what the order asks for. Its project only says for whom the sender speaks."""
    return hashlib.sha256(_canonical(structs.replace(order, project=""))).digest()[:DIGEST_BYTES]


def what_goes_on(told: InstanceState) -> str:
    """The rebuild or the move that must end before the next one; empty if there is none."""
    if told.waiting is not None and told.move is not None:
        return f"it waits for room to {told.move.kind}, by request {told.move.request_id}: abort that first"
    if told.state == REBUILDING and told.rebuild is not None:
        return f"it is rebuilt already, by request {told.rebuild.request_id}"
    if told.state == MOVING and told.move is not None:
        return f"it moves already, by request {told.move.request_id} ({told.move.kind})"
    if told.state == MOVED and told.move is not None:
        return f"it has moved, and that is not confirmed or reverted yet, by request {told.move.request_id} ({told.move.kind})"
    return ""


def _why_not(told: InstanceState) -> str:
    is_alive = told.state == ACTIVE or (told.state == ERROR and told.keeps_share and told.host)
    if is_alive and told.waiting is None:
        return ""
    return (
        what_goes_on(told)
        or f"it is {told.state}: only an active instance can be rebuilt, or one in error that keeps its host"
    )


def refused(
    order: RebuildInstance | MoveInstance | EndMove, field: str, value: object, reason: str
) -> BuildRejected:
    return BuildRejected(
        request_id=order.request_id, field=field, value=str(value), reason=reason, project=order.project
    )
