"""The table of attempts on a cell's simulated hosts, alike on PostgreSQL and SQLite. Cells may share a database.

Change it in two steps, each with its migration: first expand, and only a release later contract.
"""

from sqlalchemy import BigInteger, Column, LargeBinary, MetaData, String, Table

from kit.sql.statements import Id

metadata = MetaData(naming_convention={"pk": "pk_%(table_name)s"})

compute_attempts = Table(
    "compute_attempts",
    metadata,
    Column("cell", String(40), primary_key=True),
    Column("host", Id, primary_key=True),
    Column("instance", Id, primary_key=True),
    Column("attempt", BigInteger, primary_key=True, autoincrement=False),
    # The attempt as JSON.
    Column("body", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)
