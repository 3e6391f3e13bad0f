"""What a commit waits for, and which state of the database a reader sees."""

from contextlib import suppress

import asyncpg
import pytest
import sqlalchemy as sa
from sqlalchemy import Connection

from kit.errors import Bug
from kit.sql import Database, Transaction, open_database, read_once, write_once
from tests.contracts.sql_stores import empty_database
from tests.running import closing

ASKED = {"sqlite": "PRAGMA synchronous", "postgresql": "SHOW synchronous_commit"}
# SQLite: 2 is FULL, each commit waits for the disk; 1 is NORMAL, only a checkpoint does.
WAITS = {"sqlite": "2", "postgresql": "on"}
WAITS_NOT = {"sqlite": "1", "postgresql": "off"}


EACH = pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])


@EACH
async def test_only_a_lazy_commit_does_not_wait_for_the_disk(kind: str) -> None:
    async with (
        empty_database(kind) as url,
        # One session, so that each transaction has the session of the one before.
        closing(open_database(url, pool_size=1)) as (database,),
    ):
        found = [await _how_it_commits(database, kind, is_lazy=is_lazy) for is_lazy in (False, True, False)]

    assert found == [WAITS[kind], WAITS_NOT[kind], WAITS[kind]]


async def _how_it_commits(database: Database, kind: str, *, is_lazy: bool) -> str:
    async with database.writing(is_lazy=is_lazy) as transaction:
        return str(await transaction.run(lambda connection: connection.scalar(sa.text(ASKED[kind]))))


@EACH
async def test_all_statements_of_a_reader_see_the_state_before_the_first(kind: str) -> None:
    def count(connection: Connection) -> int:
        return len(connection.execute(sa.text("SELECT * FROM crates")).all())

    async with empty_database(kind) as url, closing(open_database(url)) as (database,):
        await write_once(database, Connection.exec_driver_sql, "CREATE TABLE crates (id INTEGER)")
        async with database.reading() as reader:
            before = await reader.run(count)
            await write_once(database, Connection.exec_driver_sql, "INSERT INTO crates VALUES (1)")
            found = [before, await reader.run(count)]
        found.append(await read_once(database, count))

    assert found == [0, 0, 1]


@pytest.mark.postgresql
async def test_work_that_the_server_has_undone_is_not_done() -> None:
    """PostgreSQL answers COMMIT without an error if code in the transaction caught one."""

    async def fail_and_go_on(transaction: Transaction) -> None:
        with suppress(asyncpg.PostgresError):
            await transaction.fetch("SELECT 1 / 0")

    async with empty_database("postgresql") as url, closing(open_database(url)) as (database,):
        with pytest.raises(Bug, match="COMMIT became ROLLBACK"):
            async with database.writing() as transaction:
                await fail_and_go_on(transaction)
