"""Statements on instances and notes that are not hot, and pruning: written once for both databases."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import Connection

from bus.messages.build import InstanceId, RequestId
from bus.messages.hosts import cell_and_name
from bus.sql import among, begins_with
from bus.workers.handling import OutboxKey
from scheduler_worker.core.instances.rows import LIVING, InstanceRow
from scheduler_worker.store import InstanceQuery, OutboxNote
from scheduler_worker.store_sql.rows import READ, ids_in, row_of
from scheduler_worker.tables import changes, notes
from scheduler_worker.tables import instances as table

_COLUMNS = tuple(table.c[name] for name in READ)
# How many notes are read at once; most of them name the rows of a batch.
NOTES_PAGE = 50


def find(connection: Connection, query: InstanceQuery) -> list[InstanceRow]:
    rows = sa.select(*_COLUMNS).where(table.c.request_id.is_not(None), *_conditions(connection, query))
    return _read(connection, rows.order_by(table.c.id).limit(query.limit))


def _conditions(connection: Connection, query: InstanceQuery) -> Iterator[sa.ColumnElement[bool]]:
    if query.instances:
        yield among(connection, table.c.id, query.instances)
    for column, value in (
        (table.c.request_id, query.request_id),
        (table.c.state, query.state),
        (table.c.project, query.project),
        (table.c.name, query.name),
    ):
        if value:
            yield column == value
    for column, prefix in ((table.c.id, query.id_prefix), (table.c.request_id, query.request_prefix)):
        if prefix:
            yield begins_with(column, prefix)
    if query.after is not None:
        yield table.c.id > query.after
    if query.living:
        yield table.c.ended_at.is_(None)
    if query.host:
        yield _is_on(query.host)


def _is_on(host: str) -> sa.ColumnElement[bool]:
    cell, name = cell_and_name(host)
    there = sa.and_(table.c.host == name, table.c.state.in_(LIVING))
    return sa.and_(there, table.c.cell == cell) if cell else there


def find_overdue(connection: Connection, now: datetime, limit: int) -> list[InstanceId]:
    due = sa.select(table.c.id).where(table.c.due_at <= now).order_by(table.c.due_at)
    return [InstanceId(id_) for id_ in connection.scalars(due.limit(limit))]


def find_unsaid(
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
