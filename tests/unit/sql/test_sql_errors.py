"""Only the absence of the server is waited out; other errors in a transaction stay what they are."""

import asyncio
import socket
import sqlite3
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.engine import make_url

from kit.errors import Transient, Unavailable
from kit.sql import PostgresDatabase, is_duplicate, open_database, upgrade
from kit.sql.dialects import connecting, transient_kind, transients
from tests.contracts.sql_stores import empty_database

# No server is asked: a transaction takes no connection before its first statement.
NOWHERE = "postgresql+asyncpg://moor@127.0.0.1:1/moor"
# PostgreSQL's message ErrorResponse: its length, and its fields.
LAST_FIELDS = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
LAST_WORDS = b"E" + (len(LAST_FIELDS) + 4).to_bytes(4, "big") + LAST_FIELDS

ANYBODY_S = (
    TimeoutError("a deadline of the caller's"),
    NotADirectoryError(20, "Not a directory", "/migrations.zip/env.py"),
    FileNotFoundError(2, "No such file or directory"),
    OSError(28, "No space left on device"),
)


@pytest.mark.parametrize("error", ANYBODY_S, ids=repr)
def test_an_os_error_inside_a_transaction_is_not_the_servers_absence(
    error: OSError,
) -> None:
    assert transient_kind(error) is None


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
@pytest.mark.parametrize("error", ANYBODY_S, ids=repr)
@pytest.mark.asyncio
async def test_it_leaves_the_transaction_unchanged(kind: str, error: OSError, tmp_path: Path) -> None:
    database = open_database(NOWHERE if kind == "postgresql" else f"sqlite:///{tmp_path / 'books.db'}")
    try:
        with pytest.raises(type(error)) as raised:
            async with database.writing():
                raise error
    finally:
        await database.close()

    assert raised.value is error


@pytest.mark.asyncio
async def test_it_leaves_a_piece_of_work_unchanged(tmp_path: Path) -> None:
    def work(_: Connection) -> None:
        raise TimeoutError("a deadline of the work's own")

    database = open_database(f"sqlite:///{tmp_path / 'books.db'}")
    try:
        with pytest.raises(TimeoutError, match="of the work's own"):
            async with database.writing() as transaction:
                await transaction.run(work)
    finally:
        await database.close()


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(104, "Connection reset by peer"),
        BrokenPipeError(32, "Broken pipe"),
        asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
        asyncpg.AdminShutdownError("terminating connection due to administrator command"),
        asyncpg.CannotConnectNowError("the database system is starting up"),
        asyncpg.TooManyConnectionsError("sorry, too many clients already"),
        asyncpg.IdleInTransactionSessionTimeoutError(
            "terminating connection due to idle-in-transaction timeout"
        ),
    ],
    ids=repr,
)
def test_a_broken_connection_and_a_server_that_stops_are_its_absence(error: Exception) -> None:
    assert transient_kind(error) is Unavailable
    with pytest.raises(Unavailable), transients():
        raise error
    with pytest.raises(Unavailable), transients():
        raise sa.exc.DBAPIError("SELECT 1", None, error)


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.DeadlockDetectedError("deadlock detected"),
        asyncpg.SerializationError("could not serialize access"),
        asyncpg.LockNotAvailableError("could not obtain lock"),
        asyncpg.QueryCanceledError("canceling statement due to statement timeout"),
    ],
    ids=repr,
)
def test_a_conflict_with_another_transaction_is_not_the_servers_absence(error: Exception) -> None:
    assert transient_kind(error) not in (None, Unavailable)
    with pytest.raises(Transient) as raised, transients():
        raise error
    assert not isinstance(raised.value, Unavailable)


@pytest.mark.parametrize(
    "error",
    [
        socket.gaierror(-2, "Name or service not known"),
        TimeoutError(),
        OSError("Multiple exceptions: [Errno 111] Connect call failed, [Errno 113] No route to host"),
        FileNotFoundError(2, "No such file or directory"),
    ],
    ids=repr,
)
def test_an_os_error_while_connecting_is_about_the_server(error: OSError) -> None:
    with pytest.raises(Unavailable, match="cannot connect") as raised, connecting():
        raise error
    assert raised.value.__cause__ is error


@pytest.mark.asyncio
async def test_a_port_without_a_listener_is_a_server_that_is_away() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        await _expect_away(f"postgresql+asyncpg://moor@127.0.0.1:{taken.getsockname()[1]}/moor")


@pytest.mark.asyncio
async def test_a_socket_file_that_is_not_there_is_a_server_that_is_away(tmp_path: Path) -> None:
    await _expect_away(f"postgresql+asyncpg://moor@/moor?host={tmp_path}")


@pytest.mark.asyncio
async def test_a_server_that_hangs_up_at_once_is_away() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        await _expect_away(
            f"postgresql+asyncpg://moor@127.0.0.1:{server.sockets[0].getsockname()[1]}/moor?ssl=disable"
        )


@pytest.mark.asyncio
async def test_a_password_that_was_changed_in_its_file_counts_at_the_next_login(tmp_path: Path) -> None:
    told: list[bytes] = []

    async def ask_for_password(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(4))
        await reader.readexactly(size - 4)
        # In clear text.
        writer.write(b"R\0\0\0\x08\0\0\0\x03")
        head = await reader.readexactly(5)
        told.append(await reader.readexactly(int.from_bytes(head[1:]) - 4))
        writer.close()

    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text("of the start")
    async with await asyncio.start_server(ask_for_password, "127.0.0.1", 0) as server:
        at = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        database = open_database(f"postgresql+asyncpg://moor@{at}/moor?ssl=disable&passwordfile={file}")
        for password in ("first", "second"):
            file.write_text(password)
            with pytest.raises(Unavailable):
                async with database.writing() as transaction:
                    await transaction.run(_ask)
        await database.close()

    assert told == [b"first\0", b"second\0"]


async def _expect_away(url: str) -> None:
    database = open_database(url)
    try:
        with pytest.raises(Unavailable):
            async with database.writing() as transaction:
                await transaction.run(_ask)
    finally:
        await database.close()
    with pytest.raises(Unavailable):
        await upgrade(url, "placement_worker")


def _ask(connection: Connection) -> None:
    connection.execute(sa.text("SELECT 1"))


@pytest.mark.postgresql
@pytest.mark.asyncio
@pytest.mark.parametrize("asks", ["nothing", "through SQLAlchemy", "asyncpg"])
async def test_a_server_that_ends_an_idle_session_is_away_and_others_go_on(asks: str) -> None:
    """Its last message has arrived before the next question, but not yet the end of the connection."""
    async with empty_database("postgresql") as url:
        database = PostgresDatabase(make_url(url), pool_size=1)
        try:
            async with database.writing() as transaction:
                driver = await transaction.driver()
            with pytest.raises(Unavailable):
                await _ask_after_last_words(database, asks)
            assert driver.is_closed()
            async with database.writing() as transaction:
                await transaction.run(_ask)
        finally:
            await database.close()


@pytest.mark.postgresql
@pytest.mark.asyncio
async def test_a_session_that_ends_between_two_steps_of_a_statement_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare = asyncpg.Connection._get_statement  # noqa: SLF001 - nothing else stands between its two steps

    async def prepare_and_end(self: Any, *arguments: object, **options: object) -> object:
        prepared = await prepare(self, *arguments, **options)
        if "::bigint" in str(arguments[0]):
            self.terminate()
        return prepared

    monkeypatch.setattr(asyncpg.Connection, "_get_statement", prepare_and_end)
    async with empty_database("postgresql") as url:
        database = PostgresDatabase(make_url(url))
        try:
            with pytest.raises(Unavailable, match="connection lost: 'NoneType' object has no attribute"):
                async with database.writing() as transaction:
                    await (await transaction.driver()).fetch("SELECT $1::bigint", 1)
            async with database.writing() as transaction:
                await transaction.run(_ask)
        finally:
            await database.close()


async def _ask_after_last_words(database: PostgresDatabase, asks: str) -> None:
    async with database.writing() as transaction:
        driver = await transaction.driver()
        driver._protocol.data_received(LAST_WORDS)  # noqa: SLF001 - no server says it at a moment that we choose
        if asks == "asyncpg":
            await driver.execute("SELECT 1")
        elif asks == "through SQLAlchemy":
            await transaction.run(_ask)


@pytest.mark.asyncio
async def test_a_file_that_another_process_writes_to_is_busy_and_not_away(tmp_path: Path) -> None:
    path = tmp_path / "books.db"
    engine = sa.create_engine(f"sqlite:///{path}", connect_args={"timeout": 0})
    with sqlite3.connect(path, isolation_level=None) as other, engine.connect() as connection:
        other.execute("CREATE TABLE books (id INTEGER PRIMARY KEY)")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Transient) as raised, transients():
            connection.exec_driver_sql("INSERT INTO books VALUES (1)")
    other.close()
    engine.dispose()

    assert not isinstance(raised.value, Unavailable)


def test_a_taken_id_is_a_duplicate_and_a_missing_value_is_not() -> None:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE books (id INTEGER PRIMARY KEY, name TEXT NOT NULL)")
        connection.exec_driver_sql("INSERT INTO books VALUES (1, 'first')")
        with pytest.raises(sa.exc.IntegrityError) as taken:
            connection.exec_driver_sql("INSERT INTO books VALUES (1, 'second')")
        with pytest.raises(sa.exc.IntegrityError) as missing:
            connection.exec_driver_sql("INSERT INTO books VALUES (2, NULL)")
    engine.dispose()

    assert is_duplicate(taken.value)
    assert not is_duplicate(missing.value)


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.InvalidPasswordError("password authentication failed for user"),
        asyncpg.InvalidAuthorizationSpecificationError("role does not exist"),
        asyncpg.InvalidCatalogNameError("database does not exist"),
        asyncpg.InsufficientPrivilegeError("permission denied for database"),
    ],
    ids=repr,
)
def test_a_server_that_refuses_our_login_is_waited_for_and_the_error_says_what_to_correct(
    error: Exception,
) -> None:
    with pytest.raises(Unavailable, match="correct the role, its password") as raised, connecting():
        raise error
    assert str(error) in str(raised.value)


def test_a_database_that_takes_no_connections_for_a_while_is_away() -> None:
    """As an operator may configure it; this once ended a worker."""
    with pytest.raises(Unavailable, match="not currently accepting connections"), connecting():
        raise asyncpg.ObjectNotInPrerequisiteStateError(
            'database "moor" is not currently accepting connections'
        )


def test_a_bug_while_connecting_stays_a_bug() -> None:
    with pytest.raises(asyncpg.PostgresSyntaxError), connecting():
        raise asyncpg.PostgresSyntaxError("syntax error")


def _of_sqlite(code: int, text: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.ReadOnlySQLTransactionError("a standby, until it is promoted"),
        asyncpg.InsufficientPrivilegeError("permission denied for table"),
        asyncpg.PostgresIOError("could not read block"),
        asyncpg.DiskFullError("could not extend file: No space left on device"),
        _of_sqlite(sqlite3.SQLITE_FULL, "database or disk is full"),
    ],
    ids=repr,
)
def test_errors_that_an_operator_can_mend_are_retried(error: Exception) -> None:
    assert transient_kind(error) is Transient
