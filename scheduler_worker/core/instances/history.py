"""The history of an instance: orders of clients and operators, and how they ended.

An entry of the history is a `Change`. Its number is the sequence of the row's state that the order led to. The step
that ends the order makes an entry with the same number, which completes the stored one.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime

from msgspec import structs

from bus.message import Message
from bus.messages.build import (
    InstanceDeleted,
    InstanceFailed,
    InstancePlaced,
    InstanceState,
    InstanceWaiting,
    Move,
    Rebuild,
)
from bus.messages.cell import (
    EndMoveInCell,
    GiveBackInCell,
    MoreAlternates,
    MoveInCell,
    RebuildInCell,
    RemoveFromCell,
)
from bus.messages.moves import WAITS, Change
from bus.messages.placement import ReleaseClaim
from bus.topology import CELL0
from engine.flavors import InstanceId
from scheduler_worker.core.instances.rows import (
    ACTIVE,
    DELETED,
    DELETING,
    ERROR,
    FIRST_ATTEMPT,
    OFFLOADED,
    REBUILDING,
    SHELVED,
    STOPPED,
    WAITING,
    InstanceRow,
    booted_size,
    size_in,
)


def changes_between(before: InstanceRow | None, after: InstanceRow, by: str) -> tuple[Change, ...]:
    """The entries of the instance's history that the step from the row `before` to the row `after` begins or completes.
    `by` is the user who ordered the step; empty if a cell reported it.
    """
    was, is_ = None if before is None else before.told, after.told
    if is_.state in (DELETING, DELETED) and (was is None or was.state not in (DELETING, DELETED)):
        # Only so that it is none of the changes that go on; its real end is read from the row (`with_end`).
        delete = structs.replace(_change(after, "delete", is_.sequence, by), ended_at=is_.changed_at)
        return *_cut_short(was, after, by), delete
    change = _change_between(was, after, by)
    return () if change is None else (change,)


def _cut_short(was: InstanceState | None, after: InstanceRow, by: str) -> Iterator[Change]:
    """The changes that a delete ends: a move or a rebuild that is under way."""
    if was is None:
        return
    end = {"ended_at": after.told.changed_at, "outcome": DELETED}
    if was.move is not None and not was.move.outcome:
        yield structs.replace(_of_move(after, was.move, ""), ended_by=by, **end)
    if was.rebuild is not None and was.state == REBUILDING:
        yield structs.replace(_of_rebuild(after, was.rebuild, ""), ended_by=by, **end)


def _change_between(was: InstanceState | None, after: InstanceRow, by: str) -> Change | None:
    is_ = after.told
    if is_.move is not None and (was is None or (is_.move, is_.waiting) != (was.move, was.waiting)):
        return _change_of_move(was, after, is_.move, by)
    if is_.state == STOPPED and was is not None and was.state == ACTIVE:
        return _of_stop_by_itself(after)
    if is_.rebuild is not None and was is not None:
        if was.rebuild is None or was.rebuild.number != is_.rebuild.number:
            return _of_rebuild(after, is_.rebuild, by)
        if is_.state in (ACTIVE, ERROR) and (was.state == REBUILDING or was.rebuild != is_.rebuild):
            failure = is_.rebuild.failure
            return structs.replace(
                _of_rebuild(after, is_.rebuild, ""),
                ended_at=is_.changed_at,
                outcome="failed" if failure else "done",
                failure=failure,
            )
    return None


def _change_of_move(was: InstanceState | None, after: InstanceRow, move: Move, by: str) -> Change:
    waiting = after.told.waiting
    is_new = was is None or was.move is None or was.move.number != move.number
    change = _of_move(after, move, by if is_new else "")
    if waiting is not None:
        why = f"waits for room until {waiting.until:%Y-%m-%d %H:%M:%S} UTC: {waiting.reason}"
        return structs.replace(change, outcome=WAITS, failure=why)
    if move.outcome:
        return structs.replace(change, ended_at=after.told.changed_at)
    if is_new:
        # Until placement has granted a share there, the host that was chosen first counts.
        chosen = after.choices[0].name if after.choices else ""
        return structs.replace(change, destination=move.destination or chosen, size=size_in(after.next_spec))
    return structs.replace(change, ended_by=by if move.asked else "")


def _of_move(row: InstanceRow, move: Move, by: str) -> Change:
    # A move that waited keeps the number that it had then.
    number = move.number if row.waited is None else row.waited.number
    return structs.replace(
        _change(row, move.kind, number, by),
        request_id=move.request_id,
        source=move.source,
        destination=move.destination,
        outcome=move.outcome,
        failure=move.failure,
    )


def _of_stop_by_itself(row: InstanceRow) -> Change:
    """The entry for an instance that has stopped without an order. It has ended when it is told."""
    told = row.told
    return structs.replace(
        _change(row, "stopped", told.sequence, ""),
        source=told.host,
        ended_at=told.changed_at,
        outcome="by itself",
        failure=told.reason,
    )


def _of_rebuild(row: InstanceRow, rebuild: Rebuild, by: str) -> Change:
    return structs.replace(_change(row, "rebuild", rebuild.number, by), request_id=rebuild.request_id)


def _change(row: InstanceRow, what: str, number: int, by: str) -> Change:
    return Change(
        instance=row.id,
        number=number,
        what=what,
        cell=row.told.cell,
        asked_at=row.told.changed_at or row.issued_at,
        by=by,
    )


def boot_of(row: InstanceRow) -> Change:
    """The instance's first change, its boot. Its data are on the row itself."""
    decision, told = row.decision, row.told
    return Change(
        instance=row.id,
        number=1,
        what="boot",
        cell=told.cell,
        asked_at=row.issued_at,
        by=row.by,
        request_id=told.request_id,
        destination="" if decision is None else decision.host,
        outcome="" if row.is_open else "placed" if row.is_in_cell or decision is not None else told.state,
        failure="" if row.is_in_cell else told.reason,
        size=booted_size(row),
    )


def with_end(change: Change, row: InstanceRow) -> Change:
    """An entry of the history as it is shown. The stored entry of a delete has the moment of the order as its end, so
    that it counts as none of the changes that go on. When the delete really ended is read from the row.
    """
    if change.what != "delete":
        return change
    if row.told.state != DELETED:
        return structs.replace(change, ended_at=None)
    return structs.replace(change, ended_at=row.told.changed_at, outcome="deleted")


# The messages that a row has to send: they follow from the row alone, so a row stores no messages.


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
