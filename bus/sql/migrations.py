"""Tables brought up to date. Speaks to Alembic, which finds a worker's migrations beside its tables."""

import asyncio
import threading
from contextlib import AsyncExitStack, ExitStack
from importlib.resources import files

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.engine import URL, make_url
from sqlalchemy.pool import NullPool

from bus.database_settings import DatabaseSettings, milliseconds
from bus.sql.errors import connecting, opening, transients
from bus.sql.postgresql import connect_arguments, cut_after
from bus.sql.sqlite import sqlite_engine

# How long a migration waits for others: for those who write to a file, or to the tables that it changes. Whoever comes
# to these tables meanwhile waits behind it, so this is not long.
MIGRATION_TIMEOUT_S = 60.0
# Alembic keeps what it works on in global variables.
_alembic = threading.Lock()


async def upgrade(url: str, package: str, settings: DatabaseSettings | None = None) -> tuple[str, str]:
    """Bring this worker's tables up to date; from which revision ("" if there were no tables) to which.

    Any number of processes may do so at once: one does it while the others wait, and find it done.
    """
    with transients():
        return await asyncio.to_thread(_upgrade, make_url(url), package, settings or DatabaseSettings())


def _upgrade(url: URL, package: str, settings: DatabaseSettings) -> tuple[str, str]:
    with _alembic:
        if url.get_backend_name() == "sqlite":
            return _upgrade_sqlite(url, package)
        return asyncio.run(_upgrade_postgres(url, package, settings))


async def _upgrade_postgres(url: URL, package: str, settings: DatabaseSettings) -> tuple[str, str]:
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415 - as bus/sql/postgresql.py has it

    # Another migration may take as long as this one.
    long = dict.fromkeys(("lock_timeout", "statement_timeout"), milliseconds(settings.long_s))
    engine = create_async_engine(
        url.set(drivername="postgresql+asyncpg"),
        poolclass=NullPool,
        connect_args=connect_arguments(settings.of_sessions | long),
    )
    try:
        async with AsyncExitStack() as begun:
            with connecting():
                async with asyncio.timeout(settings.connect_s):
                    connection = await begun.enter_async_context(engine.connect())
                    raw = await connection.get_raw_connection()
            begun.enter_context(cut_after(raw.driver_connection, settings.long_s))
            await begun.enter_async_context(connection.begin())
            await connection.execute(
                sa.text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"),
                {"name": version_table(package)},
            )
            await connection.execute(sa.text(f"SET LOCAL lock_timeout = {milliseconds(MIGRATION_TIMEOUT_S)}"))
            return await connection.run_sync(migrate, package)
    finally:
        await engine.dispose()


def _upgrade_sqlite(url: URL, package: str) -> tuple[str, str]:
    engine = sqlite_engine(url, MIGRATION_TIMEOUT_S)
    try:
        with ExitStack() as begun:
            with opening(url.database or ""):
                connection = begun.enter_context(engine.connect())
                connection.exec_driver_sql("BEGIN EXCLUSIVE")
            try:
                revisions = migrate(connection, package)
            except BaseException:
                connection.exec_driver_sql("ROLLBACK")
                raise
            connection.exec_driver_sql("COMMIT")
            return revisions
    finally:
        engine.dispose()


def migrate(connection: Connection, package: str) -> tuple[str, str]:
    """Run the migrations that are missing, in the transaction that is open."""
    before = _revision(connection, package)
    if before == newest_revision(package):
        return before, before
    # Alembic takes as long to load as all else of a worker: only a process that changes tables waits for it.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", f"{package}:migrations")
    config.attributes["connection"] = connection
    config.attributes["version_table"] = version_table(package)
    command.upgrade(config, "head")
    return before, _revision(connection, package)


def version_table(package: str) -> str:
    """Workers may share a database: each has its own record of where its tables stand."""
    return f"{package.removesuffix('_worker')}_version"


def newest_revision(package: str) -> str:
    """A migration's file begins with its revision, and revisions are counted up."""
    names = (file.name for file in (files(package) / "migrations" / "versions").iterdir())
    return max(name.partition("_")[0] for name in names if name[:1].isdigit())


def _revision(connection: Connection, package: str) -> str:
    name = version_table(package)
    if not sa.inspect(connection).has_table(name):
        return ""
    return connection.scalar(sa.select(sa.column("version_num")).select_from(sa.table(name))) or ""
