"""Rows of server groups."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from bus.message import GroupId
from bus.messages.placement import ServerGroup
from bus.sql import among, begins_with
from scheduler_worker.store import GroupQuery, KnownGroup
from scheduler_worker.tables import groups as table

_CREATE = sa.text(
    "INSERT INTO known_groups (id, project, name, policy, max_per_host) "
    "VALUES (:id, :project, :name, :policy, :max_per_host) ON CONFLICT (id) DO NOTHING"
).bindparams(sa.bindparam("id", type_=table.c.id.type))


def create_group(connection: Connection, group: KnownGroup) -> KnownGroup | None:
    definition = group.definition
    connection.execute(
        _CREATE,
        {
            "id": definition.id,
            "project": group.project,
            "name": group.name,
            "policy": definition.policy,
            "max_per_host": definition.max_per_host,
        },
    )
    row = connection.execute(sa.select(table).where(table.c.id == definition.id)).one()
    return None if row.deleted_at is not None else _group(row)


def delete_group(connection: Connection, group: GroupId, project: str, at: datetime) -> KnownGroup | None:
    deleted = sa.update(table).where(table.c.id == group, table.c.deleted_at.is_(None)).values(deleted_at=at)
    if project:
        deleted = deleted.where(table.c.project == project)
    row = connection.execute(deleted.returning(*table.c)).first()
    return None if row is None else _group(row)


def find_groups(connection: Connection, query: GroupQuery) -> Sequence[KnownGroup]:
    found = sa.select(table).where(table.c.deleted_at.is_(None)).order_by(table.c.id).limit(query.limit)
    if query.ids is not None:
        found = found.where(among(connection, table.c.id, query.ids))
    if query.after is not None:
        found = found.where(table.c.id > query.after)
    if query.project:
        found = found.where(table.c.project == query.project)
    if query.name:
        found = found.where(table.c.name == query.name)
    if query.id_prefix:
        found = found.where(begins_with(table.c.id, query.id_prefix))
    return [_group(row) for row in connection.execute(found)]


def prune_groups(connection: Connection, before: datetime) -> None:
    connection.execute(sa.delete(table).where(table.c.deleted_at < before))


def _group(row: Row[Any]) -> KnownGroup:
    return KnownGroup(
        definition=ServerGroup(id=GroupId(row.id), policy=row.policy, max_per_host=row.max_per_host),
        name=row.name,
        project=row.project,
    )
