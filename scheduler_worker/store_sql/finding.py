"""Which instances a question finds, and in which order: whatever it asks for, it reads a bounded number of rows.

A page is read in one of two ways. If a condition of the question has an index, and few rows fulfil it, these rows are read and sorted.
Otherwise rows are read in the order of the question, by the index of this order, and those that fulfil the other conditions make the
page. It ends after `read_max` rows, and says where to go on, even if it is not full.

So each index serves two questions, and none is there for a filter alone: an index by state would cost every boot more than all questions
cost (scheduler_worker/tables.py).
"""

import re
from collections.abc import Iterator, Sequence
from string import ascii_lowercase, ascii_uppercase
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from engine.hosts import cell_and_name
from kit.sql import among, begins_with
from scheduler_worker.core.instances.rows import LIVING, STOPPED
from scheduler_worker.store_sql.values import InstanceQuery
from scheduler_worker.tables import BY_ITSELF, changes
from scheduler_worker.tables import instances as table

# The characters of a name that count for the order. With a cell, a host and an id it must fit into an entry of an index, which PostgreSQL limits to 2,700 bytes.
SORTED_CHARACTERS_MAX = 100
# How many instances are read at most to count those that have a flavor or an image: each is decoded.
DECODED_MAX = 1000

_DIGITS = re.compile("[0-9]+")
_SMALL = str.maketrans(ascii_uppercase, ascii_lowercase)
_PLACES = {
    "id": (table.c.id,),
    "age": (table.c.request_id, table.c.place),
    "name": (table.c.name_order, table.c.id),
    "host": (table.c.cell, table.c.host, table.c.name_order, table.c.id),
}
# PostgreSQL takes a scan of the whole table for cheaper than some thousand rows by an index, and sorts it.
_BY_INDEX = sa.text(
    "SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)"
)

_encode = msgspec.msgpack.Encoder().encode
# Of the table, or of a query of its rows.
Columns = sa.sql.base.ReadOnlyColumnCollection[str, Any]


def _placed(order: str, columns: Columns) -> Sequence[sa.ColumnElement[bool]]:
    """The conditions of the rows that have a place in this order."""
    return {
        "id": (),
        "age": (columns.request_id.is_not(None),),
        "name": (columns.name_order.is_not(None),),
        "host": (columns.ended_at.is_(None), columns.name_order.is_not(None)),
    }[order]


def name_order(name: str) -> str:
    """The name as it sorts byte by byte: without capitals, and with the length of each number before it."""
    sorted_ = _DIGITS.sub(lambda found: _number(found[0].lstrip("0")), name.casefold())
    return sorted_[:SORTED_CHARACTERS_MAX]


def _number(digits: str) -> str:
    # 9 means that further digits of the length follow.
    longer, rest = divmod(len(digits), 9)
    return f"{'9' * longer}{rest}{digits}"


class _Source(NamedTuple):
    """Conditions of a question that one index fulfils. In the `orders` that the index has, it is read from any place."""

    conditions: tuple[sa.ColumnElement[bool], ...]
    orders: tuple[str, ...] = ()
    is_small: bool = False


class RowsRead(NamedTuple):
    """A page of rows. `next` is the id behind which the next one begins; None on the last page."""

    rows: Sequence[sa.Row[Any]]
    next: Any


def read_page(
    connection: Connection, query: InstanceQuery, columns: Sequence[sa.Column[Any]]
) -> RowsRead | None:
    """A page of the rows that the question finds. Those that have another flavor or image may be among them (`_may_have`).

    None if the row of its `after` is not there.
    """
    place = _place_of(connection, query)
    if query.after is not None and place is None:
        return None
    source = _source_for_order(connection, query)
    is_walked = source is None or query.order in source.orders
    walk = sa.select(table).where(
        *_placed(query.order, table.c), *(() if source is None else source.conditions)
    )
    if is_walked:
        walk = _from_place(walk, query, place, table.c)
    read = walk.limit(query.read_max).subquery()
    page = sa.select(*[read.c[each.name] for each in columns]).where(*_filters(connection, query, read.c))
    # Rows that are walked come in their order.
    page = page if is_walked else _from_place(page, query, place, read.c)
    rows = connection.execute(page.limit(query.limit + 1)).all()
    if len(rows) > query.limit:
        return RowsRead(rows[: query.limit], rows[query.limit - 1].id)
    if not is_walked or (source is not None and source.is_small):
        return RowsRead(rows, None)
    last_read = walk.with_only_columns(table.c.id).offset(query.read_max - 1).limit(1)
    return RowsRead(rows, connection.scalar(last_read))


def count_rows(connection: Connection, query: InstanceQuery) -> tuple[int, bool]:
    """How many rows the question finds, among those that it may read; and whether there are rows that were not read.

    As in `read_page`, rows that have another flavor or image may be counted.
    """
    read = _read_for_count(connection, query)
    conditions = (*_placed(query.order, read.c), *_filters(connection, query, read.c))
    found = sa.func.count().filter(sa.and_(sa.true(), *conditions))
    in_all, count = connection.execute(sa.select(sa.func.count(), found).select_from(read)).one()
    return min(count, query.read_max), in_all > query.read_max


def rows_to_count(
    connection: Connection, query: InstanceQuery, columns: Sequence[sa.Column[Any]]
) -> Sequence[sa.Row[Any]]:
    """The first of the rows that `count_rows` counts, and one more than are read at most."""
    read = _read_for_count(connection, query)
    conditions = (*_placed(query.order, read.c), *_filters(connection, query, read.c))
    found = sa.select(*[read.c[each.name] for each in columns]).where(*conditions)
    return connection.execute(found.limit(DECODED_MAX + 1)).all()


def _read_for_count(connection: Connection, query: InstanceQuery) -> sa.Subquery:
    source = next(_sources(connection, query), None)
    read = sa.select(table).where(*(() if source is None else source.conditions))
    if source is None and query.order == "host":
        # By its index, which leaves out the deleted ones: there may be many.
        read = read.where(*_placed("host", table.c)).order_by(*_PLACES["host"])
    return read.limit(query.read_max + 1).subquery()


def _place_of(connection: Connection, query: InstanceQuery) -> Sequence[Any] | None:
    """The values of the order's columns in the row behind which the page begins; None if it is the first page."""
    if query.after is None or query.order == "id":
        return None if query.after is None else (query.after,)
    return connection.execute(sa.select(*_PLACES[query.order]).where(table.c.id == query.after)).first()


def _from_place(
    rows: sa.Select[Any], query: InstanceQuery, place: Sequence[Any] | None, columns: Columns
) -> sa.Select[Any]:
    """These rows from behind this place on, in the order of the question."""
    by = [columns[each.name] for each in _PLACES[query.order]]
    if place is not None:
        here = sa.tuple_(*[sa.literal(value, each.type) for value, each in zip(place, by, strict=True)])
        rows = rows.where(sa.tuple_(*by) < here if query.backwards else sa.tuple_(*by) > here)
    return rows.order_by(*[each.desc() if query.backwards else each for each in by])


def _source_for_order(connection: Connection, query: InstanceQuery) -> _Source | None:
    """The index that the page is read by: one with few rows, or one that has them in the order of the question."""
    for source in _sources(connection, query):
        if source.is_small or query.order in source.orders:
            return source
        beyond = sa.select(table.c.id).where(*source.conditions).offset(query.read_max).limit(1)
        if connection.scalar(beyond) is None:
            return source
    return None


def _sources(connection: Connection, query: InstanceQuery) -> Iterator[_Source]:
    """The indexes by which the question may be read, those that usually find fewest rows first."""
    yield from _small_sources(connection, query)
    if connection.dialect.name == "postgresql":
        connection.execute(_BY_INDEX)
    if query.host:
        yield _on_host(connection, query.host)
    if query.id_prefix:
        yield _Source((begins_with(table.c.id, query.id_prefix),), ("id",))
    if query.request_prefix:
        yield _Source((begins_with(table.c.request_id, query.request_prefix),), ("age",))
    if query.name:
        yield _Source((table.c.name_order == name_order(query.name), table.c.name == query.name), ("name",))
    if query.project:
        yield _Source((table.c.project == query.project,), ("id",))
    if query.cell and query.order == "host":
        yield _Source((table.c.cell == query.cell,), ("host",))


def _small_sources(connection: Connection, query: InstanceQuery) -> Iterator[_Source]:
    """Those that have few rows, whatever else is asked for."""
    if query.instances:
        yield _Source((among(connection, table.c.id, query.instances),), ("id",), is_small=True)
    if query.request_id is not None:
        yield _Source((table.c.request_id == query.request_id,), ("age",), is_small=True)
    if query.died:
        by_themselves = sa.select(changes.c.instance).where(BY_ITSELF)
        yield _Source((table.c.id.in_(by_themselves), table.c.state == STOPPED), ("id",), is_small=True)


def _on_host(connection: Connection, host: str) -> _Source:
    cell, name = cell_and_name(host)
    there = (table.c.host == name, table.c.ended_at.is_(None))
    if cell:
        return _Source((table.c.cell == cell, *there), ("host",))
    return _Source((among(connection, table.c.cell, _cells(connection)), *there))


def _cells(connection: Connection) -> Sequence[str]:
    """The cells of instances, each found by one step in the index by host."""
    found: list[str] = []
    cells = sa.select(table.c.cell).where(table.c.ended_at.is_(None)).order_by(table.c.cell).limit(1)
    while (cell := connection.scalar(cells.where(table.c.cell > (found[-1] if found else "")))) is not None:
        found.append(cell)
    return found


def _filters(
    connection: Connection, query: InstanceQuery, columns: Columns
) -> Iterator[sa.ColumnElement[bool]]:
    yield columns.request_id.is_not(None)
    for column, value in (
        (columns.request_id, query.request_id),
        (columns.state, query.state or (STOPPED if query.died else "")),
        (columns.cell, query.cell),
        (columns.project, query.project),
        (columns.name, query.name),
    ):
        if value:
            yield column == value
    for column, prefix in ((columns.id, query.id_prefix), (columns.request_id, query.request_prefix)):
        if prefix:
            yield begins_with(column, prefix)
    if query.living:
        yield columns.ended_at.is_(None)
    if query.host:
        cell, name = cell_and_name(query.host)
        yield sa.and_(columns.host == name, columns.state.in_(LIVING))
        if cell:
            yield columns.cell == cell
    position = sa.func.pg_catalog.position if connection.dialect.name == "postgresql" else sa.func.instr
    if query.part:
        # On both databases and in every locale only the capitals of ASCII are like small letters.
        name = columns.name.collate("C") if connection.dialect.name == "postgresql" else columns.name
        yield sa.func.lower(name).contains(query.part.translate(_SMALL), autoescape=True)
    for named in filter(None, (query.flavor, query.image)):
        # A row has no column for it, but its name is somewhere in the values that the row keeps of its request and of a resize.
        word = sa.literal(_encode(named), sa.LargeBinary)
        has_it = (position(each, word) > 0 for each in (columns.given, columns.progress))
        yield sa.or_(*has_it)
