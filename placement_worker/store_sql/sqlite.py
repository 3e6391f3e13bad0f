"""Claims on SQLite: the whole reading and the whole writing of a batch are one piece of work each in its thread.

Whoever writes has the file to itself from BEGIN IMMEDIATE on. That is every lock there is to take, so nothing has to
be made in order to be locked, and what is read first is true until the end.
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
from placement_worker.store_sql.claims import Books, ConsumerRow, KeptConsumer, StandingRow
from placement_worker.store_sql.known import FoundRow, KnownProvider, Providers, classes_in
from placement_worker.store_sql.named import Named
from placement_worker.store_sql.names import Names

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

_READ_STANDING = """
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

# An empty word stands for NULL: a None, which is no word of SQLite's, takes the driver longer to hand over.
_ADD_CONSUMER = """
INSERT INTO consumers
    (type, project_id, user_id, cell, generation, attempt, ended_at, host, server_group, held, id, uuid)
VALUES (?, ?, ?, ?, ?, ?, NULLIF(?, ''), NULLIF(?, ''), NULLIF(?, ''), ?, ?, ?)
"""

# The highest number ever given, that of a row which is gone included.
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
    """The claims of one transaction: read once, written from what was read."""

    def __init__(self, transaction: SqliteTransaction, classes: Names, providers: Providers) -> None:
        self._transaction = transaction
        self._classes = classes
        self._providers = providers
        self._books: Books | None = None

    async def lock(self, named: Named) -> Ledger:
        books = self._books = Books(named, self._classes, self._providers)
        return await self._transaction.run(self._read, books)

    async def write(self, changes: ClaimChanges) -> None:
        assert self._books is not None, "claims are written only after they were locked"
        self._transaction.later(partial(_write, books=self._books, changes=changes))

    def _read(self, connection: Connection, books: Books) -> Ledger:
        driver = driver_of(connection)
        self._find(driver, books, books.unknown())
        rows = driver.execute(_READ_CONSUMERS, (_json(books.named.consumers),)).fetchall()
        if rows:
            if unknown := books.add_consumers([_consumer_row(row) for row in rows]):
                self._providers.found(_found(driver, _FIND_BY_NUMBER, unknown))
            if books.lacks_classes():
                self._classes.load(connection)
            books.find_held()
            self._find(driver, books, books.unknown_hosts())
        books.add_standing(self._standing(connection, books))
        return books.ledger()

    def _find(self, driver: sqlite3.Connection, books: Books, providers: Sequence[ProviderId]) -> None:
        if providers:
            rows = _found(driver, _FIND_BY_ID, providers)
            self._providers.found(rows)
            books.found([row[0] for row in rows])

    def _standing(self, connection: Connection, books: Books) -> list[StandingRow]:
        driver, known = driver_of(connection), self._providers
        rows: list[StandingRow] = _rows(driver, _READ_STANDING, books.provider_ids.values())
        if lost := _lost(known, books, rows):
            for one in lost:
                known.forget(one)
                del books.provider_ids[one.id.int]
            self._find(driver, books, [one.id for one in lost])
            rows = _rows(driver, _READ_STANDING, books.provider_ids.values())
        if roots := books.add_roots(rows):
            rows += _rows(driver, _READ_STANDING, roots)
        moved = {number: base for number, _, base, *_ in rows if known.of(number).base != base}
        if moved:
            stocks = _rows(driver, _READ_STOCKS, moved)
            if self._classes.lack(classes_in(stocks)):
                self._classes.load(connection)
            known.read(moved, stocks, self._classes.names)
        return rows


def _lost(known: Providers, books: Books, rows: Sequence[StandingRow]) -> list[KnownProvider]:
    """Those that are gone, or stand in a tree whose root is not known."""
    there = {row[0] for row in rows if known.by_number(row[1])}
    return [known.of(number) for number in books.provider_ids.values() if number not in there]


def _write(connection: Connection, books: Books, changes: ClaimChanges) -> None:
    driver = driver_of(connection)
    driver.executemany(
        _WRITE_GROUP, [(group.id.hex, group.policy, group.max_per_host) for group in changes.groups]
    )
    kept = books.kept(changes, {})
    known = [one for one in kept.consumers if one.row.id.int in books.consumer_ids]
    _add_consumers(driver, books, [one for one in kept.consumers if one.row.id.int not in books.consumer_ids])
    driver.executemany(_COUNT, books.counted(changes))
    touched = list(books.touched(changes))
    written = (
        driver.executemany(_TOUCH, touched).rowcount,
        driver.executemany(
            _KEEP_CONSUMER, [(*_values_of(one), books.consumer_ids[one.row.id.int]) for one in known]
        ).rowcount,
    )
    if written != (len(touched), len(known)):
        raise Bug(
            f"claims not written: {written} of {len(touched)} providers and {len(known)} consumers were there"
        )
    ended, begun = books.holders(kept)
    driver.executemany(_END_HOLDING, ended)
    # Of those that were to be made for nothing there is none.
    driver.executemany(
        _FORGET, [(ids[one.int],) for one in changes.forgotten if one.int in (ids := books.consumer_ids)]
    )
    driver.executemany(_HOLD, begun)
    if body := books.log_body(changes):
        driver.execute(log.ON_SQLITE, (moment_text(log.now()), body))


def _add_consumers(driver: sqlite3.Connection, books: Books, new: Sequence[KeptConsumer]) -> None:
    """Numbered here: SQLite tells the number of one row at a time only."""
    if not new:
        return
    (last,) = driver.execute(_LAST_CONSUMER).fetchone()
    ids = books.consumer_ids
    ids.update((one.row.id.int, number) for number, one in enumerate(new, start=last + 1))
    driver.executemany(
        _ADD_CONSUMER, [(*_values_of(one), ids[one.row.id.int], one.row.id.hex) for one in new]
    )


def _values_of(kept: KeptConsumer) -> tuple[Any, ...]:
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
