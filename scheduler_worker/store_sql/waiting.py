"""The list of what waits, and the leases of workers: to try it, and to count the cloud. Rare statements, once for both
databases.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from msgspec import structs
from sqlalchemy import Connection, Row

from bus.messages.build import Size
from bus.messages.moves import WAITS, Change
from engine.flavors import InstanceId, RequestId
from engine.hosts import cell_and_name
from kit.sql import among, insert
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.store_sql.values import ChangeQuery, WaitingInstance
from scheduler_worker.tables import changes as history
from scheduler_worker.tables import instances as rows
from scheduler_worker.tables import waiting as table
from scheduler_worker.tables import waking

_READ = (table.c.id, table.c.digest, table.c.build, table.c.precedence, table.c.since, table.c.needs)
_IN_TURN = (table.c.precedence, table.c.since, table.c.id)
# In one statement. SQLite allows 500.
_LOOKUPS_MAX = 100
# The leases, each a row of this number.
_WAKING, COUNTING = 1, 2


def list_waiting(connection: Connection, rows: Sequence[InstanceRow]) -> None:
    connection.execute(
        insert(connection, table).on_conflict_do_nothing(),
        [
            {
                "id": row.id,
                "precedence": row.turn[0],
                "since": row.turn[1],
                "digest": row.kept.digest,
                "build": row.kept.build,
                "needs": row.kept.needs,
            }
            for row in rows
            if row.kept is not None and row.told.waiting is not None
        ],
    )


def unlist(connection: Connection, instances: Sequence[InstanceId]) -> None:
    connection.execute(sa.delete(table).where(among(connection, table.c.id, instances)))


def lease(
    connection: Connection, holder: UUID, now: datetime, until: datetime, *, number: int = _WAKING
) -> datetime | None:
    row = insert(connection, waking).values(number=number, holder=holder, held_until=until)
    # Clocks differ, but not by as much as a whole lease.
    is_wrong = waking.c.held_until > until + (until - now)
    is_free = sa.or_(waking.c.holder == holder, waking.c.held_until <= now, is_wrong)
    taken = connection.execute(
        row.on_conflict_do_update(
            index_elements=[waking.c.number], set_={"holder": holder, "held_until": until}, where=is_free
        ).returning(waking.c.number)
    )
    if taken.first() is not None:
        return None
    # It may have just ended.
    held_until: datetime | None = connection.scalars(
        sa.select(waking.c.held_until).where(waking.c.number == number)
    ).first()
    return held_until or now


def release_waking(connection: Connection, holder: UUID) -> None:
    connection.execute(sa.delete(waking).where(waking.c.holder == holder))


def next_waiting(connection: Connection, digests: Sequence[bytes], limit: int) -> list[WaitingInstance]:
    query = sa.select(*_READ).where(table.c.digest.in_(digests)).order_by(*_IN_TURN).limit(limit)
    return _read(connection, query.with_for_update(skip_locked=True))


def wake(connection: Connection, instances: Sequence[InstanceId]) -> None:
    connection.execute(sa.update(table).where(among(connection, table.c.id, instances)).values(is_woken=True))


def end_wakes(connection: Connection, instances: Sequence[InstanceId]) -> None:
    tried = among(connection, table.c.id, instances)
    connection.execute(sa.update(table).where(tried).values(is_woken=None))
    # Instances that have ended, for any reason, are not tried again.
    waits = sa.exists().where(rows.c.id == table.c.id, rows.c.due_at.is_not(None))
    connection.execute(sa.delete(table).where(tried, ~waits))


def woken(connection: Connection, limit: int) -> list[WaitingInstance]:
    query = sa.select(*_READ).where(table.c.is_woken.is_not(None)).order_by(*_IN_TURN).limit(limit)
    return _read(connection, query)


def all_digests(connection: Connection) -> list[bytes]:
    return list(connection.scalars(sa.select(table.c.digest).distinct()))


def one_of_each(connection: Connection, digests: Sequence[bytes]) -> list[WaitingInstance]:
    """The first in turn of each. Thousands may wait with one digest, so each is looked up by itself; the lookups of many
    are one statement.
    """
    found: list[WaitingInstance] = []
    for start in range(0, len(digests), _LOOKUPS_MAX):
        lookups = [
            sa.select(
                sa.select(*_READ).where(table.c.digest == digest).order_by(*_IN_TURN).limit(1).subquery()
            )
            for digest in digests[start : start + _LOOKUPS_MAX]
        ]
        found += _read(connection, sa.union_all(*lookups))
    return found


def find_waiting(connection: Connection, instances: Sequence[InstanceId]) -> list[WaitingInstance]:
    return _read(connection, sa.select(*_READ).where(among(connection, table.c.id, instances)))


def some_are_woken(connection: Connection) -> bool:
    found = connection.execute(sa.select(table.c.id).where(table.c.is_woken.is_not(None)).limit(1))
    return found.first() is not None


def _read(connection: Connection, query: sa.Select[Any] | sa.CompoundSelect[Any]) -> list[WaitingInstance]:
    return [
        WaitingInstance(InstanceId(id_), digest, build, (precedence, since), needs)
        for id_, digest, build, precedence, since, needs in connection.execute(query)
    ]


# The history of instances: what was ordered for them, and how it ended.


_encode = msgspec.msgpack.Encoder().encode
_size = msgspec.msgpack.Decoder(Size).decode
_NOT_MOVES = ("rebuild", "delete")
_GOES_ON = (
    history.c.ended_at.is_(None),
    history.c.what.not_in(_NOT_MOVES),
    history.c.outcome != WAITS,
)
# Two arbitrary numbers: "moor", and the purpose. Orders about aggregates have another purpose.
_LOCK = sa.text("SELECT pg_advisory_xact_lock(1836019570, 3)")


# Of an instance that is given orders for ever, the oldest ones are forgotten: an order takes a few numbers.
NUMBERS_KEPT = 20_000


def write_changes(connection: Connection, changes: Sequence[Change]) -> None:
    """Insert these changes into the history, or complete those that are there. The sender, the time and the size of an
    order stay as they were written.
    """
    statement = insert(connection, history)
    new = statement.excluded
    renewed: dict[str, Any] = {
        name: sa.func.coalesce(sa.func.nullif(new[name], ""), history.c[name])
        for name in ("destination", "ended_by", "outcome", "failure")
    }
    for name in ("outcome", "failure"):
        # What is said of a move that waits is not true any more when it begins.
        renewed[name] = sa.case((history.c.outcome == WAITS, new[name]), else_=renewed[name])
    # A resize that waits gets its size when it begins.
    renewed["size"] = sa.func.coalesce(history.c.size, new.size)
    renewed["ended_at"] = sa.func.coalesce(new.ended_at, history.c.ended_at)
    rows = sorted(changes, key=lambda change: (change.instance.int, change.number))
    if old := [each for each in rows if each.number > NUMBERS_KEPT]:
        forgotten = sa.delete(history).where(
            history.c.instance == sa.bindparam("of"), history.c.number <= sa.bindparam("until")
        )
        connection.execute(
            forgotten, [{"of": each.instance, "until": each.number - NUMBERS_KEPT} for each in old]
        )
    connection.execute(
        statement.on_conflict_do_update(index_elements=[*history.primary_key], set_=renewed),
        [_values(change) for change in rows],
    )


def find_changes(connection: Connection, query: ChangeQuery) -> list[Change]:
    found = sa.select(history).limit(query.limit)
    if query.instance is not None:
        found = found.where(history.c.instance == query.instance, history.c.number > query.after)
        found = found.order_by(history.c.number)
    else:
        found = found.where(history.c.what.not_in(_NOT_MOVES)).order_by(
            history.c.asked_at.desc(), history.c.instance
        )
    if query.request_id is not None:
        found = found.where(history.c.request_id == query.request_id)
    if not query.ended:
        found = found.where(history.c.ended_at.is_(None))
    if query.host:
        cell, name = cell_and_name(query.host)
        found = found.where(sa.or_(history.c.source == name, history.c.destination == name))
        found = found.where(history.c.cell == cell) if cell else found
    if (place := query.behind) is not None:
        is_later = sa.and_(history.c.asked_at == place.asked_at, history.c.instance > place.instance)
        found = found.where(sa.or_(history.c.asked_at < place.asked_at, is_later))
    return [_change(row) for row in connection.execute(found)]


def lock_moves(connection: Connection) -> list[Change]:
    if connection.dialect.name == "postgresql":
        # SQLite has one writer at a time.
        connection.execute(_LOCK)
    return [_change(row) for row in connection.execute(sa.select(history).where(*_GOES_ON))]


def count_open_moves(connection: Connection) -> dict[str, int]:
    """The moves that go on, by their kind."""
    counted = (
        sa.select(history.c.what, sa.func.count().label("number")).where(*_GOES_ON).group_by(history.c.what)
    )
    return {row.what: row.number for row in connection.execute(counted)}


def _values(change: Change) -> dict[str, Any]:
    return {**structs.asdict(change), "size": None if change.size is None else _encode(change.size)}


def _change(row: Row[Any]) -> Change:
    values = row._asdict()
    request = values.pop("request_id")
    return Change(
        **{
            **values,
            "instance": InstanceId(row.instance),
            "request_id": None if request is None else RequestId(request),
            "size": None if row.size is None else _size(row.size),
        }
    )
