"""The scheduler's tables, the same on PostgreSQL and SQLite: instances at API level, hosts,
applications, aggregates, server groups.

A request has no row of its own: the rows of its instances each carry its digest.

Change tables in two steps, each with its migration: first expand (a new column or table that the release before can
ignore), and only a release later contract. A value that is only read back whole is in a body; a value that queries name
has a column. A cell has a table of instances too, and may share this database: so no table is called `instances`.
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
    Text,
    text,
)

from kit.sql.statements import Id, InternalId, Moment

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# As text: PostgreSQL uses the index only for a condition without parameters.
BY_ITSELF = text("what = 'stopped'")
WITHOUT_HOST = text("host = '' AND ended_at IS NULL")
DELETED_UNPLACED = text("cell = 'cell0' AND ended_at IS NOT NULL")

instances = Table(
    "requested_instances",
    metadata,
    Column("id", Id, primary_key=True),
    # NULL: deleted before its request was seen; then `place`, its number in the request, is NULL, too.
    Column("request_id", Id),
    Column("place", Integer),
    # NULL: none.
    Column("project", String(64)),
    # For looking instances up; it is read from `given`. NULL: none. A
    # request's name of 255 characters becomes longer by the number of its instance.
    Column("name", Text),
    # The name as it sorts (store_sql/finding.py); empty: none. NULL until a worker has put in order what release 0.1.0 wrote.
    Column("name_order", Text().with_variant(Text(collation="C"), "postgresql")),
    # Values that never change, and that no query names (store_sql/rows.py).
    Column("given", LargeBinary, nullable=False),
    Column("state", String(32), nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("heard", BigInteger, nullable=False),
    Column("cell", String(255), nullable=False),
    Column("host", String(255), nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("changed_at", Moment, nullable=False),
    # Set while the instance is accepted or waiting, and nothing is decided.
    Column("due_at", Moment),
    # Set when the instance is deleted: pruning goes by it.
    Column("ended_at", Moment),
    # The sequence whose messages may not have reached the broker. The notes tell which rows have one.
    Column("unsaid", BigInteger),
    # The order to its cell, while that is unsaid: by far the largest part of a row.
    Column("place_order", LargeBinary),
    # Failures, refusals and reasons, and how the host was chosen. NULL until something is decided.
    Column("progress", LargeBinary),
    # Two requests with one id conflict here, whatever instances they name.
    Index(None, "request_id", "place", unique=True),
    # For a project's instances, a page at a time.
    Index(
        None,
        "project",
        "id",
        postgresql_where=text("project IS NOT NULL"),
        sqlite_where=text("project IS NOT NULL"),
    ),
    # By names, and for an instance of this name.
    Index(None, "name_order", "id"),
    # By hosts, and for the instances of a host. The host of a placed instance seldom changes when it becomes active.
    Index(
        None,
        "cell",
        "host",
        "name_order",
        "id",
        postgresql_where=text("ended_at IS NULL"),
        sqlite_where=text("ended_at IS NULL"),
    ),
    # For what a project has open or in error. Nothing of a placed instance is in it.
    Index(
        "ix_requested_instances_without_host",
        "project",
        postgresql_where=WITHOUT_HOST,
        sqlite_where=WITHOUT_HOST,
    ),
    # Deleted before they had a host, or before they were known.
    Index(
        "ix_requested_instances_deleted_unplaced",
        "project",
        postgresql_where=DELETED_UNPLACED,
        sqlite_where=DELETED_UNPLACED,
    ),
    Index(
        None, "due_at", postgresql_where=text("due_at IS NOT NULL"), sqlite_where=text("due_at IS NOT NULL")
    ),
    # For pruning alone.
    Index(
        None,
        "ended_at",
        postgresql_where=text("ended_at IS NOT NULL"),
        sqlite_where=text("ended_at IS NOT NULL"),
    ),
    # No column that an index names, be it in a condition, changes when a placed instance becomes active on the host that was chosen
    # for it. With room on the page PostgreSQL then writes no index for that (measured: 5 µs in place of 12).
    postgresql_with={"fillfactor": 70},
)

# Orders for instances, and how they ended (scheduler_worker/core/instances/rows.py). A boot is on its instance's own row.
changes = Table(
    "instance_changes",
    metadata,
    Column("instance", Id, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("what", String(32), nullable=False),
    Column("cell", String(255), nullable=False),
    Column("asked_at", Moment, nullable=False),
    Column("by", String(255), nullable=False),
    Column("request_id", Id),
    Column("source", String(255), nullable=False),
    Column("destination", String(255), nullable=False),
    Column("ended_at", Moment),
    Column("ended_by", String(255), nullable=False),
    Column("outcome", String(32), nullable=False),
    Column("failure", Text, nullable=False),
    # The size that a resize asks for. NULL: it is none.
    Column("size", LargeBinary),
    Index(None, "asked_at"),
    # What goes on: few rows of many.
    # For instances that have stopped by themselves: few rows of many, and no others are written to it.
    Index(
        "ix_instance_changes_by_themselves",
        "instance",
        postgresql_where=BY_ITSELF,
        sqlite_where=BY_ITSELF,
    ),
    Index(
        "ix_instance_changes_open",
        "asked_at",
        postgresql_where=text("ended_at IS NULL"),
        sqlite_where=text("ended_at IS NULL"),
    ),
)

# The instances of a transaction that have messages to send; a note is deleted when all of these are confirmed.
notes = Table(
    "request_notes",
    metadata,
    # Never used again: a late confirm must not find another note.
    Column("number", InternalId, Identity(), primary_key=True),
    Column("at", Moment, nullable=False),
    # Ids one after the other: of the instances that the transaction placed; and of the others, each with its sequence.
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

# When the latest order about an application was sent, be it registered or removed: an older order that is delivered late
# changes nothing. Operators choose the names, so there are few; no row is deleted.
application_orders = Table(
    "application_orders",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("sent_at", Moment, nullable=False),
)

# Their members are placement's.
aggregates = Table(
    "aggregates_metadata",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", String(255), nullable=False, unique=True),
    Column("body", LargeBinary, nullable=False),
)

# Server groups, as clients created them; placement has their members. A deleted one keeps its id taken for a while.
groups = Table(
    "known_groups",
    metadata,
    Column("id", Id, primary_key=True),
    # Empty: of all projects.
    Column("project", String(64), nullable=False),
    Column("name", String(255), nullable=False),
    Column("policy", String(32), nullable=False),
    Column("max_per_host", Integer, nullable=False),
    Column("deleted_at", Moment),
    # As JSON; NULL: none.
    Column("rules", Text),
    Index(None, "project", "id"),
    Index(None, "name"),
)

# Flavors that requests may name. Requests keep what they got of them.
flavors = Table(
    "known_flavors",
    metadata,
    Column("name", String(255), primary_key=True),
    # As JSON.
    Column("flavor", LargeBinary, nullable=False),
)

# Images that requests may name, in the same way.
images = Table(
    "known_images",
    metadata,
    Column("name", String(255), primary_key=True),
    # As JSON.
    Column("image", LargeBinary, nullable=False),
)

# Device profiles that flavors may name, in the same way.
device_profiles = Table(
    "known_device_profiles",
    metadata,
    Column("name", String(255), primary_key=True),
    # As JSON.
    Column("profile", LargeBinary, nullable=False),
)

# What waits for room: instances in the state `waiting`, and those whose move waits. In a table of their own, since no other
# instance has any of this.
waiting = Table(
    "waiting_instances",
    metadata,
    Column("id", Id, primary_key=True),
    # The priority, negated: the lowest goes first.
    Column("precedence", Integer, nullable=False),
    Column("since", Moment, nullable=False),
    # Of the needs: instances with the same needs fit on the same hosts.
    Column("digest", LargeBinary, nullable=False),
    # The order as it came, of a build or of a move.
    Column("build", LargeBinary, nullable=False),
    # The needs for which it waits (scheduler_worker/waiting.py). NULL: release 0.1.0 wrote the row.
    Column("needs", LargeBinary),
    # Set while a worker tries it, and NULL otherwise.
    Column("is_woken", Boolean),
    Index(None, "precedence", "since", "id"),
    Index(None, "digest"),
    Index(
        None,
        "is_woken",
        postgresql_where=text("is_woken IS NOT NULL"),
        sqlite_where=text("is_woken IS NOT NULL"),
    ),
)

# Leases, each of which one worker has: to try waiting instances, and to count the cloud for the metrics.
waking = Table(
    "waking_lease",
    metadata,
    # One row for each kind of lease: 1 to try waiting instances, 2 to count.
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("holder", Id, nullable=False),
    Column("held_until", Moment, nullable=False),
)

# When each cell was last heard, as workers have noted it now and then.
cells = Table(
    "known_cells",
    metadata,
    Column("name", String(255), primary_key=True),
    Column("heard_at", Moment, nullable=False),
)

hosts = Table(
    "known_hosts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", String(255), nullable=False),
    Column("cell", String(255), nullable=False),
    Column("changed_at", Moment, nullable=False),
    Column("body", LargeBinary, nullable=False),
    # The sequence in the body.
    Column("sequence", BigInteger, nullable=False),
    # The load by a later report than the body's (scheduler_worker/store_sql/named.py). NULL: none. No index names it, and pages have room, so
    # PostgreSQL writes no index for it.
    Column("load", LargeBinary),
    Index(None, "name"),
    Index(None, "changed_at"),
    postgresql_with={"fillfactor": 70},
)
