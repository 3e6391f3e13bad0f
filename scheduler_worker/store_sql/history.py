"""The history of instances: what was ordered for them, and how it ended."""

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import structs
from sqlalchemy import Connection, Row

from bus.messages.build import InstanceId, RequestId, Size
from bus.messages.hosts import cell_and_name
from bus.messages.moves import WAITS, Change
from bus.sql import insert
from scheduler_worker.store import ChangeQuery
from scheduler_worker.tables import changes as table

_encode = msgspec.msgpack.Encoder().encode
_size = msgspec.msgpack.Decoder(Size).decode
_NOT_MOVES = ("rebuild", "delete")
_GOES_ON = (table.c.ended_at.is_(None), table.c.what.not_in(_NOT_MOVES), table.c.outcome != WAITS)
# Two arbitrary numbers: "moor", and the purpose. Orders about aggregates have another purpose.
_LOCK = sa.text("SELECT pg_advisory_xact_lock(1836019570, 3)")


def write_changes(connection: Connection, changes: Sequence[Change]) -> None:
    """Insert these changes into the history, or complete those that are there. The sender, the time and the size of an
    order stay as they were written.
    """
    statement = insert(connection, table)
    new = statement.excluded
    renewed: dict[str, Any] = {
        name: sa.func.coalesce(sa.func.nullif(new[name], ""), table.c[name])
        for name in ("destination", "ended_by", "outcome", "failure")
    }
    for name in ("outcome", "failure"):
        # What is said of a move that waits is not true any more when it begins.
        renewed[name] = sa.case((table.c.outcome == WAITS, new[name]), else_=renewed[name])
    # A resize that waits gets its size when it begins.
    renewed["size"] = sa.func.coalesce(table.c.size, new.size)
    renewed["ended_at"] = sa.func.coalesce(new.ended_at, table.c.ended_at)
    rows = sorted(changes, key=lambda change: (change.instance.int, change.number))
    connection.execute(
        statement.on_conflict_do_update(index_elements=[*table.primary_key], set_=renewed),
        [_values(change) for change in rows],
    )


def find_changes(connection: Connection, query: ChangeQuery) -> list[Change]:
    found = sa.select(table).limit(query.limit)
    if query.instance is not None:
        found = found.where(table.c.instance == query.instance, table.c.number > query.after)
        found = found.order_by(table.c.number)
    else:
        found = found.where(table.c.what.not_in(_NOT_MOVES)).order_by(
            table.c.asked_at.desc(), table.c.instance
        )
    if not query.ended:
        found = found.where(table.c.ended_at.is_(None))
    if query.host:
        cell, name = cell_and_name(query.host)
        found = found.where(sa.or_(table.c.source == name, table.c.destination == name))
        found = found.where(table.c.cell == cell) if cell else found
    if (place := query.behind) is not None:
        is_later = sa.and_(table.c.asked_at == place.asked_at, table.c.instance > place.instance)
        found = found.where(sa.or_(table.c.asked_at < place.asked_at, is_later))
    return [_change(row) for row in connection.execute(found)]


def lock_moves(connection: Connection) -> list[Change]:
    if connection.dialect.name == "postgresql":
        # SQLite has one writer at a time.
        connection.execute(_LOCK)
    return [_change(row) for row in connection.execute(sa.select(table).where(*_GOES_ON))]


def count_open_moves(connection: Connection) -> dict[str, int]:
    """The moves that go on, by their kind."""
    counted = sa.select(table.c.what, sa.func.count().label("number")).where(*_GOES_ON).group_by(table.c.what)
    return {row.what: row.number for row in connection.execute(counted)}


def _values(change: Change) -> dict[str, Any]:
    return {**structs.asdict(change), "size": None if change.size is None else _encode(change.size)}


def _change(row: Row[Any]) -> Change:
    values = row._asdict()
    request = values.pop("request_id")
    return Change(
        **{
            **values,
            "instance": InstanceId(row.instance),
            "request_id": None if request is None else RequestId(request),
            "size": None if row.size is None else _size(row.size),
        }
    )
