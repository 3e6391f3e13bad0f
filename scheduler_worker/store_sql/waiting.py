"""The list of what waits, and the leases of workers: to try it, and to count the cloud. Rare statements, once for both
databases.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import Connection

from bus.messages.build import InstanceId
from bus.sql import among, insert
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.store import WaitingInstance
from scheduler_worker.tables import waiting as table
from scheduler_worker.tables import waking

_READ = (table.c.id, table.c.digest, table.c.build)
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
                "precedence": -row.told.waiting.priority,
                "since": row.told.waiting.since or row.issued_at,
                "digest": row.kept.digest,
                "build": row.kept.build,
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


def wake(connection: Connection, instances: Sequence[InstanceId], *, is_woken: bool | None) -> None:
    connection.execute(
        sa.update(table).where(among(connection, table.c.id, instances)).values(is_woken=is_woken)
    )


def woken(connection: Connection, limit: int) -> list[WaitingInstance]:
    query = sa.select(*_READ).where(table.c.is_woken.is_not(None)).order_by(*_IN_TURN).limit(limit)
    return _read(connection, query)


def digests_of(connection: Connection, instances: Collection[InstanceId] | None) -> list[bytes]:
    query = sa.select(table.c.digest).group_by(table.c.digest)
    if instances is not None:
        query = query.where(among(connection, table.c.id, list(instances)))
    return list(connection.scalars(query))


def one_of_each(connection: Connection, digests: Sequence[bytes]) -> list[WaitingInstance]:
    """Thousands may wait with one digest, so each is looked up by itself; the lookups of many are one statement."""
    found: list[WaitingInstance] = []
    for start in range(0, len(digests), _LOOKUPS_MAX):
        lookups = [
            sa.select(sa.select(*_READ).where(table.c.digest == digest).limit(1).subquery())
            for digest in digests[start : start + _LOOKUPS_MAX]
        ]
        found += _read(connection, sa.union_all(*lookups))
    return found


def some_are_woken(connection: Connection) -> bool:
    found = connection.execute(sa.select(table.c.id).where(table.c.is_woken.is_not(None)).limit(1))
    return found.first() is not None


def _read(connection: Connection, query: sa.Select[Any] | sa.CompoundSelect[Any]) -> list[WaitingInstance]:
    return [
        WaitingInstance(InstanceId(id_), digest, build) for id_, digest, build in connection.execute(query)
    ]
