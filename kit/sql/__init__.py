"""Access to the workers' databases: PostgreSQL by asyncpg, SQLite in the event loop and a thread.

Most work is a plain function of a SQLAlchemy connection, written once for both databases. `await transaction.run(work,
...)` calls it in the thread that the driver needs. Hot statements use the driver's own connection. Failures that a retry
may cure are raised as `Transient`. This package knows no table of any worker. The time limits are in
kit/database_settings.py, so that commands without a database load no driver.
"""

from kit.database_settings import DatabaseSettings
from kit.sql.databases import (
    ONCE,
    Database,
    KeyStatement,
    RowColumns,
    SqliteDatabase,
    SqliteTransaction,
    Transaction,
    Values,
    by_keys,
    driver_of,
    open_database,
    read_once,
    reads,
    runs,
    write_once,
)
from kit.sql.dialects import is_duplicate
from kit.sql.migrations import RoleRights, RolesMade, grant_rights, make_roles, upgrade, version_table
from kit.sql.postgresql import POOL_SIZE, PostgresDatabase, PostgresSession, PostgresTransaction
from kit.sql.statements import Id, Moment, among, array_of, begins_with, columns_of, insert, moment_text

__all__ = [
    "ONCE",
    "POOL_SIZE",
    "Database",
    "DatabaseSettings",
    "Id",
    "KeyStatement",
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
    "by_keys",
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
