"""Moves that wait for room: the row of an instance from the order until its cell gets the move, or until the wait ends.

    active, stopped, shelved, offloaded, error   no host has room: the state stays, `waiting` is set, and the move has no outcome
       ├─▶ moving           there is room: the move gets a new number and goes to the cell
       ├─▶ the same state   the move ends: it was aborted, its time is up, or it is not possible any more
       └─▶ deleting         a delete ends it, too

While a move waits, the instance takes no other order but a delete. Events of its cell are taken, and leave the wait as it is.
If other instances get the room before the cell has asked placement, the move waits again.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

from msgspec import structs

from bus.messages.build import (
    STOPPED_MEANWHILE,
    BuildRejected,
    InstanceId,
    InstanceState,
    Move,
    NoValidHost,
    Waiting,
)
from bus.messages.moves import MoveInstance, is_to_wait_again
from scheduler_worker.core.instances.rebuilds import refused, with_order
from scheduler_worker.core.instances.rows import DELETED, InstanceRow, KeptMove, KeptRequest
from scheduler_worker.core.requests.checking import PRIORITY_MAX, WAIT_S_MAX

# What is lost comes before what is new.
EVACUATION_PRIORITY = PRIORITY_MAX + 1


class MoveWaits(NamedTuple):
    """How long the move of an order may wait for room, and with which priority."""

    for_s: int
    priority: int


def wait_of(order: MoveInstance, *, evacuation_wait_s: int) -> MoveWaits | None:
    """How the order waits if there is no room; None if it does not."""
    is_evacuation = order.kind == "evacuate"
    for_s = None if order.wait is None else order.wait.for_s
    priority = None if order.wait is None else order.wait.priority
    if for_s is None:
        for_s = evacuation_wait_s if is_evacuation else 0
    if priority is None:
        priority = EVACUATION_PRIORITY if is_evacuation else 0
    return MoveWaits(for_s, priority) if for_s else None


def problem_with_wait(order: MoveInstance) -> BuildRejected | None:
    wait = order.wait
    if wait is None:
        return None
    if order.kind != "evacuate" and wait.for_s is None:
        return refused(order, "wait.for_s", "", "say how many seconds the move waits for room")
    if wait.for_s is not None and not 0 <= wait.for_s <= WAIT_S_MAX:
        reason = f"a move waits 0 to {WAIT_S_MAX} seconds for room"
        return refused(order, "wait.for_s", wait.for_s, reason)
    most = EVACUATION_PRIORITY if order.kind == "evacuate" else PRIORITY_MAX
    if wait.priority is not None and not 0 <= wait.priority <= most:
        reason = f"a priority is 0 to {most}, the highest first"
        return refused(order, "wait.priority", wait.priority, reason)
    return None


def move_waits(
    row: InstanceRow,
    order: MoveInstance,
    wait: MoveWaits,
    now: datetime,
    *,
    kept: KeptRequest,
    reason: str,
    no_valid_host: NoValidHost,
    together: tuple[InstanceId, ...] = (),
) -> InstanceRow:
    """The row of an instance whose move begins to wait. The order was checked before; `kept` is what it is tried again with."""
    told = row.told
    number = told.sequence + 1
    until = now + timedelta(seconds=wait.for_s)
    move = Move(
        request_id=order.request_id,
        number=number,
        kind=order.kind,
        source=told.host,
        ends_by=until,
        confirm_s=order.confirm_s or 0 if order.kind in STOPPED_MEANWHILE and not together else 0,
        flavor=order.flavor,
        together=together,
        waits_until=until,
    )
    waiting = Waiting(until=until, priority=wait.priority, since=now, reason=reason)
    return structs.replace(
        with_order(row, order),
        told=structs.replace(
            told, sequence=number, move=move, waiting=waiting, no_valid_host=no_valid_host, changed_at=now
        ),
        order=None,
        unsaid=True,
        kept=kept,
        kept_move=KeptMove(order.request_id, kept.build, kept.digest, number, now, until, wait.priority),
    )


def may_wait(row: InstanceRow, wait: MoveWaits, now: datetime, kept: KeptRequest) -> InstanceRow:
    """The row of a move that begins at once, and that waits if others get the room before its cell has asked placement."""
    move = row.told.move
    assert move is not None, "a row that moves has a move"
    until = now + timedelta(seconds=wait.for_s)
    return structs.replace(
        row,
        told=structs.replace(row.told, move=structs.replace(move, waits_until=until)),
        kept_move=KeptMove(move.request_id, kept.build, kept.digest, move.number, now, until, wait.priority),
    )


def move_waits_on(row: InstanceRow, reason: str, no_valid_host: NoValidHost | None) -> InstanceRow:
    """The row of a move that waits on after another try, with the new reasons; the same row if they are the same as before.
    Clients see the reasons when they ask; no event tells them.
    """
    told = row.told
    assert told.waiting is not None, "a move that waits says until when"
    waiting = structs.replace(told.waiting, reason=reason)
    if (waiting, no_valid_host) == (told.waiting, told.no_valid_host):
        return row
    told = structs.replace(told, waiting=waiting, no_valid_host=no_valid_host, sequence=told.sequence + 1)
    return structs.replace(row, told=told)


def wait_ended(row: InstanceRow, outcome: str, why: str, now: datetime) -> InstanceRow:
    """The row of an instance whose move ends while it waits. The instance is what it was before the order."""
    told = row.told
    assert told.move is not None, "what waits is a move"
    told = structs.replace(
        told,
        sequence=told.sequence + 1,
        waiting=None,
        no_valid_host=None,
        move=structs.replace(told.move, outcome=outcome, failure=why),
        changed_at=now,
    )
    return structs.replace(row, told=told, order=None, unsaid=True, has_waited=True)


def overdue_wait(row: InstanceRow, now: datetime) -> InstanceRow | None:
    """The row whose move has failed, if it has waited until its time is up; otherwise None."""
    waiting = row.told.waiting
    if not row.move_waits or waiting is None or now < waiting.until:
        return None
    begun = waiting.since or row.issued_at
    waited_s = (waiting.until - begun).total_seconds()
    why = f"no valid host: it waited {waited_s:.0f} s for room, until {waiting.until}: {waiting.reason}"
    return wait_ended(row, "failed", why, now)


def waits_by(row: InstanceRow | None, order: MoveInstance) -> bool:
    """Does the instance's move wait by this order?"""
    if row is None or not row.move_waits:
        return False
    return row.told.move is not None and row.told.move.request_id == order.request_id


def before_wait(row: InstanceRow) -> InstanceRow:
    """The row as it would be without the order that waits: it is tried like a new one."""
    told = structs.replace(row.told, waiting=None, no_valid_host=None)
    return structs.replace(
        row, told=told, changes=row.changes[:-1], change_digests=row.change_digests[:-1], kept_move=None
    )


def begun(row: InstanceRow, waited: InstanceRow) -> InstanceRow:
    """The row of a move that has waited, and that its cell gets now."""
    move, kept = row.told.move, waited.kept_move
    assert move is not None, "a row that moves has a move"
    assert kept is not None, "a move that waited is kept"
    told = structs.replace(row.told, move=structs.replace(move, waits_until=kept.until))
    return structs.replace(row, told=told, has_waited=True, kept_move=kept)


def waits_through(row: InstanceRow, said: InstanceState) -> InstanceState:
    """The state that a cell has told, of an instance whose last move waits, or has ended while it waited: its cell does not know
    of this move. While it waits, the wait goes on.
    """
    told, kept = row.told, row.waited
    if kept is None or told.move is None or (said.move is not None and said.move.number >= told.move.number):
        return said
    said = structs.replace(said, move=told.move)
    if not row.move_waits or said.state == DELETED:
        return said
    return structs.replace(said, waiting=told.waiting, no_valid_host=told.no_valid_host)


def cut_short(told: InstanceState) -> InstanceState:
    """The state of an instance that is deleted while its move waits."""
    assert told.move is not None, "what waits is a move"
    move = structs.replace(told.move, outcome="aborted", failure="the instance was deleted")
    return structs.replace(told, move=move, waiting=None, no_valid_host=None)


def waits_again(row: InstanceRow, now: datetime) -> InstanceRow:
    """The row after an event of its cell: its move waits again, if it is to."""
    told, move, kept = row.told, row.told.move, row.waited
    if move is None or kept is None or not is_to_wait_again(told, now):
        return row
    last = told.failures[-1]
    waiting = Waiting(
        until=kept.until,
        priority=kept.priority,
        since=kept.since,
        reason=f"others got the room: {last.host}: {last.reason}",
    )
    told = structs.replace(
        told,
        sequence=told.sequence + 1,
        move=structs.replace(move, ends_by=kept.until, outcome="", failure="", destination="", asked=""),
        waiting=waiting,
    )
    return structs.replace(row, told=told, unsaid=True, kept=KeptRequest(kept.digest, kept.order))
