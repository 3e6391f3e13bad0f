"""Rows of flavors that requests may name."""

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from bus.errors import Transient
from bus.messages.build import Flavor
from bus.sql import among, insert
from scheduler_worker.store import FlavorQuery
from scheduler_worker.tables import flavors as table

_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Flavor).decode


def create_flavor(connection: Connection, flavor: Flavor) -> Flavor:
    row = {"name": flavor.name, "flavor": _encode(flavor)}
    connection.execute(insert(connection, table).values(row).on_conflict_do_nothing())
    stored = sa.select(table.c.flavor).where(table.c.name == flavor.name)
    body = connection.execute(stored).scalar_one_or_none()
    if body is None:
        raise Transient(f"flavor {flavor.name!r} was deleted at this moment: the order is tried again")
    return _decode(body)


def delete_flavor(connection: Connection, name: str) -> Flavor | None:
    gone = connection.execute(sa.delete(table).where(table.c.name == name).returning(table.c.flavor))
    body = gone.scalar_one_or_none()
    return None if body is None else _decode(body)


def find_flavors(connection: Connection, query: FlavorQuery) -> Sequence[Flavor]:
    found = sa.select(table.c.name, table.c.flavor)
    if query.names is not None:
        found = found.where(among(connection, table.c.name, query.names))
    if query.after:
        found = found.where(bytewise(connection) > query.after)
    rows = connection.execute(found.order_by(bytewise(connection)).limit(query.limit))
    return [_decode(body) for _, body in rows]


def bytewise(connection: Connection) -> sa.ColumnElement[str]:
    """The name, sorted as all stores sort it."""
    return sa.collate(table.c.name, "C" if connection.dialect.name == "postgresql" else "BINARY")
