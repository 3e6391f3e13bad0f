"""The scheduler's rows as tables, alike on PostgreSQL and SQLite: instances as the API level has them, hosts.

A request has no row of its own: it is its instances, each of which carries its digest.

Change them in two steps, each with its migration: first expand (a new column or table that the release before does not
mind), and only a release later contract. What is only read back whole stands in a body; what is asked for by, in columns. A cell has tables
of instances too, and may share this database: so none is called just that.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    text,
)

from bus.sql.types import Id, InternalId, Moment

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

instances = Table(
    "requested_instances",
    metadata,
    Column("id", Id, primary_key=True),
    # NULL: deleted before its request was seen. Its place among the instances of its request comes with it.
    Column("request_id", Id),
    Column("place", Integer),
    # NULL: none.
    Column("project", String(64)),
    # What never changes, and is asked for by nothing (store_sql/rows.py).
    Column("given", LargeBinary, nullable=False),
    Column("state", String(32), nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("heard", BigInteger, nullable=False),
    Column("cell", String(255), nullable=False),
    Column("host", String(255), nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("changed_at", Moment, nullable=False),
    # Set as long as it is accepted and nothing is decided.
    Column("due_at", Moment),
    # Set when it is deleted: then it will be forgotten.
    Column("ended_at", Moment),
    # The sequence whose messages may not have reached the broker. Which rows these are is asked of the notes.
    Column("unsaid", BigInteger),
    # The order to its cell, as long as that is unsaid: the largest part of a row by far.
    Column("place_order", LargeBinary),
    # What went wrong: of most instances, nothing.
    Column("troubles", LargeBinary),
    # Two requests of one id meet here, whatever instances they name.
    Index(None, "request_id", "place", unique=True),
    # The instances of a project, a page at a time.
    Index(
        None,
        "project",
        "id",
        postgresql_where=text("project IS NOT NULL"),
        sqlite_where=text("project IS NOT NULL"),
    ),
    Index(
        None, "due_at", postgresql_where=text("due_at IS NOT NULL"), sqlite_where=text("due_at IS NOT NULL")
    ),
    # Only pruning asks for it.
    Index(
        None,
        "ended_at",
        postgresql_where=text("ended_at IS NOT NULL"),
        sqlite_where=text("ended_at IS NOT NULL"),
    ),
    # No index, and no condition of one, names a column that changes when a placed instance becomes active. With room on the
    # page PostgreSQL then writes no index for that (measured: 5 µs in place of 12).
    postgresql_with={"fillfactor": 70},
)

# Which instances a transaction has written that have something to say: gone when all of it is confirmed.
notes = Table(
    "request_notes",
    metadata,
    # Never used again: a late word that a note is confirmed must not find another.
    Column("number", InternalId, Identity(), primary_key=True),
    Column("at", Moment, nullable=False),
    # Ids one after the other: of the instances that are placed by it, and of the others, each of these with its sequence.
    Column("placed", LargeBinary, nullable=False),
    Column("others", LargeBinary, nullable=False),
    sqlite_autoincrement=True,
)

applications = Table(
    "known_applications",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("body", LargeBinary, nullable=False),
)

# When the latest order about an application was sent, whether it was registered or removed: an older one that is delivered
# late changes nothing. Operators write the names, so there are few; none is forgotten.
application_orders = Table(
    "application_orders",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("sent_at", Moment, nullable=False),
)

hosts = Table(
    "known_hosts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", String(255), nullable=False),
    Column("cell", String(255), nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("changed_at", Moment, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index(None, "name"),
    Index(None, "changed_at"),
)
