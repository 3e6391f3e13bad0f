"""On SQLite instances are looked up by an index, and the updates that run most often find their row by its whole key.

Otherwise SQLite takes the row for one of many. Then it copies each page that it changes to a temporary file, to undo the statement if
a later row fails: that was 34 kB a boot.
"""

from typing import Any

import pytest
from sqlalchemy import create_engine, event

import scheduler_worker.store_sql.rows
import scheduler_worker.tables
from scheduler_worker.store_sql import InstanceQuery
from scheduler_worker.store_sql.rows import find


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (InstanceQuery(name="web", order="name"), "ix_requested_instances_name_order_id (name_order=?)"),
        (
            InstanceQuery(cell="c1", host="h1", order="host"),
            "ix_requested_instances_cell_host_name_order_id (cell=? AND host=? AND name_order>?)",
        ),
        (InstanceQuery(id_prefix="3f2a"), "sqlite_autoindex_requested_instances_1 (id>? AND id<?)"),
        (
            InstanceQuery(request_prefix="3f2a", order="age"),
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

    assert f"SEARCH requested_instances USING INDEX {index}" in plans, plans
