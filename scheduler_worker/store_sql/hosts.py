"""Rows of hosts, one for each, read and written whole; and beside a row the host's load by its last report.

A load is so many numbers, the greatest first: so a later load is greater, byte by byte, in both databases.
"""

import struct
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from bus.message import ProviderId
from bus.messages.hosts import HostState
from bus.sql import RowColumns, Transaction, among
from scheduler_worker.core.host_reports import HostLoad, with_load
from scheduler_worker.store import HostQuery, HostVersion
from scheduler_worker.tables import hosts as table

_SAVE = RowColumns(
    table, "id", "name", "cell", "changed_at", "body", "sequence", free_texts=("name", "cell")
).insert(
    "ON CONFLICT (id) DO UPDATE SET name = excluded.name, cell = excluded.cell, changed_at = excluded.changed_at,"
    " body = excluded.body, sequence = excluded.sequence, load = NULL"
)
_SAVE_LOADS = RowColumns(table, "id", "sequence", "load").update(
    "kept.sequence = new.sequence AND coalesce(kept.load, '') <= new.load"
)
_READ = (table.c.body, table.c.load)
# The epoch and the sequence of the report; the instances, the builds under way, the failed builds.
_LOAD = struct.Struct(">QQQQQ")

_encode = msgspec.json.Encoder().encode
_host = msgspec.json.Decoder(HostState).decode


def lock_hosts(connection: Connection, ids: Sequence[ProviderId], names: Sequence[str]) -> list[HostState]:
    query = sa.select(*_READ).where(
        sa.or_(among(connection, table.c.id, list(ids)), among(connection, table.c.name, list(names)))
    )
    return _hosts(connection.execute(query.order_by(table.c.id).with_for_update()))


def _hosts(rows: Iterable[Any]) -> list[HostState]:
    return [_host(body) if load is None else _with_load(_host(body), load) for body, load in rows]


def _with_load(host: HostState, load: bytes) -> HostState:
    return with_load(host, HostLoad(host.id, host.sequence, *_LOAD.unpack(load)))


async def save_hosts(transaction: Transaction, changed: Sequence[HostState], at: datetime) -> None:
    hosts = sorted(changed, key=lambda host: host.id.int)
    rows = [(host.id, host.name, host.cell, at, _encode(host), host.sequence) for host in hosts]
    await _SAVE.change(transaction, rows)


async def save_loads(transaction: Transaction, loads: Sequence[HostLoad]) -> int:
    rows = [
        (each.host, each.row, _LOAD.pack(*each[2:])) for each in sorted(loads, key=lambda load: load.host.int)
    ]
    return await _SAVE_LOADS.change(transaction, rows)


def find_versions(connection: Connection, changed_since: datetime) -> list[tuple[ProviderId, HostVersion]]:
    query = sa.select(table.c.id, table.c.changed_at, table.c.sequence)
    found = connection.execute(query.where(table.c.changed_at >= changed_since))
    return [(ProviderId(id_), (changed_at, sequence)) for id_, changed_at, sequence in found]


def find_loads(connection: Connection) -> list[HostLoad]:
    query = sa.select(table.c.id, table.c.sequence, table.c.load).where(table.c.load.is_not(None))
    return [
        HostLoad(ProviderId(id_), row, *_LOAD.unpack(load)) for id_, row, load in connection.execute(query)
    ]


def forget_hosts(connection: Connection, ids: Sequence[ProviderId]) -> None:
    connection.execute(sa.delete(table).where(among(connection, table.c.id, list(ids))))


def find_hosts(connection: Connection, wanted: HostQuery) -> list[HostState]:
    query = sa.select(*_READ).where(table.c.name > wanted.after)
    if wanted.ids is not None:
        query = query.where(among(connection, table.c.id, wanted.ids))
    if wanted.name is not None:
        query = query.where(table.c.name == wanted.name)
    return _hosts(connection.execute(query.order_by(table.c.name, table.c.id).limit(wanted.limit)))
