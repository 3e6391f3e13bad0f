"""Placement's tables, the same on PostgreSQL and SQLite.

A new database gets them as they stand here. Change them in two steps, each with a migration for older databases: first
expand (add a column or table that the previous release ignores), and one release later contract.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
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
    event,
    text,
    true,
)
from sqlalchemy.types import UserDefinedType

from kit.sql.statements import Id, InternalId, Moment

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
    """The column type of PostgreSQL's transaction ids, which never wrap around. SQLite has none and needs none."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "xid8"


def _internal_id() -> Column[int]:
    return Column("id", InternalId, Identity(), primary_key=True)


# A deleted name keeps its row and its number, and is only marked as unknown: so a number in a cache never means another name.
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

# Each claim updates these rows, so their pages keep room for two more versions of each: PostgreSQL then writes the new version
# beside the old one and leaves the indexes alone. With less room a boot costs the database a third more.
providers = Table(
    "providers",
    metadata,
    _internal_id(),
    Column("uuid", Id, nullable=False, unique=True),
    Column("name", String(200), nullable=False, unique=True),
    # Deferred, so that the rows of a tree may be written and deleted in any order.
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
    # The last revision at which more than the usage changed.
    Column("base", BigInteger, nullable=False),
    # The tree's counters, valid on its root only.
    Column("shape", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    # Usage of each class of its inventories, as JSON: class id -> amount. It is the sum of what consumers hold. It is stored,
    # since to compute it for each claim costs two to four times the claim. It is stored here, since each claim writes this
    # row anyway; so no claim writes inventories.
    Column("used", Text, nullable=False, server_default="{}"),
    # How many consumers hold something and have it as their host. Stored for the same reasons.
    Column("consumers", BigInteger, nullable=False, server_default="0"),
    # It was written by name, and no report has named its inventories: no report removes it.
    Column("made_by_name", Boolean, nullable=False),
    Index(None, "root_id"),
    Index(None, "parent_id"),
    sqlite_autoincrement=True,
    postgresql_with={"fillfactor": 35},
)

# Tombstones of deleted trees, by the public id of the root: a tree's provider rows are deleted with it. The table's name and
# `felled_at` (when the tree was deleted) are older than the word.
tree_tombstones = Table(
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

# Of root providers: the reported place, and the one that an operator has set, which counts before it.
provider_places = Table(
    "provider_places",
    metadata,
    Column("provider_id", InternalId, ForeignKey(providers.c.id), primary_key=True),
    Column("set_by_operator", Boolean, primary_key=True),
    Column("place", String(255), primary_key=True),
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
    # Empty: of all projects. NULL: the API level has not claimed for a member yet.
    Column("project_id", String(255)),
    # As JSON; NULL: none.
    Column("rules", Text),
)

# A row outlives its consumer's holdings, until it is pruned. It may also outlive its host and group, so it has their public
# ids. Its holdings have no foreign keys: on PostgreSQL a check for each provider would cost more than the claim itself.
# Locks keep the rows that it names, and the audit looks for missing ones.
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
    # As JSON: provider's id -> class id -> amount.
    Column("held", Text, nullable=False, server_default="{}"),
    # A migration that has made its instance smaller counts these amounts of its project's quota, as JSON: class -> amount.
    Column("kept", Text),
    sqlite_autoincrement=True,
)
for _name in ("ended_at", "server_group"):
    Index(
        None,
        consumers.c[_name],
        postgresql_where=consumers.c[_name].is_not(None),
        sqlite_where=consumers.c[_name].is_not(None),
    )

# Rows that a release left before any claim: each cell has a bound on them. A swap changes the generation, and nothing else changes it
# of a row that has not ended.
# As text: PostgreSQL uses the index only for a condition without parameters.
TOMBSTONE = text("generation = 0 AND ended_at IS NOT NULL")
Index(
    "ix_consumers_tombstones",
    consumers.c.cell,
    consumers.c.project_id,
    postgresql_where=TOMBSTONE,
    sqlite_where=TOMBSTONE,
)

# The reverse of `held`: which consumers hold something of a provider.
holders = Table(
    "holders",
    metadata,
    Column("provider_id", InternalId, primary_key=True, autoincrement=False),
    Column("consumer_id", InternalId, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
)

# The projects that have a limit. `used` has what all of the project's consumers use, of each class and of instances, also of those
# that are not limited: as JSON, by name. A claim locks the row of its project before all others. Ids grow with each new row, so
# the highest one tells a worker whether the projects that it knows are all.
quotas = Table(
    "quotas",
    metadata,
    _internal_id(),
    Column("project_id", String(255), nullable=False, unique=True),
    Column("limits", Text, nullable=False),
    Column("used", Text, nullable=False),
    sqlite_autoincrement=True,
)

# One row for each write, committed with it. `body` is a LogEntry of store_sql/log.py.
change_log = Table(
    "change_log",
    metadata,
    Column("position", InternalId, Identity(), primary_key=True),
    Column("written_by", TransactionId().with_variant(BigInteger(), "sqlite"), nullable=False, index=True),
    Column("at", Moment, nullable=False),
    Column("body", LargeBinary, nullable=False),
    sqlite_autoincrement=True,
)

# One row: how far the log is published, and in which term. `forgotten` is a cursor, too: how far the log is pruned. A reader
# that has not seen everything up to there cannot be told what changed since.
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


@event.listens_for(feed, "after_create")
def _nothing_published(_: Table, connection: Connection, **__: object) -> None:
    connection.execute(feed.insert().values(id=1, term=0, position=0, cursor=""))
