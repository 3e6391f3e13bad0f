"""Differences between PostgreSQL and SQLite, for statements that are otherwise written once. Connects to neither."""

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def among(
    connection: Connection, column: sa.ColumnElement[Any], values: Collection[Any]
) -> sa.ColumnElement[bool]:
    """An SQL condition: the column has one of these values.

    All values are one parameter of the statement, so the text of the statement is the same for any number of values.
    """
    if connection.dialect.name == "postgresql":
        return column == sa.any_(sa.literal(list(values), postgresql.ARRAY(column.type)))
    texts = [value.hex if isinstance(value, UUID) else value for value in values]
    each = sa.func.json_each(msgspec.json.encode(texts).decode()).table_valued("value")
    return column.in_(sa.select(sa.type_coerce(each.c.value, column.type)))


def begins_with(column: sa.ColumnElement[UUID], prefix: str) -> sa.ColumnElement[bool]:
    """An SQL condition: the id begins with these hexadecimal digits. It is a range, so an index finds it."""
    return column.between(UUID(prefix.ljust(32, "0")), UUID(prefix.ljust(32, "f")))


def insert(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT into this table in the database's dialect, which supports ON CONFLICT."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def columns_of(rows: Sequence[Sequence[Any]], plain: int) -> tuple[Any, ...]:
    """Turn rows into columns for PostgreSQL's `unnest`: one parameter of the statement for each column.

    The first `plain` columns become text (`array_of`), all further columns lists.
    """
    columns = list(zip(*rows, strict=True))
    return (*map(array_of, columns[:plain]), *map(list, columns[plain:]))


def array_of(column: Sequence[Any]) -> str:
    """Encode numbers, times or plain words as the text of a PostgreSQL array, for a parameter `$1::text::bigint[]`.

    asyncpg would encode each element of a list in Python, which takes several times as long as msgspec. Ids are better
    sent as lists, for a parameter `$1::uuid[]`: PostgreSQL needs 1.5 µs to parse an id from text, four times as long as
    everything else it does with the id.
    """
    return "{" + msgspec.json.encode(column)[1:-1].decode() + "}"
