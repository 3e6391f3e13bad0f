"""Claims on SQLite. BEGIN IMMEDIATE has locked the whole file, so no rows are locked here."""

import sqlite3
from collections.abc import Sequence

from sqlalchemy import Connection

from bus.clock import now
from bus.sql import RowColumns, SqliteTransaction, Values, driver_of, moment_text
from placement_worker.core.ledger import ClaimChanges
from placement_worker.store_sql import log
from placement_worker.store_sql.claims.claim_locks import (
    END_HOLDING,
    LOCK_CONSUMERS,
    ClaimLocks,
    check_written,
)
from placement_worker.store_sql.claims.claims import ClaimRows, ConsumerRecord, ConsumerRow
from placement_worker.store_sql.quotas import LAST_QUOTA
from placement_worker.tables import consumers, holders, providers

_CONSUMER = (
    *("type", "project_id", "user_id", "cell", "generation", "attempt"),
    *("ended_at", "host", "server_group", "held"),
)
# An empty string stands for NULL: the driver takes longer to bind a None.
_NULLS = {name: f"NULLIF(new.{name}, '')" for name in ("ended_at", "host", "server_group")}
_ADD_CONSUMERS = RowColumns(consumers, "id", *_CONSUMER, "uuid").insert(**_NULLS)
_KEEP_CONSUMERS = RowColumns(consumers, "id", *_CONSUMER).update(**_NULLS)
_TOUCH = RowColumns(providers, "id", "generation", "used", "consumers").update(revision="kept.revision + 1")
_HOLD = RowColumns(holders, "provider_id", "consumer_id").insert()

_LOG = f"{log.ON_SQLITE} RETURNING {LAST_QUOTA}"

# The highest id ever given, also to rows that are deleted.
_LAST_CONSUMER = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'consumers'"


class SqliteClaims(ClaimLocks[SqliteTransaction]):
    """Reads and writes claims on SQLite, each row by a statement of its own."""

    async def _lock_consumers(self, locked: ClaimRows) -> Sequence[ConsumerRow]:
        rows = await LOCK_CONSUMERS.fetch(self._transaction, locked.keys.consumers)
        locked.consumer_ids.update((row[0].int, row[1]) for row in rows)
        return rows

    async def _write(self, locked: ClaimRows, changes: ClaimChanges) -> int:
        # In one piece: to enter the transaction for each statement would cost a lone boot more than its statements.
        return await self._transaction.run(_write, locked, changes)


def _write(connection: Connection, locked: ClaimRows, changes: ClaimChanges) -> int:
    driver, ids = driver_of(connection), locked.consumer_ids
    kept = locked.consumer_writes(changes, {})
    known = [one for one in kept.consumers if one.row.id.int in ids]
    if len(known) < len(kept.consumers):
        _add_consumers(driver, locked, [one for one in kept.consumers if one.row.id.int not in ids])
    touched = list(locked.touched(changes))
    rows = [(ids[one.row.id.int], *_values(one)) for one in known]
    written = (
        driver.executemany(_TOUCH.on_sqlite, touched).rowcount,
        driver.executemany(_KEEP_CONSUMERS.on_sqlite, rows).rowcount,
    )
    check_written(written, (len(touched), len(known)))
    ended, begun = locked.holders(kept)
    driver.executemany(END_HOLDING.on_sqlite, ended)
    driver.executemany(_HOLD.on_sqlite, begun)
    if (body := locked.log_body(changes)) is None:
        (last_quota,) = driver.execute(f"SELECT {LAST_QUOTA}").fetchone()
    else:
        (last_quota,) = driver.execute(_LOG, (moment_text(now()), body)).fetchone()
    return int(last_quota)


def _add_consumers(driver: sqlite3.Connection, locked: ClaimRows, new: Sequence[ConsumerRecord]) -> None:
    """Insert new consumers, with ids that are chosen here: SQLite returns the id of only one inserted row at a time."""
    (last,) = driver.execute(_LAST_CONSUMER).fetchone()
    ids = locked.consumer_ids
    ids.update((one.row.id.int, number) for number, one in enumerate(new, start=last + 1))
    rows = [(ids[one.row.id.int], *_values(one), one.row.id.hex) for one in new]
    driver.executemany(_ADD_CONSUMERS.on_sqlite, rows)


def _values(record: ConsumerRecord) -> Values:
    row = record.row
    return (
        *(row.type, row.project, row.user, row.cell, row.generation, row.attempt),
        "" if row.ended_at is None else moment_text(row.ended_at),
        "" if row.host is None else row.host.hex,
        "" if row.group is None else row.group.hex,
        record.text,
    )
