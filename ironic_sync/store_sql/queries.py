"""Queries that take no lock, shared by both databases."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from bus.message import ProviderId
from bus.moments import microseconds
from bus.sql import among
from ironic_sync.core.ring import Owned
from ironic_sync.core.rows import NodeRow
from ironic_sync.store import Need
from ironic_sync.store_sql.rows import owned_of, rows_of
from ironic_sync.tables import ironic_nodes as table

_ROWS = sa.select(table.c.owner, table.c.epoch, table.c.version, table.c.body)
_OWNED = sa.select(table.c.id, table.c.owner, table.c.epoch, table.c.holds_instance)
_VERSIONS = sa.select(table.c.id, table.c.version)
_NEEDS = {"report": table.c.needs_report, "read": table.c.needs_read}
# From one name to the next by the index: it costs as much as there are names, not as there are nodes.
_NAMES = sa.text(
    """
    WITH RECURSIVE names (owner) AS (
        SELECT min(owner) FROM ironic_nodes
        UNION ALL
        SELECT (SELECT min(owner) FROM ironic_nodes WHERE owner > names.owner) FROM names
        WHERE names.owner IS NOT NULL
    )
    SELECT owner FROM names WHERE owner IS NOT NULL
    """
)


def read(connection: Connection, ids: Collection[ProviderId]) -> tuple[NodeRow, ...]:
    return rows_of(connection.execute(_ROWS.where(among(connection, table.c.id, ids)).order_by(table.c.id)))


def page_of(
    connection: Connection,
    owner: str,
    limit: int,
    after: ProviderId | None = None,
    *,
    needs: Need | None = None,
) -> tuple[NodeRow, ...]:
    query: sa.Select[Any] = _ROWS.where(table.c.owner == owner).order_by(table.c.id).limit(limit)
    if needs is not None:
        query = query.where(_NEEDS[needs])
    if after is not None:
        query = query.where(table.c.id > after)
    return rows_of(connection.execute(query))


def due(
    connection: Connection, owner: str, now: datetime, beyond: datetime, limit: int
) -> tuple[NodeRow, ...]:
    is_due = sa.or_(table.c.due_us <= microseconds(now), table.c.due_us > microseconds(beyond))
    # SQLite takes the partial index only where its condition stands in so many words.
    query = _ROWS.where(table.c.owner == owner, table.c.due_us.is_not(None), is_due)
    return rows_of(connection.execute(query.order_by(table.c.due_us, table.c.id).limit(limit)))


def owners(connection: Connection, names: Collection[str] | None = None) -> tuple[Owned, ...]:
    query = _OWNED.order_by(table.c.id)
    if names is not None:
        query = query.where(among(connection, table.c.owner, names))
    return owned_of(connection.execute(query))


def versions(connection: Connection) -> dict[ProviderId, int]:
    """The version of each node's row: a reader that kept the rows reads only those again that have another one."""
    return {ProviderId(id_): version for id_, version in connection.execute(_VERSIONS)}


def unread_of(connection: Connection, owner: str, limit: int, after: ProviderId | None) -> tuple[Owned, ...]:
    query = _OWNED.where(table.c.owner == owner, table.c.needs_read).order_by(table.c.id).limit(limit)
    if after is not None:
        query = query.where(table.c.id > after)
    return owned_of(connection.execute(query))


def owner_names(connection: Connection) -> tuple[str, ...]:
    return tuple(sorted(connection.scalars(_NAMES)))


def has_tables(connection: Connection) -> bool:
    """Do the tables exist? `moor db upgrade` creates them."""
    return sa.inspect(connection).has_table(table.name)
