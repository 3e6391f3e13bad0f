"""The messages that a row has to send: they follow from the row alone, so a row stores no messages."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from bus.message import Message
from bus.messages.build import InstanceDeleted, InstanceFailed, InstanceId, InstancePlaced, InstanceWaiting
from bus.messages.cell import (
    EndMoveInCell,
    GiveBackInCell,
    MoreAlternates,
    MoveInCell,
    RebuildInCell,
    RemoveFromCell,
)
from bus.messages.placement import ReleaseClaim
from bus.topology import CELL0
from scheduler_worker.core.instances.rows import (
    ACTIVE,
    ERROR,
    FIRST_ATTEMPT,
    OFFLOADED,
    SHELVED,
    STOPPED,
    WAITING,
    InstanceRow,
)

# Of an instance in one of these states, the API level only tells that its move waits, or waits no more.
_TOLD_BY_CELL = (ACTIVE, STOPPED, SHELVED, OFFLOADED, ERROR)


def messages_of(row: InstanceRow) -> tuple[Message, ...]:  # noqa: C901, PLR0911 - one for each state
    """The messages of the row's state; none if all of them have reached the broker."""
    if not row.unsaid:
        return ()
    told, order = row.told, row.order
    match told.state:
        case "placed" if order is not None:
            return (order, InstancePlaced(cell=order.cell, instance=told))
        case _ if told.state == WAITING or (told.state in _TOLD_BY_CELL and row.is_in_cell):
            return (InstanceWaiting(cell=told.cell or CELL0, instance=told),)
        case "building":
            more = MoreAlternates(
                cell=told.cell,
                instance=told.id,
                spent=row.heard,
                sequence=told.sequence,
                alternates=row.choices,
                reason=told.reason,
                flavor=told.flavor,
            )
            return (more,)
        case "rebuilding" if told.rebuild is not None:
            return (RebuildInCell(cell=told.cell, instance=told.id, rebuild=told.rebuild),)
        case "moving" if told.move is not None and told.move.asked:
            return (EndMoveInCell(cell=told.cell, instance=told.id, move=told.move, sequence=told.sequence),)
        case "moving" if told.move is not None:
            return (MoveInCell(cell=told.cell, instance=told.id, move=told.move, choices=row.choices),)
        case "deleting":
            return (remove_of(row),)
        case "deleted" if row.is_in_cell:
            return (remove_of(row),)
        case "error" | "deleted":
            event = InstanceFailed if told.state == "error" else InstanceDeleted
            # Another worker's claim for an ended instance may be on its way, in any cell: placement frees or refuses it. The
            # instance may have waited for longer than placement's horizon, so its claims and its release are as old as the
            # step that sends them.
            release = release_of(row.id, told.changed_at or row.issued_at, told.project)
            return (event(cell=CELL0, instance=told), release)
        case _:
            return ()


def remove_of(row: InstanceRow) -> RemoveFromCell:
    """The order to the instance's cell to delete it, or to give it back."""
    told = row.told
    kind = GiveBackInCell if row.given_back else RemoveFromCell
    return kind(
        cell=told.cell,
        instance=told.id,
        request_id=told.request_id,
        sequence=told.sequence,
        issued_at=row.issued_at,
    )


def release_of(instance: InstanceId, issued_at: datetime, project: str) -> ReleaseClaim:
    return ReleaseClaim(
        cell=CELL0, consumer=instance, attempt=FIRST_ATTEMPT, issued_at=issued_at, project=project
    )


def releases_of_ended(
    instances: Sequence[InstanceId],
    known: Mapping[InstanceId, InstanceRow],
    now: datetime,
    project: str,
    *,
    new: Collection[InstanceId] = (),
) -> list[ReleaseClaim]:
    """Releases of the claims that a request of this project may have made for these instances: of those that have no row,
    or whose row allows it (`InstanceRow.may_lose`).

    `new` are the instances for which the caller itself has just made the first claim. A claim of theirs is released even
    if an ended instance keeps its share, for it cannot be that share.
    """
    return [
        release_of(id_, now, project)
        for id_ in instances
        if (row := known.get(id_)) is None or row.may_lose(is_new=id_ in new)
    ]
