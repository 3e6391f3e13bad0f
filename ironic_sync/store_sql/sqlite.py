"""The statements on nodes' rows that run most often, for SQLite. Rows need no locks, since a writer has the whole
file to itself. Ids are stored as texts, as SQLAlchemy writes and reads them.
"""

from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy import Connection

from bus.sql import SqliteTransaction, driver_of
from ironic_sync.core.ring import Move, Owned
from ironic_sync.store_sql.rows import Stored, Values, owned_of

_LOAD = """
SELECT owner, epoch, version, body FROM ironic_nodes WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id
"""
_ADD = """
INSERT INTO ironic_nodes
    (id, cell, owner, epoch, version, holds_instance, due_us, needs_report, needs_read, body)
VALUES (?, ?, ?, ?, ? + 1, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING
"""
_REPLACE = """
UPDATE ironic_nodes
SET cell = ?2, owner = ?3, epoch = ?4, version = ?5 + 1, holds_instance = ?6, due_us = ?7, needs_report = ?8,
    needs_read = ?9, body = ?10
WHERE id = ?1 AND version = ?5
"""
_GIVE = """
UPDATE ironic_nodes SET owner = ?4, epoch = max(epoch, ?6) + 1, version = version + 1, needs_read = 1
WHERE id = ?1 AND owner = ?2 AND epoch = ?3 AND NOT (?5 AND holds_instance)
RETURNING holds_instance
"""
_FORGET = "DELETE FROM ironic_nodes WHERE id = ? AND version = ?"

_encode = msgspec.json.Encoder(uuid_format="hex").encode


class SqliteRows:
    """The statements on nodes' rows in one transaction on SQLite."""

    def __init__(self, transaction: SqliteTransaction) -> None:
        self._transaction = transaction

    async def load(self, ids: Sequence[UUID]) -> Sequence[Stored]:
        return await self._transaction.fetch(_LOAD, _encode(ids).decode())

    async def give(self, moves: Sequence[Move]) -> tuple[Owned, ...]:
        def work(connection: Connection) -> tuple[Owned, ...]:
            driver = driver_of(connection)
            return owned_of(
                (each.id, each.to, max(each.epoch, each.above) + 1, holds_instance)
                for each in moves
                for (holds_instance,) in driver.execute(
                    _GIVE, (each.id.hex, each.owner, each.epoch, each.to, each.only_free, each.above)
                ).fetchall()
            )

        return await self._transaction.run(work)

    async def forget(self, ids: Sequence[UUID], versions: Sequence[int]) -> int:
        named = [(id_.hex, version) for id_, version in zip(ids, versions, strict=True)]
        return await self._transaction.change(_FORGET, named)

    async def write(self, rows: Sequence[Values], *, are_new: bool) -> set[UUID]:
        statement = _ADD if are_new else _REPLACE

        def work(connection: Connection) -> set[UUID]:
            driver = driver_of(connection)
            return {id_ for id_, *rest in rows if driver.execute(statement, (id_.hex, *rest)).rowcount}

        return await self._transaction.run(work)
