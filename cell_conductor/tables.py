"""A cell's instances as a table, alike on PostgreSQL and SQLite.

What is asked for by stands in columns, and what a person looks for first; the row itself, whole, in `body`, and what it
has said and nobody has confirmed in `outbox`. Cells may share a database, with each other and with the API level.

Change it in two steps, each with its migration: first expand, and only a release later contract.
"""

from sqlalchemy import BigInteger, Column, Index, LargeBinary, MetaData, String, Table, Uuid

metadata = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"}
)

Id = Uuid(as_uuid=True)

cell_instances = Table(
    "cell_instances",
    metadata,
    Column("cell", String(40), primary_key=True),
    Column("id", Id, primary_key=True),
    Column("request_id", Id, nullable=False),
    Column("state", String(16), nullable=False),
    Column("attempt", BigInteger, nullable=False),
    # Microseconds since 1970: both databases sort and compare them alike.
    Column("changed_us", BigInteger, nullable=False),
    Column("due_us", BigInteger),
    Column("body", LargeBinary, nullable=False),
    Column("outbox", LargeBinary),
    sqlite_with_rowid=False,
    # A boot rewrites its row a few times: room on the page keeps that out of the indexes.
    postgresql_with={"fillfactor": 50},
)
_due = cell_instances.c.due_us.is_not(None)
Index(
    None,
    cell_instances.c.cell,
    cell_instances.c.due_us,
    postgresql_where=_due,
    sqlite_where=_due,
)
_unsaid = cell_instances.c.outbox.is_not(None)
Index(
    "ix_cell_instances_unsaid",
    cell_instances.c.cell,
    cell_instances.c.id,
    postgresql_where=_unsaid,
    sqlite_where=_unsaid,
)
