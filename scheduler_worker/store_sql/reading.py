"""What is asked of instances beside the hot path, and what is forgotten of them: written once for both databases."""

from datetime import datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import Connection

from bus.messages.build import InstanceId
from bus.sql import among
from scheduler_worker.instances import DELETED, InstanceRow
from scheduler_worker.store import InstanceQuery
from scheduler_worker.store_sql.rows import READ, row_of
from scheduler_worker.tables import instances as table

if TYPE_CHECKING:
    from collections.abc import Sequence

_COLUMNS = tuple(table.c[name] for name in READ)


def find(connection: Connection, query: InstanceQuery) -> list[InstanceRow]:
    rows = sa.select(*_COLUMNS).where(table.c.request_id.is_not(None))
    if query.instances:
        rows = rows.where(among(connection, table.c.id, query.instances))
    if query.request_id is not None:
        rows = rows.where(table.c.request_id == query.request_id)
    if query.after is not None:
        rows = rows.where(table.c.id > query.after)
    if query.state:
        rows = rows.where(table.c.state == query.state)
    if query.project:
        rows = rows.where(table.c.project == query.project)
    return _read(connection, rows.order_by(table.c.id).limit(query.limit))


def find_overdue(connection: Connection, now: datetime, limit: int) -> list[InstanceId]:
    late = sa.select(table.c.id).where(table.c.due_at <= now).order_by(table.c.due_at)
    return [InstanceId(id_) for id_ in connection.scalars(late.limit(limit))]


def find_unsaid(
    connection: Connection, before: datetime, after: InstanceId | None, limit: int
) -> list[InstanceRow]:
    query = sa.select(*_COLUMNS).where(table.c.unsaid.is_not(None), table.c.changed_at < before)
    if after is not None:
        query = query.where(table.c.id > after)
    return _read(connection, query.order_by(table.c.id).limit(limit))


def prune(connection: Connection, before: datetime, limit: int) -> int:
    over = (table.c.state == DELETED, table.c.changed_at < before, table.c.unsaid.is_(None))
    others = table.alias("others")
    is_wanted = sa.or_(others.c.state != DELETED, others.c.changed_at >= before, others.c.unsaid.is_not(None))
    ended = (
        sa.select(table.c.request_id)
        .distinct()
        .where(*over, table.c.request_id.is_not(None))
        .where(~sa.exists().where(others.c.request_id == table.c.request_id, is_wanted))
        .limit(limit)
    )
    found = sorted(connection.scalars(ended), key=lambda id_: id_.int)
    if found:
        connection.execute(sa.delete(table).where(among(connection, table.c.request_id, found)))
    unseen = sa.select(table.c.id).where(*over, table.c.request_id.is_(None)).limit(limit)
    # Its request may have come in this moment: then the row is another by now, and stays.
    forgotten = sa.delete(table).where(table.c.id.in_(unseen), *over, table.c.request_id.is_(None))
    return len(found) + connection.execute(forgotten).rowcount


def _read(connection: Connection, query: sa.Select[Any]) -> list[InstanceRow]:
    rows: Sequence[Any] = connection.execute(query).all()
    return [row_of(tuple(row)) for row in rows]
