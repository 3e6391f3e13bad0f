"""PostgreSQL by asyncpg and by SQLAlchemy, on the same connections."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import asyncpg
from sqlalchemy import Connection
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from kit.database_settings import DatabaseSettings, milliseconds
from kit.errors import Bug, Unavailable
from kit.sql.dialects import connecting, is_of_a_standby, transient_kind, transients
from kit.sql.statements import tls_client, with_password_file, with_tls
from kit.urls import HostTurns

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

P = ParamSpec("P")
T = TypeVar("T")

POOL_SIZE = 6
PORT = 5432
# Of several servers, only the primary will do.
_WANTED = "target_session_attrs"

# Writers find their rows by keys. A plan made while a table was small would scan it, and PostgreSQL keeps that plan
# long after the table has grown (measured: 12 ms a claim instead of 0.7). Other parameters need no other plan, so each
# plan is made once (measured: otherwise planning is a twentieth of the server's work). Readers may scan, since most of
# them read whole tables. A reader that has its rows' keys must not: a scan would parse `$1::text::bigint[]` once for each
# row of the table (measured: 220 ms for 200 providers of 10,000 instead of 1).
#
# These settings forbid table scans. PostgreSQL may still walk a whole index: to sort by it, to merge by it, or because
# a partial index holds all rows that can match. Hot statements prevent all three. They sort by an expression such as
# `id + 0`. They find each row by `id = ANY (ARRAY[new.id])`. They compare the column of a partial index inside
# `coalesce`. tests/adversity/test_young_tables.py counts the rows that are read.
_BY_KEYS = """
SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off;
SET plan_cache_mode = force_generic_plan
"""
_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED;"
_LAZILY = " SET LOCAL synchronous_commit = off;"
_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
_EACH_ALONE = ""
_BY_SCANS = """
SET LOCAL enable_seqscan = on; SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on;
SET LOCAL plan_cache_mode = auto;
"""
# The exceptions of asyncpg for a lost connection.
_CONNECTION_ERRORS = (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)


class PostgresSession:
    """One connection for many transactions, one after the other.

    SQLAlchemy's connection and asyncpg's connection below it are both here.
    """

    def __init__(self, connection: "AsyncConnection", driver: Any, settings: DatabaseSettings) -> None:
        self.connection = connection
        self.driver = driver
        self.settings = settings

    @property
    def is_usable(self) -> bool:
        # asyncpg knows without a round trip that the server has closed the connection.
        return not (self.driver.is_closed() or self.driver.is_in_transaction() or self.connection.invalidated)

    def writing(self) -> "AbstractAsyncContextManager[PostgresTransaction]":
        return _Running(self._take, _WRITE, _keep, self.settings.transaction_s)

    def reading_by_keys(self) -> "AbstractAsyncContextManager[PostgresTransaction]":
        return _Running(self._take, _READ, _keep, self.settings.transaction_s)

    def reading_each(self) -> "AbstractAsyncContextManager[PostgresTransaction]":
        return _Running(self._take, _EACH_ALONE, _keep, self.settings.transaction_s)

    async def _take(self, begin: str) -> "PostgresSession":
        return await _begin(self, begin) if begin else self

    async def alone(self, statement: str, *arguments: object) -> Any:
        """Run one statement as a transaction of its own: one round trip to the server instead of three."""
        with transients():
            try:
                with cut_after(self.driver, self.settings.transaction_s):
                    return await self.driver.fetch(statement, *arguments)
            except Exception as error:
                if _is_about_the_connection(error):
                    raise Unavailable(f"database: connection lost: {error}") from error
                raise

    async def close(self) -> None:
        if self.driver.is_closed():
            await self.discard()
            return
        with (
            cut_after(self.driver, self.settings.CONNECT_S),
            suppress(asyncpg.PostgresError, *_CONNECTION_ERRORS, DBAPIError),
        ):
            await self.connection.close()

    async def discard(self) -> None:
        """Drop the connection without talking to the server, which may be gone."""
        if not self.connection.closed:
            await self.connection.invalidate()
            await self.connection.close()


class PostgresTransaction:
    """A transaction that takes a session and begins with its first statement; without statements it holds nothing.

    With `_EACH_ALONE` in place of words to begin it, each statement is a transaction of its own.
    """

    def __init__(self, take: "TakeSession", begin: str, limit_s: float) -> None:
        self._take = take
        self._begin = begin
        self._limit_s = limit_s
        # Taken from the pool; None before the first statement.
        self._session: PostgresSession | None = None
        self._is_begun = False
        self._end: asyncio.TimerHandle | None = None

    async def driver(self) -> Any:
        """The connection object of asyncpg, in this transaction."""
        return (await self._begun()).driver

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        """Run a statement of asyncpg's, and return its rows."""
        rows: list[Any] = await (await self._begun()).driver.fetch(statement, *values)
        return rows

    async def change(self, statement: str, *values: Any) -> int:
        """Run a statement by asyncpg, without SQLAlchemy. Returns how many rows it has changed."""
        # The command tag ends with it: INSERT 0 5.
        done: str = await (await self._begun()).driver.execute(statement, *values)
        return int(done.rpartition(" ")[2])

    async def run(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await (await self._begun()).connection.run_sync(work, *args, **kwargs)

    async def alone(self, statement: str, *values: Any) -> list[Any]:
        """Run a statement of asyncpg's as a transaction of its own, before this one begins, and return its rows."""
        if self._is_begun:
            raise Bug("database: a statement was to run alone, but the transaction has begun")
        rows: list[Any] = await (self._session or await self._taken("")).driver.fetch(statement, *values)
        return rows

    async def _begun(self) -> PostgresSession:
        session = self._session
        if session is not None and self._is_begun:
            return session
        if session is None:
            session = await self._taken(self._begin)
        elif self._begin:
            # It has run statements alone.
            await session.driver.execute(self._begin)
        self._is_begun = bool(self._begin)
        return session

    async def _taken(self, begin: str) -> PostgresSession:
        session = self._session = await self._take(begin)
        # The server has its own limits. This one is for a server or network that no longer answers.
        self._end = asyncio.get_running_loop().call_later(self._limit_s, session.driver.terminate)
        return session

    def ended(self) -> PostgresSession | None:
        """The session that the transaction has taken, if any. Its time is no longer limited."""
        if self._end is not None:
            self._end.cancel()
        return self._session

    async def end(self, error: BaseException | None) -> None:
        """Commit; or after this error roll back, and raise it again."""
        if error is not None:
            await self._abandon(error)
            raise error
        try:
            await self._commit()
        except BaseException as failed:
            await self._abandon(failed)
            raise

    async def _commit(self) -> None:
        if self._session is None or not self._is_begun:
            return
        # If code inside the transaction caught a database error, PostgreSQL answers COMMIT by rolling back, without an
        # error.
        if (done := await self._session.driver.execute("COMMIT")) != "COMMIT":
            raise Bug(f"database: COMMIT became {done}: code inside the transaction caught a database error")

    async def _abandon(self, error: BaseException) -> None:
        """Roll back the transaction after an error. If that is impossible, the connection is not used again."""
        if self._session is None:
            return
        driver = self._session.driver
        if not driver.is_closed():
            try:
                with (
                    cut_after(driver, self._session.settings.CONNECT_S),
                    suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError),
                ):
                    await driver.execute("ROLLBACK")
            except asyncpg.InternalClientError:
                # The server ended the session while no statement ran. asyncpg has read that, but not the end of the
                # connection: it no longer sends anything and never closes by itself.
                driver.terminate()
        if is_of_a_standby(error):
            # The server is not the primary, or no longer: let the next session find the one that is.
            driver.terminate()
            raise Unavailable(f"database: the server does not write: {error}") from error
        # asyncpg's error for a lost connection depends on the moment, but the connection is closed in any case.
        if driver.is_closed() and (_is_about_the_connection(error) or isinstance(error, DBAPIError)):
            raise Unavailable(f"database: connection lost: {error}") from error


def _is_about_the_connection(error: BaseException) -> bool:
    """Whether this error means that the connection is lost.

    If a connection ends between two steps of one statement, asyncpg fails with an AttributeError on None.
    """
    found_nobody = isinstance(error, AttributeError) and error.obj is None
    return isinstance(error, _CONNECTION_ERRORS) or (found_nobody and _is_of_asyncpg(error.__traceback__))


def _is_of_asyncpg(raised: TracebackType | None) -> bool:
    while raised is not None and raised.tb_next is not None:
        raised = raised.tb_next
    return raised is not None and raised.tb_frame.f_globals["__name__"].partition(".")[0] == "asyncpg"


# Returns a session in which a transaction has begun with these words, if there are any; and takes it back afterwards.
TakeSession = Callable[[str], Awaitable[PostgresSession]]
GiveBackSession = Callable[[PostgresSession], Awaitable[None]]


async def _keep(_: PostgresSession) -> None:
    """For a session that is not of a pool."""


class _Running(AbstractAsyncContextManager[PostgresTransaction]):
    """A transaction under way: it is committed at the end of the context, or rolled back after an error.

    This is a class, since generators that are nested as context managers would take as long as a statement.
    """

    def __init__(
        self,
        take: TakeSession,
        begin: str,
        give_back: GiveBackSession,
        limit_s: float,
    ) -> None:
        self._transaction = PostgresTransaction(take, begin, limit_s)
        self._give_back = give_back

    async def __aenter__(self) -> PostgresTransaction:
        return self._transaction

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Without `transients()`: a generator for each transaction would take a tenth of what a statement takes.
        try:
            await self._transaction.end(error)
        except Exception as problem:
            if (transient := transient_kind(problem)) is None:
                raise
            raise transient(f"database: {problem}") from problem
        finally:
            if (session := self._transaction.ended()) is not None:
                await self._give_back(session)


@contextmanager
def cut_after(driver: Any, seconds: float) -> Iterator[None]:
    """A context that may last this long. After that the connection is closed, so that code in the context that still
    waits for an answer of the database gets an error.
    """
    cut = asyncio.get_running_loop().call_later(seconds, driver.terminate)
    try:
        yield
    finally:
        cut.cancel()


async def _begin(session: PostgresSession, words: str) -> PostgresSession:
    """Begin a transaction on this session. A session on which that fails is discarded."""
    cut = asyncio.get_running_loop().call_later(session.settings.CONNECT_S, session.driver.terminate)
    try:
        await session.driver.execute(words)
    except BaseException as error:
        await session.discard()
        if _is_about_the_connection(error):
            raise Unavailable(f"database: connection lost: {error}") from error
        raise
    finally:
        cut.cancel()
    return session


class PostgresDatabase:
    """A pool of a few sessions. Transactions are begun and ended by our own statements, so that SQLAlchemy's and
    asyncpg's statements share them. The sessions are kept here, since taking one from SQLAlchemy's pool costs as much
    as two statements.
    """

    dialect = "postgresql"

    def __init__(
        self, *urls: URL, pool_size: int = POOL_SIZE, settings: DatabaseSettings | None = None
    ) -> None:
        """`urls` name the same database on a primary and its standbys. Sessions are opened on the one that is the primary."""
        # This import loads SQLAlchemy's whole ORM; a process with only SQLite need not load it.
        from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415

        self.settings = settings or DatabaseSettings()
        self._servers = [f"{each.host or ''}:{each.port or PORT}" for each in urls]
        self._tls = [*map(tls_client, urls)]
        self._engines = [
            create_async_engine(
                each.set(drivername="postgresql+asyncpg"),
                isolation_level="AUTOCOMMIT",
                poolclass=NullPool,
                connect_args={
                    "server_settings": self.settings.of_sessions,
                    **tls,
                    **password,
                    **({} if len(urls) == 1 or _WANTED in each.query else {_WANTED: "primary"}),
                },
            )
            for (each, password), tls in (
                (with_password_file(rest), tls) for rest, tls in map(with_tls, urls)
            )
        ]
        self._turns = HostTurns(len(urls))
        self._pool_size = pool_size
        self._idle: list[PostgresSession] = []
        self._free = asyncio.Semaphore(pool_size)

    def writing(
        self, *, takes_long: bool = False, is_lazy: bool = False
    ) -> AbstractAsyncContextManager[PostgresTransaction]:
        return self._running(_WRITE + _LAZILY if is_lazy else _WRITE, takes_long=takes_long)

    def reading(self, *, takes_long: bool = False) -> AbstractAsyncContextManager[PostgresTransaction]:
        return self._running(_READ + _BY_SCANS, takes_long=takes_long)

    def reading_by_keys(self) -> AbstractAsyncContextManager[PostgresTransaction]:
        return self._running(_READ, takes_long=False)

    def reading_each(self) -> AbstractAsyncContextManager[PostgresTransaction]:
        """For few rows that are found by their keys."""
        return _Running(self._take, _EACH_ALONE, self._give_back, self.settings.transaction_s)

    def _running(self, begin: str, *, takes_long: bool) -> _Running:
        limit_s = self.settings.transaction_s
        if takes_long:
            limit_s = self.settings.LONG_S
            begin += f" SET LOCAL statement_timeout = {milliseconds(limit_s)}"
        return _Running(self._take, begin, self._give_back, limit_s)

    async def _take(self, begin: str) -> PostgresSession:
        """Wait until one of the pool's sessions is free, and begin a transaction in it, if there are words for that."""
        if self._free.locked():
            await self._wait_until_free()
        else:
            await self._free.acquire()
        try:
            return await self._begun(begin)
        except BaseException:
            self._free.release()
            raise

    async def _wait_until_free(self) -> None:
        wait_s = self.settings.POOL_WAIT_S
        try:
            async with asyncio.timeout(wait_s):
                await self._free.acquire()
        except TimeoutError:
            raise Unavailable(
                f"database: none of {self._pool_size} sessions was free within {wait_s:g} s"
            ) from None

    async def _give_back(self, session: PostgresSession) -> None:
        try:
            if session.is_usable:
                self._idle.append(session)
            else:
                await session.discard()
        finally:
            self._free.release()

    async def _begun(self, begin: str) -> PostgresSession:
        """Take an idle session, or open a new one, and begin a transaction in it.

        Beginning fails on an idle session whose connection broke; then the next one is tried.
        """
        while self._idle:
            session = self._idle.pop()
            if not begin:
                if session.is_usable:
                    return session
                await session.discard()
                continue
            with suppress(Unavailable, asyncpg.PostgresError, OSError):
                return await _begin(session, begin)
        session = await self._connect()
        return await _begin(session, begin) if begin else session

    async def _connect(self) -> PostgresSession:
        """A session on the primary: on the server that was it last, or else on the first that says it is."""
        problems: list[str] = []
        for number in self._turns.order():
            try:
                return await self._connect_to(number)
            except Unavailable as problem:
                if len(self._engines) == 1:
                    raise
                self._turns.failed(number)
                problems.append(f"{self._servers[number]}: {problem}")
        raise Unavailable(f"database: none of {len(problems)} servers can be used: {'; '.join(problems)}")

    async def _connect_to(self, number: int) -> PostgresSession:
        engine = self._engines[number]
        with connecting(self._tls[number]):
            # Includes SQLAlchemy's own first statements on a new connection. A server that is silent must leave time to try
            # the others.
            async with asyncio.timeout(self.settings.CONNECT_S / len(self._engines)):
                connection = await engine.connect()
                raw = await connection.get_raw_connection()
                session = PostgresSession(connection, raw.driver_connection, self.settings)
                return await _begin(session, _BY_KEYS)

    @asynccontextmanager
    async def dedicated(self) -> AsyncIterator[PostgresSession]:
        """A session outside the pool. It is closed at the end, and its locks end with it."""
        with transients():
            session = await self._connect()
            try:
                yield session
            finally:
                await session.close()

    async def close(self) -> None:
        """Close the pool; no transaction may be open."""
        while self._idle:
            await self._idle.pop().close()
        for engine in self._engines:
            await engine.dispose()
