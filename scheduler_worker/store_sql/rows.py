"""An instance's columns, the statements that run most often, and the codec between the columns and the instance.

Some values are packed into one column, because a column of its own costs as much as a whole pack. These are the values
that are written once and that no query names; the order to the cell, together with the decision for a host; and the
reasons of failures.
"""

import struct
from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from uuid import UUID

import msgspec
from msgspec import Struct, structs

from bus.messages.build import InstanceId, InstanceState, RequestId
from bus.messages.cell import AdoptInCell, PlaceInCell
from bus.sql import RowColumns, Values
from scheduler_worker.core.instances.lifecycle import CellEvent
from scheduler_worker.core.instances.rows import (
    DELETED,
    NO_REQUEST,
    PLACED,
    InstanceRow,
)
from scheduler_worker.tables import instances, notes

_CHANGING = (
    *("state", "sequence", "heard", "cell", "host", "attempt", "changed_at", "due_at", "ended_at", "unsaid"),
    *("place_order", "progress"),
)
# The columns of a row that is read. The order to its cell comes last, since not all readers want it.
_LOCKED = (
    *("id", "request_id", "project", "given", "state", "sequence", "heard", "cell", "host", "attempt"),
    *("changed_at", "unsaid", "progress"),
)
READ = (*_LOCKED, "place_order")

LOCK = RowColumns(instances, *_LOCKED).lock()
LOCK_WITH_ORDERS = RowColumns(instances, *READ).lock()
ADD = RowColumns(
    instances,
    *("id", "request_id", "place", "project", "name", "given"),
    *_CHANGING,
    free_texts=("project", "name"),
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
    # The needs of the request, encoded.
    spec: bytes = b""
    by: str = ""


# The values of a row, or of its state, that the column `progress` has, encoded in this order. A new one is added at the
# end. The decision is among them because a column of its own would cost as much as
# all of these.
_IN_PROGRESS = (
    *("failures", "refusals", "no_valid_host", "reason", "keeps_share", "rebuild", "changes", "decision"),
    *("waiting", "move", "choices", "resized_spec", "next_spec", "change_digests", "flavor", "passed_over"),
    *("move_decision", "kept_move", "adopted", "given_back"),
)
_OF_STATE = {each.name: each for each in structs.fields(InstanceState)}
_FIELDS = _OF_STATE | {each.name: each for each in structs.fields(InstanceRow)}
_Progress = msgspec.defstruct(
    "_Progress", [(name, _FIELDS[name].type, _FIELDS[name].default) for name in _IN_PROGRESS], array_like=True
)
_progress_of = attrgetter(*[f"told.{name}" if name in _OF_STATE else name for name in _IN_PROGRESS])

_encode = msgspec.msgpack.Encoder(uuid_format="bytes").encode
_given = msgspec.msgpack.Decoder(_Given).decode
_order = msgspec.msgpack.Decoder(PlaceInCell | AdoptInCell).decode
_progress = msgspec.msgpack.Decoder(_Progress).decode
_NO_PROGRESS = structs.astuple(_Progress())


def new_values(row: InstanceRow, place: int | None, digest: bytes) -> Values:
    """The values of a new row, for `ADD`."""
    told = row.told
    return (
        row.id,
        None if told.request_id.int == NO_REQUEST.int else told.request_id,
        place,
        told.project or None,
        told.name or None,
        _encode(_Given(digest, told.name, row.issued_at, row.ends_by, row.spec, row.by)),
        *_changing_values(row),
    )


def values_of_new(digest: bytes, rows: Sequence[InstanceRow]) -> list[Values]:
    """The values of all rows of a new request, for `ADD`."""
    return [new_values(row, place, digest) for place, row in enumerate(rows)]


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
    progress = _progress_of(row)
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
        None if progress == _NO_PROGRESS else _encode(progress),
    )


def row_of(read: Values) -> InstanceRow:
    """The instance's row, from the values of the columns in `READ`; the order to its cell may be missing."""
    id_, request_id, project, given, state, sequence, heard, *others = read
    cell, host, attempt, changed_at, unsaid, progress, *order = others
    was_given = _given(given)
    had = {} if progress is None else structs.asdict(_progress(progress))
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
        changed_at=changed_at,
        **{name: value for name, value in had.items() if name in _OF_STATE},
    )
    return InstanceRow(
        told=told,
        issued_at=was_given.issued_at,
        ends_by=was_given.ends_by,
        order=_order(order[0]) if any(order) else None,
        heard=heard,
        unsaid=unsaid is not None,
        spec=was_given.spec,
        by=was_given.by,
        **{name: value for name, value in had.items() if name not in _OF_STATE},
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
