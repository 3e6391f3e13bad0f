"""The hot statements on SQLite. A writer has the file to itself, so the rows that it reads are locked."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from bus.sql import SqliteTransaction
from scheduler_worker.store_sql.rows import Values

_ADD = """
INSERT INTO requested_instances (id, request_id, place, project, given, state, sequence, heard, cell, host, attempt, changed_at,
                                 due_at, ended_at, unsaid, place_order, troubles)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
"""
_WRITE = """
UPDATE requested_instances
SET state = ?2, sequence = ?3, heard = ?4, cell = ?5, host = ?6, attempt = ?7, changed_at = ?8, due_at = ?9,
    ended_at = ?10, unsaid = ?11, place_order = ?12, troubles = ?13
WHERE id = ?1
"""
_DECIDE = _WRITE + " AND state = 'accepted'"
# `heard` in core/instances/lifecycle.py is this step for one row; the number is its SEQUENCE_AHEAD_MAX.
_APPLY_EVENTS = """
UPDATE requested_instances
SET state = 'active', sequence = ?3, heard = ?3, host = ?4, attempt = ?5, changed_at = ?6, unsaid = NULL,
    place_order = NULL
WHERE id = ?1 AND state = 'placed' AND cell = ?2 AND sequence < ?3 AND heard < ?3
    AND ?3 <= sequence + 1000000
"""
_LOCK = """
SELECT id, request_id, project, given, state, sequence, heard, cell, host, attempt, changed_at, unsaid, NULL, troubles
FROM requested_instances
WHERE id IN (SELECT value FROM json_each(?))
"""
_LOCK_STORED = """
SELECT id, request_id, project, given, state, sequence, heard, cell, host, attempt, changed_at, unsaid, place_order, troubles
FROM requested_instances
WHERE id IN (SELECT value FROM json_each(?)) OR request_id IN (SELECT value FROM json_each(?))
"""
_FORGET = "DELETE FROM requested_instances WHERE id = ?"
# Placed rows are left out: the event of their cell confirms them.
_CONFIRM = "UPDATE requested_instances SET unsaid = NULL WHERE id = ?1 AND unsaid <= ?2"
_NOTE = "INSERT INTO request_notes (at, placed, others) VALUES (?, ?, ?) RETURNING number"
_DROP = "DELETE FROM request_notes WHERE number IN (SELECT value FROM json_each(?)) RETURNING others"

_encode = msgspec.json.Encoder(uuid_format="hex").encode


class SqliteInstances:
    """The statements on instances in one transaction. Those that change rows return how many."""

    def __init__(self, transaction: SqliteTransaction) -> None:
        self._transaction = transaction

    async def add(self, rows: Sequence[Values]) -> int:
        return await self._transaction.change(_ADD, rows)

    async def write(self, rows: Sequence[Values]) -> int:
        return await self._transaction.change(_WRITE, rows)

    async def decide(self, rows: Sequence[Values]) -> int:
        return await self._transaction.change(_DECIDE, rows)

    async def apply_events(self, events: Sequence[Values]) -> int:
        return await self._transaction.change(_APPLY_EVENTS, events)

    async def lock(self, ids: Sequence[UUID]) -> Sequence[Values]:
        return [_read(row) for row in await self._transaction.fetch(_LOCK, _texts(ids))]

    async def lock_stored(self, ids: Sequence[UUID], requests: Sequence[UUID]) -> Sequence[Values]:
        found = await self._transaction.fetch(_LOCK_STORED, _texts(ids), _texts(requests))
        return [_read(row) for row in found]

    async def forget(self, ids: Sequence[UUID]) -> int:
        return await self._transaction.change(_FORGET, [(id_,) for id_ in ids])

    async def note(self, notes: Sequence[Values]) -> Sequence[int]:
        return [(await self._transaction.fetch(_NOTE, *note))[0][0] for note in notes]

    async def drop_notes(self, numbers: Sequence[int]) -> Sequence[bytes]:
        return [others for (others,) in await self._transaction.fetch(_DROP, _texts(numbers))]

    async def confirm(self, said: Mapping[UUID, int]) -> None:
        await self._transaction.change(_CONFIRM, [*said.items()])


def _texts(values: Sequence[UUID] | Sequence[int]) -> str:
    """The values as a JSON array, which `json_each` reads in SQLite."""
    return _encode(values).decode()


def _read(row: Values) -> Values:
    """The values as PostgreSQL would give them: SQLite stores ids and times as text."""
    id_, request_id, *plain, changed_at, unsaid, order, troubles = row
    return (
        *(UUID(id_), request_id and UUID(request_id), *plain, datetime.fromisoformat(changed_at)),
        *(unsaid, order, troubles),
    )
