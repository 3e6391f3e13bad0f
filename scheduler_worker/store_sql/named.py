"""Rows of flavors, images and device profiles that requests may name: each has a table of names and bodies."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection, Table

from bus.errors import Transient
from bus.messages.build import Flavor
from bus.messages.device_profiles import DeviceProfile
from bus.messages.images import NamedImage
from bus.sql import among, insert
from scheduler_worker.store import Named, NameQuery
from scheduler_worker.tables import device_profiles, flavors, images

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
