"""One type for both databases, PostgreSQL and SQLite, and short ways to run one query. Opens no connection itself."""

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import make_url

from bus.configuration.hosts import each_host
from bus.configuration.settings import DatabaseSettings
from bus.sql.postgresql import POOL_SIZE, PostgresDatabase, PostgresTransaction
from bus.sql.sqlite import SqliteDatabase, SqliteTransaction

P = ParamSpec("P")
T = TypeVar("T")


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
    """The database at a SQLAlchemy URL, which may name several hosts (bus/configuration/hosts.py). Does not connect yet."""
    parsed, *others = map(make_url, each_host(url))
    match parsed.get_backend_name():
        case "postgresql":
            return PostgresDatabase(parsed, *others, pool_size=pool_size, settings=settings)
        case "sqlite":
            return SqliteDatabase(parsed, settings=settings)
        case other:
            raise ValueError(f"the database URL names {other!r}, must be postgresql or sqlite")
