"""Stored amounts (driver_rows.py) as rows: to sum over many providers or consumers, the database unfolds their JSON."""

import sqlalchemy as sa
from sqlalchemy import Connection, Subquery
from sqlalchemy.dialects.postgresql import JSONB

from placement_worker.tables import consumers, providers


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


def _each(connection: Connection, column: sa.ColumnElement[str], name: str) -> sa.TableValuedAlias:
    """A SQL expression with one row for each key of the JSON object in this column."""
    if connection.dialect.name == "postgresql":
        each = sa.func.jsonb_each_text(sa.cast(column, JSONB))
    else:
        each = sa.func.json_each(column)
    return each.table_valued(sa.column("key", sa.Text), sa.column("value", sa.Text), name=name)


def _number(text: sa.ColumnElement[str], name: str) -> sa.Label[int]:
    return sa.cast(text, sa.BigInteger).label(name)
