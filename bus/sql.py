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
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool, StaticPool

from bus.errors import Bug, Transient, Unavailable

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
    return is_away(error)


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


class PostgresSession:
    """One connection, kept for many transactions one after the other, as SQLAlchemy has it and as asyncpg has it."""

    def __init__(self, connection: AsyncConnection, driver: Any) -> None:
        self.connection = connection
        self.driver = driver

    @property
    def is_usable(self) -> bool:
        # asyncpg knows without asking when the server has hung up.
        return not (self.driver.is_closed() or self.driver.is_in_transaction() or self.connection.invalidated)

    def writing(self) -> "AbstractAsyncContextManager[PostgresTransaction]":
        return _transaction(self._itself, _WRITE)

    def reading(self) -> "AbstractAsyncContextManager[PostgresTransaction]":
        return _transaction(self._itself, _READ)

    async def _itself(self, begin: str) -> "PostgresSession":
        return await _begin(self, begin)

    async def close(self) -> None:
        if self.driver.is_closed():
            await self.discard()
        else:
            await self.connection.close()

    async def discard(self) -> None:
        """Without a word to a server that may be gone."""
        if not self.connection.closed:
            await self.connection.invalidate()
            await self.connection.close()


class PostgresTransaction:
    """Takes a session and begins with its first statement: whoever asks nothing holds nothing."""

    def __init__(self, take: "TakeSession", begin: str) -> None:
        self._take = take
        self._begin = begin
        self._session: PostgresSession | None = None

    async def driver(self) -> Any:
        """The connection as asyncpg has it, in this transaction."""
        return (await self._begun()).driver

    async def run(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        session = await self._begun()
        return await session.connection.run_sync(work, *args, **kwargs)

    async def _begun(self) -> PostgresSession:
        if self._session is None:
            self._session = await self._take(self._begin)
        return self._session

    async def commit(self) -> None:
        if self._session is None:
            return
        # After an error that somebody kept to himself, PostgreSQL rolls back and calls it no error.
        if (done := await self._session.driver.execute("COMMIT")) != "COMMIT":
            raise Bug(f"database: COMMIT became {done}: an error inside the transaction was not let through")

    async def abandon(self, error: BaseException) -> None:
        """Leave the session clean, or not usable."""
        if self._session is None:
            return
        driver = self._session.driver
        if not driver.is_closed():
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                await driver.execute("ROLLBACK")
        # What asyncpg says of a connection that has gone depends on the moment; that it has gone does not.
        if driver.is_closed() and isinstance(error, asyncpg.InterfaceError | sa.exc.DBAPIError):
            raise Unavailable(f"database: connection lost: {error}") from error


# A session in which a transaction has begun, by these words.
TakeSession = Callable[[str], Awaitable[PostgresSession]]


@asynccontextmanager
async def _transaction(take: TakeSession, begin: str) -> AsyncIterator[PostgresTransaction]:
    transaction = PostgresTransaction(take, begin)
    with transients():
        try:
            yield transaction
            await transaction.commit()
        except BaseException as error:
            await transaction.abandon(error)
            raise


async def _begin(session: PostgresSession, words: str) -> PostgresSession:
    """A session that does not even begin is of no use any more."""
    try:
        await session.driver.execute(words)
    except (asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        await session.discard()
        raise Unavailable(f"database: connection lost: {error}") from error
    except BaseException:
        await session.discard()
        raise
    return session


# Writers find their rows by keys. A plan that was made while a table was small would scan it, and be kept for long
# after the table has grown (measured: 12 ms a claim in place of 0.7). Readers, who look at everything, scan as they like.
_BY_KEYS = "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off"
_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED"
_READ = """
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL enable_seqscan = on; SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on
"""


class PostgresDatabase:
    """A few sessions, taken in turn. Transactions are begun and ended by our own words, so that both SQLAlchemy's
    statements and asyncpg's are in them; and the sessions are kept here, since taking one from SQLAlchemy's pool
    costs as much as two statements.
    """

    dialect = "postgresql"

    def __init__(self, url: URL, *, pool_size: int = POOL_SIZE) -> None:
        self._engine = create_async_engine(
            url.set(drivername="postgresql+asyncpg"), isolation_level="AUTOCOMMIT", poolclass=NullPool
        )
        self._idle: list[PostgresSession] = []
        self._free = asyncio.Semaphore(pool_size)

    def writing(self) -> AbstractAsyncContextManager[PostgresTransaction]:
        return self._pooled(_WRITE)

    def reading(self) -> AbstractAsyncContextManager[PostgresTransaction]:
        return self._pooled(_READ)

    @asynccontextmanager
    async def _pooled(self, begin: str) -> AsyncIterator[PostgresTransaction]:
        async with AsyncExitStack() as taken:

            async def take(begin: str) -> PostgresSession:
                return await taken.enter_async_context(self._borrowed(begin))

            async with _transaction(take, begin) as transaction:
                yield transaction

    @asynccontextmanager
    async def _borrowed(self, begin: str) -> AsyncIterator[PostgresSession]:
        async with self._free:
            session = await self._begun(begin)
            try:
                yield session
            finally:
                if session.is_usable:
                    self._idle.append(session)
                else:
                    await session.close()

    async def _begun(self, begin: str) -> PostgresSession:
        """One in which the transaction has begun. Those that broke while they were idle are found out by that."""
        while self._idle:
            with suppress(Unavailable, asyncpg.PostgresError, OSError):
                return await _begin(self._idle.pop(), begin)
        return await _begin(await self._connect(), begin)

    async def _connect(self) -> PostgresSession:
        connection = await self._engine.connect()
        raw = await connection.get_raw_connection()
        return await _begin(PostgresSession(connection, raw.driver_connection), _BY_KEYS)

    @asynccontextmanager
    async def dedicated(self) -> AsyncIterator[PostgresSession]:
        """A session of its own, not one of the few; closed at the end, and with it ends whatever it held."""
        with transients():
            session = await self._connect()
            try:
                yield session
            finally:
                await session.close()

    async def close(self) -> None:
        """When nobody is in a transaction any more."""
        while self._idle:
            await self._idle.pop().close()
        await self._engine.dispose()


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
        self._begin = begin
        self._is_begun = False
        self._later: list[Callable[[Connection], object]] = []

    async def run(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        begin = "" if self._is_begun else self._begin
        self._is_begun = True
        later, self._later = self._later, []

        def all_of_it(connection: Connection) -> T:
            if begin:
                driver_of(connection).execute(begin)
            for waiting in later:
                waiting(connection)
            return work(connection, *args, **kwargs)

        with transients():
            return await self._thread.run(all_of_it)

    def later(self, work: Callable[[Connection], object]) -> None:
        """Do this together with what comes next, if only the commit: it costs no hop, and fails only then."""
        self._later.append(work)

    async def commit(self) -> None:
        if self._is_begun or self._later:
            await self.run(_end, "COMMIT")

    async def roll_back(self) -> None:
        self._later.clear()
        if self._is_begun:
            await self.run(_end, "ROLLBACK")


def _end(connection: Connection, statement: str) -> None:
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
                await transaction.commit()
            except BaseException:
                # Whoever is cancelled here must still not leave the lock to the next with a transaction open.
                await asyncio.shield(transaction.roll_back())
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
