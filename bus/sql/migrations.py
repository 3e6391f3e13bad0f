"""Brings a worker's tables up to date. A new database gets all that `tables.py` declares, and no migration runs. An older
one gets the missing migrations of the worker's package, in order. Alembic keeps the record of its revision.
"""

from importlib import import_module
from importlib.resources import files

import sqlalchemy as sa
from msgspec import structs
from sqlalchemy import Connection

from bus.configuration.settings import DatabaseSettings, milliseconds
from bus.errors import Failure, Unavailable
from bus.sql.database import open_database
from bus.sql.postgresql import PostgresTransaction

# How long a migration waits for other writers of the file, or of the tables that it changes. Other sessions wait behind
# it meanwhile, so this is short.
MIGRATION_TIMEOUT_S = 60.0
_MAY_CREATE = sa.text("SELECT has_schema_privilege(current_schema(), 'CREATE')")


async def upgrade(url: str, package: str, settings: DatabaseSettings | None = None) -> tuple[str, str]:
    """Migrate this worker's tables. Returns the revision before ("" if there were no tables) and after.

    Several processes may do this at once: one migrates, the others wait and find nothing to do.
    """
    settings = structs.replace(settings or DatabaseSettings(), busy_s=MIGRATION_TIMEOUT_S)
    database = open_database(url, pool_size=1, settings=settings)
    try:
        async with database.writing(takes_long=True) as transaction:
            if isinstance(transaction, PostgresTransaction):
                await transaction.run(_wait_for_turn, package, settings.long_s)
            return await transaction.run(_migrate, package)
    finally:
        await database.close()


def _wait_for_turn(connection: Connection, package: str, turn_s: float) -> None:
    # Waiting for another process's migration may take as long as that one.
    connection.execute(sa.text(f"SET LOCAL lock_timeout = {milliseconds(turn_s)}"))
    connection.execute(
        sa.text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": version_table(package)}
    )
    connection.execute(sa.text(f"SET LOCAL lock_timeout = {milliseconds(MIGRATION_TIMEOUT_S)}"))


def _migrate(connection: Connection, package: str) -> tuple[str, str]:
    """Create the tables, or run the missing migrations, in the open transaction."""
    before, newest = _revision(connection, package), newest_revision(package)
    if before == newest:
        return before, before
    known = _revisions(package)
    if before and before not in known:
        advice = (
            "the tables are of a newer release, so install that one, or use a new database"
            if before > newest
            else "the tables are too old for it, so use a new database"
        )
        raise Failure(
            f"{version_table(package)} is at revision {before}, and this release upgrades from {known[0]} to {newest}: "
            f"{advice}"
        )
    _check_right(connection, package, before, newest)
    # Loading Alembic takes as long as loading the rest of a worker, so only a process that migrates loads it.
    from alembic.migration import MigrationContext  # noqa: PLC0415
    from alembic.operations import Operations  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    directory = ScriptDirectory(str(files(package) / "migrations"))
    context = MigrationContext.configure(connection, opts={"version_table": version_table(package)})
    if before:
        scripts = {script.revision: script for script in directory.walk_revisions()}
        for missing in known[known.index(before) + 1 :]:
            scripts[missing].module.upgrade(Operations(context))
    else:
        # Without a look at what exists: a stranger's table of the same name is an error.
        import_module(f"{package}.tables").metadata.create_all(connection, checkfirst=False)
    context.stamp(directory, newest)
    return before, newest


def _check_right(connection: Connection, package: str, before: str, newest: str) -> None:
    """A worker with a role of its own owns no tables (roles.py), and waits until their owner has migrated them."""
    if connection.dialect.name == "postgresql" and not connection.scalar(_MAY_CREATE):
        user = connection.scalar(sa.text("SELECT current_user"))
        raise Unavailable(
            f"{version_table(package)} is at revision {before or 'none'}, this release needs {newest}, and the role {user} may "
            "create no tables: run `moor db upgrade` as their owner"
        )


def version_table(package: str) -> str:
    """The name of the table with the revision of a worker's tables. Workers that share a database have one each."""
    return f"{package.removesuffix('_worker')}_version"


def newest_revision(package: str) -> str:
    """The newest version of a worker's tables, which Alembic calls their revision."""
    return _revisions(package)[-1]


def _revisions(package: str) -> list[str]:
    """All revisions that this release knows. Each migration's file name begins with its revision, and these count upwards."""
    names = (file.name for file in (files(package) / "migrations" / "versions").iterdir())
    return sorted(name.partition("_")[0] for name in names if name[:1].isdigit())


def _revision(connection: Connection, package: str) -> str:
    name = version_table(package)
    if not sa.inspect(connection).has_table(name):
        return ""
    return connection.scalar(sa.select(sa.column("version_num")).select_from(sa.table(name))) or ""
