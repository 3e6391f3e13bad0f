"""The two databases by what they have in common, and from a URL to one of them. Speaks to neither."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import make_url

from bus.database_settings import DatabaseSettings
from bus.sql.postgresql import POOL_SIZE, PostgresDatabase
from bus.sql.sqlite import SqliteDatabase

P = ParamSpec("P")
T = TypeVar("T")


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

    def writing(
        self, *, takes_long: bool = False, is_lazy: bool = False
    ) -> AbstractAsyncContextManager[Transaction]:
        """Each statement sees what was committed before it (SQLite: there is no other writer).

        A lazy commit does not wait for the disk. The process may end after it, and nothing is lost; but a power cut, or a
        crash of the database server, may undo the last of them. A later commit that is not lazy keeps those before it.
        """

    def reading(self, *, takes_long: bool = False) -> AbstractAsyncContextManager[Transaction]:
        """All statements see the same: what was committed before the first one."""

    async def close(self) -> None: ...


def open_database(
    url: str, *, pool_size: int = POOL_SIZE, settings: DatabaseSettings | None = None
) -> PostgresDatabase | SqliteDatabase:
    """The database at a SQLAlchemy URL; nothing is connected yet."""
    parsed = make_url(url)
    match parsed.get_backend_name():
        case "postgresql":
            return PostgresDatabase(parsed, pool_size=pool_size, settings=settings)
        case "sqlite":
            return SqliteDatabase(parsed, settings=settings)
        case other:
            raise ValueError(f"database URL names {other!r}: moorage runs on postgresql and sqlite")
