"""No database makes a worker wait without a limit. tests/adversity has the tests with real servers."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from msgspec import structs
from sqlalchemy import Connection

from kit.database_settings import CONSUMER_TIMEOUT_S, DATABASE
from kit.errors import Locked, Unavailable
from kit.sql import DatabaseSettings, PostgresDatabase, open_database, upgrade, write_once
from tests.varied import varied

SHORT = varied(
    DatabaseSettings(),
    CONNECT_S=0.1,
    POOL_WAIT_S=0.1,
    LOCK_S=0.1,
    statement_s=0.2,
    IDLE_IN_TRANSACTION_S=0.2,
    transaction_s=0.3,
    LONG_S=0.5,
    BUSY_S=0.05,
)


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """A server that accepts connections, and sends nothing."""
    over = asyncio.Event()

    async def say_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        yield f"postgresql+asyncpg://moor@127.0.0.1:{server.sockets[0].getsockname()[1]}/moor?ssl=disable"
        over.set()


async def test_the_servers_of_a_url_are_tried_in_turn_and_each_is_named_in_the_error() -> None:
    """The first is silent, and nobody listens at the second. Both together take no longer than one server may."""
    async with silent_server() as url:
        nobody = "127.0.0.1:1"
        both = url.replace("/moor?", f",{nobody}/moor?")
        database = open_database(both, settings=varied(SHORT, CONNECT_S=1.0, transaction_s=2.0, LONG_S=3.0))
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(
            Unavailable, match=r"none of 2 servers can be used: 127.0.0.1:\d+: .*; 127.0.0.1:1: .*"
        ):
            await write_once(database, ask)
        assert loop.time() - began < 0.9
        await database.close()


async def test_a_server_that_accepts_and_says_nothing_is_away() -> None:
    async with silent_server() as url:
        database = open_database(url, settings=SHORT)
        assert isinstance(database, PostgresDatabase)
        # asyncpg has a limit of its own, which is far longer.
        async with asyncio.timeout(60):
            with pytest.raises(Unavailable, match="cannot connect"):
                await write_once(database, ask)
            with pytest.raises(Unavailable, match="cannot connect"):
                async with database.dedicated():
                    pass
            with pytest.raises(Unavailable, match="cannot connect"):
                await upgrade(url, "placement_worker", SHORT)
        await database.close()


async def test_a_timeout_for_a_session_names_the_size_of_the_pool() -> None:
    async with silent_server() as url:
        database = open_database(url, pool_size=1, settings=varied(SHORT, CONNECT_S=20.0))
        first = asyncio.create_task(write_once(database, ask))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match=r"none of 1 sessions was free within 0\.1 s"):
            await write_once(database, ask)
        first.cancel()
        await asyncio.wait((first,))
        await database.close()


async def test_a_file_that_another_process_has_locked_is_locked(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'books.db'}", settings=SHORT)
    await write_once(database, ask)
    with closing(sqlite3.connect(tmp_path / "books.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Locked, match="database is locked"):
            await write_once(database, ask)
        other.execute("ROLLBACK")
    await write_once(database, ask)
    await database.close()


def ask(connection: Connection) -> None:
    connection.execute(sa.text("SELECT 1"))


def test_limits_that_contradict_each_other_are_refused() -> None:
    settings = DatabaseSettings()
    assert settings.transaction_s < CONSUMER_TIMEOUT_S
    for field, value, what in (
        ("statement_s", 121.0, "statement_s must be at most transaction_s"),
        ("transaction_s", 1800.0, "must be less than the 1800 s for which a consumer may hold a delivery"),
    ):
        with pytest.raises(ValueError, match=what):
            structs.replace(settings, **{field: value})
    with pytest.raises(ValueError, match=r"statement_s is '0\.0' .* must be a number, more than 0"):
        DATABASE.read({"MOOR_DB_STATEMENT_S": "0.0"})
