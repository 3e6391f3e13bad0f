"""A database of an earlier release gets the missing migrations: all of them, or none."""

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import pytest
import pytest_asyncio
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from bus.errors import Failure
from bus.sql import open_database, upgrade
from tests.contracts.sql_stores import empty_database

T = TypeVar("T")

pytestmark = pytest.mark.asyncio

# Its tables have changed twice since the first ones.
WORKER = "tests.example_worker"
FIRST_TABLES = (
    "CREATE TABLE crates (id INTEGER PRIMARY KEY, name VARCHAR(32) NOT NULL)",
    'CREATE TABLE "tests.example_version" (version_num VARCHAR(32) NOT NULL PRIMARY KEY)',
)


@pytest_asyncio.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
async def url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    async with empty_database(request.param) as url:
        yield url


async def test_an_older_database_gets_the_missing_migrations_and_keeps_its_rows(url: str) -> None:
    await _be_old(url, "0001", "bolts")

    assert await upgrade(url, WORKER) == ("0001", "0003")

    assert await _in(url, _crates) == [("bolts", "grey")]
    assert await upgrade(url, WORKER) == ("0003", "0003")


async def test_only_the_migrations_after_its_revision_run(url: str) -> None:
    await _be_old(url, "0002", "bolts")
    await _in(url, lambda connection: connection.execute(text("ALTER TABLE crates ADD colour VARCHAR(32)")))

    assert await upgrade(url, WORKER) == ("0002", "0003")


async def test_in_a_new_database_no_migration_runs(url: str) -> None:
    # The second revision would add a column that is there already.
    assert await upgrade(url, WORKER) == ("", "0003")

    assert await _in(url, _crates) == []


async def test_if_a_migration_fails_those_before_it_are_undone(url: str) -> None:
    await _be_old(url, "0001", "bolts", "bolts")

    with pytest.raises(IntegrityError):
        await upgrade(url, WORKER)

    assert await _in(url, _columns) == {"id", "name"}
    assert await _in(url, _revision) == "0001"


@pytest.mark.parametrize(
    ("revision", "advice"),
    [
        ("0000", "use the release that fits"),
        ("0004", "the tables are of a newer release, so install that one"),
    ],
)
async def test_a_database_of_an_unknown_revision_is_refused_and_left_alone(
    url: str, revision: str, advice: str
) -> None:
    await _be_old(url, revision, "bolts")

    with pytest.raises(Failure) as refused:
        await upgrade(url, WORKER)

    assert str(refused.value) == (
        f"tests.example_version is at revision {revision}, and this release upgrades from 0001 to 0003: "
        f"{advice}, or use a new database"
    )
    assert await _in(url, _columns) == {"id", "name"}
    assert await _in(url, _revision) == revision


async def test_a_table_of_somebody_else_is_not_taken_for_ours(url: str) -> None:
    await _in(url, lambda connection: connection.execute(text(FIRST_TABLES[0])))

    with pytest.raises((OperationalError, ProgrammingError), match="crates"):
        await upgrade(url, WORKER)


async def _be_old(url: str, revision: str, *names: str) -> None:
    def work(connection: Connection) -> None:
        for statement in FIRST_TABLES:
            connection.execute(text(statement))
        connection.execute(
            text('INSERT INTO "tests.example_version" VALUES (:revision)'), {"revision": revision}
        )
        for id_, name in enumerate(names):
            connection.execute(
                text("INSERT INTO crates (id, name) VALUES (:id, :name)"), {"id": id_, "name": name}
            )

    await _in(url, work)


def _crates(connection: Connection) -> list[tuple[str, ...]]:
    return [tuple(row) for row in connection.execute(text("SELECT name, colour FROM crates"))]


def _columns(connection: Connection) -> set[str]:
    return {column["name"] for column in inspect(connection).get_columns("crates")}


def _revision(connection: Connection) -> object:
    return connection.scalar(text('SELECT version_num FROM "tests.example_version"'))


async def _in(url: str, work: Callable[[Connection], T]) -> T:
    database = open_database(url)
    try:
        async with database.writing() as transaction:
            return await transaction.run(work)
    finally:
        await database.close()
