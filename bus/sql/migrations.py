"""Migrates tables with Alembic, which finds a worker's migrations in its package."""

import asyncio
import threading
from contextlib import AsyncExitStack, ExitStack
from importlib.resources import files

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.engine import URL, make_url
from sqlalchemy.pool import NullPool

from bus.configuration.database_settings import DatabaseSettings, milliseconds
from bus.sql.errors import connecting, opening, transients
from bus.sql.postgresql import connect_arguments, cut_after
from bus.sql.sqlite import sqlite_engine

# How long a migration waits for other writers of the file, or of the tables that it changes. Other sessions wait behind
# it meanwhile, so this is short.
MIGRATION_TIMEOUT_S = 60.0
# Alembic keeps its state in global variables.
_alembic = threading.Lock()


async def upgrade(url: str, package: str, settings: DatabaseSettings | None = None) -> tuple[str, str]:
    """Migrate this worker's tables. Returns the revision before ("" if there were no tables) and after.

    Several processes may do this at once: one migrates, the others wait and find nothing to do.
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

    # Waiting for another process's migration may take as long as this one.
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
    """Run the missing migrations in the open transaction."""
    before = _revision(connection, package)
    if before == newest_revision(package):
        return before, before
    # Loading Alembic takes as long as loading the rest of a worker, so only a process that migrates loads it.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", f"{package}:migrations")
    config.attributes["connection"] = connection
    config.attributes["version_table"] = version_table(package)
    command.upgrade(config, "head")
    return before, _revision(connection, package)


def version_table(package: str) -> str:
    """The table with this worker's revision. Workers that share a database each have their own."""
    return f"{package.removesuffix('_worker')}_version"


def newest_revision(package: str) -> str:
    """The newest revision. A migration's file name begins with its revision, and revisions are numbered upwards."""
    names = (file.name for file in (files(package) / "migrations" / "versions").iterdir())
    return max(name.partition("_")[0] for name in names if name[:1].isdigit())


def _revision(connection: Connection, package: str) -> str:
    name = version_table(package)
    if not sa.inspect(connection).has_table(name):
        return ""
    return connection.scalar(sa.select(sa.column("version_num")).select_from(sa.table(name))) or ""
