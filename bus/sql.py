"""How workers speak to their databases: PostgreSQL by asyncpg, SQLite in a thread of its own.

Most work is a plain function of a SQLAlchemy connection, written once for both: `await transaction.run(work, ...)`
takes it to where the driver is. A driver's own connection is at hand for the few statements that are hot. What goes
wrong in a way that trying again may mend is raised as `Transient`. No table of any worker is known here.
"""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from functools import partial
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from uuid import UUID

import asyncpg
import msgspec
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, Table, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool, StaticPool

from bus.errors import Transient, Unavailable

P = ParamSpec("P")
T = TypeVar("T")

POOL_SIZE = 6
# How long one process waits for another that writes to the same SQLite file.
BUSY_TIMEOUT_S = 5.0
MIGRATION_TIMEOUT_S = 60.0

# Classes of SQLSTATE: a deadlock or serialisation failure, or out of resources; a connection broke, or the server stops.
_TRANSIENT_CLASSES = ("40", "53")
_AWAY_CLASSES = ("08", "57")
_LOCK_NOT_AVAILABLE = "55P03"
_UNIQUE_VIOLATION = "23505"


class Transaction(Protocol):
    """All or nothing, ended by the context manager it came from."""

    async def run(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Do this piece of work with the database, wherever its driver wants it done."""


class Database(Protocol):
    @property
    def dialect(self) -> str:
        """`postgresql` or `sqlite`."""

    def writing(self) -> AbstractAsyncContextManager[Transaction]:
        """Each statement sees what was committed before it (SQLite: there is no other writer)."""

    def reading(self) -> AbstractAsyncContextManager[Transaction]:
        """All statements see the same: what was committed before the first one."""

    async def close(self) -> None: ...


def open_database(url: str, *, pool_size: int = POOL_SIZE) -> "PostgresDatabase | SqliteDatabase":
    """The database at a SQLAlchemy URL; nothing is connected yet."""
    parsed = make_url(url)
    match parsed.get_backend_name():
        case "postgresql":
            return PostgresDatabase(parsed, pool_size=pool_size)
        case "sqlite":
            return SqliteDatabase(parsed)
        case other:
            raise ValueError(f"database URL names {other!r}: moorage runs on postgresql and sqlite")


# What is transient


@contextmanager
def transients() -> Iterator[None]:
    """Inside, what trying again may mend is raised as `Transient`."""
    try:
        yield
    except Exception as error:
        if is_transient(error):
            kind = Unavailable if is_away(error) else Transient
            raise kind(f"database: {error}") from error
        raise


def is_transient(error: BaseException) -> bool:
    """Was this nobody's fault, so that the same may work when it is tried again?"""
    error = _original(error)
    if (state := _sqlstate(error)) is not None:
        return is_away(error) or state.startswith(_TRANSIENT_CLASSES) or state == _LOCK_NOT_AVAILABLE
    if isinstance(error, sqlite3.OperationalError):
        return _sqlite_code(error) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
    # The last is SQLAlchemy's: no pooled connection came free in time.
    return is_away(error) or isinstance(error, sa.exc.TimeoutError)


def is_away(error: BaseException) -> bool:
    """Is there no server to be reached, or is it leaving?"""
    error = _original(error)
    state = _sqlstate(error)
    return isinstance(error, OSError) if state is None else state.startswith(_AWAY_CLASSES)


def is_duplicate(error: sa.exc.IntegrityError) -> bool:
    """Was a unique name or id taken already?"""
    if isinstance(error.orig, sqlite3.Error):
        return _sqlite_code(error.orig) in {
            sqlite3.SQLITE_CONSTRAINT_UNIQUE,
            sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
        }
    return error.orig is not None and _sqlstate(error.orig) == _UNIQUE_VIOLATION


def _original(error: BaseException) -> BaseException:
    return error.orig if isinstance(error, sa.exc.DBAPIError) and error.orig is not None else error


def _sqlstate(error: BaseException) -> str | None:
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) else None


def _sqlite_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0)


# What the dialects say differently


def among(
    connection: Connection, column: sa.ColumnElement[Any], values: Collection[Any]
) -> sa.ColumnElement[bool]:
    """Is the column one of these? One parameter however many there are, so that the statement stays the same."""
    if connection.dialect.name == "postgresql":
        return column == sa.any_(sa.literal(list(values), postgresql.ARRAY(column.type)))
    texts = [value.hex if isinstance(value, UUID) else value for value in values]
    each = sa.func.json_each(msgspec.json.encode(texts).decode()).table_valued("value")
    return column.in_(sa.select(sa.type_coerce(each.c.value, column.type)))


def insert(connection: Connection, table: Table) -> "postgresql.Insert | sqlite.Insert":
    """An INSERT that can be told what to do on conflict."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


# PostgreSQL


class PostgresTransaction:
    """Takes a connection and begins with its first statement: whoever asks nothing holds nothing."""

    def __init__(self, connect: Callable[[], Awaitable[AsyncConnection]], begin: str) -> None:
        self._connect = connect
        self._begin = begin
        self._connection: AsyncConnection | None = None
        self._driver: Any = None

    async def driver(self) -> Any:
        """The connection as asyncpg has it, in this transaction."""
        if self._driver is None:
            self._connection = await self._connect()
            self._driver = (await self._connection.get_raw_connection()).driver_connection
            await self._driver.execute(self._begin)
        return self._driver

    async def run(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        await self.driver()
        assert self._connection is not None
        return await self._connection.run_sync(work, *args, **kwargs)

    async def commit(self) -> None:
        if self._driver is not None:
            await self._driver.execute("COMMIT")

    async def abandon(self, error: BaseException) -> None:
        """Leave the connection clean, or not at all."""
        if self._driver is None or self._connection is None:
            return
        if not self._driver.is_closed():
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                await self._driver.execute("ROLLBACK")
        if self._driver.is_closed() or self._driver.is_in_transaction():
            await self._connection.invalidate()
            # What asyncpg says of a connection that has gone depends on the moment; that it has gone does not.
            if isinstance(error, asyncpg.InterfaceError | sa.exc.InterfaceError):
                raise Unavailable(f"database: connection lost: {error}") from error


@asynccontextmanager
async def _transaction(
    connect: Callable[[], Awaitable[AsyncConnection]], begin: str
) -> AsyncIterator[PostgresTransaction]:
    transaction = PostgresTransaction(connect, begin)
    with transients():
        try:
            yield transaction
            await transaction.commit()
        except BaseException as error:
            await transaction.abandon(error)
            raise


_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED"
_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class PostgresSession:
    """One connection, kept for several transactions one after the other."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    def writing(self) -> AbstractAsyncContextManager[PostgresTransaction]:
        return _transaction(self._connected, _WRITE)

    def reading(self) -> AbstractAsyncContextManager[PostgresTransaction]:
        return _transaction(self._connected, _READ)

    async def _connected(self) -> AsyncConnection:
        return self._connection


class PostgresDatabase:
    """A pool of connections. Transactions are begun and ended by our own words, so that both SQLAlchemy's statements
    and asyncpg's are in them.
    """

    dialect = "postgresql"

    def __init__(self, url: URL, *, pool_size: int = POOL_SIZE) -> None:
        self._engine = _postgres_engine(url, pool_size=pool_size, max_overflow=0)
        # For whoever keeps a connection for long: it is not taken from those who need one for a moment.
        self._dedicated = _postgres_engine(url, poolclass=NullPool)

    def writing(self) -> AbstractAsyncContextManager[PostgresTransaction]:
        return self._pooled(_WRITE)

    def reading(self) -> AbstractAsyncContextManager[PostgresTransaction]:
        return self._pooled(_READ)

    @asynccontextmanager
    async def _pooled(self, begin: str) -> AsyncIterator[PostgresTransaction]:
        async with AsyncExitStack() as connections:

            async def connect() -> AsyncConnection:
                return await connections.enter_async_context(self._engine.connect())

            async with _transaction(connect, begin) as transaction:
                yield transaction

    @asynccontextmanager
    async def dedicated(self) -> AsyncIterator[PostgresSession]:
        """A connection outside the pool, closed at the end, and with it ends whatever the session held."""
        with transients():
            async with self._dedicated.connect() as connection:
                yield PostgresSession(connection)

    async def close(self) -> None:
        await self._engine.dispose()
        await self._dedicated.dispose()


def _postgres_engine(url: URL, **options: Any) -> AsyncEngine:
    engine = create_async_engine(
        url.set(drivername="postgresql+asyncpg"), isolation_level="AUTOCOMMIT", **options
    )

    @event.listens_for(engine.sync_engine, "checkout")
    def _refuse_closed(connection: Any, *_: object) -> None:
        # asyncpg knows without asking when the server has hung up; the pool then takes another connection.
        if connection.driver_connection.is_closed():
            raise sa.exc.DisconnectionError

    return engine


# SQLite


class _SqliteThread:
    """One connection and the one thread that uses it: a piece of work is one hop, however many statements it has."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sqlite")
        self._connection: Connection | None = None

    async def run(self, work: Callable[[Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._do, work)

    def _do(self, work: Callable[[Connection], T]) -> T:
        if self._connection is None:
            self._connection = self._engine.connect()
        return work(self._connection)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, self._close)
        self._executor.shutdown()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._engine.dispose()


class SqliteTransaction:
    """Begun with its first piece of work, in the same hop."""

    def __init__(self, thread: _SqliteThread, begin: str) -> None:
        self._thread = thread
        self._begin: str | None = begin

    async def run(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        begin, self._begin = self._begin, None

        def begun(connection: Connection) -> T:
            if begin is not None:
                driver_of(connection).execute(begin)
            return work(connection, *args, **kwargs)

        with transients():
            return await self._thread.run(begun)

    async def end(self, statement: str) -> None:
        if self._begin is None:
            with transients():
                await self._thread.run(partial(_end, statement))


def _end(statement: str, connection: Connection) -> None:
    driver = driver_of(connection)
    # A failed BEGIN leaves nothing to end, and some failures end the transaction by themselves.
    if driver.in_transaction:
        driver.execute(statement)


def driver_of(connection: Connection) -> sqlite3.Connection:
    """SQLite's own connection behind SQLAlchemy's."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


class SqliteDatabase:
    """A file in WAL mode: one connection that writes, one that reads beside it.

    Transactions of this process queue up before they ask for the file's lock: asking, SQLite can only look again and
    again.
    """

    dialect = "sqlite"

    def __init__(self, url: URL) -> None:
        if not url.database or url.database == ":memory:":
            raise ValueError("a SQLite database needs a file: sqlite:///PATH")
        self.path = url.database
        self._writer = _SqliteThread(_sqlite_engine(url))
        self._reader = _SqliteThread(_sqlite_engine(url))
        self._writers = asyncio.Lock()
        self._readers = asyncio.Lock()

    def writing(self) -> AbstractAsyncContextManager[SqliteTransaction]:
        return self._transaction(self._writer, self._writers, "BEGIN IMMEDIATE")

    def reading(self) -> AbstractAsyncContextManager[SqliteTransaction]:
        return self._transaction(self._reader, self._readers, "BEGIN")

    @asynccontextmanager
    async def _transaction(
        self, thread: _SqliteThread, queue: asyncio.Lock, begin: str
    ) -> AsyncIterator[SqliteTransaction]:
        async with queue:
            transaction = SqliteTransaction(thread, begin)
            try:
                yield transaction
                await transaction.end("COMMIT")
            except BaseException:
                # Whoever is cancelled here must still not leave the lock to the next with a transaction open.
                await asyncio.shield(transaction.end("ROLLBACK"))
                raise

    async def close(self) -> None:
        await self._writer.close()
        await self._reader.close()


def _sqlite_engine(url: URL, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Engine:
    engine = sa.create_engine(
        url.set(drivername="sqlite+pysqlite"),
        isolation_level="AUTOCOMMIT",
        poolclass=StaticPool,
        connect_args={"timeout": busy_timeout_s},
    )

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        # What was confirmed survives a power cut: one sync for each commit, shared by the batch.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")

    return engine


# Migrations

# Alembic keeps what it works on in global variables.
_alembic = threading.Lock()


async def upgrade(url: str, package: str) -> tuple[str, str]:
    """Bring this worker's tables up to date; from which revision ("" if there were no tables) to which.

    Any number of processes may do so at once: one does it while the others wait, and find it done.
    """
    with transients():
        return await asyncio.to_thread(_upgrade, make_url(url), package)


def _upgrade(url: URL, package: str) -> tuple[str, str]:
    with _alembic:
        if url.get_backend_name() == "sqlite":
            return _upgrade_sqlite(url, package)
        return asyncio.run(_upgrade_postgres(url, package))


async def _upgrade_postgres(url: URL, package: str) -> tuple[str, str]:
    engine = create_async_engine(url.set(drivername="postgresql+asyncpg"), poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            await connection.execute(
                sa.text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"),
                {"name": version_table(package)},
            )
            return await connection.run_sync(migrate, package)
    finally:
        await engine.dispose()


def _upgrade_sqlite(url: URL, package: str) -> tuple[str, str]:
    engine = _sqlite_engine(url, busy_timeout_s=MIGRATION_TIMEOUT_S)
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("BEGIN EXCLUSIVE")
            try:
                revisions = migrate(connection, package)
            except BaseException:
                connection.exec_driver_sql("ROLLBACK")
                raise
            connection.exec_driver_sql("COMMIT")
            return revisions
    finally:
        engine.dispose()


def migrate(connection: Connection, package: str) -> tuple[str, str]:
    """Run the migrations that are missing, in the transaction that is open."""
    config = Config()
    config.set_main_option("script_location", f"{package}:migrations")
    config.attributes["connection"] = connection
    config.attributes["version_table"] = version_table(package)
    before = _revision(connection, package)
    command.upgrade(config, "head")
    return before, _revision(connection, package)


def version_table(package: str) -> str:
    """Workers may share a database: each has its own record of where its tables stand."""
    return f"{package.removesuffix('_worker')}_version"


def _revision(connection: Connection, package: str) -> str:
    context = MigrationContext.configure(connection, opts={"version_table": version_table(package)})
    return context.get_current_revision() or ""
