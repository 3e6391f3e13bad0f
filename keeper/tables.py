"""The keeper's tables, alike on PostgreSQL and SQLite: campaigns with their hosts, movements, questions, budgets, policies, restarts.

Fields by which rows are searched have a column; the whole row is in the body, as JSON. Change a table in two steps, each with its migration: first
expand it, and contract it only in a later release.
"""

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    event,
    text,
)

from kit.sql.statements import Id, Moment

metadata = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"}
)

# One row. A keeper that grants movements or sets a budget locks it before all others, so grants are judged one after the other.
ledger = Table("keeper_ledger", metadata, Column("number", Integer, primary_key=True, autoincrement=False))

campaigns = Table(
    "keeper_campaigns",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", String(255), nullable=False),
    Column("asked_at", Moment, nullable=False),
    # When nothing of it went on any more: a cancelled one is open as long as something moves.
    Column("ended_at", Moment),
    # The keeper that works on it, until when. NULL: none.
    Column("holder", Id),
    Column("held_until", Moment),
    # The last change that no listener may have heard of yet.
    Column("unsaid", Boolean, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index(None, "name"),
    Index(None, "asked_at", "id"),
)
_not_ended = text("ended_at IS NULL")
Index("ix_keeper_campaigns_open", campaigns.c.asked_at, postgresql_where=_not_ended, sqlite_where=_not_ended)

hosts = Table(
    "keeper_hosts",
    metadata,
    Column("campaign", Id, primary_key=True),
    Column("host", Id, primary_key=True),
    Column("turn", Integer, nullable=False),
    Column("stage", String(16), nullable=False),
    Column("is_open", Boolean, nullable=False),
    # When it was last heard, if it is emptied because it is lost.
    Column("lost_at", Moment),
    Column("unsaid", Boolean, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index(None, "campaign", "turn"),
)
_lost = text("lost_at IS NOT NULL")
Index("ix_keeper_hosts_lost", hosts.c.lost_at, postgresql_where=_lost, sqlite_where=_lost)
_open = text("is_open")
# A host is in one campaign at a time.
Index("ix_keeper_hosts_open", hosts.c.host, unique=True, postgresql_where=_open, sqlite_where=_open)

movements = Table(
    "keeper_movements",
    metadata,
    Column("id", Id, primary_key=True),
    Column("campaign", Id, nullable=False),
    Column("instance", Id, nullable=False),
    Column("cell", String(255), nullable=False),
    Column("host", String(255), nullable=False),
    Column("life", String(16), nullable=False),
    Column("is_open", Boolean, nullable=False),
    Column("is_going", Boolean, nullable=False),
    Column("granted_at", Moment),
    Column("ended_at", Moment),
    Column("unsaid", Boolean, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index(None, "campaign", "host", "life"),
    Index(None, "instance"),
    Index(None, "granted_at"),
    Index(None, "ended_at"),
)
# An instance has one movement at a time.
Index(
    "ix_keeper_movements_open", movements.c.instance, unique=True, postgresql_where=_open, sqlite_where=_open
)
_going = text("is_going")
Index("ix_keeper_movements_going", movements.c.campaign, postgresql_where=_going, sqlite_where=_going)
# Questions to persons.
questions = Table(
    "keeper_questions",
    metadata,
    Column("id", Id, primary_key=True),
    # The campaign; the question itself, if it is of none.
    Column("campaign", Id, nullable=False),
    # The host; the campaign, if it is about all that are held.
    Column("host", Id, nullable=False),
    Column("asked_at", Moment, nullable=False),
    Column("is_open", Boolean, nullable=False),
    Column("unsaid", Boolean, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index(None, "campaign"),
    Index(None, "asked_at", "id"),
)
# A host of a campaign is asked about once at a time.
Index(
    "ix_keeper_questions_open",
    *(questions.c.campaign, questions.c.host),
    unique=True,
    postgresql_where=_open,
    sqlite_where=_open,
)
for _table in (campaigns, hosts, movements, questions):
    _unsaid = text("unsaid")
    Index(f"ix_{_table.name}_unsaid", _table.c.unsaid, postgresql_where=_unsaid, sqlite_where=_unsaid)

budgets = Table(
    "keeper_budgets",
    metadata,
    Column("name", String(255), primary_key=True),
    Column("body", LargeBinary, nullable=False),
)
# Guests that died and were started again.
restarts = Table(
    "keeper_restarts",
    metadata,
    Column("instance", Id, primary_key=True),
    Column("at", Moment, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index(None, "at"),
)

policies = Table(
    "keeper_policies",
    metadata,
    Column("scope", String(16), primary_key=True),
    Column("of", String(255), primary_key=True),
    Column("body", LargeBinary, nullable=False),
)


@event.listens_for(ledger, "after_create")
def _one_row(_: Table, connection: Connection, **__: object) -> None:
    connection.execute(ledger.insert().values(number=1))
