"""The rows of instances that are taken over from another cloud, and given back to it.

Their hosts have them already. So such a row begins as `placed`, with the order to its cell to take the instance over.
"""

from datetime import datetime, timedelta

from msgspec import structs

from bus.messages.adoption import AdoptInstance
from bus.messages.build import InstanceState, Move
from bus.messages.cell import AdoptInCell, Choice
from bus.messages.placement import ServerGroup
from scheduler_worker.core.instances.placing import next_state
from scheduler_worker.core.instances.rows import (
    ACTIVE,
    DELETED,
    DELETING,
    ERROR,
    FIRST_ATTEMPT,
    PLACED,
    SHELVED,
    STOPPED,
    InstanceRow,
)

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
        chosen=Choice(name=order.host, share=order.share),
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
