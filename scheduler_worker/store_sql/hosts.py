"""Rows of hosts, one for each, read and written whole."""

from collections.abc import Sequence
from datetime import datetime

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from bus.message import ProviderId
from bus.messages.hosts import HostState
from bus.sql import RowColumns, Transaction, among
from scheduler_worker.store import HostQuery
from scheduler_worker.tables import hosts as table

_SAVE = RowColumns(table, "id", "name", "cell", "changed_at", "body", free_texts=("name", "cell")).insert(
    "ON CONFLICT (id) DO UPDATE SET name = excluded.name, cell = excluded.cell, changed_at = excluded.changed_at,"
    " body = excluded.body"
)

_encode = msgspec.json.Encoder().encode
_host = msgspec.json.Decoder(HostState).decode


def lock_hosts(connection: Connection, ids: Sequence[ProviderId], names: Sequence[str]) -> list[HostState]:
    query = sa.select(table.c.body).where(
        sa.or_(among(connection, table.c.id, list(ids)), among(connection, table.c.name, list(names)))
    )
    return [_host(body) for body in connection.scalars(query.order_by(table.c.id).with_for_update())]


async def save_hosts(transaction: Transaction, changed: Sequence[HostState], at: datetime) -> None:
    hosts = sorted(changed, key=lambda host: host.id.int)
    await _SAVE.change(transaction, [(host.id, host.name, host.cell, at, _encode(host)) for host in hosts])


def forget_hosts(connection: Connection, ids: Sequence[ProviderId]) -> None:
    connection.execute(sa.delete(table).where(among(connection, table.c.id, list(ids))))


def find_hosts(connection: Connection, wanted: HostQuery) -> list[HostState]:
    query = sa.select(table.c.body).where(table.c.name > wanted.after)
    if wanted.ids is not None:
        query = query.where(among(connection, table.c.id, wanted.ids))
    if wanted.name is not None:
        query = query.where(table.c.name == wanted.name)
    if wanted.changed_since is not None:
        query = query.where(table.c.changed_at >= wanted.changed_since)
    found = connection.scalars(query.order_by(table.c.name, table.c.id).limit(wanted.limit))
    return [_host(body) for body in found]
