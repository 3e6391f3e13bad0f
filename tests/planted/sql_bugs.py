"""Planted bugs in the access to databases: sessions, commits, snapshots, errors, migrations, roles, TLS."""

from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy.exc import DBAPIError

import kit.sql
from kit.errors import Failure, Locked, Unavailable
from kit.sql import dialects, migrations, postgresql, statements
from kit.sql.databases import KeyStatement, SqliteDatabase, SqliteTransaction
from kit.sql.postgresql import PostgresDatabase, PostgresSession, PostgresTransaction
from placement_worker.store_sql import trees
from tests.planted.replacing import planted, planted_as, planted_by, replaced, replaced_in


# After one lazy commit to a file, no later one waits for the disk either: a power cut undoes what was confirmed.
@planted("after a lazy commit to a file none waits for the disk", SqliteDatabase, "writing")
def lazy_commits_go_on(real: Any, self: Any, *, takes_long: bool = False, is_lazy: bool = False) -> Any:
    self.was_lazy = is_lazy or getattr(self, "was_lazy", False)
    return real(self, takes_long=takes_long, is_lazy=self.was_lazy)


@planted_as("the rest of a caller's transaction is committed by the next caller")
def open_transaction_in_the_pool() -> AbstractContextManager[None]:
    """A session whose transaction could not be rolled back serves the next caller, who commits what is left of it."""

    def is_usable(session: Any) -> bool:
        return not (session.driver.is_closed() or session.connection.invalidated)

    return replaced(PostgresSession, "is_usable", lambda _real: property(is_usable))


# A lost session keeps its place in the pool: after a few of them nobody gets one.
@planted("lost database sessions use up the pool", PostgresDatabase, "_give_back")
async def lost_sessions_keep_their_place(real: Any, self: Any, session: Any) -> None:
    if session.is_usable:
        await real(self, session)
    else:
        await session.discard()


# PostgreSQL answers COMMIT by rolling back, since code caught an error, and the work counts as done.
@planted("work that PostgreSQL has undone counts as committed", PostgresTransaction, "_commit")
async def undone_commit_counts(_real: Any, self: Any) -> None:
    if self._session is not None and self._is_begun:
        await self._session.driver.execute("COMMIT")


# Each statement of a reading transaction sees another state of the database.
@planted_by("a reading transaction sees several states", PostgresDatabase, "reading")
def no_snapshot(_real: Any) -> Any:
    return lambda self, *, takes_long=False: self.writing(takes_long=takes_long)


# A caller waits for a session of PostgreSQL as long as it takes.
@planted("a caller waits for a database session without end", PostgresDatabase, "_wait_until_free")
async def waits_for_the_pool_without_end(_real: Any, self: Any) -> None:
    await self._free.acquire()


# A row that another session holds is told as a database that is away.
@planted_by("a locked database is told to be away", (dialects, postgresql), "transient_kind")
def locked_is_away(real: Any) -> Any:
    return lambda error: Unavailable if real(error) is Locked else real(error)


# A database without room on its disk ends its workers, instead of being waited for.
@planted_by("a full disk of the database is not waited for", (dialects, postgresql), "transient_kind")
def full_disk_not_waited_for(real: Any) -> Any:
    return lambda error: None if any(each in str(error) for each in ("full", "No space")) else real(error)


def _told_as(other: Any) -> AbstractContextManager[None]:
    return replaced_in(
        (dialects, postgresql), "transient_kind", lambda real: lambda error: other(real(error))
    )


# Whatever rule of a table a row breaks, its name is told to be taken.
planted_by("any rule that a row breaks is told as a taken name", (dialects, kit.sql, trees), "is_duplicate")(
    lambda _real: lambda _error: True
)


# A worker stays with a server that has become a standby: each write fails until the worker restarts.
planted_by("a worker stays with a server that became a standby", postgresql, "is_of_a_standby")(
    lambda _real: lambda _error: False
)


# Any certificate of the authority will do for the database, whatever server it was made for.
@planted_by("the name in the database's certificate is not checked", statements, "client_tls")
def name_of_the_server_not_checked(real: Any) -> Any:
    return lambda *files, **named: real(*files, **named | {"checks_name": False})


# A database password that was changed in its file counts only after a restart.
@planted("a changed database password counts after a restart only", postgresql, "with_password_file")
def password_of_a_database_read_once(real: Any, url: Any) -> Any:
    rest, named = real(url)
    return rest, {"password": named["password"]()} if named else {}


# Rows are locked as their keys come, and not in the one order: two batches wait for each other.
@planted_by("rows are locked in the order in which a batch names them", KeyStatement, "fetch")
def rows_locked_as_named(real: Any) -> Any:
    async def fetch(self: Any, transaction: Any, keys: Any, *shared: Any) -> Any:
        if keys and isinstance(transaction, PostgresTransaction):
            return await transaction.fetch(self.on_postgresql, *shared, [*keys])
        return await real(self, transaction, keys, *shared)

    return fetch


# What a transaction on a file wrote before it failed is kept.
@planted("what a failed transaction wrote to a file is kept", SqliteTransaction, "roll_back")
async def failed_work_kept(_real: Any, self: Any) -> None:
    await self.commit()


# Processes that start together migrate one database at the same time.
planted_by("two processes migrate one database at once", migrations, "_wait_for_turn")(
    lambda _real: lambda *_: None
)


# A worker that may create no tables does not say who must migrate them.
planted_by("a worker without the right to migrate does not say so", migrations, "_check_right")(
    lambda _real: lambda *_: None
)


@planted_as("a database role keeps the rights of before")
def former_rights_kept() -> AbstractContextManager[None]:
    """A role keeps the rights on tables that it no longer has."""
    return _not_run("REVOKE ALL ON TABLE")


@planted_as("any database role may create tables")
def everyone_creates_tables() -> AbstractContextManager[None]:
    """Any role may still create tables beside those of the workers."""
    return _not_run("REVOKE CREATE ON SCHEMA")


def _not_run(beginning: str) -> AbstractContextManager[None]:
    def planted(real: Any) -> Any:
        def run(connection: Any, statement: str) -> None:
            if not statement.startswith(beginning):
                real(connection, statement)

        return run

    return replaced(migrations, "_run", planted)


# The error about a role has what its password can be guessed from.
@planted("an error about a database role shows its password's verifier", migrations, "_run")
def verifier_told(_real: Any, connection: Any, statement: str) -> None:
    try:
        connection.exec_driver_sql(statement)
    except DBAPIError as error:
        raise Failure(f"database: {statement}: {error.orig}") from None


# A trial of making roles makes them.
planted_by("a trial of database roles makes them", migrations, "_undo")(lambda _real: lambda: None)
