"""A worker's tables in SQLite in memory, for its own store: all runs in the event loop's thread, on whatever clock the loop has.

One transaction runs at a time. A store is opened by the database in place of a URL.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from importlib import import_module
from itertools import count
from typing import Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection, Engine
from sqlalchemy.pool import NullPool

from kit.sql import SqliteDatabase, SqliteTransaction, driver_of

P = ParamSpec("P")
T = TypeVar("T")
_numbers = count(1)


class Tables:
    """The tables of a worker, empty at first. They outlive the databases that are opened on them."""

    def __init__(self, worker: str) -> None:
        self.connection = _engine(worker).connect()
        self.driver = driver_of(self.connection)
        self.queue = asyncio.Lock()
        self.name = f"memory {next(_numbers)}"


@cache
def _engine(worker: str) -> Engine:
    """Each of its connections is a new database with these tables. All share the compiled statements."""
    made = sa.create_engine("sqlite+pysqlite://")
    import_module(f"{worker}.tables").metadata.create_all(made)
    with made.connect() as connection:
        template = sqlite3.connect(":memory:", check_same_thread=False)
        driver_of(connection).backup(template)

    def copy() -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        template.backup(connection)
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    return sa.create_engine(
        "sqlite+pysqlite://", creator=copy, isolation_level="AUTOCOMMIT", poolclass=NullPool
    )


class MemoryTransaction(SqliteTransaction):
    """A writer begins with its first call of `run`. Nothing is written while a reader reads, so it needs no transaction."""

    def __init__(self, tables: Tables, *, writes: bool) -> None:
        self._tables = tables
        self._writes = writes
        self._is_begun = False

    async def run(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self._writes and not self._is_begun:
            self._is_begun = True
            self._tables.driver.execute("BEGIN")
        return work(self._tables.connection, *args, **kwargs)

    async def commit(self) -> None:
        self._end("COMMIT")

    async def roll_back(self) -> None:
        self._end("ROLLBACK")

    def _end(self, statement: str) -> None:
        if self._tables.driver.in_transaction:
            self._tables.driver.execute(statement)


class MemoryDatabase(SqliteDatabase):
    def __init__(self, tables: Tables) -> None:
        self.path = tables.name
        self.tables = tables

    def writing(
        self,
        *,
        takes_long: bool = False,  # noqa: ARG002
        is_lazy: bool = False,  # noqa: ARG002
    ) -> AbstractAsyncContextManager[SqliteTransaction]:
        return self._one(writes=True)

    def reading(self, *, takes_long: bool = False) -> AbstractAsyncContextManager[SqliteTransaction]:  # noqa: ARG002
        return self._one(writes=False)

    @asynccontextmanager
    async def _one(self, *, writes: bool) -> AsyncIterator[SqliteTransaction]:
        async with self.tables.queue:
            transaction = MemoryTransaction(self.tables, writes=writes)
            try:
                yield transaction
                await transaction.commit()
            except BaseException:
                await transaction.roll_back()
                raise

    async def close(self) -> None:
        """The tables stay."""
