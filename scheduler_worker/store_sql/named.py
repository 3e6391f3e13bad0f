"""Rows of flavors, images and device profiles that requests may name: each has a table of names and bodies."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection, Row, Table

from bus.messages.stored_names import KnownApplication, NamedImage
from engine.flavors import DeviceProfile, Flavor
from engine.inventories import GroupId, ServerGroup
from kit.errors import Transient
from kit.sql import among, begins_with, insert
from kit.sql.statements import Moment
from scheduler_worker.store import GroupQuery, KnownGroup, Named, NameQuery
from scheduler_worker.tables import applications as table_applications
from scheduler_worker.tables import device_profiles, flavors, images
from scheduler_worker.tables import groups as table

_TABLES: Mapping[type[Any], Table] = {Flavor: flavors, NamedImage: images, DeviceProfile: device_profiles}
_encode = msgspec.json.Encoder(order="deterministic").encode


def create_named(connection: Connection, named: Named) -> Named:
    kind = type(named)
    table, body = _table_of(kind)
    row = {"name": named.name, body.name: _encode(named)}
    connection.execute(insert(connection, table).values(row).on_conflict_do_nothing())
    stored = _one(connection, kind, sa.select(body).where(table.c.name == named.name))
    if stored is None:
        raise Transient(f"{named.name!r} was deleted at this moment: the order is tried again")
    return stored


def lock_named(connection: Connection, kind: type[Named], name: str) -> Named | None:
    table, body = _table_of(kind)
    return _one(connection, kind, sa.select(body).where(table.c.name == name).with_for_update())


def save_named(connection: Connection, named: Named) -> None:
    table, body = _table_of(type(named))
    changed = sa.update(table).where(table.c.name == named.name)
    connection.execute(changed.values({body.name: _encode(named)}))


def delete_named(connection: Connection, kind: type[Named], name: str) -> Named | None:
    table, body = _table_of(kind)
    return _one(connection, kind, sa.delete(table).where(table.c.name == name).returning(body))


def find_named(connection: Connection, kind: type[Named], query: NameQuery) -> Sequence[Named]:
    table, body = _table_of(kind)
    # All stores sort by bytes.
    bytewise = sa.collate(table.c.name, "C" if connection.dialect.name == "postgresql" else "BINARY")
    found = sa.select(body)
    if query.names is not None:
        found = found.where(among(connection, table.c.name, query.names))
    if query.after:
        found = found.where(bytewise > query.after)
    rows = connection.execute(found.order_by(bytewise).limit(query.limit))
    return [msgspec.json.decode(each, type=kind) for (each,) in rows]


def _table_of(kind: type[Named]) -> tuple[Table, sa.Column[bytes]]:
    table = _TABLES[kind]
    _, body = table.columns
    return table, body


def _one(connection: Connection, kind: type[Named], statement: sa.Executable) -> Named | None:
    body = connection.execute(statement).scalar_one_or_none()
    return None if body is None else msgspec.json.decode(body, type=kind)


# Rows of server groups.


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


# Rows of applications: few, read and written whole.


_SAVE = sa.text(
    "INSERT INTO known_applications (name, body) VALUES (:name, :body) "
    "ON CONFLICT (name) DO UPDATE SET body = excluded.body"
)

_LATEST = sa.text(
    "INSERT INTO application_orders (name, sent_at) VALUES (:name, :sent_at) "
    "ON CONFLICT (name) DO UPDATE SET sent_at = excluded.sent_at "
    "WHERE application_orders.sent_at <= excluded.sent_at RETURNING name"
).bindparams(sa.bindparam("sent_at", type_=Moment()))

_encode_applications = msgspec.json.Encoder().encode
_application = msgspec.json.Decoder(KnownApplication).decode


def set_application(
    connection: Connection, name: str, sent_at: datetime, application: KnownApplication | None
) -> KnownApplication | None:
    if connection.execute(_LATEST, {"name": name, "sent_at": sent_at}).first() is not None:
        if application is None:
            connection.execute(sa.delete(table_applications).where(table_applications.c.name == name))
        else:
            connection.execute(_SAVE, {"name": name, "body": _encode_applications(application)})
    body = connection.scalar(sa.select(table_applications.c.body).where(table_applications.c.name == name))
    return None if body is None else _application(body)


def find_applications(connection: Connection) -> list[KnownApplication]:
    found = [_application(body) for body in connection.scalars(sa.select(table_applications.c.body))]
    # Sorted here: a database's order of texts depends on its locale.
    return sorted(found, key=lambda each: each.name)
