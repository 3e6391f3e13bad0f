"""An instance's columns, the statements that run most often, and the codec between the columns and the instance.

Some values are packed into one column, because a column of its own costs as much as a whole pack. These are the values
that are written once and that no query names; the order to the cell, together with the decision for a host; and the
reasons of failures.
"""

import struct
from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from msgspec import Struct, structs
from sqlalchemy import Connection

from bus.messages.build import InstanceState
from bus.messages.cell import AdoptInCell, PlaceInCell
from bus.workers.handlers import OutboxKey
from engine.flavors import InstanceId, RequestId
from kit.errors import Transient
from kit.sql import (
    RowColumns,
    Transaction,
    Values,
    among,
)
from scheduler_worker.core.instances.history import has_named
from scheduler_worker.core.instances.lifecycle import CellEvent, adopted
from scheduler_worker.core.instances.rows import DELETED, NO_REQUEST, PLACED, InstanceRow
from scheduler_worker.store_sql.finding import DECODED_MAX, count_rows, name_order, read_page, rows_to_count
from scheduler_worker.store_sql.values import (
    Acceptance,
    InstancePage,
    InstanceQuery,
    InstancesTaken,
    Known,
    NewRequest,
    OtherContent,
    OutboxNote,
)
from scheduler_worker.tables import DELETED_UNPLACED, WITHOUT_HOST, changes, instances, notes
from scheduler_worker.tables import instances as table

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
    *("id", "request_id", "place", "project", "name", "name_order", "given"),
    *_CHANGING,
    free_texts=("project", "name", "name_order"),
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
    *("move_decision", "kept_move", "adopted", "given_back", "active_at"),
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
        name_order(told.name),
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


# Statements on instances and notes that are not hot, and pruning: written once for both databases.


_COLUMNS = tuple(table.c[name] for name in READ)
# How many notes are read at once; most of them name the rows of a batch.
NOTES_PAGE = 50


def find(connection: Connection, query: InstanceQuery) -> list[InstanceRow]:
    page = find_page(connection, query)
    return [] if page is None else list(page.rows)


def find_page(connection: Connection, query: InstanceQuery) -> InstancePage | None:
    read = read_page(connection, query, _COLUMNS)
    if read is None:
        return None
    return InstancePage(_having(query, read.rows), None if read.next is None else InstanceId(read.next))


def count_found(connection: Connection, query: InstanceQuery) -> tuple[int, bool]:
    count, more_than = count_rows(connection, query)
    if not (query.flavor or query.image):
        return count, more_than
    rows = rows_to_count(connection, query, _COLUMNS)
    # One row more than may be read tells whether there are others.
    count = len(_having(query, rows[:DECODED_MAX]))
    return min(count, query.read_max), more_than or len(rows) > DECODED_MAX


def count_unplaced(connection: Connection, project: str, limit: int) -> tuple[int, int]:
    def counted(*conditions: sa.ColumnElement[bool] | sa.TextClause) -> int:
        some = sa.select(table.c.id).where(table.c.project == project, *conditions).limit(limit)
        return int(connection.scalar(sa.select(sa.func.count()).select_from(some.subquery())) or 0)

    return counted(WITHOUT_HOST, table.c.state != "offloaded"), counted(DELETED_UNPLACED)


def _having(query: InstanceQuery, rows: Sequence[sa.Row[Any]]) -> tuple[InstanceRow, ...]:
    """The instances in these rows that have the flavor and the image that the question names."""
    found = [row_of(tuple(each)) for each in rows]
    return tuple([row for row in found if has_named(row, query.flavor, query.image)])


def put_names_in_order(connection: Connection, limit: int) -> int:
    """Write how the names of some rows sort, which release 0.1.0 has not done. Returns how many rows these are."""
    unordered = sa.select(table.c.id, table.c.name).where(table.c.name_order.is_(None))
    rows = connection.execute(
        unordered.order_by(table.c.id).limit(limit).with_for_update(skip_locked=True)
    ).all()
    if rows:
        named = sa.update(table).where(table.c.id == sa.bindparam("of"))
        written = [{"of": id_, "name_order": name_order(name or "")} for id_, name in rows]
        connection.execute(named.values(name_order=sa.bindparam("name_order")), written)
    return len(rows)


def find_overdue(connection: Connection, now: datetime, limit: int) -> list[InstanceId]:
    due = sa.select(table.c.id).where(table.c.due_at <= now).order_by(table.c.due_at)
    return [InstanceId(id_) for id_ in connection.scalars(due.limit(limit))]


def find_unconfirmed(
    connection: Connection, before: datetime, after: OutboxKey | None, limit: int
) -> list[OutboxNote]:
    query = sa.select(notes.c.number, notes.c.placed, notes.c.others).where(notes.c.at < before)
    if after is not None:
        query = query.where(notes.c.number > after)
    named: dict[int, list[UUID]] = {}
    ids: set[UUID] = set()
    for number, placed, others in connection.execute(query.order_by(notes.c.number).limit(NOTES_PAGE)):
        if len(ids) >= limit:
            break
        named[number] = sorted(ids_in(placed, others), key=lambda id_: id_.int)
        ids.update(named[number])
    unsaid = sa.select(*_COLUMNS).where(among(connection, table.c.id, [*ids]), table.c.unsaid.is_not(None))
    rows = {row.id: row for row in _read(connection, unsaid)} if ids else {}
    return [
        OutboxNote(OutboxKey(number), tuple([rows[InstanceId(id_)] for id_ in these if id_ in rows]))
        for number, these in named.items()
    ]


def ids_of_requests(connection: Connection, requests: Sequence[RequestId]) -> list[UUID]:
    return list(
        connection.scalars(sa.select(table.c.id).where(among(connection, table.c.request_id, requests)))
    )


def forget(connection: Connection, instances: Sequence[InstanceId]) -> None:
    connection.execute(sa.delete(table).where(among(connection, table.c.id, instances)))


def prune(connection: Connection, before: datetime, limit: int) -> int:
    over = (table.c.ended_at < before, table.c.unsaid.is_(None))
    others = table.alias("others")
    is_wanted = sa.or_(others.c.ended_at.is_(None), others.c.ended_at >= before, others.c.unsaid.is_not(None))
    ended = (
        sa.select(table.c.request_id)
        .distinct()
        .where(*over, table.c.request_id.is_not(None))
        .where(~sa.exists().where(others.c.request_id == table.c.request_id, is_wanted))
        .limit(limit)
    )
    found = sorted(connection.scalars(ended), key=lambda id_: id_.int)
    if found:
        gone = sa.select(table.c.id).where(among(connection, table.c.request_id, found))
        connection.execute(sa.delete(changes).where(changes.c.instance.in_(gone)))
        connection.execute(sa.delete(table).where(among(connection, table.c.request_id, found)))
    unseen = sa.select(table.c.id).where(*over, table.c.request_id.is_(None)).limit(limit)
    connection.execute(sa.delete(changes).where(changes.c.instance.in_(unseen)))
    # If the request of such a delete came just now, the row has a request id, and stays.
    forgotten = sa.delete(table).where(table.c.id.in_(unseen), *over, table.c.request_id.is_(None))
    return len(found) + connection.execute(forgotten).rowcount


def _read(connection: Connection, query: sa.Select[Any]) -> list[InstanceRow]:
    return [row_of(tuple(row)) for row in connection.execute(query)]


# Which new requests are accepted, if rows of some of their instances are there already: each request is written once.
#
# Two workers that accept the same request conflict at the row of its first instance, since a request id and a place in
# the request are unique together. Two requests that name the same instance conflict at the row of that instance. Usually
# nothing conflicts, and `SchedulerTransaction.accept` is done after one insert.


async def judge_conflicts(transaction: Transaction, new: Sequence[NewRequest]) -> list[Acceptance]:
    """Whether each of these requests is accepted. All of their rows that did not conflict have just been inserted; those
    of requests that are refused are deleted again.
    """
    others = await transaction.run(ids_of_requests, [request.id for request in new])
    own = [row.id for request in new for row in request.rows]
    stored = _StoredRows(await LOCK_WITH_ORDERS.fetch(transaction, {*own, *others}))
    judged = [stored.judged(request) for request in new]
    refused = [request for request, each in zip(new, judged, strict=True) if not isinstance(each, Known)]
    if withdrawn := [id_ for request in refused for id_ in stored.of(request)]:
        await transaction.run(forget, withdrawn)
    await _adopt(transaction, stored, new, judged)
    return judged


class _StoredRows:
    """The rows in the database after the insert, those of refused requests included."""

    def __init__(self, read: Iterable[Values]) -> None:
        self.rows: dict[UUID, InstanceRow] = {}
        self._of: dict[tuple[UUID | None, bytes], list[InstanceId]] = {}
        self._digests: dict[UUID | None, set[bytes]] = {}
        for each in read:
            row = row_of(each)
            request, digest = request_of(each)
            self.rows[row.id] = row
            self._of.setdefault((request, digest), []).append(row.id)
            self._digests.setdefault(request, set()).add(digest)

    def of(self, request: NewRequest) -> Sequence[InstanceId]:
        """The ids of the stored rows that have the id and the digest of this request.

        If the request is refused, the present transaction has inserted them all, and they must be deleted again: a
        request that had been there before would be `Known`.
        """
        return self._of.get((request.id, request.digest), ())

    def judged(self, request: NewRequest) -> Acceptance:
        if self._digests.get(request.id, set()) - {request.digest}:
            return OtherContent()
        if any(row.id not in self.rows for row in request.rows):
            raise Transient("a repeated request was pruned at the same moment")
        mine = [(row, self.rows[row.id]) for row in request.rows]
        if taken := tuple(
            there.id for _, there in mine if there.told.request_id not in (request.id, NO_REQUEST)
        ):
            return InstancesTaken(taken)
        return Known(
            tuple(
                adopted(there, row) if there.told.request_id == NO_REQUEST else there for row, there in mine
            )
        )


async def _adopt(
    transaction: Transaction, stored: _StoredRows, new: Sequence[NewRequest], judged: Sequence[Acceptance]
) -> None:
    """Write the rows of accepted requests over the rows of their instances that a delete had left before the request
    was seen.
    """
    instead = [
        values
        for request, each in zip(new, judged, strict=True)
        if isinstance(each, Known)
        for row, values in zip(each.rows, values_of_new(request.digest, each.rows), strict=True)
        if stored.rows[row.id] is not row
    ]
    if instead:
        await transaction.run(forget, [each[0] for each in instead])
        await ADD.change(transaction, instead)
