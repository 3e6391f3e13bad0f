"""Hot statements on batches of rows, made for both databases from one description of a row's columns.

PostgreSQL takes a batch as one array for each column, in one statement. SQLite runs the statement once for each row, and
takes a list of keys as JSON. The types are those of the worker's `tables.py`.

Expressions name a value of the batch `new.COLUMN`, and a value of the stored row `kept.COLUMN`. A statement that the two
databases need in different words has both texts, and says why. It takes its parameters from a description, too.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Column, Connection, Table

from kit.sql.postgresql import PostgresTransaction
from kit.sql.sqlite import Transaction, driver_of
from kit.sql.statements import Moment, array_of

# The values of one row, one for each column.
Values = Sequence[Any]
# A batch for a statement that has only shared values.
ONCE: Sequence[Values] = ((),)
# Which values of a row from SQLite need to be decoded, by their places, and how.
Decoders = Sequence[tuple[int, Callable[[Any], Any]]]

# The types in PostgreSQL. They have no lengths: a cast to a length would cut a longer text instead of refusing it.
_TYPES = (
    (sa.Uuid, "uuid"),
    (sa.LargeBinary, "bytea"),
    (Moment, "timestamptz"),
    (sa.Boolean, "boolean"),
    (sa.BigInteger, "bigint"),
    (sa.Integer, "int"),
    (sa.String, "text"),
)
# SQLite stores these as texts and numbers.
_DECODERS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (sa.Uuid, UUID),
    (Moment, datetime.fromisoformat),
    (sa.Boolean, bool),
)

_NEW = re.compile(r"\bnew\.(\w+)")
_json = msgspec.json.Encoder(uuid_format="hex").encode
_number_of = attrgetter("int")


class RowColumns:
    """The columns of a row, in the order of its values: the parameters or the result of statements.

    The `shared` columns have one value for a whole batch. A text of `free_texts` may contain any character; other texts are
    plain words, which take less time. A column that is not in the table is given as a `Column`.
    """

    def __init__(
        self,
        table: Table,
        *columns: str | Column[Any],
        shared: Sequence[str] = (),
        free_texts: Sequence[str] = (),
    ) -> None:
        self._table = table
        self._shared = tuple(shared)
        self._columns = [table.c[each] if isinstance(each, str) else each for each in columns]
        self._own = [column.name for column in self._columns]
        self._names = [*shared, *self._own]
        as_lists = [_is_list(column) or column.name in free_texts for column in self._columns]
        self._encoders = [
            _encoder(column, as_list=as_list) for column, as_list in zip(self._columns, as_lists, strict=True)
        ]
        # The parameters of all columns, on SQLite and on PostgreSQL.
        self._on_sqlite = {name: f"?{place}" for place, name in enumerate(self._names, 1)}
        self._constants = {name: f"${place}" for place, name in enumerate(shared, 1)}
        self._arrays = {
            column.name: f"${place}{'' if as_list else '::text'}::{_type(column)}[]"
            for place, (column, as_list) in enumerate(
                zip(self._columns, as_lists, strict=True), len(shared) + 1
            )
        }

    @property
    def new(self) -> str:
        """The batch as a table on PostgreSQL, for a FROM clause."""
        return f"unnest({', '.join(self._arrays.values())}) AS new ({', '.join(self._own)})"

    def insert(self, ending: str = "", *, returning: Sequence[str] = (), **instead: str) -> "RowStatement":
        """INSERT these rows. `instead` has other expressions for the values of columns."""
        into = f"INSERT INTO {self._table.name} ({', '.join(self._names)})"
        values = ", ".join(instead.get(name, f"new.{name}") for name in self._names)
        ending = ending and f" {ending}"
        # In the select list the arrays are read side by side; in FROM each would first be copied, row by row.
        unnested = {name: f"unnest({array})" for name, array in self._arrays.items()}
        return self._writing(
            f"{into} SELECT {_with(values, self._constants | unnested)}{ending}{_returning(returning)}",
            f"{into} VALUES ({_with(values, self._on_sqlite)}){ending}",
            returning,
        )

    def update(self, also: str = "", *, returning: Sequence[str] = (), **instead: str) -> "RowStatement":
        """UPDATE the stored rows that have the ids of these, and the shared values that are in the table's key. The id is the
        first column.

        A row is written if the condition `also` holds. The other columns get the new values. `instead` has other
        expressions, and those for further columns.
        """
        key, *others = self._own
        shared_keys = [name for name in self._shared if self._table.c[name].primary_key]
        assert all(isinstance(self._table.c[name].type, sa.String) for name in shared_keys), (
            "compared by `|| ''`"
        )
        written = {name: f"new.{name}" for name in others} | instead
        setting = ", ".join(f"{name} = {value}" for name, value in written.items())
        update = f"UPDATE {self._table.name} AS kept SET {setting}"
        also = also and f" AND {also}"
        # The ids are looked up one after the other: rows are locked in the order of the batch (kit/sql/postgresql.py).
        # A shared value, compared as an expression, does not lead PostgreSQL to another index that begins with its column.
        same = "".join(f" AND kept.{name} || '' = new.{name}" for name in shared_keys)
        on_postgresql = f"{update} FROM {self.new} WHERE kept.{key} = ANY (ARRAY[new.{key}]){same}{also}"
        # SQLite must know that it is one row at most: else it copies each page first, in case that a later row fails.
        same = "".join(f" AND kept.{name} = new.{name}" for name in shared_keys)
        on_sqlite = f"{update} WHERE kept.{key} = new.{key}{same}{also}"
        return self._writing(
            _with(on_postgresql, self._constants) + _returning([f"kept.{name}" for name in returning]),
            _with(on_sqlite, self._on_sqlite),
            returning,
        )

    def statement(self, on_postgresql: str, on_sqlite: str, returning: Sequence[str] = ()) -> "RowStatement":
        """A statement in different words for the two databases, with these columns as its parameters."""
        return RowStatement(on_postgresql, on_sqlite, self._decoders(returning), self._encoders)

    def lock(self, key: str = "id") -> "KeyStatement":
        """SELECT these columns FOR UPDATE, by keys and by the shared columns.

        Rows are locked in the order of their keys, as everywhere, so that transactions cannot deadlock.
        """
        names, table = ", ".join(self._own), self._table.name
        shared = "".join(f"{name} = ${place} AND " for place, name in enumerate(self._shared, 1))
        keys, type_ = f"${len(self._shared) + 1}", _type(self._table.c[key])
        # Each row is looked up by its key alone. Otherwise PostgreSQL may choose, while the table is small, to walk all
        # rows, and keep that plan (measured: 2 to 6 ms a boot).
        on_postgresql = (
            f"SELECT {', '.join(f'kept.{name}' for name in self._own)}"
            f" FROM unnest({keys}::{type_}[]) AS named ({key})"
            f" CROSS JOIN LATERAL (SELECT {names} FROM {table} WHERE {shared}{key} = named.{key} FOR UPDATE) AS kept"
        )
        # A writer has the file to itself, so rows that it reads are locked.
        on_sqlite = (
            f"SELECT {names} FROM {table}"
            f" WHERE {shared}{key} IN (SELECT value FROM json_each({keys})) ORDER BY {key}"
        )
        return KeyStatement(
            on_postgresql,
            on_sqlite.replace("$", "?"),
            self._decoders(self._own),
            _number_of if type_ == "uuid" else None,
        )

    def delete_unlocked(self, key: str) -> "KeyStatement":
        """DELETE the rows with these keys, and return these columns. A row that another process is deleting now counts as
        deleted.
        """
        table, type_ = self._table.name, _type(self._table.c[key])
        unlocked = f"SELECT {key} FROM {table} WHERE {key} = ANY($1::{type_}[]) FOR UPDATE SKIP LOCKED"
        returning = _returning(self._own)
        return KeyStatement(
            f"DELETE FROM {table} WHERE {key} = ANY(ARRAY({unlocked})){returning}",
            f"DELETE FROM {table} WHERE {key} IN (SELECT value FROM json_each(?1)){returning}",
            self._decoders(self._own),
            _number_of if type_ == "uuid" else None,
        )

    def _writing(self, on_postgresql: str, on_sqlite: str, returning: Sequence[str]) -> "RowStatement":
        if [*returning] != self._own[:1]:
            return self.statement(on_postgresql, on_sqlite + _returning(returning), returning)
        # SQLite counts whether it has written a row. To return its id would double the cost of a small row.
        return RowStatement(on_postgresql, on_sqlite, (), self._encoders, key_place=len(self._shared))

    def _decoders(self, names: Sequence[str]) -> Decoders:
        types = [self._table.c[name].type for name in names]
        return [
            (place, decode)
            for place, type_ in enumerate(types)
            for kind, decode in _DECODERS
            if isinstance(type_, kind)
        ]


class _Statement(Struct, frozen=True):
    on_postgresql: str
    on_sqlite: str
    decoders: Decoders

    def decoded(self, found: Sequence[Values]) -> Sequence[Values]:
        """Rows from SQLite with the values that PostgreSQL would give."""
        if not self.decoders:
            return found
        rows = [list(row) for row in found]
        for place, decode in self.decoders:
            for row in rows:
                if row[place] is not None:
                    row[place] = decode(row[place])
        return rows


class RowStatement(_Statement, frozen=True):
    """A statement on a batch of rows. The values of shared columns follow the rows."""

    encoders: Sequence[Callable[[Values], Any]]
    # For a statement that only returns the ids of the rows that were written: the place of the id on SQLite.
    key_place: int | None = None

    async def change(self, transaction: Transaction, rows: Sequence[Values], *shared: Any) -> int:
        """Returns how many rows were changed."""
        if not rows:
            return 0
        if isinstance(transaction, PostgresTransaction):
            return await transaction.change(self.on_postgresql, *shared, *self.arrays(rows))
        return await transaction.change(self.on_sqlite, [(*shared, *row) for row in rows] if shared else rows)

    async def fetch(self, transaction: Transaction, rows: Sequence[Values], *shared: Any) -> Sequence[Values]:
        """Returns the rows of the result."""
        if not rows:
            return ()
        if isinstance(transaction, PostgresTransaction):
            return await transaction.fetch(self.on_postgresql, *shared, *self.arrays(rows))
        return await transaction.run(self._fetch_each, [(*shared, *row) for row in rows])

    def arrays(self, rows: Sequence[Values]) -> list[Any]:
        """The rows as PostgreSQL gets them: an array for each column."""
        columns: Iterable[Values] = zip(*rows, strict=True) if rows else [()] * len(self.encoders)
        return [encode(column) for encode, column in zip(self.encoders, columns, strict=True)]

    def _fetch_each(self, connection: Connection, rows: Sequence[Values]) -> Sequence[Values]:
        run = driver_of(connection).execute
        if (key := self.key_place) is not None:
            return [(row[key],) for row in rows if run(self.on_sqlite, row).rowcount]
        return self.decoded([found for row in rows for found in run(self.on_sqlite, row).fetchall()])


class KeyStatement(_Statement, frozen=True):
    """A statement on the rows with certain keys. The values of shared columns follow the keys."""

    order: Callable[[Any], int] | None

    async def fetch(
        self,
        transaction: Transaction,
        keys: Collection[UUID] | Collection[int] | Collection[str],
        *shared: Any,
    ) -> Sequence[Values]:
        """Returns the rows of the result."""
        if not keys:
            return ()
        if isinstance(transaction, PostgresTransaction):
            return await transaction.fetch(self.on_postgresql, *shared, sorted(keys, key=self.order))
        return self.decoded(await transaction.fetch(self.on_sqlite, *shared, _json([*keys]).decode()))


def _with(sql: str, parameters: Mapping[str, str]) -> str:
    """The statement with parameters in place of the new values. Values that are no parameters stay as they are."""
    return _NEW.sub(lambda found: parameters.get(found[1], found[0]), sql)


def _returning(names: Sequence[str]) -> str:
    return f" RETURNING {', '.join(names)}" if names else ""


def _type(column: Column[Any]) -> str:
    return next(name for kind, name in _TYPES if isinstance(column.type, kind))


def _is_list(column: Column[Any]) -> bool:
    """Whether asyncpg gets a list. A text would double the size of bytes, and PostgreSQL reads ids from text slowly."""
    return isinstance(column.type, (sa.Uuid, sa.LargeBinary))


def _encoder(column: Column[Any], *, as_list: bool) -> Callable[[Values], Any]:
    encode, empty = (tuple, ()) if as_list else (array_of, "{}")
    if not column.nullable:
        return encode
    # An empty array stands for NULL in each row: `unnest` fills it up.
    return lambda values: empty if values.count(None) == len(values) else encode(values)
