"""An instance's columns, the statements that run most often, and the codec between the columns and the instance.

Some values are packed into one column, because a column of its own costs as much as a whole pack. These are the values
that are written once and that no query names; the order to the cell, together with the decision for a host; and the
reasons of failures.
"""

import struct
from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from msgspec import Struct

from bus.messages.build import (
    AttemptFailed,
    ClaimRefused,
    Flavor,
    FlavorPassedOver,
    InstanceId,
    InstanceState,
    Move,
    NoValidHost,
    Rebuild,
    RequestId,
    Waiting,
)
from bus.messages.cell import Choice, PlaceInCell
from bus.sql import RowColumns, Values
from scheduler_worker.core.instances.lifecycle import CellEvent
from scheduler_worker.core.instances.rows import (
    DELETED,
    NO_REQUEST,
    PLACED,
    HostDecision,
    InstanceRow,
    KeptMove,
)
from scheduler_worker.tables import instances, notes

_CHANGING = (
    *("state", "sequence", "heard", "cell", "host", "attempt", "changed_at", "due_at", "ended_at", "unsaid"),
    *("place_order", "troubles"),
)
# The columns of a row that is read. The order to its cell comes last, since not all readers want it.
_LOCKED = (
    *("id", "request_id", "project", "given", "state", "sequence", "heard", "cell", "host", "attempt"),
    *("changed_at", "unsaid", "troubles"),
)
READ = (*_LOCKED, "place_order")

LOCK = RowColumns(instances, *_LOCKED).lock()
LOCK_WITH_ORDERS = RowColumns(instances, *READ).lock()
ADD = RowColumns(
    instances, "id", "request_id", "place", "project", "given", *_CHANGING, free_texts=("project",)
).insert("ON CONFLICT DO NOTHING")
_CHANGED = RowColumns(instances, "id", *_CHANGING)
WRITE = _CHANGED.update()
DECIDE = _CHANGED.update("kept.state = 'accepted'")
# `heard` in core/instances/lifecycle.py is this step for one row; the number is its SEQUENCE_AHEAD_MAX.
APPLY_EVENTS = RowColumns(instances, "id", "cell", "sequence", "host", "attempt", "changed_at").update(
    "kept.state = 'placed' AND kept.cell = new.cell AND kept.sequence < new.sequence"
    " AND kept.heard < new.sequence AND new.sequence <= kept.sequence + 1000000",
    state="'active'",
    heard="new.sequence",
    unsaid="NULL",
    place_order="NULL",
)
# Placed rows are left out: the event of their cell confirms them.
CONFIRM = RowColumns(instances, "id", "unsaid").update("kept.unsaid <= new.unsaid", unsaid="NULL")

NOTE = RowColumns(notes, "at", "placed", "others").insert(returning=("number",))
DROP_NOTES = RowColumns(notes, "others").delete_unlocked("number")


class _Given(Struct, frozen=True, array_like=True):
    """Values from the request. The digest tells it from another request with the same id."""

    digest: bytes
    name: str
    issued_at: datetime
    ends_by: datetime
    # The needs of the request, encoded. Rows of earlier releases have none.
    spec: bytes = b""
    by: str = ""


class _Troubles(Struct, frozen=True, array_like=True):
    failures: tuple[AttemptFailed, ...]
    refusals: tuple[ClaimRefused, ...]
    no_valid_host: NoValidHost | None
    reason: str
    keeps_share: bool = False
    # None for most instances, too.
    rebuild: Rebuild | None = None
    changes: tuple[RequestId, ...] = ()
    # In the column of the troubles: a column of its own would cost as much as both.
    decision: HostDecision | None = None
    waiting: Waiting | None = None
    move: Move | None = None
    choices: tuple[Choice, ...] = ()
    resized_spec: bytes = b""
    next_spec: bytes = b""
    change_digests: tuple[bytes, ...] = ()
    flavor: Flavor | None = None
    passed_over: tuple[FlavorPassedOver, ...] = ()
    move_decision: HostDecision | None = None
    kept_move: KeptMove | None = None


_encode = msgspec.msgpack.Encoder(uuid_format="bytes").encode
_given = msgspec.msgpack.Decoder(_Given).decode
_order = msgspec.msgpack.Decoder(PlaceInCell).decode
_troubles = msgspec.msgpack.Decoder(_Troubles).decode
_NO_TROUBLES = _Troubles((), (), None, "")


def new_values(row: InstanceRow, place: int | None, digest: bytes) -> Values:
    """The values of a new row, for `ADD`."""
    told = row.told
    return (
        row.id,
        None if told.request_id.int == NO_REQUEST.int else told.request_id,
        place,
        told.project or None,
        _encode(_Given(digest, told.name, row.issued_at, row.ends_by, row.spec, row.by)),
        *_changing_values(row),
    )


def values(row: InstanceRow) -> Values:
    """The values of a changed row, for `WRITE` and `DECIDE`."""
    return (row.id, *_changing_values(row))


def event_values(event: CellEvent) -> Values:
    """The values of a cell's event, for `APPLY_EVENTS`."""
    said = event.instance
    return (said.id, event.cell, said.sequence, said.host, said.attempt, said.changed_at)


def _changing_values(row: InstanceRow) -> Values:
    told = row.told
    changed_at = told.changed_at or row.issued_at
    has_troubles = (
        told.reason
        or told.failures
        or told.refusals
        or told.no_valid_host
        or told.keeps_share
        or row.changes
        or row.decision
        or told.waiting
        or told.passed_over
    )
    return (
        told.state,
        told.sequence,
        row.heard,
        told.cell,
        told.host,
        told.attempt,
        changed_at,
        row.due_at,
        changed_at if told.state == DELETED else None,
        told.sequence if row.unsaid else None,
        None if row.order is None else _encode(row.order),
        _encode(
            _Troubles(
                told.failures,
                told.refusals,
                told.no_valid_host,
                told.reason,
                told.keeps_share,
                told.rebuild,
                row.changes,
                row.decision,
                told.waiting,
                told.move,
                row.choices,
                row.resized_spec,
                row.next_spec,
                row.change_digests,
                told.flavor,
                told.passed_over,
                row.move_decision,
                row.kept_move,
            )
        )
        if has_troubles
        else None,
    )


def row_of(read: Values) -> InstanceRow:
    """The instance's row, from the values of the columns in `READ`; the order to its cell may be missing."""
    id_, request_id, project, given, state, sequence, heard, *others = read
    cell, host, attempt, changed_at, unsaid, troubles, *order = others
    was_given = _given(given)
    had = _NO_TROUBLES if troubles is None else _troubles(troubles)
    told = InstanceState(
        id=InstanceId(id_),
        request_id=NO_REQUEST if request_id is None else RequestId(request_id),
        sequence=sequence,
        state=state,
        cell=cell,
        host=host,
        attempt=attempt,
        name=was_given.name,
        project=project or "",
        failures=had.failures,
        refusals=had.refusals,
        no_valid_host=had.no_valid_host,
        reason=had.reason,
        changed_at=changed_at,
        keeps_share=had.keeps_share,
        rebuild=had.rebuild,
        waiting=had.waiting,
        move=had.move,
        flavor=had.flavor,
        passed_over=had.passed_over,
    )
    return InstanceRow(
        told=told,
        issued_at=was_given.issued_at,
        ends_by=was_given.ends_by,
        order=_order(order[0]) if any(order) else None,
        heard=heard,
        unsaid=unsaid is not None,
        changes=had.changes,
        change_digests=had.change_digests,
        choices=had.choices,
        spec=was_given.spec,
        by=was_given.by,
        resized_spec=had.resized_spec,
        next_spec=had.next_spec,
        decision=had.decision,
        move_decision=had.move_decision,
        kept_move=had.kept_move,
    )


_OTHER = struct.Struct(">16sQ")


def note_values(rows: Sequence[InstanceRow]) -> Values:
    """The values of a note about these rows: the time of their last change; the ids of those that are placed; the ids of all others,
    each with its sequence.
    """
    return (
        max(row.told.changed_at or row.issued_at for row in rows),
        b"".join([row.id.bytes for row in rows if row.told.state == PLACED]),
        b"".join([_OTHER.pack(row.id.bytes, row.told.sequence) for row in rows if row.told.state != PLACED]),
    )


def ids_in(placed: bytes, others: bytes) -> list[UUID]:
    """The ids of all rows that a note names."""
    return [
        *[UUID(bytes=placed[start : start + 16]) for start in range(0, len(placed), 16)],
        *[UUID(bytes=id_) for id_, _ in _OTHER.iter_unpack(others)],
    ]


def confirmed_in(dropped: Iterable[Values]) -> list[tuple[UUID, int]]:
    """The rows whose messages are confirmed with these notes, for `CONFIRM`: the last sequence that a note names.

    Only the others of a note are among them: placed rows are confirmed when their cell reports the instance.
    """
    last: dict[UUID, int] = {}
    for (others,) in dropped:
        for id_, sequence in _OTHER.iter_unpack(others):
            instance = UUID(bytes=id_)
            last[instance] = max(sequence, last.get(instance, 0))
    return sorted(last.items(), key=lambda each: each[0].int)


def request_of(read: Values) -> tuple[UUID | None, bytes]:
    """The id and the digest of the row's request."""
    return read[1], _given(read[3]).digest
