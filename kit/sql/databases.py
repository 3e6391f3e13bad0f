"""SQLite by sqlite3 behind SQLAlchemy; one type for both databases, and short ways to run one query; and hot statements on
batches of rows, made for both.

SQLite does not block the event loop on the disk. Reads run in a thread. Writes run in the event loop's own thread, and only
the commit goes to another. The statements of a batch take some hundred microseconds. Moving them to another thread and back,
with two processors' caches in between, takes as long again.
"""

import asyncio
import os
import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import datetime
from functools import partial, wraps
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Column, Connection, Engine, Table, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.pool import StaticPool

from kit.database_settings import DatabaseSettings
from kit.errors import Locked
from kit.sql.dialects import opening, transients
from kit.sql.postgresql import POOL_SIZE, PostgresDatabase, PostgresTransaction
from kit.sql.statements import Moment, array_of, moment_text
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

    async def roll_back(self) -> None:
        """Roll back what work in the session's thread has begun. Work that still runs there for a cancelled caller ends first."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._roll_back)

    def _roll_back(self) -> None:
        if self._connection is not None:
            _end("ROLLBACK", self._connection)

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
        # Only the event loop writes it: so it knows that there is something to roll back while the session's thread may still
        # open the file for a caller that was cancelled.
        self._is_begun = False

    async def run(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        def begun_work(connection: Connection) -> T:
            if begins:
                driver_of(connection).execute("BEGIN")
            return work(connection, *args, **kwargs)

        with transients():
            if self._writes:
                await self._begin_writing()
                return self._session.here(lambda connection: work(connection, *args, **kwargs))
            begins, self._is_begun = not self._is_begun, True
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
        if self._is_begun:
            with transients():
                await self._session.roll_back()


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

    @wraps(query)
    async def read(self: Any, /, *values: P.args, **named: P.kwargs) -> T:
        return await read_once(self._database, query, *values, **named)

    return read


def runs(
    work: Callable[Concatenate[Connection, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Turn a function that takes a connection into a method of a store's transaction class.

    The class has the database's transaction in `_transaction`; the method runs the function in it.
    """

    @wraps(work)
    async def run(self: Any, /, *values: P.args, **named: P.kwargs) -> T:
        done: T = await self._transaction.run(work, *values, **named)
        return done

    return run


def open_database(
    url: str | Database, *, pool_size: int = POOL_SIZE, settings: DatabaseSettings | None = None
) -> Database:
    """The database at a SQLAlchemy URL, which may name several hosts (kit/urls.py). Does not connect yet. A database that is open
    already is returned as it is.
    """
    if not isinstance(url, str):
        return url
    parsed, *others = map(make_url, each_host(url))
    match parsed.get_backend_name():
        case "postgresql":
            return PostgresDatabase(parsed, *others, pool_size=pool_size, settings=settings)
        case "sqlite":
            return SqliteDatabase(parsed, settings=settings)
        case other:
            raise ValueError(f"the database URL names {other!r}, must be postgresql or sqlite")


# Hot statements on batches of rows, made for both databases from one description of a row's columns.
#
# PostgreSQL takes a batch as one array for each column, in one statement. SQLite runs the statement once for each row, and
# takes a list of keys as JSON. The types are those of the worker's `tables.py`.
#
# Expressions name a value of the batch `new.COLUMN`, and a value of the stored row `kept.COLUMN`. A statement that the two
# databases need in different words has both texts, and says why. It takes its parameters from a description, too.


# The values of one row, one for each column.
Values = Sequence[Any]
# A batch for a statement that has only shared values.
ONCE: Sequence[Values] = ((),)
# Which values of a row from SQLite need to be decoded, by their places, and how.
Decoders = Sequence[tuple[int, Callable[[Any], Any]]]

# The types in PostgreSQL. They have no lengths: a cast to a length would cut a longer text instead of refusing it.
_TYPES = (
    (sa.Uuid, "uuid"),
    (sa.LargeBinary, "bytea"),
    (Moment, "timestamptz"),
    (sa.Boolean, "boolean"),
    (sa.BigInteger, "bigint"),
    (sa.Double, "float8"),
    (sa.Integer, "int"),
    (sa.String, "text"),
)
# SQLite stores these as texts and numbers.
_DECODERS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (sa.Uuid, UUID),
    (Moment, datetime.fromisoformat),
    (sa.Boolean, bool),
)

_NEW = re.compile(r"\bnew\.(\w+)")
_json = msgspec.json.Encoder(uuid_format="hex").encode
_number_of = attrgetter("int")
# SQLite's words for PostgreSQL's. Its lists are JSON; it looks rows up by their keys without being told; and its writer has
# the file for itself, so it needs no locks.
_FOR_SQLITE = (
    (r"= ANY ?\(\$1::text::\w+\[\]\)", "IN (SELECT value FROM json_each(?))"),
    (r"= ANY ?\(ARRAY\[(.*?)\]\)", r"= \1"),
    (r"FOR (NO KEY )?UPDATE", ""),
    (r"\bjson_agg\b", "json_group_array"),
    (r"::text\b", ""),
)


class RowColumns:
    """The columns of a row, in the order of its values: the parameters or the result of statements.

    The `shared` columns have one value for a whole batch. A text of `free_texts` may contain any character; other texts are
    plain words, which take less time. A column that is not in the table is given as a `Column`.
    """

    def __init__(
        self,
        table: Table,
        *columns: str | Column[Any],
        shared: Sequence[str] = (),
        free_texts: Sequence[str] = (),
    ) -> None:
        self._table = table
        self._shared = tuple(shared)
        self._columns = [table.c[each] if isinstance(each, str) else each for each in columns]
        self._own = [column.name for column in self._columns]
        self._names = [*shared, *self._own]
        as_lists = [_is_list(column) or column.name in free_texts for column in self._columns]
        self._encoders = [
            _encoder(column, as_list=as_list) for column, as_list in zip(self._columns, as_lists, strict=True)
        ]
        # The parameters of all columns, on SQLite and on PostgreSQL.
        self._on_sqlite = {name: f"?{place}" for place, name in enumerate(self._names, 1)}
        self._constants = {name: f"${place}" for place, name in enumerate(shared, 1)}
        self._arrays = {
            column.name: f"${place}{'' if as_list else '::text'}::{_type(column)}[]"
            for place, (column, as_list) in enumerate(
                zip(self._columns, as_lists, strict=True), len(shared) + 1
            )
        }

    @property
    def new(self) -> str:
        """The batch as a table on PostgreSQL, for a FROM clause."""
        return f"unnest({', '.join(self._arrays.values())}) AS new ({', '.join(self._own)})"

    def insert(self, ending: str = "", *, returning: Sequence[str] = (), **instead: str) -> "RowStatement":
        """INSERT these rows. `instead` has other expressions for the values of columns."""
        into = f"INSERT INTO {self._table.name} ({', '.join(self._names)})"
        values = ", ".join(instead.get(name, f"new.{name}") for name in self._names)
        ending = ending and f" {ending}"
        # In the select list the arrays are read side by side; in FROM each would first be copied, row by row.
        unnested = {name: f"unnest({array})" for name, array in self._arrays.items()}
        return self._writing(
            f"{into} SELECT {_with(values, self._constants | unnested)}{ending}{_returning(returning)}",
            f"{into} VALUES ({_with(values, self._on_sqlite)}){ending}",
            returning,
        )

    def update(self, also: str = "", *, returning: Sequence[str] = (), **instead: str) -> "RowStatement":
        """UPDATE the stored rows that have the ids of these, and the values, shared or not, that are in the table's key. The id is
        the first column.

        A row is written if the condition `also` holds. The other columns get the new values. `instead` has other
        expressions, and those for further columns.
        """
        key, *others = self._own
        more_keys = [name for name in others if self._table.c[name].primary_key]
        shared_keys = [name for name in self._shared if self._table.c[name].primary_key]
        assert all(isinstance(self._table.c[name].type, sa.String) for name in shared_keys), (
            "compared by `|| ''`"
        )
        written = {name: f"new.{name}" for name in others if name not in more_keys} | instead
        setting = ", ".join(f"{name} = {value}" for name, value in written.items())
        update = f"UPDATE {self._table.name} AS kept SET {setting}"
        also = also and f" AND {also}"
        # The ids are looked up one after the other: rows are locked in the order of the batch (kit/sql/postgresql.py).
        # A shared value, compared as an expression, does not lead PostgreSQL to another index that begins with its column.
        same = "".join(f" AND kept.{name} || '' = new.{name}" for name in shared_keys)
        same += "".join(f" AND kept.{name} = new.{name}" for name in more_keys)
        on_postgresql = f"{update} FROM {self.new} WHERE kept.{key} = ANY (ARRAY[new.{key}]){same}{also}"
        # SQLite must know that it is one row at most: else it copies each page first, in case that a later row fails.
        same = "".join(f" AND kept.{name} = new.{name}" for name in (*shared_keys, *more_keys))
        on_sqlite = f"{update} WHERE kept.{key} = new.{key}{same}{also}"
        return self._writing(
            _with(on_postgresql, self._constants) + _returning([f"kept.{name}" for name in returning]),
            _with(on_sqlite, self._on_sqlite),
            returning,
        )

    def statement(self, on_postgresql: str, on_sqlite: str, returning: Sequence[str] = ()) -> "RowStatement":
        """A statement in different words for the two databases, with these columns as its parameters."""
        return RowStatement(on_postgresql, on_sqlite, self._decoders(returning), self._encoders)

    def lock(self, key: str = "id") -> "KeyStatement":
        """SELECT these columns FOR UPDATE, by keys and by the shared columns.

        Rows are locked in the order of their keys, as everywhere, so that transactions cannot deadlock.
        """
        names, table = ", ".join(self._own), self._table.name
        shared = "".join(f"{name} = ${place} AND " for place, name in enumerate(self._shared, 1))
        keys, type_ = f"${len(self._shared) + 1}", _type(self._table.c[key])
        # Each row is looked up by its key alone. Otherwise PostgreSQL may choose, while the table is small, to walk all
        # rows, and keep that plan (measured: 2 to 6 ms a boot).
        on_postgresql = (
            f"SELECT {', '.join(f'kept.{name}' for name in self._own)}"
            f" FROM unnest({keys}::{type_}[]) AS named ({key})"
            f" CROSS JOIN LATERAL (SELECT {names} FROM {table} WHERE {shared}{key} = named.{key} FOR UPDATE) AS kept"
        )
        # A writer has the file to itself, so rows that it reads are locked.
        on_sqlite = (
            f"SELECT {names} FROM {table}"
            f" WHERE {shared}{key} IN (SELECT value FROM json_each({keys})) ORDER BY {key}"
        )
        return KeyStatement(
            on_postgresql,
            on_sqlite.replace("$", "?"),
            self._decoders(self._own),
            _in_order(type_),
        )

    def delete_unlocked(self, key: str) -> "KeyStatement":
        """DELETE the rows with these keys, and return these columns. A row that another process is deleting now counts as
        deleted.
        """
        table, type_ = self._table.name, _type(self._table.c[key])
        unlocked = f"SELECT {key} FROM {table} WHERE {key} = ANY($1::{type_}[]) FOR UPDATE SKIP LOCKED"
        returning = _returning(self._own)
        return KeyStatement(
            f"DELETE FROM {table} WHERE {key} = ANY(ARRAY({unlocked})){returning}",
            f"DELETE FROM {table} WHERE {key} IN (SELECT value FROM json_each(?1)){returning}",
            self._decoders(self._own),
            _in_order(type_),
        )

    def _writing(self, on_postgresql: str, on_sqlite: str, returning: Sequence[str]) -> "RowStatement":
        if [*returning] != self._own[:1]:
            return self.statement(on_postgresql, on_sqlite + _returning(returning), returning)
        # SQLite counts whether it has written a row. To return its id would double the cost of a small row.
        return RowStatement(on_postgresql, on_sqlite, (), self._encoders, key_place=len(self._shared))

    def _decoders(self, names: Sequence[str]) -> Decoders:
        types = [self._table.c[name].type for name in names]
        return [
            (place, decode)
            for place, type_ in enumerate(types)
            for kind, decode in _DECODERS
            if isinstance(type_, kind)
        ]


class _Statement(Struct, frozen=True):
    on_postgresql: str
    on_sqlite: str
    decoders: Decoders

    def decoded(self, found: Sequence[Values]) -> Sequence[Values]:
        """Rows from SQLite with the values that PostgreSQL would give."""
        if not self.decoders:
            return found
        rows = [list(row) for row in found]
        for place, decode in self.decoders:
            for row in rows:
                if row[place] is not None:
                    row[place] = decode(row[place])
        return rows


class RowStatement(_Statement, frozen=True):
    """A statement on a batch of rows. The values of shared columns follow the rows."""

    encoders: Sequence[Callable[[Values], Any]]
    # For a statement that only returns the ids of the rows that were written: the place of the id on SQLite.
    key_place: int | None = None

    async def change(self, transaction: Transaction, rows: Sequence[Values], *shared: Any) -> int:
        """Returns how many rows were changed."""
        if not rows:
            return 0
        if isinstance(transaction, PostgresTransaction):
            return await transaction.change(self.on_postgresql, *shared, *self.arrays(rows))
        return await transaction.change(self.on_sqlite, [(*shared, *row) for row in rows] if shared else rows)

    async def fetch(self, transaction: Transaction, rows: Sequence[Values], *shared: Any) -> Sequence[Values]:
        """Returns the rows of the result."""
        if not rows:
            return ()
        if isinstance(transaction, PostgresTransaction):
            return await transaction.fetch(self.on_postgresql, *shared, *self.arrays(rows))
        return await transaction.run(self._fetch_each, [(*shared, *row) for row in rows])

    def arrays(self, rows: Sequence[Values]) -> list[Any]:
        """The rows as PostgreSQL gets them: an array for each column."""
        columns: Iterable[Values] = zip(*rows, strict=True) if rows else [()] * len(self.encoders)
        return [encode(column) for encode, column in zip(self.encoders, columns, strict=True)]

    def _fetch_each(self, connection: Connection, rows: Sequence[Values]) -> Sequence[Values]:
        run = driver_of(connection).execute
        if (key := self.key_place) is not None:
            return [(row[key],) for row in rows if run(self.on_sqlite, row).rowcount]
        return self.decoded([found for row in rows for found in run(self.on_sqlite, row).fetchall()])


class KeyStatement(_Statement, frozen=True):
    """A statement on the rows with certain keys. The values of shared columns follow the keys."""

    # The keys as PostgreSQL gets them.
    encode: Callable[[Collection[Any]], Any]

    async def fetch(
        self,
        transaction: Transaction,
        keys: Collection[UUID] | Collection[int] | Collection[str],
        *shared: Any,
    ) -> Sequence[Values]:
        """Returns the rows of the result."""
        if not keys:
            return ()
        if isinstance(transaction, PostgresTransaction):
            return await transaction.fetch(self.on_postgresql, *shared, self.encode(keys))
        return self.decoded(await transaction.fetch(self.on_sqlite, *shared, _json([*keys]).decode()))


def by_keys(on_postgresql: str, on_sqlite: str = "") -> KeyStatement:
    """A statement whose only parameter are keys (`$1`, sent as a text), and whose rows come as the driver gives them. SQLite's words are
    made of PostgreSQL's, if they are not given.
    """
    translated = on_postgresql
    for theirs, ours in _FOR_SQLITE:
        translated = re.sub(theirs, ours, translated)
    return KeyStatement(on_postgresql, on_sqlite or translated, (), lambda keys: array_of([*keys]))


def _in_order(type_: str) -> Callable[[Collection[Any]], list[Any]]:
    return partial(sorted, key=_number_of if type_ == "uuid" else None)


def _with(sql: str, parameters: Mapping[str, str]) -> str:
    """The statement with parameters in place of the new values. Values that are no parameters stay as they are."""
    return _NEW.sub(lambda found: parameters.get(found[1], found[0]), sql)


def _returning(names: Sequence[str]) -> str:
    return f" RETURNING {', '.join(names)}" if names else ""


def _type(column: Column[Any]) -> str:
    return next(name for kind, name in _TYPES if isinstance(column.type, kind))


def _is_list(column: Column[Any]) -> bool:
    """Whether asyncpg gets a list. A text would double the size of bytes, and PostgreSQL reads ids from text slowly."""
    return isinstance(column.type, (sa.Uuid, sa.LargeBinary))


def _encoder(column: Column[Any], *, as_list: bool) -> Callable[[Values], Any]:
    encode, empty = (tuple, ()) if as_list else (array_of, "{}")
    if not column.nullable:
        return encode
    # An empty array stands for NULL in each row: `unnest` fills it up.
    return lambda values: empty if values.count(None) == len(values) else encode(values)
