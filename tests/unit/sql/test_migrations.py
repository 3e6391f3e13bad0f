"""A new database has the tables that a worker declares, and records their revision. An older database gets the missing
migrations: all of them, or none.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from kit.errors import Failure
from kit.sql import RoleRights, make_roles, open_database, upgrade, version_table
from kit.sql.migrations import newest_revision
from tests.contracts.sql_stores import (
    LOCKS_AWAITED,
    WORKER,
    a_session,
    administer,
    as_role,
    empty_database,
    rows_of,
)
from tests.last_release import last_release
from tests.running import closing
from tests.waiting import until

T = TypeVar("T")

pytestmark = [
    # SQLAlchemy reads no type for such a column, and there is nothing else to compare.
    pytest.mark.filterwarnings("ignore:Did not recognize type 'xid8':sqlalchemy.exc.SAWarning"),
]

KINDS = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql))
# Each may share a database with the next one.
WORKERS = ("placement_worker", "scheduler_worker", "cell_conductor", "compute_sim", "ironic_sync")
HEAD = newest_revision(WORKER)
UPGRADE = "import asyncio, sys; from kit.sql import upgrade; print(asyncio.run(upgrade(*sys.argv[1:])))"
WITH_BUG = "from tests.planting import plant_as_asked; plant_as_asked(); "
# A worker whose tables have changed twice since the first ones.
CHANGED = "tests.example_worker"
FIRST_TABLES = (
    "CREATE TABLE crates (id INTEGER NOT NULL PRIMARY KEY, name VARCHAR(32) NOT NULL)",
    'CREATE TABLE "tests.example_version" (version_num VARCHAR(32) NOT NULL PRIMARY KEY)',
)


@pytest.fixture(params=KINDS)
async def url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    async with empty_database(request.param) as url:
        yield url


@pytest.mark.parametrize("worker", WORKERS)
async def test_a_new_database_has_the_tables_that_the_code_declares(url: str, worker: str) -> None:
    assert await upgrade(url, worker) == ("", newest_revision(worker))

    assert await _in(url, partial(_differences, worker=worker)) == []


@pytest.mark.parametrize("worker", WORKERS)
async def test_a_database_of_the_last_release_gets_the_tables_that_the_code_declares(
    url: str, worker: str
) -> None:
    release = last_release()
    await release.run("-c", UPGRADE, url, worker)

    _, newest = await upgrade(url, worker)

    assert newest == newest_revision(worker)
    assert await _in(url, partial(_differences, worker=worker)) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_an_older_database_gets_the_tables_of_a_new_one_and_keeps_its_rows(kind: str) -> None:
    async with empty_database(kind) as old, empty_database(kind) as new:
        await _be_old(old, "0001", "bolts")

        assert await upgrade(old, CHANGED) == ("0001", "0003")
        await upgrade(new, CHANGED)

        assert await _in(old, _table) == await _in(new, _table)
        assert await _in(old, _crates) == [("bolts", "grey")]
        assert await upgrade(old, CHANGED) == ("0003", "0003")


async def test_if_a_migration_fails_those_before_it_are_undone(url: str) -> None:
    await _be_old(url, "0001", "bolts", "bolts")

    with pytest.raises(IntegrityError):
        await upgrade(url, CHANGED)

    assert await _in(url, _columns) == {"id", "name"}
    assert await _in(url, _revision) == "0001"


@pytest.mark.parametrize(
    ("revision", "advice"),
    [
        ("0000", "the tables are too old for it, so use a new database"),
        ("0004", "the tables are of a newer release, so install that one, or use a new database"),
    ],
)
async def test_a_database_of_an_unknown_revision_is_refused_and_left_alone(
    url: str, revision: str, advice: str
) -> None:
    await _be_old(url, revision, "bolts")

    with pytest.raises(Failure) as refused:
        await upgrade(url, CHANGED)

    assert str(refused.value) == (
        f"tests.example_version is at revision {revision}, and this release upgrades from 0001 to 0003: {advice}"
    )
    assert await _in(url, _columns) == {"id", "name"}
    assert await _in(url, _revision) == revision


async def test_a_table_of_somebody_else_is_not_taken_for_ours(url: str) -> None:
    await _in(url, lambda connection: connection.execute(text(FIRST_TABLES[0])))

    with pytest.raises((OperationalError, ProgrammingError), match="crates"):
        await upgrade(url, CHANGED)


async def test_of_processes_that_start_together_one_upgrades_and_the_others_find_it_done(url: str) -> None:
    upgrading = (sys.executable, "-c", WITH_BUG + UPGRADE, url, WORKER)
    async with _held_up(url) as all_have_begun:
        starters = [
            await asyncio.create_subprocess_exec(*upgrading, stdout=asyncio.subprocess.PIPE) for _ in range(3)
        ]
        await all_have_begun(len(starters))
    outcomes = [await starter.communicate() for starter in starters]

    assert sorted(outcome.decode().strip() for outcome, _ in outcomes) == [
        f"('', '{HEAD}')",
        *[f"('{HEAD}', '{HEAD}')"] * 2,
    ]


@asynccontextmanager
async def _held_up(url: str) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
    """Nobody's upgrade ends in here: a transaction makes the table that each would make last, and undoes that at the end."""
    if url.startswith("sqlite"):
        # A file has one writer at a time, whatever the upgrade does.
        yield lambda _count: asyncio.sleep(0)
        return
    async with a_session(url) as session, a_session(url) as looking:

        async def all_have_begun(count: int) -> None:
            await until(
                partial(looking.fetchval, LOCKS_AWAITED), "all wait", lambda waiting: waiting == count
            )

        making = session.transaction()
        await making.start()
        await session.execute(f'CREATE TABLE "{version_table(WORKER)}" ()')
        yield all_have_begun
        await making.rollback()


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


def _table(connection: Connection) -> list[str]:
    """All that the database tells of the example's table."""
    told = inspect(connection)
    parts = (*told.get_columns("crates"), told.get_pk_constraint("crates"), *told.get_indexes("crates"))
    return sorted(json.dumps(each, default=str, sort_keys=True) for each in parts)


def _differences(connection: Connection, worker: str) -> list[Any]:
    context = MigrationContext.configure(
        connection, opts={"version_table": version_table(worker), "compare_type": True}
    )
    return list(compare_metadata(context, import_module(f"{worker}.tables").metadata))


@pytest.mark.postgresql
async def test_a_role_has_the_rights_that_are_listed_now_and_no_error_tells_its_password() -> None:
    number = uuid4().hex
    owner, reader = RoleRights(f"owner_{number}", {"bolts": (), "nuts": ()}), f"reader_{number}"
    passwords = dict.fromkeys((owner.name, reader), "secret")
    tables = ("CREATE TABLE bolts ()", "CREATE TABLE nuts ()")
    async with empty_database("postgresql") as url:
        await administer(*tables, "GRANT CREATE ON SCHEMA public TO PUBLIC", url=url)
        for listed in (("bolts", "nuts"), ("bolts",)):
            rights = RoleRights(reader, dict.fromkeys(listed, ("SELECT",)))
            await make_roles(url, owner, [rights], passwords)
        may = await rows_of(
            url,
            "SELECT has_table_privilege($1::name, 'bolts', 'SELECT'), has_table_privilege($1::name, 'nuts', 'SELECT'),"
            " has_schema_privilege($1::name, 'public', 'CREATE')",
            reader,
        )
        with pytest.raises(Failure, match="permission denied") as refused:
            await make_roles(as_role(url, owner.name), owner, [], passwords)
    await administer(f"DROP ROLE {owner.name}, {reader}")

    assert may == [(True, False, False)]
    assert "SCRAM" not in str(refused.value)


async def _in(url: str, work: Callable[[Connection], T]) -> T:
    async with closing(open_database(url)) as (database,), database.writing() as transaction:
        return await transaction.run(work)
