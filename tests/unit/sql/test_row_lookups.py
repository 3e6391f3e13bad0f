"""On SQLite instances are looked up by an index, and the updates that run most often find their row by its whole key.

Otherwise SQLite takes the row for one of many. Then it copies each page that it changes to a temporary file, to undo the statement if
a later row fails: that was 34 kB a boot.
"""

import re
import sqlite3
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import Table, create_engine, event

import cell_conductor.store_sql
import cell_conductor.tables
import ironic_sync.store_sql
import ironic_sync.tables
import scheduler_worker.store_sql.rows
import scheduler_worker.tables
from kit.sql.databases import RowStatement
from scheduler_worker.store import InstanceQuery
from scheduler_worker.store_sql.rows import find

ROOMS = (
    (cell_conductor.store_sql, cell_conductor.tables.cell_instances),
    (ironic_sync.store_sql, ironic_sync.tables.ironic_nodes),
    (scheduler_worker.store_sql.rows, scheduler_worker.tables.instances),
)


def updates_of(module: ModuleType, table: Table) -> list[str]:
    statements = [each.on_sqlite for each in vars(module).values() if isinstance(each, RowStatement)]
    return [each for each in statements if each.startswith(f"UPDATE {table.name} ")]


@pytest.mark.parametrize(("module", "table"), ROOMS, ids=lambda each: getattr(each, "name", ""))
def test_an_update_finds_its_row_by_the_whole_key(module: ModuleType, table: Table) -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        table.metadata.create_all(connection)
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        updates = updates_of(module, table)
        # A plan needs no values: without parameters each is NULL.
        plans = [
            driver.execute(f"EXPLAIN QUERY PLAN {re.sub(r'[?][0-9]+', 'NULL', each)}") for each in updates
        ]
        steps = [[step for *_, step in plan] for plan in plans]
    engine.dispose()

    key = " AND ".join(f"{column.name}=?" for column in table.primary_key)
    assert steps
    assert [[step.endswith(f"({key})") for step in each] for each in steps] == [[True]] * len(steps), steps


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (InstanceQuery(name="web", living=True), "ix_requested_instances_name_project_id (name=?)"),
        (
            InstanceQuery(name="web", project="shop"),
            "ix_requested_instances_name_project_id (name=? AND project=?)",
        ),
        (InstanceQuery(id_prefix="3f2a"), "sqlite_autoindex_requested_instances_1 (id>? AND id<?)"),
        (
            InstanceQuery(request_prefix="3f2a"),
            "ix_requested_instances_request_id_place (request_id>? AND request_id<?)",
        ),
    ],
)
def test_instances_are_looked_up_by_an_index(query: InstanceQuery, index: str) -> None:
    engine = create_engine("sqlite://")
    plans: list[str] = []

    def explain(connection: Any, _: Any, statement: str, parameters: Any, *__: Any) -> None:
        rows = connection.connection.driver_connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
        plans.extend(step for *_, step in rows)

    with engine.connect() as connection:
        scheduler_worker.tables.metadata.create_all(connection)
        event.listen(engine, "before_cursor_execute", explain)
        find(connection, query)
    engine.dispose()

    assert plans[0] == f"SEARCH requested_instances USING INDEX {index}", plans
