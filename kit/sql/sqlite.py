"""SQLite by sqlite3 behind SQLAlchemy, without blocking the event loop on the disk.

Reads run in a thread. Writes run in the event loop's own thread, and only the commit goes to another. The statements of
a batch take some hundred microseconds. Moving them to another thread and back, with two processors' caches in between,
takes as long again.
"""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.pool import StaticPool

from kit.database_settings import DatabaseSettings
from kit.errors import Locked
from kit.sql.dialects import opening, transients
from kit.sql.postgresql import POOL_SIZE, PostgresDatabase, PostgresTransaction
from kit.sql.statements import moment_text
from kit.urls import each_host

P = ParamSpec("P")
T = TypeVar("T")

PAGE_BYTES = 16_384
CACHE_KB = 16_384

# Without an adapter, sqlite3 searches for one in several ways each time that a value is bound.
sqlite3.register_adapter(bytes, bytes)
sqlite3.register_adapter(type(None), lambda nothing: nothing)
# As SQLAlchemy writes them by the types of statements.py.
sqlite3.register_adapter(UUID, attrgetter("hex"))
sqlite3.register_adapter(datetime, moment_text)


def _make_private(file: str) -> None:
    """Create the file for its owner alone, if it does not exist: SQLite would let all users read it, and these see what users asked
    for. The files that SQLite puts beside it get its mode. If it cannot be created, SQLite says why.
    """
    with suppress(OSError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL, 0o600))


class _Session:
    """One SQLite connection, and a thread for work on it that may take long."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sqlite")
        self._connection: Connection | None = None
        self._is_lazy = False

    def be_lazy(self, *, is_lazy: bool) -> None:
        """Set whether later commits wait until they are on the disk. Only to be called between two transactions."""
        if is_lazy is not self._is_lazy:
            durability = "NORMAL" if is_lazy else "FULL"
            self.here(lambda connection: driver_of(connection).execute(f"PRAGMA synchronous = {durability}"))
            self._is_lazy = is_lazy

    def here(self, work: Callable[[Connection], T]) -> T:
        """Run this work in the caller's thread. Only to be called while nothing runs in the session's own thread."""
        if self._connection is None:
            file = self._engine.url.database or ""
            with opening(file):
                _make_private(file)
                self._connection = self._engine.connect()
        return work(self._connection)

    async def in_thread(self, work: Callable[[Connection], T]) -> T:
        """Run this work in the session's thread. Calls run one after the other."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self.here, work)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, self._close)
        self._executor.shutdown()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._engine.dispose()


class _Writer:
    """The one connection of this process that writes to a file, and the lock for which writers queue up.

    The workers of a process share it, if they share the file: when another connection has written, SQLite drops the whole
    page cache of a connection, and reads its pages again.
    """

    def __init__(self, engine: Engine) -> None:
        self.session = _Session(engine)
        self.queue = asyncio.Lock()
        self.users = 0


# By the path of the file.
_writers: WeakValueDictionary[str, _Writer] = WeakValueDictionary()


class SqliteTransaction:
    """A transaction that begins with its first call of `run`. A writer waits up to `BUSY_S` for other processes."""

    def __init__(self, session: _Session, busy_s: float, *, writes: bool, is_lazy: bool = False) -> None:
        self._session = session
        self._busy_s = busy_s
        self._writes = writes
        self._is_lazy = is_lazy
        self._is_begun = False

    async def run(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        def begun_work(connection: Connection) -> T:
            if not self._is_begun:
                self._is_begun = True
                driver_of(connection).execute("BEGIN")
            return work(connection, *args, **kwargs)

        with transients():
            if self._writes:
                await self._begin_writing()
                return self._session.here(begun_work)
            return await self._session.in_thread(begun_work)

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        """Run a statement directly with the driver, `sqlite3`, and return its rows."""
        return await self.run(lambda connection: driver_of(connection).execute(statement, values).fetchall())

    async def change(self, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run a statement with the driver, `sqlite3`, once for each of these rows. Returns how many rows it has
        changed.
        """
        return await self.run(lambda connection: driver_of(connection).executemany(statement, rows).rowcount)

    async def _begin_writing(self) -> None:
        if self._is_begun:
            return
        self._is_begun = True
        self._session.be_lazy(is_lazy=self._is_lazy)
        try:
            self._session.here(partial(_begin_immediate, 0.0))
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            # Another process is writing to the file.
            await self._session.in_thread(partial(_begin_immediate, self._busy_s))

    async def commit(self) -> None:
        if not self._is_begun:
            return
        with transients():
            if self._writes:
                await self._session.in_thread(partial(_end, "COMMIT"))
            else:
                # Nothing waits for the disk at the end of a read.
                self._session.here(partial(_end, "COMMIT"))

    async def roll_back(self) -> None:
        """Roll back the transaction. If a commit still runs for a cancelled caller, wait for it first."""
        if self._is_begun:
            with transients():
                await self._session.in_thread(partial(_end, "ROLLBACK"))


def _begin_immediate(busy_s: float, connection: Connection) -> None:
    driver = driver_of(connection)
    driver.execute(f"PRAGMA busy_timeout = {int(busy_s * 1000)}")
    driver.execute("BEGIN IMMEDIATE")


def _end(statement: str, connection: Connection) -> None:
    driver = driver_of(connection)
    # After a failed BEGIN no transaction is open, and some errors end it by themselves.
    if driver.in_transaction:
        driver.execute(statement)


def driver_of(connection: Connection) -> sqlite3.Connection:
    """sqlite3's connection behind SQLAlchemy's."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


class SqliteDatabase:
    """A SQLite file in WAL mode, with one connection for writing and one for reading.

    All databases of this process on the same file share the connection for writing. Transactions of this process
    queue up before they ask for the file's lock, for which SQLite can only poll.
    """

    dialect = "sqlite"

    def __init__(self, url: URL, *, settings: DatabaseSettings | None = None) -> None:
        if not url.database or url.database == ":memory:":
            raise ValueError("a SQLite database needs a file: sqlite:///PATH")
        self.path = url.database
        self._settings = settings or DatabaseSettings()
        self._file = os.path.realpath(self.path)
        self._writer = _writers.get(self._file) or _Writer(_engine(url, self._settings.BUSY_S))
        self._writer.users += 1
        _writers[self._file] = self._writer
        self._reader = _Session(_engine(url, self._settings.BUSY_S))
        self._readers = asyncio.Lock()

    def writing(
        self,
        *,
        takes_long: bool = False,
        is_lazy: bool = False,
    ) -> AbstractAsyncContextManager[SqliteTransaction]:
        busy_s = self._settings.BUSY_LONG_S if takes_long else self._settings.BUSY_S
        transaction = SqliteTransaction(self._writer.session, busy_s, writes=True, is_lazy=is_lazy)
        return self._running(transaction, self._writer.queue)

    def reading(self, *, takes_long: bool = False) -> AbstractAsyncContextManager[SqliteTransaction]:  # noqa: ARG002
        return self._running(
            SqliteTransaction(self._reader, self._settings.BUSY_S, writes=False), self._readers
        )

    def reading_by_keys(self) -> AbstractAsyncContextManager[SqliteTransaction]:
        return self.reading()

    def reading_each(self) -> AbstractAsyncContextManager[SqliteTransaction]:
        return self.reading()

    @asynccontextmanager
    async def _running(
        self, transaction: SqliteTransaction, queue: asyncio.Lock
    ) -> AsyncIterator[SqliteTransaction]:
        wait_s = self._settings.POOL_WAIT_S
        try:
            async with asyncio.timeout(wait_s):
                await queue.acquire()
        except TimeoutError:
            raise Locked(f"database: {self.path} was in use for more than {wait_s:g} s") from None
        try:
            yield transaction
            await transaction.commit()
        except BaseException:
            # The next transaction begins when this one has ended, even if the caller is cancelled once more meanwhile.
            ending = asyncio.ensure_future(transaction.roll_back())
            ending.add_done_callback(lambda _: queue.release())
            await asyncio.shield(ending)
            raise
        queue.release()

    async def close(self) -> None:
        self._writer.users -= 1
        if not self._writer.users:
            _writers.pop(self._file, None)
            await self._writer.session.close()
        await self._reader.close()


def _engine(url: URL, busy_timeout_s: float) -> Engine:
    engine = sa.create_engine(
        url.set(drivername="sqlite+pysqlite"),
        isolation_level="AUTOCOMMIT",
        poolclass=StaticPool,
        connect_args={"timeout": busy_timeout_s, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _: object) -> None:
        # For new files. A commit costs per page, and rows with random keys each touch another small page.
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode = WAL")
        # A confirmed commit survives a power cut: one sync for each commit, shared by the batch.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KB}")

    return engine


# One type for both databases, PostgreSQL and SQLite, and short ways to run one query. Opens no connection itself.


# `run` calls a function with a connection, in the thread that the driver needs. The context manager that a transaction
# came from commits it or rolls it back.
Transaction = PostgresTransaction | SqliteTransaction

# `writing` is a writing transaction. Each statement sees what was committed before it (SQLite: there is no other writer). A
# lazy commit does not wait for the disk. If the process ends afterwards nothing is lost. A power cut or a crash of the
# database server may undo the last lazy commits. A later commit that is not lazy makes the earlier ones durable.
#
# `reading` is a reading transaction. All statements see what was committed before the first one. `reading_by_keys` is the
# same for statements that find their rows by keys: PostgreSQL may not scan a table then. In `reading_each`, each
# statement of PostgreSQL sees what was committed before it: for one statement that is the same, in a third of the round trips.
Database = PostgresDatabase | SqliteDatabase


async def read_once(
    database: Database, query: Callable[Concatenate[Connection, P], T], *values: P.args, **named: P.kwargs
) -> T:
    """Run one query as a transaction of its own."""
    async with database.reading() as transaction:
        return await transaction.run(query, *values, **named)


async def write_once(
    database: Database, change: Callable[Concatenate[Connection, P], T], *values: P.args, **named: P.kwargs
) -> T:
    """Run one change as a transaction of its own."""
    async with database.writing() as transaction:
        return await transaction.run(change, *values, **named)


def reads(
    query: Callable[Concatenate[Connection, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Make a method of a store class from this query. The method runs the query as a transaction of its own.

    The store has its database in `_database`.
    """

    async def read(self: Any, /, *values: P.args, **named: P.kwargs) -> T:
        return await read_once(self._database, query, *values, **named)

    return read


def runs(
    work: Callable[Concatenate[Connection, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Turn a function that takes a connection into a method of a store's transaction class.

    The class has the database's transaction in `_transaction`; the method runs the function in it.
    """

    async def run(self: Any, /, *values: P.args, **named: P.kwargs) -> T:
        done: T = await self._transaction.run(work, *values, **named)
        return done

    return run


def open_database(
    url: str, *, pool_size: int = POOL_SIZE, settings: DatabaseSettings | None = None
) -> Database:
    """The database at a SQLAlchemy URL, which may name several hosts (kit/urls.py). Does not connect yet."""
    parsed, *others = map(make_url, each_host(url))
    match parsed.get_backend_name():
        case "postgresql":
            return PostgresDatabase(parsed, *others, pool_size=pool_size, settings=settings)
        case "sqlite":
            return SqliteDatabase(parsed, settings=settings)
        case other:
            raise ValueError(f"the database URL names {other!r}, must be postgresql or sqlite")
