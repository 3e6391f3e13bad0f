"""Only the absence of the server is waited out; other errors in a transaction stay what they are."""

import asyncio
import sqlite3
from pathlib import Path

import asyncpg
import pytest
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.engine import make_url

from kit.errors import Transient, Unavailable
from kit.sql import PostgresDatabase, is_duplicate, open_database, write_once
from kit.sql.dialects import connecting, transient_kind, transients
from kit.sql.statements import tls_client
from tests.contracts.sql_stores import empty_database
from tests.running import closing, once

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
                await write_once(database, _ask)
        await database.close()

    assert told == [b"first\0", b"second\0"]


def _ask(connection: Connection) -> None:
    connection.execute(sa.text("SELECT 1"))


@pytest.mark.postgresql
@pytest.mark.parametrize("asks", ["nothing", "through SQLAlchemy", "asyncpg"])
async def test_a_server_that_ends_an_idle_session_is_away_and_others_go_on(asks: str) -> None:
    """Its last message has arrived before the next question, but not yet the end of the connection."""
    async with (
        empty_database("postgresql") as url,
        closing(PostgresDatabase(make_url(url), pool_size=1)) as (database,),
    ):
        driver = await once(database.writing, lambda tx: tx.driver())
        with pytest.raises(Unavailable):
            await _ask_after_last_words(database, asks)
        assert driver.is_closed()
        await write_once(database, _ask)


async def _ask_after_last_words(database: PostgresDatabase, asks: str) -> None:
    async with database.writing() as transaction:
        driver = await transaction.driver()
        driver._protocol.data_received(LAST_WORDS)  # noqa: SLF001 - no server says it at a moment that we choose
        if asks == "asyncpg":
            await driver.execute("SELECT 1")
        elif asks == "through SQLAlchemy":
            await transaction.run(_ask)


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


REFUSALS = (
    asyncpg.InvalidPasswordError("password authentication failed for user"),
    asyncpg.InvalidAuthorizationSpecificationError("role does not exist"),
    asyncpg.InvalidCatalogNameError("database does not exist"),
    asyncpg.InsufficientPrivilegeError("permission denied for database"),
)


@pytest.mark.parametrize(
    ("error", "query", "why"),
    [
        *((each, "sslmode=require", "correct the role, its password") for each in REFUSALS),
        # As an operator may configure it; this once ended a worker.
        (
            asyncpg.ObjectNotInPrerequisiteStateError("it is not currently accepting connections"),
            "sslmode=require",
            "login refused",
        ),
        # Only a server that speaks TLS may have hung up for a certificate.
        (
            ConnectionResetError("reset"),
            "sslmode=require",
            "it may want a client certificate, and sslcert in the URL names none",
        ),
        (
            asyncpg.ConnectionDoesNotExistError("closed"),
            "sslmode=require",
            "it may want a client certificate",
        ),
        (ConnectionResetError("reset"), "sslmode=disable", "cannot connect: ConnectionResetError"),
    ],
    ids=repr,
)
def test_a_server_that_lets_nobody_in_is_waited_for_and_the_error_says_what_to_correct(
    error: Exception, query: str, why: str
) -> None:
    by_url = tls_client(make_url(f"postgresql+asyncpg://moor@db/moorage?{query}"))
    with pytest.raises(Unavailable) as raised, connecting(by_url):
        raise error
    assert [each for each in (why, str(error)) if each not in str(raised.value)] == []


def test_a_bug_while_connecting_stays_a_bug() -> None:
    by_url = tls_client(make_url("postgresql+asyncpg://moor@db/moorage"))
    with pytest.raises(asyncpg.PostgresSyntaxError), connecting(by_url):
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
