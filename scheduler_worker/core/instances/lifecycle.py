"""The states of an instance at API level, and the steps from one to the next; those until it has a host are in rows.py.

A store locks a row before it is decided here, and writes the result, so each step is a compare-and-set.

    accepted ─▶ waiting     no host has room, and the request asked to wait; from there as from accepted
    accepted ──▶ placed ──▶ active, error      the cell's event; the highest sequence counts
       │            ├──▶ building ──▶ active, error   its alternates are used up: the cell gets further ones
       │            │         ├─▶ rebuilding ─▶ active, error   a new image on the same host (resizes.py)
       │            │         └─▶ moving ─▶ moved, active, error   to another host, stopped or shelved (moves.py)
       │            └─────────┴──▶ deleting ──▶ deleted   when the cell has reported it
       ├──▶ error    no host, not allowed, or no time left: kept in cell0
       └──▶ deleted  before it was placed

A function returns the new row, or None if the step changes nothing or comes too late.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from msgspec import structs

from bus.message import Message
from bus.messages.audit import AdoptInstance, MendInstance
from bus.messages.build import (
    SEQUENCE_FROM_CELL_MAX,
    AlternatesSpent,
    DeleteInstance,
    InstanceActive,
    InstanceDeleted,
    InstanceEvent,
    InstanceFailed,
    InstanceMoved,
    InstanceState,
    Move,
    Rebuild,
)
from bus.messages.cell import AdoptInCell
from bus.topology import CELL0
from engine.flavors import Flavor, InstanceId
from engine.inventories import Choice, ServerGroup
from scheduler_worker.core.instances.moves import (
    cut_short,
    overdue_wait,
    wait_ended,
    waits_again,
    waits_through,
)
from scheduler_worker.core.instances.resizes import after_other_flavor, with_flavor
from scheduler_worker.core.instances.rows import (
    ACTIVE,
    BUILDING,
    DELETED,
    DELETING,
    ERROR,
    FIRST_ATTEMPT,
    MOVED,
    MOVING,
    NO_REQUEST,
    OFFLOADED,
    PLACED,
    REBUILDING,
    SHELVED,
    STOPPED,
    WAITING,
    InstanceRow,
    deleted_outside_of_cells,
    failed,
    is_of,
    next_state,
)

_DELETED_FIRST = "deleted before its request was seen"
_STATES: Mapping[type[Message], str] = {
    InstanceActive: ACTIVE,
    InstanceMoved: MOVED,
    InstanceFailed: ERROR,
    InstanceDeleted: DELETED,
}
CellEvent = InstanceActive | InstanceMoved | InstanceFailed | InstanceDeleted
# A cell counts by one with each of its messages, from the last sequence that it got. An event that is further ahead of the row
# than this is no true one: readers who took it would ignore all later ones.
SEQUENCE_AHEAD_MAX = 1_000_000


def adopted(unseen: InstanceRow, new: InstanceRow) -> InstanceRow:
    """The row of a request whose instance was deleted before the request was seen: it stays deleted, and its owner is
    known now. If the delete named another project it did not count, and the row is the new one.
    """
    if unseen.told.project not in ("", new.told.project):
        return new
    told = structs.replace(
        new.told,
        sequence=unseen.told.sequence + 1,
        state=DELETED,
        cell=CELL0,
        host="",
        attempt=0,
        reason=_DELETED_FIRST,
    )
    return structs.replace(new, told=told, order=None, unsaid=True)


def overdue(row: InstanceRow, now: datetime) -> InstanceRow | None:
    """The row in error, if the instance was not placed before its deadline; or the row whose move has waited too long. Otherwise
    None.
    """
    if row.move_waits:
        return overdue_wait(row, now)
    if not row.is_open or now < row.ends_by:
        return None
    waited_s = (row.ends_by - row.issued_at).total_seconds()
    if row.told.state == WAITING:
        return failed(
            row, now, reason=f"no valid host: it waited {waited_s:.0f} s for room, until {row.ends_by}"
        )
    return failed(
        row,
        now,
        reason=f"not placed within {waited_s:.0f} s of its acceptance: its request may be among the dead letters",
    )


def given_up(row: InstanceRow, now: datetime, why: str) -> InstanceRow | None:
    """The row in error, or the row whose move has failed, if the schedulers would still have to find a host for it. Otherwise None."""
    if row.move_waits:
        return wait_ended(row, "failed", why, now)
    return failed(row, now, reason=why)


def after_delete(row: InstanceRow | None, order: DeleteInstance, now: datetime) -> InstanceRow | None:
    """The row after a client's order to delete the instance; None if nothing changes. If the request has not been seen
    yet, the new row keeps it from being built.
    """
    if row is None:
        return deleted_unseen(order.instance, now, order.project)
    return deleted(row, now) if is_of(row, order.project) else None


def deleted_unseen(instance: InstanceId, now: datetime, project: str = "") -> InstanceRow:
    """The row of an instance whose delete came before its build request, or that has no request. With `project`, only a
    request of that project finds its instance deleted.
    """
    told = InstanceState(
        id=instance,
        request_id=NO_REQUEST,
        sequence=1,
        state=DELETED,
        cell=CELL0,
        project=project,
        changed_at=now,
    )
    return InstanceRow(told=told, issued_at=now, ends_by=now)


def deleted(row: InstanceRow, now: datetime) -> InstanceRow | None:
    """The row after the instance is not wanted any more; None if it is being deleted already. An instance in a cell is
    `deleting` until the cell reports that it is gone.
    """
    told = row.told
    if told.state in (DELETING, DELETED):
        return None
    if row.is_in_cell:
        told = next_state(row, now, state=DELETING)
        if row.move_waits:
            told = cut_short(told)
        return structs.replace(row, told=told, order=None, unsaid=True, has_waited=row.move_waits)
    return deleted_outside_of_cells(row, now)


def heard(row: InstanceRow, event: CellEvent, now: datetime) -> InstanceRow | None:
    """The row after its cell has reported the instance; None if the report is not of this cell, or not new.

    If the instance is deleted, and its cell says that it became something else later, the row tells the cell again to
    delete it. Older reports that the cell sends again do not count: it would send them once more with each answer.
    """
    said, told = event.instance, row.told
    if told.cell != event.cell or is_too_far_ahead(row, event):
        return None
    if _is_back(said, told) and not isinstance(event, InstanceDeleted):
        return structs.replace(row, heard=max(row.heard, said.sequence), unsaid=True)
    if said.sequence <= row.heard:
        return None
    state = said.state if said.state in (STOPPED, SHELVED, OFFLOADED) else _STATES[type(event)]
    if told.state == DELETED or (state != DELETED and _is_before(said, told)):
        return structs.replace(row, heard=said.sequence)
    after = with_state_of_cell(
        row, structs.replace(said, state=state, cell=event.cell, changed_at=said.changed_at or now)
    )
    now_told = waits_through(row, after.told)
    if told.state == DELETING and state != DELETED:
        # While it is deleting, the state stays; the host and the attempt are still worth knowing.
        now_told = structs.replace(now_told, state=DELETING)
    after = structs.replace(
        after,
        told=now_told,
        unsaid=row.unsaid and (now_told.state == DELETING or now_told.waiting is not None),
        has_waited=row.move_waits and now_told.waiting is None,
    )
    # The order to abort it may have come to its cell after the end of the move.
    is_wanted = told.state == MOVING and told.move is not None and not told.move.asked
    return waits_again(after, now) if is_wanted else after


def with_state_of_cell(row: InstanceRow, said: InstanceState) -> InstanceRow:
    """The row with this state, which its cell has: so the cell has received the order. What only the API level knows stays."""
    told = row.told
    return structs.replace(
        row,
        told=structs.replace(
            said,
            request_id=told.request_id,
            sequence=max(told.sequence + 1, said.sequence),
            name=told.name,
            project=told.project,
            refusals=told.refusals,
            flavor=said.flavor or told.flavor,
            passed_over=after_other_flavor(row, said).passed_over,
        ),
        order=None,
        choices=(),
        resized_spec=resized_spec_after(row, said),
        next_spec=row.next_spec if said.state == MOVED or _may_be_rebuilt_yet(row, said) else b"",
        heard=said.sequence,
    )


class NextHosts(NamedTuple):
    """The hosts that a cell tries next, and their flavor if the request accepts several; or none, for this reason, and the
    instance ends.
    """

    choices: tuple[Choice, ...] = ()
    reason: str = ""
    flavor: Flavor | None = None


def awaits_alternates(row: InstanceRow, event: AlternatesSpent) -> bool:
    """Does the instance wait for the answer to this event of its cell? Not if it is being deleted, or has an answer."""
    return (
        row.told.cell == event.cell
        and row.told.state in (PLACED, BUILDING)
        and row.heard < event.instance.sequence
        and not is_too_far_ahead(row, event)
    )


def with_alternates(
    row: InstanceRow, event: AlternatesSpent, next_hosts: NextHosts, now: datetime
) -> InstanceRow | None:
    """The row with the answer to its cell. None if the cell does not wait for an answer, or has it."""
    if not awaits_alternates(row, event):
        return None
    said, told = event.instance, row.told
    resized_spec, passed_over = with_flavor(row, next_hosts.flavor)
    now_told = structs.replace(
        told,
        sequence=max(told.sequence + 1, said.sequence),
        state=BUILDING,
        host="",
        attempt=said.attempt,
        failures=said.failures,
        reason=next_hosts.reason,
        changed_at=now,
        flavor=next_hosts.flavor or told.flavor,
        passed_over=passed_over,
    )
    return structs.replace(
        row,
        told=now_told,
        order=None,
        choices=next_hosts.choices,
        resized_spec=resized_spec,
        heard=said.sequence,
        unsaid=True,
    )


def is_too_far_ahead(row: InstanceRow, event: InstanceEvent) -> bool:
    """Has the event a sequence that the instance's cell cannot have reached?"""
    return row.told.cell == event.cell and event.instance.sequence > row.told.sequence + SEQUENCE_AHEAD_MAX


def as_known(row: InstanceRow, event: CellEvent) -> CellEvent | None:
    """The event as it may be repeated once the row has it: with the request, the name and the project of the row. None if the
    event is not of this row's cell, or the row did not take it.
    """
    said, told = event.instance, row.told
    if told.cell != event.cell or said.sequence > row.heard:
        return None
    if (said.request_id, said.name, said.project) == (told.request_id, told.name, told.project):
        return event
    known = structs.replace(said, request_id=told.request_id, name=told.name, project=told.project)
    return structs.replace(event, instance=known)


def _is_back(said: InstanceState, told: InstanceState) -> bool:
    """Does the cell have a deleted instance again, by a late copy of the order to place it?"""
    if told.state != DELETED or told.changed_at is None or said.changed_at is None:
        return False
    return said.changed_at > told.changed_at


def _is_before(said: InstanceState, told: InstanceState) -> bool:
    """Did the cell send this before it received the rebuild or the move that is under way?"""
    if told.state == REBUILDING and told.rebuild is not None:
        return said.rebuild is None or said.rebuild.number < told.rebuild.number
    if told.state == MOVING and told.move is not None:
        return said.move is None or said.move.number < told.move.number
    return False


def resized_spec_after(row: InstanceRow, said: InstanceState) -> bytes:
    """The row's `resized_spec` after this report of its cell: its next spec, if its resize is confirmed or its rebuild is done; or
    the spec of another flavor that its request accepts, if the cell took that.
    """
    is_confirmed = said.move is not None and said.move.outcome == "confirmed"
    if row.next_spec and (is_confirmed or _is_rebuilt(row, said)):
        return row.next_spec
    return after_other_flavor(row, said).resized_spec


def _is_rebuilt(row: InstanceRow, said: InstanceState) -> bool:
    """Is this the end of the row's last rebuild, with its image?"""
    its = said.rebuild
    return its is not None and not its.failure and said.state == ACTIVE and _is_of_last_order(row, its)


def _may_be_rebuilt_yet(row: InstanceRow, said: InstanceState) -> bool:
    """Was the row's last rebuild given up, and may its host still say that it is done?"""
    return said.state == ERROR and said.rebuild is not None and _is_of_last_order(row, said.rebuild)


def _is_of_last_order(row: InstanceRow, rebuild: Rebuild) -> bool:
    """Is it the row's last rebuild, and came no move after it? The next spec of a row belongs to the last of both."""
    told = row.told
    is_last = told.rebuild is not None and told.rebuild.number == rebuild.number
    return is_last and (told.move is None or told.move.number < rebuild.number)


def is_whole(event: CellEvent) -> bool:
    """Does this event alone say all that a row shows of an instance that was placed and is active now, so that the row
    need not be read?
    """
    said = event.instance
    is_plain = not (
        said.failures or said.reason or said.no_valid_host or said.rebuild or said.move or said.flavor
    )
    return isinstance(event, InstanceActive) and is_plain and said.changed_at is not None


# An audit's mend of an instance's row at API level: the row takes over what the instance's cell has.


def mended(row: InstanceRow | None, mend: MendInstance) -> InstanceRow | None:
    """The row with the state that the cell has.

    None if there is no row of a request, or if the row has changed since the audit read it. Also None if the cell's
    sequence is above the limit for cells, since it must leave room for the API level to count on.
    """
    if row is None or not _is_as_seen(row, mend) or mend.instance.sequence > SEQUENCE_FROM_CELL_MAX:
        return None
    # Later events of that cell count again.
    after = with_state_of_cell(row, structs.replace(mend.instance, failures=row.told.failures))
    return structs.replace(after, unsaid=False, has_waited=row.told.waiting is not None)


def _is_as_seen(row: InstanceRow, mend: MendInstance) -> bool:
    return row.told.request_id != NO_REQUEST and row.told.sequence == mend.seen


# The rows of instances that are taken over from another cloud, and given back to it.
#
# Their hosts have them already. So such a row begins as `placed`, with the order to its cell to take the instance over.


# Moves after which the other cloud would still find its instance as it left it.
_HARMLESS = ("shelve", "stop", "start", "reboot", "unshelve")


def attempt_of(known: InstanceRow | None) -> int | None:
    """The attempt by which an instance is taken over; None if it is here already. One that was given back comes again by a later
    attempt.
    """
    if known is None:
        return FIRST_ATTEMPT
    if known.given_back and known.told.state == DELETED:
        return known.told.attempt + 1
    return None


def adopted_row(
    order: AdoptInstance,
    known: InstanceRow | None,
    attempt: int,
    now: datetime,
    timeout: timedelta,
    *,
    spec: bytes,
    group: ServerGroup | None,
    kind: str,
    by: str,
) -> InstanceRow:
    sequence = 2 if known is None else known.told.sequence + 1
    told = InstanceState(
        id=order.instance,
        request_id=order.request_id if known is None else known.told.request_id,
        sequence=sequence,
        state=PLACED,
        cell=order.of_cell,
        host=order.host,
        attempt=attempt,
        name=order.name,
        project=order.project,
        changed_at=now,
    )
    to_cell = AdoptInCell(
        cell=order.of_cell,
        instance=order.instance,
        request_id=told.request_id,
        sequence=sequence,
        attempt=attempt,
        issued_at=now,
        ends_by=now + timeout,
        flavor=order.flavor,
        chosen=Choice(name=order.host, share=order.share, kind=kind),
        name=order.name,
        project=order.project,
        user=order.user,
        image_properties=order.image_properties,
        group=group,
        image=order.image,
        state=order.state,
        reason=order.reason,
    )
    row = InstanceRow(
        told=told,
        issued_at=order.created_at,
        ends_by=now + timeout,
        order=to_cell,
        unsaid=True,
        spec=spec,
        by=by,
        adopted=True,
    )
    if known is None:
        return row
    # What was written with its first row stays there; so a flavor that has changed since counts like a resize.
    return structs.replace(
        row, heard=known.heard, issued_at=known.issued_at, spec=known.spec, resized_spec=spec
    )


def why_not_given_back(row: InstanceRow) -> str:
    """Why the instance cannot go back to the cloud that it came from; empty if it can."""
    told = row.told
    if not row.adopted:
        return "it was built here"
    if told.state not in (ACTIVE, STOPPED, SHELVED, ERROR, PLACED):
        return f"it is {told.state}"
    if told.rebuild is not None:
        return "it was rebuilt here"
    if told.move is not None and not _is_harmless(told.move):
        return f"it has moved here ({told.move.kind})"
    return ""


def _is_harmless(move: Move) -> bool:
    return bool(move.outcome) and (move.kind in _HARMLESS or move.outcome in ("reverted", "aborted"))


def given_back(row: InstanceRow, now: datetime) -> InstanceRow:
    """The row whose cell is told to give the instance back; the same row if that was done before."""
    if row.given_back and row.told.state in (DELETING, DELETED):
        return row
    told = next_state(row, now, state=DELETING)
    return structs.replace(row, told=told, order=None, unsaid=True, given_back=True)


def why_other(known: InstanceRow, order: AdoptInstance) -> str:
    """What the row of an instance that is here already has otherwise than the order; empty if nothing."""
    told = known.told
    if told.state == DELETED:
        return "it was deleted here"
    if not known.adopted:
        return "an instance with this id was built here"
    if (told.cell, told.host) != (order.of_cell, order.host):
        return f"it is on {told.cell}/{told.host} here"
    return ""
