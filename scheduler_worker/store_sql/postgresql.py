"""The hot statements on PostgreSQL, by asyncpg: each takes a batch as arrays, one array for each column.

asyncpg encodes each element of a list in Python, which takes several times as long as msgspec needs to write it. So
numbers, times and short texts are passed as the text of an array.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from bus.sql import PostgresTransaction, array_of
from scheduler_worker.store_sql.rows import COLUMNS, HEARD, WRITTEN, Values

# Columns that are passed as lists: text would double the size of packs, and PostgreSQL reads ids from text slowly.
_IDS = ("id", "request_id")
_PACKS = ("project", "given", "place_order", "troubles")

# In the select list the arrays are read side by side; in FROM each would be copied first, row by row.
_ADD = """
INSERT INTO requested_instances (id, request_id, place, project, given, state, sequence, heard, cell, host, attempt, changed_at,
                                 due_at, ended_at, unsaid, place_order, troubles)
SELECT unnest($1::uuid[]), unnest($2::uuid[]), unnest($3::text::int[]), unnest($4::text[]),
       unnest($5::bytea[]), unnest($6::text::text[]), unnest($7::text::bigint[]), unnest($8::text::bigint[]),
       unnest($9::text::text[]), unnest($10::text::text[]), unnest($11::text::bigint[]),
       unnest($12::text::timestamptz[]), unnest($13::text::timestamptz[]), unnest($14::text::timestamptz[]),
       unnest($15::text::bigint[]), unnest($16::bytea[]), unnest($17::bytea[])
ON CONFLICT DO NOTHING
"""
# The ids of the array are looked up one after the other, so rows are locked in its order.
_WRITE = """
UPDATE requested_instances
SET state = new.state, sequence = new.sequence, heard = new.heard, cell = new.cell, host = new.host,
    attempt = new.attempt, changed_at = new.changed_at, due_at = new.due_at, ended_at = new.ended_at,
    unsaid = new.unsaid, place_order = new.place_order, troubles = new.troubles
FROM unnest($1::uuid[], $2::text::text[], $3::text::bigint[], $4::text::bigint[], $5::text::text[],
            $6::text::text[], $7::text::bigint[], $8::text::timestamptz[], $9::text::timestamptz[],
            $10::text::timestamptz[], $11::text::bigint[], $12::bytea[], $13::bytea[])
     AS new (id, state, sequence, heard, cell, host, attempt, changed_at, due_at, ended_at, unsaid, place_order,
             troubles)
WHERE requested_instances.id = ANY (ARRAY[new.id])
"""
_DECIDE = _WRITE + " AND requested_instances.state = 'accepted'"
# `heard` in core/instances/lifecycle.py is this step for one row; the number is its SEQUENCE_AHEAD_MAX.
_APPLY_EVENTS = """
UPDATE requested_instances
SET state = 'active', sequence = new.sequence, heard = new.sequence, host = new.host, attempt = new.attempt,
    changed_at = new.changed_at, unsaid = NULL, place_order = NULL
FROM unnest($1::uuid[], $2::text::text[], $3::text::bigint[], $4::text::text[], $5::text::bigint[],
            $6::text::timestamptz[])
     AS new (id, cell, sequence, host, attempt, changed_at)
WHERE requested_instances.id = ANY (ARRAY[new.id]) AND requested_instances.state = 'placed'
    AND requested_instances.cell = new.cell
    AND requested_instances.sequence < new.sequence AND requested_instances.heard < new.sequence
    AND new.sequence <= requested_instances.sequence + 1000000
"""
_LOCK = """
SELECT id, request_id, project, given, state, sequence, heard, cell, host, attempt, changed_at, unsaid, NULL, troubles
FROM requested_instances
WHERE id = ANY($1::uuid[])
ORDER BY id::text COLLATE "C" FOR UPDATE
"""
_LOCK_STORED = """
SELECT id, request_id, project, given, state, sequence, heard, cell, host, attempt, changed_at, unsaid, place_order, troubles
FROM requested_instances
WHERE id = ANY($1::uuid[]) OR request_id = ANY($2::uuid[])
ORDER BY id::text COLLATE "C" FOR UPDATE
"""
_FORGET = "DELETE FROM requested_instances WHERE id = ANY($1::uuid[])"
# Placed rows are left out: the event of their cell confirms them.
_CONFIRM = """
UPDATE requested_instances SET unsaid = NULL
FROM unnest($1::uuid[], $2::text::bigint[]) AS said (id, sequence)
WHERE requested_instances.id = ANY (ARRAY[said.id]) AND requested_instances.unsaid <= said.sequence
"""
_NOTE = """
INSERT INTO request_notes (at, placed, others)
SELECT * FROM unnest($1::text::timestamptz[], $2::bytea[], $3::bytea[])
RETURNING number
"""
# A note that another process is deleting need not be waited for.
_DROP = """
DELETE FROM request_notes WHERE number = ANY(
    ARRAY(SELECT number FROM request_notes WHERE number = ANY($1::bigint[]) FOR UPDATE SKIP LOCKED)
)
RETURNING others
"""


class PostgresInstances:
    """The statements on instances in one transaction. Those that change rows return how many."""

    def __init__(self, transaction: PostgresTransaction) -> None:
        self._transaction = transaction

    async def add(self, rows: Sequence[Values]) -> int:
        return await self._transaction.change(_ADD, *_columns(COLUMNS, rows))

    async def write(self, rows: Sequence[Values]) -> int:
        return await self._transaction.change(_WRITE, *_columns(WRITTEN, rows))

    async def decide(self, rows: Sequence[Values]) -> int:
        return await self._transaction.change(_DECIDE, *_columns(WRITTEN, rows))

    async def apply_events(self, events: Sequence[Values]) -> int:
        return await self._transaction.change(_APPLY_EVENTS, *_columns(HEARD, events))

    async def lock(self, ids: Sequence[UUID]) -> Sequence[Values]:
        return await self._transaction.fetch(_LOCK, ids)

    async def lock_stored(self, ids: Sequence[UUID], requests: Sequence[UUID]) -> Sequence[Values]:
        return await self._transaction.fetch(_LOCK_STORED, ids, requests)

    async def forget(self, ids: Sequence[UUID]) -> int:
        return await self._transaction.change(_FORGET, ids)

    async def note(self, notes: Sequence[Values]) -> Sequence[int]:
        at, placed, others = zip(*notes, strict=True)
        found = await self._transaction.fetch(_NOTE, array_of(at), placed, others)
        # Rows are inserted in the order of the arrays, and get their numbers in that order.
        return sorted([number for (number,) in found])

    async def drop_notes(self, numbers: Sequence[int]) -> Sequence[bytes]:
        return [others for (others,) in await self._transaction.fetch(_DROP, numbers)]

    async def confirm(self, said: Mapping[UUID, int]) -> None:
        ids = sorted(said, key=lambda id_: id_.int)
        await self._transaction.change(_CONFIRM, ids, array_of([said[id_] for id_ in ids]))


def _columns(names: Sequence[str], rows: Sequence[Values]) -> list[Any]:
    return [
        list(column) if name in _IDS else _packs(column) if name in _PACKS else _plain(column)
        for name, column in zip(names, zip(*rows, strict=True), strict=True)
    ]


# An empty array stands for NULL in each row: `unnest` fills it up.


def _packs(column: Sequence[Any]) -> Sequence[Any]:
    return () if column.count(None) == len(column) else column


def _plain(column: Sequence[Any]) -> str:
    return "{}" if column.count(None) == len(column) else array_of(column)
