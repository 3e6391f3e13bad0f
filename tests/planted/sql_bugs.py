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
from tests.planted.replacing import PlantedBug, replaced, replaced_in


def lazy_commits_go_on() -> AbstractContextManager[None]:
    """After one lazy commit to a file, no later one waits for the disk either: a power cut undoes what was confirmed."""

    def planted(real: Any) -> Any:
        def writing(self: Any, *, takes_long: bool = False, is_lazy: bool = False) -> Any:
            self.was_lazy = is_lazy or getattr(self, "was_lazy", False)
            return real(self, takes_long=takes_long, is_lazy=self.was_lazy)

        return writing

    return replaced(SqliteDatabase, "writing", planted)


def open_transaction_in_the_pool() -> AbstractContextManager[None]:
    """A session whose transaction could not be rolled back serves the next caller, who commits what is left of it."""

    def is_usable(session: Any) -> bool:
        return not (session.driver.is_closed() or session.connection.invalidated)

    return replaced(PostgresSession, "is_usable", lambda _real: property(is_usable))


def lost_sessions_keep_their_place() -> AbstractContextManager[None]:
    """A lost session keeps its place in the pool: after a few of them nobody gets one."""

    def planted(real: Any) -> Any:
        async def give_back(self: Any, session: Any) -> None:
            if session.is_usable:
                await real(self, session)
            else:
                await session.discard()

        return give_back

    return replaced(PostgresDatabase, "_give_back", planted)


def undone_commit_counts() -> AbstractContextManager[None]:
    """PostgreSQL answers COMMIT by rolling back, since code caught an error, and the work counts as done."""

    def planted(_real: Any) -> Any:
        async def commit(self: Any) -> None:
            if self._session is not None and self._is_begun:
                await self._session.driver.execute("COMMIT")

        return commit

    return replaced(PostgresTransaction, "_commit", planted)


def no_snapshot() -> AbstractContextManager[None]:
    """Each statement of a reading transaction sees another state of the database."""

    def planted(_real: Any) -> Any:
        return lambda self, *, takes_long=False: self.writing(takes_long=takes_long)

    return replaced(PostgresDatabase, "reading", planted)


def waits_for_the_pool_without_end() -> AbstractContextManager[None]:
    """A caller waits for a session of PostgreSQL as long as it takes."""

    def planted(_real: Any) -> Any:
        async def wait_until_free(self: Any) -> None:
            await self._free.acquire()

        return wait_until_free

    return replaced(PostgresDatabase, "_wait_until_free", planted)


def locked_is_away() -> AbstractContextManager[None]:
    """A row that another session holds is told as a database that is away."""

    def planted(real: Any) -> Any:
        return lambda error: Unavailable if real(error) is Locked else real(error)

    return replaced_in((dialects, postgresql), "transient_kind", planted)


def full_disk_not_waited_for() -> AbstractContextManager[None]:
    """A database without room on its disk ends its workers, instead of being waited for."""

    def planted(real: Any) -> Any:
        return lambda error: None if any(each in str(error) for each in ("full", "No space")) else real(error)

    return replaced_in((dialects, postgresql), "transient_kind", planted)


def _told_as(other: Any) -> AbstractContextManager[None]:
    return replaced_in(
        (dialects, postgresql), "transient_kind", lambda real: lambda error: other(real(error))
    )


def any_violation_a_duplicate() -> AbstractContextManager[None]:
    """Whatever rule of a table a row breaks, its name is told to be taken."""
    return replaced_in((dialects, kit.sql, trees), "is_duplicate", lambda _real: lambda _error: True)


def standby_kept() -> AbstractContextManager[None]:
    """A worker stays with a server that has become a standby: each write fails until the worker restarts."""
    return replaced(postgresql, "is_of_a_standby", lambda _real: lambda _error: False)


def name_of_the_server_not_checked() -> AbstractContextManager[None]:
    """Any certificate of the authority will do for the database, whatever server it was made for."""

    def planted(real: Any) -> Any:
        return lambda *files, **named: real(*files, **named | {"checks_name": False})

    return replaced(statements, "client_tls", planted)


def password_of_a_database_read_once() -> AbstractContextManager[None]:
    """A database password that was changed in its file counts only after a restart."""

    def planted(real: Any) -> Any:
        def with_password_file(url: Any) -> Any:
            rest, named = real(url)
            return rest, {"password": named["password"]()} if named else {}

        return with_password_file

    return replaced(postgresql, "with_password_file", planted)


def rows_locked_as_named() -> AbstractContextManager[None]:
    """Rows are locked as their keys come, and not in the one order: two batches wait for each other."""

    def planted(real: Any) -> Any:
        async def fetch(self: Any, transaction: Any, keys: Any, *shared: Any) -> Any:
            if keys and isinstance(transaction, PostgresTransaction):
                return await transaction.fetch(self.on_postgresql, *shared, [*keys])
            return await real(self, transaction, keys, *shared)

        return fetch

    return replaced(KeyStatement, "fetch", planted)


def failed_work_kept() -> AbstractContextManager[None]:
    """What a transaction on a file wrote before it failed is kept."""

    def planted(_real: Any) -> Any:
        async def roll_back(self: Any) -> None:
            await self.commit()

        return roll_back

    return replaced(SqliteTransaction, "roll_back", planted)


def migrated_twice_at_once() -> AbstractContextManager[None]:
    """Processes that start together migrate one database at the same time."""
    return replaced(migrations, "_wait_for_turn", lambda _real: lambda *_: None)


def missing_right_not_told() -> AbstractContextManager[None]:
    """A worker that may create no tables does not say who must migrate them."""
    return replaced(migrations, "_check_right", lambda _real: lambda *_: None)


def former_rights_kept() -> AbstractContextManager[None]:
    """A role keeps the rights on tables that it no longer has."""
    return _not_run("REVOKE ALL ON TABLE")


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


def verifier_told() -> AbstractContextManager[None]:
    """The error about a role has what its password can be guessed from."""

    def planted(_real: Any) -> Any:
        def run(connection: Any, statement: str) -> None:
            try:
                connection.exec_driver_sql(statement)
            except DBAPIError as error:
                raise Failure(f"database: {statement}: {error.orig}") from None

        return run

    return replaced(migrations, "_run", planted)


def trial_made() -> AbstractContextManager[None]:
    """A trial of making roles makes them."""
    return replaced(migrations, "_undo", lambda _real: lambda: None)


BUGS: dict[str, PlantedBug] = {
    "after a lazy commit to a file none waits for the disk": lazy_commits_go_on,
    "the rest of a caller's transaction is committed by the next caller": open_transaction_in_the_pool,
    "lost database sessions use up the pool": lost_sessions_keep_their_place,
    "work that PostgreSQL has undone counts as committed": undone_commit_counts,
    "a reading transaction sees several states": no_snapshot,
    "a caller waits for a database session without end": waits_for_the_pool_without_end,
    "a locked database is told to be away": locked_is_away,
    "a full disk of the database is not waited for": full_disk_not_waited_for,
    "any rule that a row breaks is told as a taken name": any_violation_a_duplicate,
    "a worker stays with a server that became a standby": standby_kept,
    "the name in the database's certificate is not checked": name_of_the_server_not_checked,
    "a changed database password counts after a restart only": password_of_a_database_read_once,
    "rows are locked in the order in which a batch names them": rows_locked_as_named,
    "what a failed transaction wrote to a file is kept": failed_work_kept,
    "two processes migrate one database at once": migrated_twice_at_once,
    "a worker without the right to migrate does not say so": missing_right_not_told,
    "a database role keeps the rights of before": former_rights_kept,
    "any database role may create tables": everyone_creates_tables,
    "an error about a database role shows its password's verifier": verifier_told,
    "a trial of database roles makes them": trial_made,
}
