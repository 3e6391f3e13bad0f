"""The migrations, run one after the other, create the tables that the code declares."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, text

from bus.sql import open_database, upgrade, version_table
from placement_worker.tables import metadata
from tests.contracts.sql_stores import WORKER, empty_database

pytestmark = [
    pytest.mark.asyncio,
    # SQLAlchemy reads no type for such a column, and there is nothing else to compare.
    pytest.mark.filterwarnings("ignore:Did not recognize type 'xid8':sqlalchemy.exc.SAWarning"),
]

HEAD = "0008"
KINDS = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql))


@pytest_asyncio.fixture(params=KINDS)
async def url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    async with empty_database(request.param) as url:
        yield url


async def test_the_migrations_create_the_tables_that_the_code_declares(url: str) -> None:
    await upgrade(url, WORKER)

    assert await _asked_of(url, _differences) == []


async def test_a_table_that_no_migration_made_is_noticed(url: str) -> None:
    await upgrade(url, WORKER)
    await _asked_of(url, lambda connection: connection.execute(text("DROP TABLE holders")))

    (difference,) = await _asked_of(url, _differences)

    assert difference[0] == "add_table"


async def test_the_first_upgrade_names_the_revision_it_reaches(url: str) -> None:
    assert await upgrade(url, WORKER) == ("", HEAD)


async def test_an_upgrade_of_an_up_to_date_database_does_nothing(url: str) -> None:
    await upgrade(url, WORKER)
    await _asked_of(url, lambda connection: connection.execute(text("UPDATE feed SET term = 7")))

    assert await upgrade(url, WORKER) == (HEAD, HEAD)

    assert await _asked_of(url, lambda connection: connection.scalar(text("SELECT term FROM feed"))) == 7


async def test_of_processes_that_start_together_one_upgrades_and_the_others_find_it_done(url: str) -> None:
    starters = [await _start_upgrade(url) for _ in range(3)]
    outcomes = [await starter.communicate() for starter in starters]

    assert sorted(outcome.decode().strip() for outcome, _ in outcomes) == [
        f"('', '{HEAD}')",
        *[f"('{HEAD}', '{HEAD}')"] * 2,
    ]


async def test_two_upgrades_in_one_process_do_not_meet(url: str) -> None:
    outcomes = await asyncio.gather(upgrade(url, WORKER), upgrade(url, WORKER))

    assert sorted(outcomes) == [("", HEAD), (HEAD, HEAD)]


async def test_each_worker_keeps_its_own_record_of_its_revision(url: str) -> None:
    await upgrade(url, WORKER)

    tables = await _asked_of(url, lambda connection: inspect(connection).get_table_names())

    assert version_table(WORKER) == "placement_version"
    assert "placement_version" in tables
    assert "alembic_version" not in tables


def _differences(connection: Connection) -> list[Any]:
    context = MigrationContext.configure(
        connection, opts={"version_table": version_table(WORKER), "compare_type": True}
    )
    return list(compare_metadata(context, metadata))


async def _asked_of(url: str, work: Any) -> Any:
    database = open_database(url)
    try:
        async with database.writing() as transaction:
            return await transaction.run(work)
    finally:
        await database.close()


async def _start_upgrade(url: str) -> asyncio.subprocess.Process:
    program = "import asyncio, sys; from bus.sql import upgrade; print(asyncio.run(upgrade(*sys.argv[1:])))"
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, url, WORKER, stdout=asyncio.subprocess.PIPE
    )
