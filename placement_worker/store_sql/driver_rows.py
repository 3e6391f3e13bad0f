"""Statements that are sent to the drivers directly, on hot paths, and values as they are stored. SQLAlchemy's row objects cost
as much as the query itself.

Amounts by resource class are compact JSON in one column: the usage of a provider, or what a consumer holds. With a table row
for each class, every claim would have to find and write several rows.
"""

import re
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from bus.sql import PostgresTransaction, SqliteTransaction, Transaction, array_of

# SQLite's words for PostgreSQL's. Its lists are JSON; it looks rows up by their keys without being told; and its writer has
# the file for itself, so it needs no locks.
_FOR_SQLITE = (
    (r"= ANY ?\(\$1::text::\w+\[\]\)", "IN (SELECT value FROM json_each(?))"),
    (r"= ANY ?\(ARRAY\[(.*?)\]\)", r"= \1"),
    (r"FOR (NO KEY )?UPDATE", ""),
    (r"\bjson_agg\b", "json_group_array"),
    (r"::text\b", ""),
)

_encode = msgspec.json.Encoder(uuid_format="hex").encode


class Statement(NamedTuple):
    """One statement in PostgreSQL's SQL and in SQLite's.

    Its parameter is a list of internal or public ids.
    """

    on_postgresql: str
    on_sqlite: str


def portable(on_postgresql: str) -> Statement:
    on_sqlite = on_postgresql
    for theirs, ours in _FOR_SQLITE:
        on_sqlite = re.sub(theirs, ours, on_sqlite)
    return Statement(on_postgresql, on_sqlite)


async def rows_of(
    transaction: Transaction, statement: Statement, values: Collection[int] | Collection[UUID]
) -> Sequence[Any]:
    """Run this statement with a list of values, and return its rows; no rows if the list is empty."""
    if not values:
        return ()
    if isinstance(transaction, PostgresTransaction):
        return await transaction.fetch(statement.on_postgresql, array_of([*values]))
    assert isinstance(transaction, SqliteTransaction), "there are two databases"
    return await transaction.fetch(statement.on_sqlite, _encode([*values]).decode())


def id_of(found: UUID | str) -> UUID:
    """An id as a plain UUID, from what a driver returned: SQLite has text, asyncpg a type of its own.

    asyncpg's type is slower to hash and to compare.
    """
    return UUID(found) if isinstance(found, str) else UUID(int=found.int)


# Amounts

NOTHING = "{}"

# Class's id -> amount.
Used = dict[int, int]
# Provider's id -> class's id -> amount.
Held = dict[int, dict[int, int]]

_encode_amounts = msgspec.json.Encoder().encode
decode_used = msgspec.json.Decoder(Used).decode
decode_held = msgspec.json.Decoder(Held).decode


def encode_amounts(amounts: Used | Held) -> str:
    return _encode_amounts(amounts).decode()
