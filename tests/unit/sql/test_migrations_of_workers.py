"""A new database has the tables that a worker declares, beside those of another worker. A database with the first tables
of the worker has the same ones after its migrations.
"""

import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest
import pytest_asyncio
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect
from sqlalchemy.engine import make_url

from bus.messages.hosts import HostSetting
from bus.sql import open_database, upgrade, version_table
from bus.sql.migrations import newest_revision
from bus.sql.types import Id, Moment
from scheduler_worker.store import HostQuery, InstanceQuery
from scheduler_worker.store_sql.hosts import find_hosts
from scheduler_worker.store_sql.rare_statements import find
from tests.contracts.sql_stores import empty_database

pytestmark = pytest.mark.asyncio

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
FIRST_HOSTS = sa.table(
    "known_hosts",
    sa.column("name"),
    sa.column("cell"),
    sa.column("id", Id),
    sa.column("enabled", sa.Boolean()),
    sa.column("changed_at", Moment),
    sa.column("body", sa.LargeBinary()),
)

FIRST_INSTANCES = sa.table(
    "requested_instances",
    *(sa.column("id", Id), sa.column("request_id", Id), sa.column("given", sa.LargeBinary())),
    *map(sa.column, ("place", "state", "sequence", "heard", "cell", "host", "attempt")),
    sa.column("changed_at", Moment),
)
FIRST_VALUES = {
    "state": "active",
    "sequence": 1,
    "heard": 1,
    "cell": "c1",
    "host": "h1",
    "attempt": 1,
    "changed_at": NOON,
}

# Written by the last release that had steps to them. Never changed: only migrations follow.
FIRST_TABLES = Path(__file__).parents[2] / "data" / "first_tables"
# Which workers share a database, and the revision of each. Placement's migrations have tests of their own.
WORKERS = {
    "scheduler_worker": ("placement_worker", "0016"),
    "cell_conductor": ("scheduler_worker", "0003"),
    "compute_sim": ("cell_conductor", "0001"),
    "ironic_sync": ("compute_sim", "0001"),
}


@pytest_asyncio.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
async def url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    async with empty_database(request.param) as url:
        yield url


@pytest.mark.parametrize("worker", WORKERS)
async def test_the_migrations_create_the_tables_that_the_code_declares(url: str, worker: str) -> None:
    _, head = WORKERS[worker]
    assert await upgrade(url, worker) == ("", head)

    assert await _asked_of(url, partial(_differences, worker=worker)) == []


@pytest.mark.filterwarnings("ignore:Did not recognize type 'xid8':sqlalchemy.exc.SAWarning")
@pytest.mark.parametrize("worker", ["placement_worker", *WORKERS])
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
async def test_the_first_tables_become_those_of_a_new_database(worker: str, kind: str) -> None:
    async with empty_database(kind) as old, empty_database(kind) as new:
        await _create_first_tables(old, worker, kind)
        await upgrade(old, worker)
        await upgrade(new, worker)

        assert await _asked_of(old, _tables) == await _asked_of(new, _tables)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
async def test_hosts_that_were_disabled_are_draining_for_the_same_reason(kind: str) -> None:
    def write(connection: Connection) -> None:
        for number, is_enabled in ((1, True), (2, False)):
            body = {
                "id": str(UUID(int=number)),
                "name": f"h{number}",
                "cell": "c1",
                "up": True,
                "enabled": is_enabled,
                "disabled_reason": "" if is_enabled else "new disks",
            }
            connection.execute(
                sa.insert(FIRST_HOSTS).values(
                    id=UUID(int=number),
                    name=f"h{number}",
                    cell="c1",
                    enabled=is_enabled,
                    changed_at=NOON,
                    body=json.dumps(body).encode(),
                )
            )

    async with empty_database(kind) as url:
        await _create_first_tables(url, "scheduler_worker", kind)
        await _asked_of(url, write)
        await upgrade(url, "scheduler_worker")

        found = await _asked_of(url, partial(find_hosts, wanted=HostQuery()))

    assert [(host.name, host.setting) for host in found] == [
        ("h1", HostSetting()),
        ("h2", HostSetting(mode="draining", reason="new disks", number=1)),
    ]


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
async def test_instances_of_earlier_releases_are_found_by_name(kind: str) -> None:
    # More than the migration reads at once.
    count = 1001

    def row(number: int) -> dict[str, Any]:
        name = "" if number == 1 else f"web-{number}"
        given = msgspec.msgpack.encode([b"digest", name, NOON, NOON, b"spec", "somebody"])
        ids = {"id": UUID(int=number), "request_id": UUID(int=number), "place": 0}
        return {**FIRST_VALUES, **ids, "given": given}

    def write(connection: Connection) -> None:
        connection.execute(sa.insert(FIRST_INSTANCES), [row(number) for number in range(1, count + 1)])

    async with empty_database(kind) as url:
        await _create_first_tables(url, "scheduler_worker", kind)
        await _asked_of(url, write)
        await upgrade(url, "scheduler_worker")
        names = await _asked_of(
            url,
            lambda connection: [
                *connection.execute(sa.text("SELECT name FROM requested_instances ORDER BY id")).scalars()
            ],
        )
        (found,) = await _asked_of(url, partial(find, query=InstanceQuery(name=f"web-{count}")))

    assert names == [None, *(f"web-{number}" for number in range(2, count + 1))]
    assert (found.id, found.told.name) == (UUID(int=count), f"web-{count}")


@pytest.mark.parametrize("worker", WORKERS)
async def test_a_worker_shares_a_database_with_its_neighbour(url: str, worker: str) -> None:
    neighbour, head = WORKERS[worker]
    await upgrade(url, neighbour)

    assert await upgrade(url, worker) == ("", head)
    assert await upgrade(url, worker) == (head, head)


@pytest.mark.parametrize("worker", ["placement_worker", *WORKERS])
async def test_the_newest_file_has_the_revision_that_alembic_takes_for_the_newest(worker: str) -> None:
    migrations = ScriptDirectory(str(files(worker) / "migrations"))

    assert newest_revision(worker) == migrations.get_current_head()


async def _create_first_tables(url: str, worker: str, kind: str) -> None:
    statements = (FIRST_TABLES / f"{worker}.{kind}.sql").read_text()
    if kind == "sqlite":
        with closing(sqlite3.connect(str(make_url(url).database))) as connection:
            connection.executescript(statements)
        return
    session = await asyncpg.connect(
        make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    )
    try:
        await session.execute(statements)
    finally:
        await session.close()


def _tables(connection: Connection) -> dict[str, list[str]]:
    """All that the database tells of its tables."""
    told = inspect(connection)
    return {
        name: sorted(
            json.dumps(each, default=str, sort_keys=True)
            for each in (
                *told.get_columns(name),
                told.get_pk_constraint(name),
                *told.get_unique_constraints(name),
                *told.get_check_constraints(name),
                *told.get_foreign_keys(name),
                *told.get_indexes(name),
                told.get_table_options(name),
            )
        )
        for name in told.get_table_names()
    }


async def _asked_of(url: str, work: Callable[[Connection], Any]) -> Any:
    database = open_database(url)
    try:
        async with database.writing() as transaction:
            return await transaction.run(work)
    finally:
        await database.close()


def _differences(connection: Connection, worker: str) -> list[Any]:
    context = MigrationContext.configure(
        connection, opts={"version_table": version_table(worker), "compare_type": True}
    )
    return list(compare_metadata(context, import_module(f"{worker}.tables").metadata))
