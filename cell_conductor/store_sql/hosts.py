"""Reads and writes the modes that operators have set for hosts, and which hosts conductors have heard. Both change rarely, so
both databases share the statements.
"""

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from bus.message import ProviderId
from bus.moments import microseconds, moment
from bus.sql import among, insert
from cell_conductor.core.host_states import CellHost, HeardHost
from cell_conductor.tables import cell_heard_hosts as heard
from cell_conductor.tables import cell_hosts as table

_encode = msgspec.json.Encoder().encode
_host = msgspec.json.Decoder(CellHost).decode


def read_hosts(connection: Connection, cell: str) -> list[CellHost]:
    return [_host(body) for body in connection.scalars(sa.select(table.c.body).where(table.c.cell == cell))]


def count_writes(connection: Connection, cell: str) -> int:
    return int(connection.scalar(sa.select(sa.func.sum(table.c.writes)).where(table.c.cell == cell)) or 0)


def lock_hosts(connection: Connection, cell: str, hosts: Sequence[ProviderId]) -> list[CellHost]:
    query = sa.select(table.c.body).where(table.c.cell == cell, among(connection, table.c.id, list(hosts)))
    return [_host(body) for body in connection.scalars(query.order_by(table.c.id).with_for_update())]


def save_host(connection: Connection, cell: str, host: CellHost, before: CellHost | None) -> bool:
    """Write the row of a host. False if it was missing before, and another process has inserted it by now."""
    id_, body = host.word.host, _encode(host)
    if before is not None:
        query = sa.update(table).where(table.c.cell == cell, table.c.id == id_)
        connection.execute(query.values(writes=table.c.writes + 1, body=body))
        return True
    statement = (
        insert(connection, table).values(id=id_, cell=cell, writes=1, body=body).on_conflict_do_nothing()
    )
    return connection.execute(statement).rowcount == 1


def read_heard_hosts(connection: Connection, cell: str, before_us: int) -> list[HeardHost]:
    connection.execute(sa.delete(heard).where(heard.c.cell == cell, heard.c.silent_since_us < before_us))
    query = sa.select(heard.c.id, heard.c.silent_since_us).where(heard.c.cell == cell)
    return [
        HeardHost(id_, None if since_us is None else moment(since_us))
        for id_, since_us in connection.execute(query)
    ]


def save_heard_hosts(connection: Connection, cell: str, hosts: Sequence[HeardHost]) -> None:
    # In the order of ids, so that two processes cannot deadlock.
    rows = [
        {
            "id": host.id,
            "cell": cell,
            "silent_since_us": None if host.silent_since is None else microseconds(host.silent_since),
        }
        for host in sorted(hosts, key=lambda host: host.id)
    ]
    statement = insert(connection, heard)
    upsert = statement.on_conflict_do_update(
        index_elements=[*heard.primary_key],
        set_={"silent_since_us": statement.excluded.silent_since_us},
    )
    connection.execute(upsert, rows)
