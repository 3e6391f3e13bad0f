"""Nodes and daemons as tables, alike on PostgreSQL and SQLite.

Values that are searched have columns. So have the owner, the epoch and the version, so that a node changes its owner
without reading or writing its body. Everything else is in the body.

Change a table in two steps, each with its migration: first expand it, and contract it only in a later release.
"""

from sqlalchemy import BigInteger, Boolean, Column, Index, LargeBinary, MetaData, String, Table, false

from kit.sql.statements import Id

metadata = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"}
)

ironic_nodes = Table(
    "ironic_nodes",
    metadata,
    Column("id", Id, primary_key=True),
    Column("cell", String(40), nullable=False),
    Column("owner", String(63), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("holds_instance", Boolean, nullable=False),
    # Microseconds since 1970: both databases sort and compare them alike.
    Column("due_us", BigInteger),
    Column("needs_report", Boolean, nullable=False),
    Column("needs_read", Boolean, nullable=False),
    # Whether Ironic tells of an older state than was known, and when a daemon last took an instance off by itself. Daemons of an
    # older release write neither.
    Column("is_older", Boolean, nullable=False, server_default=false()),
    Column("unasked_us", BigInteger),
    Column("body", LargeBinary, nullable=False),
    # A notification writes its row twice: room on the page keeps the new row beside the old one.
    postgresql_with={"fillfactor": 50},
)
Index(None, ironic_nodes.c.owner, ironic_nodes.c.id)
_due = ironic_nodes.c.due_us.is_not(None)
Index(None, ironic_nodes.c.owner, ironic_nodes.c.due_us, postgresql_where=_due, sqlite_where=_due)
# Most rows need neither, so these stay small.
for _name, _column in (("report", ironic_nodes.c.needs_report), ("read", ironic_nodes.c.needs_read)):
    Index(
        f"ix_ironic_nodes_to_{_name}",
        ironic_nodes.c.owner,
        ironic_nodes.c.id,
        postgresql_where=_column,
        sqlite_where=_column,
    )

ironic_daemons = Table(
    "ironic_daemons",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("incarnation", String(36), nullable=False),
    # By the database's clock.
    Column("lease_ends_us", BigInteger, nullable=False),
    Column("is_draining", Boolean, nullable=False),
    Column("joined_us", BigInteger, nullable=False),
)
