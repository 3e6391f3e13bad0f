"""Claims on SQLite, which are read and written by the driver's own statements."""

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from bus.clock import now
from bus.errors import Bug
from bus.message import GroupId
from bus.messages.placement import ServerGroup
from bus.sql import SqliteTransaction, driver_of, moment_text
from placement_worker.core.ledger import ClaimChanges, GroupRow
from placement_worker.store_sql import log
from placement_worker.store_sql.claims.claim_locks import ClaimLocks
from placement_worker.store_sql.claims.claims import ConsumerRecord, ConsumerRow, LockedClaims
from placement_worker.store_sql.driver_rows import portable, rows_of

_READ_CONSUMERS = portable(
    "SELECT uuid, id, type, project_id, user_id, cell, generation, attempt, ended_at, host, server_group, held"
    " FROM consumers WHERE uuid = ANY ($1::text::uuid[])"
)

_READ_GROUPS = portable(
    "SELECT uuid, policy, max_per_host, project_id FROM server_groups WHERE uuid = ANY ($1::text::uuid[])"
)

_WRITE_GROUP = """
INSERT INTO server_groups (uuid, policy, max_per_host, project_id) VALUES (?, ?, ?, ?)
ON CONFLICT (uuid) DO UPDATE
SET policy = excluded.policy, max_per_host = excluded.max_per_host, project_id = excluded.project_id
"""

# An empty string stands for NULL: the driver takes longer to bind a None.
_ADD_CONSUMER = """
INSERT INTO consumers
    (type, project_id, user_id, cell, generation, attempt, ended_at, host, server_group, held, id, uuid)
VALUES (?, ?, ?, ?, ?, ?, NULLIF(?, ''), NULLIF(?, ''), NULLIF(?, ''), ?, ?, ?)
"""

# The highest id ever given, also to rows that are deleted.
_LAST_CONSUMER = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'consumers'"

_KEEP_CONSUMER = """
UPDATE consumers
SET type = ?, project_id = ?, user_id = ?, cell = ?, generation = ?, attempt = ?,
    ended_at = NULLIF(?, ''), host = NULLIF(?, ''), server_group = NULLIF(?, ''), held = ?
WHERE id = ?
"""

_TOUCH = """
UPDATE providers SET generation = ?2, revision = revision + 1, used = ?3, consumers = ?4 WHERE id = ?1
"""
_COUNT = "UPDATE providers SET consumers = ? WHERE id = ?"
_FORGET = "DELETE FROM consumers WHERE id = ?"
_END_HOLDING = "DELETE FROM holders WHERE provider_id = ? AND consumer_id = ?"
_HOLD = "INSERT INTO holders (provider_id, consumer_id) VALUES (?, ?)"


class SqliteClaims(ClaimLocks[SqliteTransaction]):
    """Reads and writes claims on SQLite. BEGIN IMMEDIATE has locked the whole file, so no rows are locked here."""

    async def _lock_groups(self, groups: Sequence[ServerGroup]) -> Sequence[GroupRow]:
        rows = await rows_of(self._transaction, _READ_GROUPS, [group.id for group in groups])
        return [
            GroupRow(ServerGroup(id=GroupId(UUID(row[0])), policy=row[1], max_per_host=row[2]), row[3])
            for row in rows
        ]

    async def _lock_consumers(self, locked: LockedClaims) -> Sequence[ConsumerRow]:
        rows = await rows_of(self._transaction, _READ_CONSUMERS, locked.keys.consumers)
        found = [_consumer_row(row) for row in rows]
        locked.consumer_ids.update((row[0].int, row[1]) for row in found)
        return found

    async def write(self, changes: ClaimChanges) -> None:
        assert self._locked is not None, "claims are written only after they were locked"
        await self._transaction.run(_write, self._locked, changes)


def _write(connection: Connection, locked: LockedClaims, changes: ClaimChanges) -> None:
    driver = driver_of(connection)
    driver.executemany(
        _WRITE_GROUP,
        [
            (group.id.hex, group.policy, group.max_per_host, row.project)
            for row in changes.groups
            for group in (row.definition,)
        ],
    )
    kept = locked.consumer_writes(changes, {})
    known = [one for one in kept.consumers if one.row.id.int in locked.consumer_ids]
    _add_consumers(
        driver, locked, [one for one in kept.consumers if one.row.id.int not in locked.consumer_ids]
    )
    driver.executemany(_COUNT, locked.counted(changes))
    touched = list(locked.touched(changes))
    written = (
        driver.executemany(_TOUCH, touched).rowcount,
        driver.executemany(
            _KEEP_CONSUMER, [(*_values_of(one), locked.consumer_ids[one.row.id.int]) for one in known]
        ).rowcount,
    )
    if written != (len(touched), len(known)):
        raise Bug(
            f"claims not written: {written} of {len(touched)} providers and {len(known)} consumers exist"
        )
    ended, begun = locked.holders(kept)
    driver.executemany(_END_HOLDING, ended)
    # Consumers that the batch made and did not use have no row on SQLite.
    driver.executemany(
        _FORGET, [(ids[one.int],) for one in changes.forgotten if one.int in (ids := locked.consumer_ids)]
    )
    driver.executemany(_HOLD, begun)
    if body := locked.log_body(changes):
        driver.execute(log.ON_SQLITE, (moment_text(now()), body))


def _add_consumers(driver: sqlite3.Connection, locked: LockedClaims, new: Sequence[ConsumerRecord]) -> None:
    """Insert new consumers, with ids that are chosen here: SQLite returns the id of only one inserted row at a time."""
    if not new:
        return
    (last,) = driver.execute(_LAST_CONSUMER).fetchone()
    ids = locked.consumer_ids
    ids.update((one.row.id.int, number) for number, one in enumerate(new, start=last + 1))
    driver.executemany(
        _ADD_CONSUMER, [(*_values_of(one), ids[one.row.id.int], one.row.id.hex) for one in new]
    )


def _values_of(kept: ConsumerRecord) -> tuple[Any, ...]:
    consumer = kept.row
    return (
        consumer.type,
        consumer.project,
        consumer.user,
        consumer.cell,
        consumer.generation,
        consumer.attempt,
        "" if consumer.ended_at is None else moment_text(consumer.ended_at),
        "" if consumer.host is None else consumer.host.hex,
        "" if consumer.group is None else consumer.group.hex,
        kept.text,
    )


def _consumer_row(row: tuple[Any, ...]) -> ConsumerRow:
    uuid, number, kind, project, user, cell, generation, attempt, ended_at, host, group, held = row
    return (
        *(UUID(uuid), number, kind, project, user, cell, generation, attempt),
        None if ended_at is None else datetime.fromisoformat(ended_at),
        None if host is None else UUID(host),
        None if group is None else UUID(group),
        held,
    )
