"""Rows of cells, and counts of what is in them."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from bus.messages.overview import InstanceCount
from bus.sql.types import Moment
from scheduler_worker.core.instances.rows import DELETED
from scheduler_worker.store import KnownCell, WorkCounts
from scheduler_worker.store_sql.history import count_open_moves
from scheduler_worker.tables import cells as table
from scheduler_worker.tables import instances, waiting

_SAVE = sa.text(
    "INSERT INTO known_cells (name, heard_at) VALUES (:name, :heard_at) "
    "ON CONFLICT (name) DO UPDATE SET heard_at = excluded.heard_at "
    "WHERE known_cells.heard_at < excluded.heard_at"
).bindparams(sa.bindparam("heard_at", type_=Moment()))


def save_cells(connection: Connection, cells: Sequence[KnownCell]) -> None:
    """Write these cells in the order of their names, as every worker locks them."""
    ordered = sorted(cells, key=lambda each: each.name)
    connection.execute(_SAVE, [{"name": each.name, "heard_at": each.heard_at} for each in ordered])


def find_cells(connection: Connection) -> list[KnownCell]:
    found = [KnownCell(*row) for row in connection.execute(sa.select(table.c.name, table.c.heard_at))]
    # Sorted here: a database's order of texts depends on its locale.
    return sorted(found, key=lambda each: each.name)


def count_instances(connection: Connection) -> list[InstanceCount]:
    # It reads all rows. An index by state would cost each boot more than this costs: a row whose indexed columns stay as
    # they are is written without its indexes when it becomes active (tables.py).
    query = sa.select(instances.c.state, instances.c.cell, sa.func.count())
    query = query.where(instances.c.state != DELETED).group_by(instances.c.state, instances.c.cell)
    found = [
        InstanceCount(state=state, cell=cell, count=count) for state, cell, count in connection.execute(query)
    ]
    return sorted(found, key=lambda each: (each.state, each.cell))


def count_work(connection: Connection) -> WorkCounts:
    count, oldest = connection.execute(sa.select(sa.func.count(), sa.func.min(waiting.c.since))).one()
    return WorkCounts(count, oldest, count_open_moves(connection))
