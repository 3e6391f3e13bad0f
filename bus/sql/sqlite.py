"""Speaks to SQLite, by sqlite3 behind SQLAlchemy, in threads of its own: the event loop never waits for a disk."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Concatenate, ParamSpec, TypeVar
from weakref import WeakValueDictionary

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL
from sqlalchemy.pool import StaticPool

from bus.sql.errors import transients

P = ParamSpec("P")
T = TypeVar("T")

# Where those who write to a file queue up, for as long as there are any. Several rooms of one process may share a file.
_queues: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

# How long one process waits for another that writes to the same file.
BUSY_TIMEOUT_S = 5.0


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
        self._written_before = 0
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
                self._written_before = driver_of(connection).total_changes
            for waiting in later:
                waiting(connection)
            return work(connection, *args, **kwargs)

        with transients():
            return await self._thread.run(all_of_it)

    def later(self, work: Callable[[Connection], object]) -> None:
        """Do this together with what comes next, if only the commit: it costs no hop, and fails only then."""
        self._later.append(work)

    def has_written(self, connection: Connection) -> bool:
        """Asked in the thread: is what it reads no longer only what was committed?"""
        return driver_of(connection).total_changes != self._written_before

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
        self._writer = _SqliteThread(sqlite_engine(url))
        self._reader = _SqliteThread(sqlite_engine(url))
        self._writers = _queues.setdefault(os.path.realpath(self.path), asyncio.Lock())
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


def sqlite_engine(url: URL, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Engine:
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
