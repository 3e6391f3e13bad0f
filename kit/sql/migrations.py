"""Brings a worker's tables up to date. A new database gets all that `tables.py` declares, and no migration runs. An older
one gets the missing migrations of the worker's package, in order. Alembic keeps the record of its revision.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.resources import files
from typing import NoReturn

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from kit.database_settings import DatabaseSettings, milliseconds
from kit.errors import Failure, Unavailable
from kit.sql.databases import open_database, write_once
from kit.sql.postgresql import PostgresTransaction

# How long a migration waits for other writers of the file, or of the tables that it changes. Other sessions wait behind
# it meanwhile, so this is short.
MIGRATION_TIMEOUT_S = 60.0
_MAY_CREATE = sa.text("SELECT has_schema_privilege(current_schema(), 'CREATE')")


async def upgrade(url: str, package: str, settings: DatabaseSettings | None = None) -> tuple[str, str]:
    """Migrate this worker's tables. Returns the revision before ("" if there were no tables) and after.

    Several processes may do this at once: one migrates, the others wait and find nothing to do.
    """
    settings = settings or DatabaseSettings()
    database = open_database(url, pool_size=1, settings=settings)
    try:
        async with database.writing(takes_long=True) as transaction:
            if isinstance(transaction, PostgresTransaction):
                await transaction.run(_wait_for_turn, package, settings.LONG_S)
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
    """A worker with a role of its own owns no tables, and waits until their owner has migrated them."""
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


# The roles of workers on PostgreSQL, and what each may do with which table.
#
# An administrator makes the roles. One of them, the owner, owns the tables and migrates them; every other role may do with each
# table what is listed for it, and nothing else. A password is sent as the verifier that PostgreSQL stores, never as it is, so that
# no log of the server has it.


# PostgreSQL's own defaults.
SALT_BYTES = 16
ITERATIONS = 4096

_LOCK = sa.text("SELECT pg_advisory_xact_lock(hashtextextended('moor roles', 0))")
_KNOWN_ROLES = sa.text("SELECT rolname, rolsuper FROM pg_roles WHERE rolname = ANY (:names)")
_OWNERS = sa.text("SELECT tablename, tableowner FROM pg_tables WHERE schemaname = current_schema()")
_HERE = sa.text(
    "SELECT current_user, current_database(), current_schema(),"
    " (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)"
)
# The owner may create tables where `make_roles` has been, and elsewhere has nothing to do.
_MAY_ACT_AS = sa.text(
    "SELECT coalesce(pg_has_role(current_user, oid, 'USAGE') AND has_schema_privilege(oid, current_schema(), 'CREATE'), false)"
    " FROM pg_roles WHERE rolname = :name"
)


class RoleRights(Struct, frozen=True):
    """A role, and its rights by table; an owner needs none. For a table that is not there yet they are granted after the
    migration that makes it.
    """

    name: str
    tables: Mapping[str, Collection[str]]
    # Tables of whose ids it takes some before it has rows for them.
    numbers: Collection[str] = ()


class RolesMade(Struct, frozen=True):
    made: tuple[str, ...]
    # The roles to which tables belonged before they got the owner of all.
    former_owners: tuple[str, ...]


class _TrialDone(Exception):  # noqa: N818 - no error
    """Ends a transaction whose work is to be undone."""


async def make_roles(
    url: str,
    owner: RoleRights,
    roles: Sequence[RoleRights],
    passwords: Mapping[str, str],
    settings: DatabaseSettings | None = None,
    *,
    is_trial: bool = False,
) -> RolesMade:
    """Make the owner and the other roles, or correct those that are there. Everything is done, or nothing; a trial ends with
    nothing, and raises what would be raised.
    """
    database = open_database(url, pool_size=1, settings=settings)
    if database.dialect != "postgresql":
        raise Failure(f"roles exist only on PostgreSQL, not on {database.dialect}")
    try:
        with suppress(_TrialDone):
            async with database.writing() as transaction:
                done = await transaction.run(_make, owner, roles, passwords)
                if is_trial:
                    _undo()
        return done
    finally:
        await database.close()


async def grant_rights(
    url: str, owner: RoleRights, roles: Sequence[RoleRights], settings: DatabaseSettings | None = None
) -> tuple[str, ...]:
    """Give the roles that exist their rights on the tables that exist, and return these roles.

    There are none if the database has no owner role, or if the URL's role may not act as the owner: then nothing changes.
    """
    database = open_database(url, pool_size=1, settings=settings)
    if database.dialect != "postgresql":
        return ()
    try:
        return await write_once(database, _grant_to_existing, owner, roles)
    finally:
        await database.close()


def _undo() -> NoReturn:
    raise _TrialDone


def verifier(password: str, salt: bytes) -> str:
    """What PostgreSQL stores of a password, as SCRAM-SHA-256 (RFC 5803) has it."""
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, ITERATIONS)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    text = [base64.b64encode(each).decode() for each in (salt, stored, server)]
    return f"SCRAM-SHA-256${ITERATIONS}:{text[0]}${text[1]}:{text[2]}"


def _make(
    connection: Connection, owner: RoleRights, roles: Sequence[RoleRights], passwords: Mapping[str, str]
) -> RolesMade:
    connection.execute(_LOCK)
    user, database, schema, is_superuser = connection.execute(_HERE).one()
    names = [owner.name, *(role.name for role in roles)]
    known = {row.rolname: row.rolsuper for row in connection.execute(_KNOWN_ROLES, {"names": names})}
    if mighty := [name for name, has_all in known.items() if has_all]:
        raise Failure(
            f"{', '.join(mighty)} exists as a superuser, for whom no rights count: rename or drop that role"
        )
    quoted = connection.dialect.identifier_preparer.quote
    for name in names:
        how = "ALTER" if name in known else "CREATE"
        secret = verifier(passwords[name], secrets.token_bytes(SALT_BYTES))
        _run(connection, f"{how} ROLE {quoted(name)} LOGIN PASSWORD '{secret}'")
    if not is_superuser:
        # Only a member of the owner may give tables to it.
        _run(connection, f"GRANT {quoted(owner.name)} TO {quoted(user)}")
    everyone = ", ".join(map(quoted, names))
    _run(connection, f"GRANT CONNECT ON DATABASE {quoted(database)} TO {everyone}")
    _run(connection, f"REVOKE CREATE ON SCHEMA {quoted(schema)} FROM PUBLIC")
    _run(connection, f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {everyone}")
    _run(connection, f"GRANT CREATE ON SCHEMA {quoted(schema)} TO {quoted(owner.name)}")
    former = _grant(connection, owner, roles)
    return RolesMade(tuple(name for name in names if name not in known), former)


def _grant_to_existing(
    connection: Connection, owner: RoleRights, roles: Sequence[RoleRights]
) -> tuple[str, ...]:
    if not connection.scalar(_MAY_ACT_AS, {"name": owner.name}):
        return ()
    connection.execute(_LOCK)
    names = [role.name for role in roles]
    known = {name for name, _ in connection.execute(_KNOWN_ROLES, {"names": names})}
    existing = [role for role in roles if role.name in known]
    _grant(connection, owner, existing)
    return tuple(role.name for role in existing)


def _grant(connection: Connection, owner: RoleRights, roles: Sequence[RoleRights]) -> tuple[str, ...]:
    """Give the tables to the owner, and the roles their rights on them. Returns the owners
    that the tables had before.
    """
    quoted = connection.dialect.identifier_preparer.quote
    owners = {row.tablename: row.tableowner for row in connection.execute(_OWNERS)}
    here = sorted(owners.keys() & owner.tables.keys())
    for table in here:
        # Not always: the statement waits for every session that uses the table.
        if owners[table] != owner.name:
            _run(connection, f"ALTER TABLE {quoted(table)} OWNER TO {quoted(owner.name)}")
    for role in roles:
        if here:
            tables = ", ".join(map(quoted, here))
            _run(connection, f"REVOKE ALL ON TABLE {tables} FROM {quoted(role.name)}")
        for table in here:
            if rights := role.tables.get(table):
                _run(connection, f"GRANT {', '.join(rights)} ON TABLE {quoted(table)} TO {quoted(role.name)}")
        for table in role.numbers:
            if table in owners:
                sequence = connection.scalar(
                    sa.text("SELECT pg_get_serial_sequence(:name, 'id')"), {"name": quoted(table)}
                )
                _run(connection, f"GRANT USAGE ON SEQUENCE {sequence} TO {quoted(role.name)}")
    return tuple(sorted({owners[table] for table in here} - {owner.name}))


def _run(connection: Connection, statement: str) -> None:
    try:
        connection.exec_driver_sql(statement)
    except DBAPIError as error:
        # The whole statement may have a verifier, from which a password can be guessed.
        shown = statement.partition(" PASSWORD ")[0]
        raise Failure(f"database: {shown}: {error.orig}") from None
