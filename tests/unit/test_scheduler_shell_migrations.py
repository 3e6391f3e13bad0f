"""The scheduler's migrations make the tables that its code believes in, beside those of another worker."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection

from bus.sql import open_database, upgrade, version_table
from scheduler_worker.tables import metadata
from tests.contracts.sql_stores import empty_database

pytestmark = pytest.mark.asyncio

WORKER = "scheduler_worker"


@pytest_asyncio.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
async def url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    async with empty_database(request.param) as url:
        yield url


async def test_the_migrations_make_the_tables_that_the_code_believes_in(url: str) -> None:
    assert await upgrade(url, WORKER) == ("", "0002")

    database = open_database(url)
    try:
        async with database.writing() as transaction:
            assert await transaction.run(_differences) == []
    finally:
        await database.close()


async def test_it_shares_a_database_with_placement(url: str) -> None:
    await upgrade(url, "placement_worker")

    assert await upgrade(url, WORKER) == ("", "0002")
    assert await upgrade(url, WORKER) == ("0002", "0002")


def _differences(connection: Connection) -> list[Any]:
    context = MigrationContext.configure(
        connection, opts={"version_table": version_table(WORKER), "compare_type": True}
    )
    return list(compare_metadata(context, metadata))
