"""Opens Nova's databases, read-only, and checks that they have what is read of them.

MySQL and MariaDB are read by PyMySQL, of the extra `moorage[nova]`, in transactions that may not write; SQLite by files that are
opened read-only. Reading is rare, one thing after the other, so the drivers need not be asynchronous: they run in threads. No error
names a password.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    TextClause,
    bindparam,
    create_engine,
    event,
    inspect,
    make_url,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from kit.urls import PASSWORD_FILE, BadSecretFile, read_secret

T = TypeVar("T")

log = logging.getLogger(__name__)

# What is read of Nova's and Placement's databases: a database of any version is read that has these columns.


Columns = Mapping[str, tuple[str, ...]]


class NovaDatabaseKind(Enum):
    """A kind of database, by what it is called."""

    API = "Nova API"
    CELL = "Nova cell"
    PLACEMENT = "Placement"

    def __str__(self) -> str:
        return self.value

    @property
    def expected(self) -> str:
        return {
            NovaDatabaseKind.API: "the one that [api_database] connection of nova.conf names",
            NovaDatabaseKind.CELL: "the one that `nova-manage cell_v2 list_cells` names",
            NovaDatabaseKind.PLACEMENT: "the one that [placement_database] connection of placement.conf names",
        }[self]


# The last migrations of each kind with which this was tried: of Nova from Wallaby to Nova 34, and of Placement to 16.
TRIED: dict[NovaDatabaseKind, tuple[str, ...]] = {
    NovaDatabaseKind.API: ("d67eeaabee36", "b30f573d3377", "cdeec0c85668"),
    NovaDatabaseKind.CELL: (
        *("8f2f1571d55b", "16f1fbcab42b", "ccb0fa1a2252", "960aac0e09ea", "1b91788ec3a6", "1acf2c98e646"),
        *("13863f4e1612", "d60bddf7a903", "2903cd72dc14", "ab450ba04102"),
    ),
    NovaDatabaseKind.PLACEMENT: (
        "b4ed3a175331",
        "611cd6dffd7b",
        "b5c396305c25",
        "422ece571366",
        "a082b8bb98d0",
    ),
}
_VERSION = {"alembic_version": ("version_num",)}

CONNECT_TIMEOUT_S = 10
# Hosts are read at the same time.
CONNECTIONS_MAX = 8
# How many values a statement names at most: SQLite allows no more than 32,766.
VALUES_MAX = 500
_NO_DRIVER = "install the driver: pip install 'moorage[nova]'"


class NovaDatabaseError(Exception):
    """A database of Nova cannot be used. The message names it, without its password."""


class NovaDatabase:
    """One of Nova's databases."""

    def __init__(self, label: str, url: URL, engine: Engine) -> None:
        self.label = label
        self.name = f"{label} ({url.render_as_string(hide_password=True)})"
        self._engine = engine
        self._columns: dict[str, frozenset[str]] = {}

    def has(self, table: str, column: str) -> bool:
        """Older databases lack some columns."""
        return column in self._columns.get(table, ())

    @asynccontextmanager
    async def reading(self) -> AsyncIterator["NovaReading"]:
        """A transaction that sees one state of the database, and may not write."""
        try:
            reading = NovaReading(self._engine)
            try:
                await reading.begin()
                yield reading
            finally:
                await reading.end()
        except SQLAlchemyError as problem:
            raise NovaDatabaseError(f"{self.name}: {_in_words(problem)}") from None
        except OSError as problem:
            raise NovaDatabaseError(f"{self.name}: {problem.strerror or problem}") from None

    async def check(self, kind: NovaDatabaseKind, used: Columns) -> None:
        """Look for the columns that are used, and log if it was not tried with this version of the database. Raises `NovaDatabaseError` if
        it lacks one.
        """
        async with self.reading() as reading:
            self._columns = await reading.columns({**used, **_VERSION})
            if missing := [table for table in used if table not in self._columns]:
                raise NovaDatabaseError(
                    f"{self.name} is no {kind} database: it has no table {', '.join(missing)}; expected is {kind.expected}"
                )
            if lacking := [
                f"{table}.{each}" for table in used for each in used[table] if not self.has(table, each)
            ]:
                raise NovaDatabaseError(
                    f"{self.name} is a {kind} database of a version that cannot be read: it has no column {', '.join(lacking)}"
                )
            has_version = self.has("alembic_version", "version_num")
            rows = await reading.rows("SELECT version_num FROM alembic_version") if has_version else []
        found = [str(row["version_num"]) for row in rows]
        if not found or not {*found} <= {*TRIED[kind]}:
            log.warning(
                "%s is a %s database of a version with which this was not tried (its last migration is %s; tried are %s to %s): only the "
                "columns that are known are read",
                self.name,
                kind,
                ", ".join(found) or "missing",
                TRIED[kind][0],
                TRIED[kind][-1],
            )

    async def close(self) -> None:
        await asyncio.to_thread(self._engine.dispose)


class NovaReading:
    """One transaction. All its work runs in one thread, so the connection is closed after the work of a caller that was cancelled."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(1, "nova-database")
        self._opened: Connection | None = None

    async def begin(self) -> None:
        def connect() -> None:
            self._opened = self._engine.connect()

        await self._run(connect)

    async def end(self) -> None:
        def close() -> None:
            if self._opened is not None:
                self._opened.close()

        try:
            await self._run(close)
        finally:
            self._thread.shutdown(wait=False)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @property
    def _connection(self) -> Connection:
        assert self._opened is not None, "a transaction has begun"
        return self._opened

    async def columns(self, tables: Iterable[str]) -> dict[str, frozenset[str]]:
        """The columns of those of these tables that there are."""

        def look() -> dict[str, frozenset[str]]:
            inspector = inspect(self._connection)
            there = {*inspector.get_table_names()}
            return {
                table: frozenset(str(column["name"]) for column in inspector.get_columns(table))
                for table in tables
                if table in there
            }

        return await self._run(look)

    async def rows(self, statement: str, **values: object) -> list[Mapping[str, Any]]:
        return await self._read(text(statement), values)

    async def rows_of(
        self, statement: str, wanted: Sequence[object], **values: object
    ) -> list[Mapping[str, Any]]:
        """The rows of a statement that has `IN :wanted`, in parts."""
        prepared = text(statement).bindparams(bindparam("wanted", expanding=True))
        found: list[Mapping[str, Any]] = []
        for start in range(0, len(wanted), VALUES_MAX):
            part = {"wanted": list(wanted[start : start + VALUES_MAX]), **values}
            found += await self._read(prepared, part)
        return found

    async def _read(self, statement: TextClause, values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        def read() -> list[Mapping[str, Any]]:
            return [dict(row) for row in self._connection.execute(statement, values).mappings()]

        return await self._run(read)


def open_nova_database(label: str, address: str) -> NovaDatabase:
    """`label` says which one it is, as the command names it. Nothing connects yet."""
    try:
        url = make_url(address)
        backend = url.get_backend_name()
    except ArgumentError:
        raise NovaDatabaseError(
            f"{label} is no URL of a database: give mysql://USER:PASSWORD@HOST/NAME or sqlite:///FILE"
        ) from None
    if backend in ("mysql", "mariadb"):
        return _mysql(label, url)
    if backend == "sqlite":
        return _sqlite(label, url)
    raise NovaDatabaseError(f"{label}: {backend!r} must be mysql or sqlite")


def _mysql(label: str, url: URL) -> NovaDatabase:
    try:
        url = _with_password(url)
    except BadSecretFile as problem:
        raise NovaDatabaseError(f"{label}: {problem}") from None
    url = url.set(drivername="mysql+pymysql", query=url.query | {"charset": "utf8mb4"})
    try:
        engine = create_engine(
            url,
            isolation_level="REPEATABLE READ",
            pool_size=CONNECTIONS_MAX,
            max_overflow=0,
            pool_pre_ping=True,
            connect_args={"connect_timeout": CONNECT_TIMEOUT_S},
        )
    except ModuleNotFoundError:
        raise NovaDatabaseError(f"{label}: {_NO_DRIVER}") from None

    @event.listens_for(engine, "connect")
    def may_not_write(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        cursor.execute("SET SESSION TRANSACTION READ ONLY")
        cursor.close()

    return NovaDatabase(label, url, engine)


def _with_password(url: URL) -> URL:
    file = url.query.get(PASSWORD_FILE)
    if file is None:
        return url
    if url.password is not None or not isinstance(file, str):
        raise BadSecretFile(f"the URL must have one password, or one {PASSWORD_FILE}")
    return url.difference_update_query((PASSWORD_FILE,)).set(password=read_secret(file))


def _sqlite(label: str, url: URL) -> NovaDatabase:
    path = Path(url.database or "")
    if not path.is_file():
        raise NovaDatabaseError(f"{label}: there is no file {path}")
    read_only = URL.create("sqlite", database=f"file:{path}", query={"mode": "ro", "uri": "true"})
    return NovaDatabase(
        label,
        url,
        create_engine(read_only, connect_args={"check_same_thread": False}, pool_size=CONNECTIONS_MAX),
    )


def _in_words(problem: SQLAlchemyError) -> str:
    if isinstance(problem, DBAPIError) and problem.orig is not None:
        arguments = getattr(problem.orig, "args", ())
        return str(arguments[-1] if arguments else problem.orig)
    return str(problem)
