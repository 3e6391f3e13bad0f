"""Placement's books as tables, alike on PostgreSQL and SQLite.

Change them in two steps, each with its migration: first expand (a new column or table that the release before does not
mind), and only a release later contract. tests/unit/test_migrations.py holds the migrations to what is written here.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    true,
)
from sqlalchemy.types import UserDefinedType

from bus.sql.types import Id, InternalId, Moment

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class TransactionId(UserDefinedType[int]):
    """PostgreSQL's number of a transaction, which never wraps. SQLite has none, and no need of one."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "xid8"


def _internal_id() -> Column[int]:
    return Column("id", InternalId, Identity(), primary_key=True)


# A name that was deleted keeps its row and its number, and is only not known any more: so whoever remembers a number
# never means another name by it.
resource_classes = Table(
    "resource_classes",
    metadata,
    _internal_id(),
    Column("name", String(255), nullable=False, unique=True),
    Column("is_known", Boolean, nullable=False, server_default=true()),
    sqlite_autoincrement=True,
)

traits = Table(
    "traits",
    metadata,
    _internal_id(),
    Column("name", String(255), nullable=False, unique=True),
    Column("is_known", Boolean, nullable=False, server_default=true()),
    sqlite_autoincrement=True,
)

# Rows that every claim updates keep room on their pages, so that PostgreSQL writes the new version beside the old one
# and leaves the indexes alone.
providers = Table(
    "providers",
    metadata,
    _internal_id(),
    Column("uuid", Id, nullable=False, unique=True),
    Column("name", String(200), nullable=False, unique=True),
    # Deferred, so that the rows of a tree may be written and removed in any order.
    Column("parent_id", InternalId, ForeignKey("providers.id", deferrable=True, initially="DEFERRED")),
    Column(
        "root_id",
        InternalId,
        ForeignKey("providers.id", deferrable=True, initially="DEFERRED"),
        nullable=False,
    ),
    Column("cell", String(255), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    # The last revision at which more of it changed than what is used.
    Column("base", BigInteger, nullable=False),
    # The tree's, and meaningful on its root only.
    Column("shape", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    # What is in use of each class of its inventories, as JSON: class's id -> amount. It is the sum of what consumers
    # hold, kept since summing that up for each claim costs two to four times the claim; and it is kept here, since this
    # row is written by each claim anyway, and the inventories then by none.
    Column("used", Text, nullable=False, server_default="{}"),
    # How many consumers live on it: they hold something, and this is their host. Kept for the same reasons.
    Column("consumers", BigInteger, nullable=False, server_default="0"),
    Index(None, "root_id"),
    Index(None, "parent_id"),
    sqlite_autoincrement=True,
    postgresql_with={"fillfactor": 70},
)

# What is left of trees that were felled, by the public id of their root: rows of providers are gone with their tree.
stumps = Table(
    "stumps",
    metadata,
    Column("root", Id, primary_key=True),
    Column("cell", String(255), nullable=False),
    Column("shape", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("felled_at", Moment, nullable=False),
    sqlite_with_rowid=False,
)

inventories = Table(
    "inventories",
    metadata,
    Column("provider_id", InternalId, ForeignKey(providers.c.id), primary_key=True),
    Column("class_id", InternalId, ForeignKey(resource_classes.c.id), primary_key=True),
    Column("total", BigInteger, nullable=False),
    Column("reserved", BigInteger, nullable=False),
    Column("min_unit", BigInteger, nullable=False),
    Column("max_unit", BigInteger, nullable=False),
    Column("step_size", BigInteger, nullable=False),
    Column("allocation_ratio", Double, nullable=False),
    sqlite_with_rowid=False,
)

provider_traits = Table(
    "provider_traits",
    metadata,
    Column("provider_id", InternalId, ForeignKey(providers.c.id), primary_key=True),
    Column("trait_id", InternalId, ForeignKey(traits.c.id), primary_key=True),
    Column("set_by_operator", Boolean, primary_key=True),
    sqlite_with_rowid=False,
)

provider_aggregates = Table(
    "provider_aggregates",
    metadata,
    Column("provider_id", InternalId, ForeignKey(providers.c.id), primary_key=True),
    Column("aggregate", Id, primary_key=True),
    sqlite_with_rowid=False,
)

server_groups = Table(
    "server_groups",
    metadata,
    Column("uuid", Id, primary_key=True),
    Column("policy", String(32), nullable=False),
    Column("max_per_host", Integer, nullable=False),
)

# A row outlives what its consumer holds, until it is pruned. It names host and group by their public ids: it may
# outlive them as well. No foreign keys from what it holds: a check for each provider would cost PostgreSQL more than the
# claim itself. Locks keep the rows that are named there in place, and the audit looks for any that are not.
consumers = Table(
    "consumers",
    metadata,
    _internal_id(),
    Column("uuid", Id, nullable=False, unique=True),
    Column("type", String(255), nullable=False),
    Column("project_id", String(255), nullable=False),
    Column("user_id", String(255), nullable=False),
    Column("cell", String(255), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("ended_at", Moment),
    Column("host", Id),
    Column("server_group", Id),
    # As JSON: provider's id -> class's id -> amount.
    Column("held", Text, nullable=False, server_default="{}"),
    sqlite_autoincrement=True,
)
for _name in ("ended_at", "server_group"):
    Index(
        None,
        consumers.c[_name],
        postgresql_where=consumers.c[_name].is_not(None),
        sqlite_where=consumers.c[_name].is_not(None),
    )

# The other way round: who holds something of a provider.
holders = Table(
    "holders",
    metadata,
    Column("provider_id", InternalId, primary_key=True, autoincrement=False),
    Column("consumer_id", InternalId, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
)

# One row for each write, with which it is committed. `body` is a LogEntry of store_sql/log.py.
change_log = Table(
    "change_log",
    metadata,
    Column("position", InternalId, Identity(), primary_key=True),
    Column("written_by", TransactionId().with_variant(BigInteger(), "sqlite"), nullable=False, index=True),
    Column("at", Moment, nullable=False),
    Column("body", LargeBinary, nullable=False),
    sqlite_autoincrement=True,
)

# What was answered and did not fit into one message: the later pages, until they are asked for.
kept_answers = Table(
    "kept_answers",
    metadata,
    Column("answer", Id, primary_key=True),
    Column("page", Integer, primary_key=True, autoincrement=False),
    Column("is_last", Boolean, nullable=False),
    Column("kept_at", Moment, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

# One row: how far the log is published, and in which term of publishing. `forgotten` is a cursor, too:
# who has not seen all that it has cannot be told what changed since.
feed = Table(
    "feed",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("term", BigInteger, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("cursor", String, nullable=False),
    Column("forgotten", String, nullable=False, server_default=""),
    CheckConstraint("id = 1", name="one_row"),
)
