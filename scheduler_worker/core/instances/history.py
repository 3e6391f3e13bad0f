"""The history of an instance: orders of clients and operators, and how they ended.

A change has the number that its order got on the row. The step that ends it has the same number, and renews it.
"""

from msgspec import structs

from bus.messages.moves import Change
from scheduler_worker.core.instances.rows import ACTIVE, DELETED, DELETING, ERROR, REBUILDING, InstanceRow


def change_between(before: InstanceRow | None, after: InstanceRow, by: str) -> Change | None:
    """The change that the step from one row to the other makes; None if it is none that is kept. `by` sent the order; empty: the
    step is a cell's.
    """
    was, is_ = None if before is None else before.told, after.told
    if is_.state in (DELETING, DELETED) and (was is None or was.state not in (DELETING, DELETED)):
        # Its end is read from the row: with a moment of its end, the kept change is none of those that go on.
        return structs.replace(_change(after, "delete", is_.sequence, by), ended_at=is_.changed_at)
    if is_.move is not None and (was is None or is_.move != was.move):
        return _of_move(
            after, by, is_new=was is None or was.move is None or was.move.number != is_.move.number
        )
    if is_.rebuild is not None and was is not None:
        if was.rebuild is None or was.rebuild.number != is_.rebuild.number:
            return structs.replace(
                _change(after, "rebuild", is_.rebuild.number, by), request_id=is_.rebuild.request_id
            )
        if is_.state in (ACTIVE, ERROR) and (was.state == REBUILDING or was.rebuild != is_.rebuild):
            failure = is_.rebuild.failure
            return structs.replace(
                _change(after, "rebuild", is_.rebuild.number, ""),
                request_id=is_.rebuild.request_id,
                ended_at=is_.changed_at,
                outcome="failed" if failure else "done",
                failure=failure,
            )
    return None


def _of_move(row: InstanceRow, by: str, *, is_new: bool) -> Change:
    move = row.told.move
    assert move is not None, "a move has changed"
    change = structs.replace(
        _change(row, move.kind, move.number, by if is_new else ""),
        request_id=move.request_id,
        source=move.source,
        destination=move.destination,
        outcome=move.outcome,
        failure=move.failure,
    )
    if move.outcome:
        return structs.replace(change, ended_at=row.told.changed_at)
    return structs.replace(change, ended_by=by if move.asked and not is_new else "")


def _change(row: InstanceRow, what: str, number: int, by: str) -> Change:
    return Change(
        instance=row.id,
        number=number,
        what=what,
        cell=row.told.cell,
        asked_at=row.told.changed_at or row.issued_at,
        by=by,
    )


def renewed(known: Change, news: Change) -> Change:
    """A change that is kept already, with what a later step says."""
    return structs.replace(
        known,
        destination=news.destination or known.destination,
        ended_at=news.ended_at or known.ended_at,
        ended_by=news.ended_by or known.ended_by,
        outcome=news.outcome or known.outcome,
        failure=news.failure or known.failure,
    )


def boot_of(row: InstanceRow) -> Change:
    """The boot is on the row itself: its order is the first change."""
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
    )


def with_end(change: Change, row: InstanceRow) -> Change:
    """A delete ends when the row does."""
    if change.what != "delete":
        return change
    if row.told.state != DELETED:
        return structs.replace(change, ended_at=None)
    return structs.replace(change, ended_at=row.told.changed_at, outcome="deleted")
