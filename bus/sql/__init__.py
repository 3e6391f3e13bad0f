"""How workers speak to their databases: PostgreSQL by asyncpg, SQLite in a thread of its own.

Most work is a plain function of a SQLAlchemy connection, written once for both: `await transaction.run(work, ...)`
takes it to where the driver is. A driver's own connection is at hand for the few statements that are hot. What goes
wrong in a way that trying again may mend is raised as `Transient`. No table of any worker is known here. How long a
database may keep a worker waiting stands in bus/database_settings.py: a command that speaks to no database loads no driver.

    database.py     what a worker may ask of either, and which of the two a URL means
    postgresql.py   sessions kept open, transactions in words of our own
    sqlite.py       one thread that writes, one that reads
    migrations.py   tables brought up to date, under a lock
    statements.py   what the two dialects say differently
    types.py        what columns are, beside the ordinary
    errors.py       what may be tried again, and whether the server is away
"""

from bus.database_settings import SECTION as DATABASE
from bus.database_settings import DatabaseSettings
from bus.sql.database import Database, Transaction, open_database
from bus.sql.errors import is_duplicate
from bus.sql.migrations import upgrade, version_table
from bus.sql.postgresql import POOL_SIZE, PostgresDatabase, PostgresSession, PostgresTransaction
from bus.sql.sqlite import SqliteDatabase, SqliteTransaction, driver_of
from bus.sql.statements import among, array_of, columns_of, insert
from bus.sql.types import Id, Moment, moment_text

__all__ = [
    "DATABASE",
    "POOL_SIZE",
    "Database",
    "DatabaseSettings",
    "Id",
    "Moment",
    "PostgresDatabase",
    "PostgresSession",
    "PostgresTransaction",
    "SqliteDatabase",
    "SqliteTransaction",
    "Transaction",
    "among",
    "array_of",
    "columns_of",
    "driver_of",
    "insert",
    "is_duplicate",
    "moment_text",
    "open_database",
    "upgrade",
    "version_table",
]
