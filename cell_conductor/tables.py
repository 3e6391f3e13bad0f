"""The tables for a cell's instances, alike on PostgreSQL and SQLite.

Values that are searched have columns; so does the state, which operators look for first. The rest is in two pieces, by
how often they change: `placed`, the order, never; `body`, everything else with the messages sent, at each step. The
notes list messages that are not confirmed, one note for each transaction that sent some. Cells may share a database,
with each other and with the API level.

Change the tables in two steps, each with its migration: first expand, and only a release later contract.
"""

from sqlalchemy import BigInteger, Column, Identity, Index, LargeBinary, MetaData, String, Table

from kit.sql.statements import Id, InternalId

metadata = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"}
)

cell_instances = Table(
    "cell_instances",
    metadata,
    # The key is looked up several times a boot. The id comes first, since it tells rows apart at once.
    Column("id", Id, primary_key=True),
    Column("cell", String(40), primary_key=True),
    Column("state", String(16), nullable=False),
    # Microseconds since 1970: both databases sort and compare them alike.
    Column("due_us", BigInteger),
    Column("body", LargeBinary, nullable=False),
    Column("placed", LargeBinary),
    # A boot writes its row a few times. Free space on the page keeps the new version beside the old one, and PostgreSQL
    # then logs only the difference. On SQLite rows lie in the order of insertion, so rows written together are
    # neighbours.
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

cell_notes = Table(
    "cell_notes",
    metadata,
    # Numbers are never reused: a late deletion of a confirmed note must not hit another note.
    Column("number", InternalId, Identity(), primary_key=True),
    Column("cell", String(40), nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("said", LargeBinary, nullable=False),
    sqlite_autoincrement=True,
)

cell_hosts = Table(
    "cell_hosts",
    metadata,
    # Only hosts whose mode was ever set have a row. It stays: an older order that comes late must not count.
    Column("id", Id, primary_key=True),
    Column("cell", String(40), primary_key=True),
    # How often the row was written. The sum tells a conductor whether another one has written any row.
    Column("writes", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

# Each host that a conductor of the cell has heard: written when it is first heard, falls silent, or returns.
cell_heard_hosts = Table(
    "cell_heard_hosts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("cell", String(40), primary_key=True),
    # NULL while the host is heard.
    Column("silent_since_us", BigInteger),
)
