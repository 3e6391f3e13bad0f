"""What follows from the amounts that consumers hold, for the audit that compares and for the recount that corrects.

To sum over many providers or consumers, the database unfolds their JSON (driver_rows.py) into rows.
"""

import sqlalchemy as sa
from sqlalchemy import Connection, Select, Subquery
from sqlalchemy.dialects.postgresql import JSONB

from placement_worker.store_sql.driver_rows import NOTHING
from placement_worker.tables import consumers, holders, providers


def used_amounts(connection: Connection) -> Subquery:
    """A subquery with the usage of all providers: one row of provider_id, class_id and used for each class."""
    used = _each(connection, providers.c.used, "used_of")
    return (
        sa.select(
            providers.c.id.label("provider_id"),
            _number(used.c.key, "class_id"),
            _number(used.c.value, "used"),
        )
        .join_from(providers, used, sa.true())
        .subquery("used")
    )


def held_amounts(connection: Connection) -> Subquery:
    """A subquery with what all consumers hold, one row for each class of each provider.

    Its columns are consumer_id, provider_id, class_id and amount.
    """
    of_consumer = _each(connection, consumers.c.held, "held_by")
    of_provider = _each(connection, of_consumer.c.value, "held_of")
    return (
        sa.select(
            consumers.c.id.label("consumer_id"),
            _number(of_consumer.c.key, "provider_id"),
            _number(of_provider.c.key, "class_id"),
            _number(of_provider.c.value, "amount"),
        )
        .join_from(consumers, of_consumer, sa.true())
        .join(of_provider, sa.true())
        .subquery("held")
    )


def held_sums(connection: Connection) -> Subquery:
    """A subquery with what consumers hold in all: one row of provider_id, class_id and amount for each class of a provider."""
    held = held_amounts(connection)
    sums = sa.select(held.c.provider_id, held.c.class_id, sa.func.sum(held.c.amount).label("amount"))
    return sums.group_by(held.c.provider_id, held.c.class_id).subquery("sums")


def missing_holders(connection: Connection) -> Select[tuple[int, int]]:
    """The rows that the table of holders lacks: a provider, and a consumer that holds something of it."""
    held = held_amounts(connection)
    pairs = sa.select(held.c.provider_id, held.c.consumer_id).distinct()
    return pairs.outerjoin(holders, _same_pair(held)).where(holders.c.provider_id.is_(None))


def stale_holders(connection: Connection) -> Select[tuple[int, int]]:
    """The rows of the table of holders whose consumer holds nothing of the provider."""
    held = held_amounts(connection)
    pairs = sa.select(holders.c.provider_id, holders.c.consumer_id)
    return pairs.outerjoin(held, _same_pair(held)).where(held.c.provider_id.is_(None))


def _same_pair(held: Subquery) -> sa.ColumnElement[bool]:
    return sa.and_(holders.c.provider_id == held.c.provider_id, holders.c.consumer_id == held.c.consumer_id)


# How many consumers that hold something have each host.
living = (
    sa.select(consumers.c.host, sa.func.count().label("number"))
    .where(consumers.c.held != NOTHING, consumers.c.host.is_not(None))
    .group_by(consumers.c.host)
    .subquery("living")
)


def _each(connection: Connection, column: sa.ColumnElement[str], name: str) -> sa.TableValuedAlias:
    """A SQL expression with one row for each key of the JSON object in this column."""
    if connection.dialect.name == "postgresql":
        each = sa.func.jsonb_each_text(sa.cast(column, JSONB))
    else:
        each = sa.func.json_each(column)
    return each.table_valued(sa.column("key", sa.Text), sa.column("value", sa.Text), name=name)


def _number(text: sa.ColumnElement[str], name: str) -> sa.Label[int]:
    return sa.cast(text, sa.BigInteger).label(name)
