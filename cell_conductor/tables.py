"""A cell's instances as a table, alike on PostgreSQL and SQLite.

What is asked for by stands in columns, and the state, which a person looks for first. The rest is in two pieces, by how
often they change: `placed`, the order, never; `body`, all else that the cell knows, at each step, with the words that it
has said. Which of these nobody has confirmed stands in notes, one for each transaction that said something. Cells may share
a database, with each other and with the API level.

Change it in two steps, each with its migration: first expand, and only a release later contract.
"""

from sqlalchemy import BigInteger, Column, Identity, Index, LargeBinary, MetaData, String, Table

from bus.sql.types import Id, InternalId

metadata = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"}
)

cell_instances = Table(
    "cell_instances",
    metadata,
    # The key is looked up several times a boot, and ids tell rows apart at the first look.
    Column("id", Id, primary_key=True),
    Column("cell", String(40), primary_key=True),
    Column("state", String(16), nullable=False),
    # Microseconds since 1970: both databases sort and compare them alike.
    Column("due_us", BigInteger),
    Column("body", LargeBinary, nullable=False),
    Column("placed", LargeBinary),
    # A boot writes its row a few times: room on the page keeps the new one beside the old, of which PostgreSQL logs then
    # only what is different. On SQLite rows lie in the order in which they came, and so do those that are written together.
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
    # Never used again: a late word that a note's words are confirmed must not find another's.
    Column("number", InternalId, Identity(), primary_key=True),
    Column("cell", String(40), nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("said", LargeBinary, nullable=False),
    sqlite_autoincrement=True,
)
