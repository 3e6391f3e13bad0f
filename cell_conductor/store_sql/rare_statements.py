"""Statements on a cell's instances and notes that run rarely, written once for both databases."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from bus.messages.build import InstanceId
from bus.messages.cell import PlaceInCell
from bus.sql import among
from cell_conductor.core.instance import Instance
from cell_conductor.row_codec import assemble_row, decode_body, decode_order
from cell_conductor.store import without_confirmed
from cell_conductor.tables import cell_instances as table
from cell_conductor.tables import cell_notes as notes


def read(
    connection: Connection,
    cell: str,
    instances: Sequence[InstanceId],
    after: InstanceId | None,
    limit: int | None,
) -> list[Instance]:
    """The rows of these instances, or of all if none are named, that follow `after` in the order of their ids."""
    query = sa.select(table.c.body, table.c.placed).where(table.c.cell == cell)
    if instances:
        query = query.where(among(connection, table.c.id, instances))
    if after is not None:
        query = query.where(table.c.id > after)
    return _rows(connection, query.order_by(table.c.id).limit(limit))


def _rows(connection: Connection, query: sa.Select[Any]) -> list[Instance]:
    return [
        assemble_row(decode_body(body), decode_order(placed) if placed else None)
        for body, placed in connection.execute(query)
    ]


def read_notes(
    connection: Connection, cell: str, before_us: int | None, after: int, limit: int
) -> list[tuple[int, bytes]]:
    """A page of the notes of unconfirmed messages that follow the number `after`, in the order of their numbers.

    With `before_us`, only notes written before this time, in microseconds, are read.
    """
    query = sa.select(notes.c.number, notes.c.said).where(notes.c.cell == cell, notes.c.number > after)
    query = query.order_by(notes.c.number).limit(limit)
    if before_us is not None:
        query = query.where(notes.c.at_us < before_us)
    return [(number, said) for number, said in connection.execute(query)]


def read_waiting(
    connection: Connection, cell: str, until_us: int, after: tuple[int, InstanceId] | None, limit: int
) -> list[Instance]:
    """Rows that are due by `until_us`, the earliest first, without their messages."""
    query = sa.select(table.c.body, table.c.placed)
    query = query.where(table.c.cell == cell, table.c.due_us <= until_us)
    if after is not None:
        due_us, id_ = after
        later = sa.and_(table.c.due_us == due_us, table.c.id > id_)
        query = query.where(sa.or_(table.c.due_us > due_us, later))
    found = _rows(connection, query.order_by(table.c.due_us, table.c.id).limit(limit))
    return [without_confirmed(row, frozenset()) for row in found]


def read_orders(
    connection: Connection, cell: str, instances: Sequence[InstanceId]
) -> dict[InstanceId, PlaceInCell]:
    query = sa.select(table.c.id, table.c.placed)
    query = query.where(table.c.cell == cell, among(connection, table.c.id, instances))
    return {id_: decode_order(placed) for id_, placed in connection.execute(query)}


def forget(connection: Connection, cell: str, instances: Sequence[InstanceId]) -> None:
    connection.execute(sa.delete(table).where(table.c.cell == cell, among(connection, table.c.id, instances)))
