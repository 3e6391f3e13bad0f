"""Claims on SQLite: one call in its thread reads a batch, and one writes it.

After BEGIN IMMEDIATE the writer has the file for itself. This is the only lock, so no rows have to be inserted in order to
be locked, and everything read stays valid until the end.
"""

import sqlite3
from collections.abc import Collection, Sequence
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Connection

from bus.errors import Bug
from bus.message import ProviderId
from bus.sql import SqliteTransaction, driver_of, moment_text
from placement_worker.core.ledger import ClaimChanges, Ledger
from placement_worker.store_sql import log
from placement_worker.store_sql.claim_keys import ClaimKeys
from placement_worker.store_sql.claims import ConsumerRecord, ConsumerRow, LockedClaims, UsageRow
from placement_worker.store_sql.name_cache import CachedNames
from placement_worker.store_sql.provider_cache import CachedProvider, CachedProviders, FoundRow, classes_in

_READ_CONSUMERS = """
SELECT uuid, id, type, project_id, user_id, cell, generation, attempt, ended_at, host, server_group, held
FROM consumers
WHERE uuid IN (SELECT value FROM json_each(?))
"""

_FIND_BY_ID = """
SELECT providers.id, providers.uuid, root.id, root.uuid
FROM providers JOIN providers AS root ON root.id = providers.root_id
WHERE providers.uuid IN (SELECT value FROM json_each(?))
"""

_FIND_BY_NUMBER = """
SELECT providers.id, providers.uuid, root.id, root.uuid
FROM providers JOIN providers AS root ON root.id = providers.root_id
WHERE providers.id IN (SELECT value FROM json_each(?))
"""

_READ_PROVIDERS = """
SELECT id, root_id, base, generation, shape, used, consumers
FROM providers
WHERE id IN (SELECT value FROM json_each(?))
"""

_READ_STOCKS = """
SELECT providers.id, providers.cell, stock.class_id, stock.total, stock.reserved, stock.min_unit, stock.max_unit,
       stock.step_size, stock.allocation_ratio
FROM providers LEFT JOIN inventories AS stock ON stock.provider_id = providers.id
WHERE providers.id IN (SELECT value FROM json_each(?))
"""

_WRITE_GROUP = """
INSERT INTO server_groups (uuid, policy, max_per_host) VALUES (?, ?, ?)
ON CONFLICT (uuid) DO UPDATE SET policy = excluded.policy, max_per_host = excluded.max_per_host
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


_encode = msgspec.json.Encoder(uuid_format="hex").encode


class SqliteClaims:
    """The claims of one transaction: read once, then written from what was read."""

    def __init__(
        self, transaction: SqliteTransaction, classes: CachedNames, providers: CachedProviders
    ) -> None:
        self._transaction = transaction
        self._classes = classes
        self._providers = providers
        self._locked: LockedClaims | None = None

    async def lock(self, keys: ClaimKeys) -> Ledger:
        locked = self._locked = LockedClaims(keys, self._classes, self._providers)
        return await self._transaction.run(self._read, locked)

    async def write(self, changes: ClaimChanges) -> None:
        assert self._locked is not None, "claims are written only after they were locked"
        self._transaction.later(partial(_write, locked=self._locked, changes=changes))

    def _read(self, connection: Connection, locked: LockedClaims) -> Ledger:
        driver = driver_of(connection)
        self._find(driver, locked, locked.unknown())
        rows = driver.execute(_READ_CONSUMERS, (_json(locked.keys.consumers),)).fetchall()
        if rows:
            if unknown := locked.add_consumers([_consumer_row(row) for row in rows]):
                self._providers.found(_found(driver, _FIND_BY_NUMBER, unknown))
            if locked.lacks_classes():
                self._classes.load(connection)
            locked.find_held()
            self._find(driver, locked, locked.unknown_hosts())
        locked.add_providers(self._read_providers(connection, locked))
        return locked.ledger()

    def _find(
        self, driver: sqlite3.Connection, locked: LockedClaims, providers: Sequence[ProviderId]
    ) -> None:
        if providers:
            rows = _found(driver, _FIND_BY_ID, providers)
            self._providers.found(rows)
            locked.found([row[0] for row in rows])

    def _read_providers(self, connection: Connection, locked: LockedClaims) -> list[UsageRow]:
        driver, known = driver_of(connection), self._providers
        rows: list[UsageRow] = _rows(driver, _READ_PROVIDERS, locked.provider_ids.values())
        if lost := _lost(known, locked, rows):
            for one in lost:
                known.forget(one)
                del locked.provider_ids[one.id.int]
            self._find(driver, locked, [one.id for one in lost])
            rows = _rows(driver, _READ_PROVIDERS, locked.provider_ids.values())
        if roots := locked.add_roots(rows):
            rows += _rows(driver, _READ_PROVIDERS, roots)
        moved = {number: base for number, _, base, *_ in rows if known.of(number).base != base}
        if moved:
            stocks = _rows(driver, _READ_STOCKS, moved)
            if self._classes.lack(classes_in(stocks)):
                self._classes.load(connection)
            known.read(moved, stocks, self._classes.names)
        return rows


def _lost(known: CachedProviders, locked: LockedClaims, rows: Sequence[UsageRow]) -> list[CachedProvider]:
    """Providers that are gone, or whose root is not in the cache."""
    there = {row[0] for row in rows if known.by_number(row[1])}
    return [known.of(number) for number in locked.provider_ids.values() if number not in there]


def _write(connection: Connection, locked: LockedClaims, changes: ClaimChanges) -> None:
    driver = driver_of(connection)
    driver.executemany(
        _WRITE_GROUP, [(group.id.hex, group.policy, group.max_per_host) for group in changes.groups]
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
        driver.execute(log.ON_SQLITE, (moment_text(log.now()), body))


def _add_consumers(driver: sqlite3.Connection, locked: LockedClaims, new: Sequence[ConsumerRecord]) -> None:
    """Ids are given here: SQLite returns the id of only one inserted row at a time."""
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


def _found(
    driver: sqlite3.Connection, statement: str, sought: Collection[int] | Collection[UUID]
) -> list[FoundRow]:
    return [
        (number, UUID(uuid), root, UUID(root_uuid))
        for number, uuid, root, root_uuid in _rows(driver, statement, sought)
    ]


def _rows(
    driver: sqlite3.Connection, statement: str, sought: Collection[int] | Collection[UUID]
) -> list[Any]:
    return driver.execute(statement, (_json([*sought]),)).fetchall()


def _json(values: Sequence[int | UUID]) -> str:
    return _encode(values).decode()


def _consumer_row(row: tuple[Any, ...]) -> ConsumerRow:
    uuid, number, kind, project, user, cell, generation, attempt, ended_at, host, group, held = row
    return (
        *(UUID(uuid), number, kind, project, user, cell, generation, attempt),
        None if ended_at is None else datetime.fromisoformat(ended_at),
        None if host is None else UUID(host),
        None if group is None else UUID(group),
        held,
    )
