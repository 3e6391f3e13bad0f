"""A commit that no client waits for does not wait for the disk, and the next one does."""

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection

from kit.sql import Database, open_database
from tests.contracts.sql_stores import empty_database

pytestmark = pytest.mark.asyncio

ASKED = {"sqlite": "PRAGMA synchronous", "postgresql": "SHOW synchronous_commit"}
# SQLite: 2 is FULL, each commit waits for the disk; 1 is NORMAL, only a checkpoint does.
WAITS = {"sqlite": "2", "postgresql": "on"}
WAITS_NOT = {"sqlite": "1", "postgresql": "off"}


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
async def test_only_a_lazy_commit_does_not_wait_for_the_disk(kind: str) -> None:
    async with empty_database(kind) as url:
        # One session, so that each transaction has the session of the one before.
        database = open_database(url, pool_size=1)
        try:
            found = [
                await _how_it_commits(database, kind, is_lazy=is_lazy) for is_lazy in (False, True, False)
            ]
        finally:
            await database.close()

    assert found == [WAITS[kind], WAITS_NOT[kind], WAITS[kind]]


async def _how_it_commits(database: Database, kind: str, *, is_lazy: bool) -> str:
    def asked(connection: Connection) -> str:
        return str(connection.scalar(sa.text(ASKED[kind])))

    async with database.writing(is_lazy=is_lazy) as transaction:
        return await transaction.run(asked)
