"""What is rare, or read by nobody in a hurry: written once for both databases."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from msgspec import structs
from sqlalchemy import Connection

from bus.messages.build import InstanceId
from bus.messages.cell import PlaceInCell
from bus.sql import among
from cell_conductor.bodies import body_of, decoded, encoded_body, order_of
from cell_conductor.core.instance import Instance
from cell_conductor.store_sql.rows import Stored, as_read, unsaid_values
from cell_conductor.tables import cell_instances as table

_WHOLE = (table.c.body, table.c.unsaid_from, table.c.placed)


def read(connection: Connection, cell: str, instances: Sequence[InstanceId]) -> list[Instance]:
    return _whole(connection, table.c.cell == cell, among(connection, table.c.id, instances))


def find_unsaid(connection: Connection, cell: str) -> list[Instance]:
    return _whole(connection, table.c.cell == cell, table.c.unsaid_from.is_not(None))


def take_due(connection: Connection, cell: str, now_us: int, limit: int) -> list[Stored]:
    query = sa.select(table.c.body, table.c.unsaid_from)
    query = query.where(table.c.cell == cell, table.c.due_us <= now_us).order_by(table.c.due_us).limit(limit)
    return [(body, from_) for body, from_ in connection.execute(query.with_for_update(skip_locked=True))]


def orders_of(connection: Connection, cell: str, instances: Sequence[InstanceId]) -> dict[int, PlaceInCell]:
    query = sa.select(table.c.id, table.c.placed)
    query = query.where(table.c.cell == cell, among(connection, table.c.id, instances))
    return {id_.int: order_of(placed) for id_, placed in connection.execute(query)}


def clear_in_part(connection: Connection, cell: str, said: Mapping[str, set[int]]) -> None:
    """Of these, what was not confirmed stays to be said. One that another process has locked is left as it is."""
    query = sa.select(*_WHOLE).where(
        table.c.cell == cell,
        among(connection, table.c.id, [UUID(entity) for entity in said]),
        table.c.unsaid_from.is_not(None),
    )
    for row in _rows(connection.execute(query.with_for_update(skip_locked=True)).all()):
        left = tuple([each for each in row.outbox if each.sequence not in said[row.id.hex]])
        if len(left) < len(row.outbox):
            now = structs.replace(row, outbox=left)
            first, last = unsaid_values(now)
            changed = {"unsaid_from": first, "unsaid_to": last, "body": encoded_body(now)}
            connection.execute(sa.update(table).where(table.c.cell == cell, table.c.id == row.id), changed)


def forget(connection: Connection, cell: str, instances: Sequence[InstanceId]) -> None:
    connection.execute(sa.delete(table).where(table.c.cell == cell, among(connection, table.c.id, instances)))


def _whole(connection: Connection, *which: sa.ColumnElement[bool]) -> list[Instance]:
    return _rows(connection.execute(sa.select(*_WHOLE).where(*which)))


def _rows(read: Iterable[Any]) -> list[Instance]:
    return [
        as_read(decoded(body_of(body), order_of(placed) if placed else None), unsaid_from)
        for body, unsaid_from, placed in read
    ]
