"""The members of the ring as rows: written once for both databases. Their leases go by the database's clock."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from bus.moments import SECOND_US, moment
from bus.sql import insert
from ironic_sync.core.ring import Member
from ironic_sync.store import FORGOTTEN_AFTER, name_taken
from ironic_sync.tables import ironic_daemons as table

_CLOCKS = {
    # Not that of the transaction's begin: a transaction may have waited since.
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)",
    # Of this machine, as that of all processes which share the file.
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
}


def join(connection: Connection, name: str, incarnation: str, lease_s: float) -> None:
    at_us = _now_us(connection)
    forgotten_us = int(FORGOTTEN_AFTER.total_seconds()) * SECOND_US
    connection.execute(sa.delete(table).where(table.c.lease_ends_us < at_us - forgotten_us))
    new = insert(connection, table).values(
        name=name,
        incarnation=incarnation,
        lease_ends_us=at_us + _us(lease_s),
        is_draining=False,
        joined_us=at_us,
    )
    written = {column: new.excluded[column] for column in table.columns.keys() if column != "name"}  # noqa: SIM118 - no mapping
    upsert = new.on_conflict_do_update(
        index_elements=[table.c.name],
        set_=written,
        where=sa.or_(table.c.lease_ends_us <= at_us, table.c.incarnation == incarnation),
    )
    if connection.scalar(upsert.returning(table.c.name)) is None:
        raise name_taken(name, next(each for each in members(connection) if each.name == name))


def renew(connection: Connection, name: str, incarnation: str, lease_s: float) -> bool:
    at_us = _now_us(connection)
    renewed = sa.update(table).where(
        table.c.name == name, table.c.incarnation == incarnation, table.c.lease_ends_us > at_us
    )
    return connection.execute(renewed.values(lease_ends_us=at_us + _us(lease_s))).rowcount > 0


def leave(connection: Connection, name: str, incarnation: str) -> None:
    connection.execute(sa.delete(table).where(table.c.name == name, table.c.incarnation == incarnation))


def set_draining(connection: Connection, name: str, draining: bool) -> bool:  # noqa: FBT001 - run by its position
    set_ = sa.update(table).where(table.c.name == name).values(is_draining=draining)
    return connection.execute(set_).rowcount > 0


def members(connection: Connection) -> tuple[Member, ...]:
    left_us = table.c.lease_ends_us - _now_us(connection)
    query = sa.select(
        table.c.name, table.c.incarnation, left_us, table.c.is_draining, table.c.joined_us
    ).order_by(table.c.name)
    found = (
        Member(
            name=name,
            incarnation=incarnation,
            lease_left_s=left_us / SECOND_US,
            is_draining=is_draining,
            joined_at=moment(joined_us),
        )
        for name, incarnation, left_us, is_draining, joined_us in connection.execute(query)
    )
    # By the bytes of their names, whatever order the database has for texts.
    return tuple(sorted(found, key=lambda each: each.name))


def _us(seconds: float) -> int:
    return round(seconds * SECOND_US)


def _now_us(connection: Connection) -> sa.ColumnElement[Any]:
    return sa.literal_column(_CLOCKS[connection.dialect.name], sa.BigInteger())
