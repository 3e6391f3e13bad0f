"""Each worker's migrations create the tables that its code declares, beside those of another worker."""

from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

import pytest
import pytest_asyncio
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from bus.sql import open_database, upgrade, version_table
from bus.sql.migrations import newest_revision
from tests.contracts.sql_stores import empty_database

pytestmark = pytest.mark.asyncio

# Which workers share a database, and the revision of each. Placement's migrations have tests of their own.
WORKERS = {
    "scheduler_worker": ("placement_worker", "0006"),
    "cell_conductor": ("scheduler_worker", "0001"),
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

    database = open_database(url)
    try:
        async with database.writing() as transaction:
            assert await transaction.run(_differences, worker) == []
    finally:
        await database.close()


@pytest.mark.parametrize("worker", WORKERS)
async def test_a_worker_shares_a_database_with_its_neighbour(url: str, worker: str) -> None:
    neighbour, head = WORKERS[worker]
    await upgrade(url, neighbour)

    assert await upgrade(url, worker) == ("", head)
    assert await upgrade(url, worker) == (head, head)


@pytest.mark.parametrize("worker", ["placement_worker", *WORKERS])
async def test_the_newest_file_has_the_revision_that_alembic_takes_for_the_newest(worker: str) -> None:
    config = Config()
    config.set_main_option("script_location", f"{worker}:migrations")

    assert newest_revision(worker) == ScriptDirectory.from_config(config).get_current_head()


def _differences(connection: Connection, worker: str) -> list[Any]:
    context = MigrationContext.configure(
        connection, opts={"version_table": version_table(worker), "compare_type": True}
    )
    return list(compare_metadata(context, import_module(f"{worker}.tables").metadata))
