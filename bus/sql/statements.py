"""What PostgreSQL and SQLite say differently, for statements that are otherwise written once. Speaks to neither."""

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
    """Is the column one of these? One parameter however many there are, so that the statement stays the same."""
    if connection.dialect.name == "postgresql":
        return column == sa.any_(sa.literal(list(values), postgresql.ARRAY(column.type)))
    texts = [value.hex if isinstance(value, UUID) else value for value in values]
    each = sa.func.json_each(msgspec.json.encode(texts).decode()).table_valued("value")
    return column.in_(sa.select(sa.type_coerce(each.c.value, column.type)))


def insert(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT that can be told what to do on conflict."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def columns_of(rows: Sequence[Sequence[Any]], plain: int, *, ids: int = 0) -> tuple[Any, ...]:
    """Rows as PostgreSQL's `unnest` takes them, a parameter for each column: first so many of ids, then so many that go
    as text, then the others.
    """
    columns = list(zip(*rows, strict=True))
    plain += ids
    return (*map(list, columns[:ids]), *map(array_of, columns[ids:plain]), *map(list, columns[plain:]))


def array_of(column: Sequence[Any]) -> str:
    """An array of numbers, times or plain words as text, for `$1::text::bigint[]`. Of a list asyncpg looks at each element
    in Python, several times as long as msgspec takes to write it. Ids are better left to it, `$1::uuid[]`: PostgreSQL
    reads one out of text for 1.5 µs, four times as long as all else that is done with it.
    """
    return "{" + msgspec.json.encode(column)[1:-1].decode() + "}"
