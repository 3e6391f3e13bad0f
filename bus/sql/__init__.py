"""Access to the workers' databases: PostgreSQL by asyncpg, SQLite in the event loop and a thread.

Most work is a plain function of a SQLAlchemy connection, written once for both databases. `await transaction.run(work,
...)` calls it in the thread that the driver needs. Hot statements use the driver's own connection. Failures that a retry
may cure are raised as `Transient`. This package knows no table of any worker. The time limits are in
bus/configuration/settings.py, so that commands without a database load no driver.

    database.py     the interface of both databases, and choosing one by its URL.
    postgresql.py   pooled sessions, and transactions begun by our own statements.
    postgresql_tls.py   TLS to the server, as the URL says it.
    sqlite.py       one connection that writes, one that reads.
    migrations.py   table migrations, under a lock.
    roles.py        the roles of workers on PostgreSQL, and their rights on tables.
    rows.py         statements on batches of rows, from one description for both databases.
    statements.py   differences between the two SQL dialects.
    types.py        column types.
    errors.py       which errors are transient, and whether the server is down.
"""

from bus.configuration.settings import DatabaseSettings
from bus.sql.database import Database, Transaction, open_database, read_once, reads, runs, write_once
from bus.sql.errors import is_duplicate
from bus.sql.migrations import upgrade, version_table
from bus.sql.postgresql import POOL_SIZE, PostgresDatabase, PostgresSession, PostgresTransaction
from bus.sql.roles import RoleRights, RolesMade, grant_rights, make_roles
from bus.sql.rows import ONCE, RowColumns, Values
from bus.sql.sqlite import SqliteDatabase, SqliteTransaction, driver_of
from bus.sql.statements import among, array_of, begins_with, columns_of, insert
from bus.sql.types import Id, Moment, moment_text

__all__ = [
    "ONCE",
    "POOL_SIZE",
    "Database",
    "DatabaseSettings",
    "Id",
    "Moment",
    "PostgresDatabase",
    "PostgresSession",
    "PostgresTransaction",
    "RoleRights",
    "RolesMade",
    "RowColumns",
    "SqliteDatabase",
    "SqliteTransaction",
    "Transaction",
    "Values",
    "among",
    "array_of",
    "begins_with",
    "columns_of",
    "driver_of",
    "grant_rights",
    "insert",
    "is_duplicate",
    "make_roles",
    "moment_text",
    "open_database",
    "read_once",
    "reads",
    "runs",
    "upgrade",
    "version_table",
    "write_once",
]
