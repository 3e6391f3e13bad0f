"""Claims on SQLite: the whole reading and the whole writing of a batch are one piece of work each in its thread.

Whoever writes has the file to itself from BEGIN IMMEDIATE on. That is every lock there is to take, so nothing has to
be made in order to be locked, and what is read first is true until the end.
"""

import sqlite3
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Connection

from bus.errors import Bug
from bus.sql import SqliteTransaction, driver_of, moment_text
from placement_worker.core.ledger import ClaimChanges, ClaimOrder, Consumer, Ledger
from placement_worker.store_sql import log
from placement_worker.store_sql.claims import Books, ConsumerRow, HeldRow, StandingRow, named_by
from placement_worker.store_sql.known import KnownProviders, Moment, moment_of
from placement_worker.store_sql.names import Names

_READ_CONSUMERS = """
SELECT uuid, id, type, project_id, user_id, cell, generation, attempt, ended_at, host, server_group
FROM consumers
WHERE uuid IN (SELECT value FROM json_each(?))
"""

_READ_HELD = """
SELECT allocations.consumer_id, providers.uuid, allocations.class_id, allocations.amount
FROM allocations
JOIN providers ON providers.id = allocations.provider_id
WHERE allocations.consumer_id IN (SELECT value FROM json_each(?))
ORDER BY allocations.consumer_id, allocations.provider_id, allocations.class_id
"""

# CROSS JOIN: begin with those asked for, whatever the planner thinks of a JSON array.
_READ_STANDING = """
SELECT asked.key, providers.id, providers.root_id,
       CASE WHEN root.id <> providers.id THEN root.uuid END, providers.cell,
       providers.generation, root.shape,
       stock.class_id, stock.total, stock.reserved, stock.min_unit, stock.max_unit, stock.step_size,
       stock.allocation_ratio, stock.used
FROM json_each(?) AS asked
CROSS JOIN providers ON providers.uuid = asked.value
JOIN providers AS root ON root.id = providers.root_id
LEFT JOIN inventories AS stock ON stock.provider_id = providers.id
ORDER BY asked.key
"""

_WRITE_GROUP = """
INSERT INTO server_groups (uuid, policy, max_per_host) VALUES (?, ?, ?)
ON CONFLICT (uuid) DO UPDATE SET policy = excluded.policy, max_per_host = excluded.max_per_host
"""

_ADD_CONSUMER = """
INSERT INTO consumers
    (type, project_id, user_id, cell, generation, attempt, ended_at, host, server_group, id, uuid)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

# The highest number ever given, that of a row which is gone included.
_LAST_CONSUMER = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'consumers'"

_KEEP_CONSUMER = """
UPDATE consumers
SET type = ?, project_id = ?, user_id = ?, cell = ?, generation = ?, attempt = ?, ended_at = ?, host = ?,
    server_group = ?
WHERE id = ?
"""

_TOUCH = "UPDATE providers SET generation = ?2, revision = revision + 1 WHERE id = ?1"
_COUNT = "UPDATE inventories SET used = ?3 WHERE provider_id = ?1 AND class_id = ?2"
_EMPTY = "DELETE FROM allocations WHERE consumer_id = ?"
_HOLD = "INSERT INTO allocations (consumer_id, provider_id, class_id, amount) VALUES (?, ?, ?, ?)"
_LOG = "INSERT INTO change_log (written_by, at, body) VALUES (0, ?, ?)"


_encode = msgspec.json.Encoder(uuid_format="hex").encode


class SqliteClaims:
    """The claims of one transaction: read once, written from what was read."""

    def __init__(self, transaction: SqliteTransaction, classes: Names, known: KnownProviders) -> None:
        self._transaction = transaction
        self._classes = classes
        self._known = known
        self._books: Books | None = None
        self._keeps = False
        self._written: tuple[ClaimChanges, Moment] | None = None

    async def lock(self, orders: Sequence[ClaimOrder]) -> Ledger:
        books = self._books = Books(named_by(orders), self._classes)
        return await self._transaction.run(self._read, books)

    async def write(self, changes: ClaimChanges) -> None:
        assert self._books is not None, "claims are written only after they were locked"
        self._transaction.later(partial(self._write, books=self._books, changes=changes))

    def committed(self) -> None:
        if self._written:
            self._known.committed(*self._written)

    def _write(self, connection: Connection, books: Books, changes: ClaimChanges) -> None:
        _write(connection, books, changes)
        self._written = (changes, moment_of(driver_of(connection))) if self._keeps else None

    def _read(self, connection: Connection, books: Books) -> Ledger:
        classes = self._classes
        driver = driver_of(connection)
        rows = driver.execute(_READ_CONSUMERS, (_json(books.named.consumers),)).fetchall()
        if rows:
            books.add_consumers([_consumer_row(row) for row in rows])
            held = driver.execute(_READ_HELD, (_json([row[1] for row in rows]),)).fetchall()
            _learn(connection, classes, {row[2] for row in held})
            books.add_held([_held_row(row) for row in held])
        # What is not committed yet may never be.
        self._keeps = not self._transaction.has_written(connection)
        known = self._known.at(moment_of(driver)) if self._keeps else {}
        if unknown := [provider for provider in books.providers if provider.int not in known]:
            standing = driver.execute(_READ_STANDING, (_json(unknown),)).fetchall()
            _learn(connection, classes, {row[7] for row in standing} - {None})
            books.add_standing(unknown, [row if row[3] is None else _standing_row(row) for row in standing])
            known.update((key, (books.provider_ids[key], row)) for key, row in books.standing.items())
        for provider in books.providers:
            if provider.int in known:
                books.add_provider(*known[provider.int])
        return books.ledger()


def _learn(connection: Connection, classes: Names, class_ids: AbstractSet[int]) -> None:
    if classes.lack(class_ids):
        classes.load(connection)


def _write(connection: Connection, books: Books, changes: ClaimChanges) -> None:
    driver = driver_of(connection)
    driver.executemany(
        _WRITE_GROUP, [(group.id.hex, group.policy, group.max_per_host) for group in changes.groups]
    )
    driver.executemany(_EMPTY, [(number,) for number in books.emptied(changes)])
    generations, used = books.generations(changes), books.used(changes)
    known = [consumer for consumer in changes.consumers if consumer.id.int in books.consumer_ids]
    _add_consumers(driver, books, [one for one in changes.consumers if one.id.int not in books.consumer_ids])
    written = (
        driver.executemany(_TOUCH, generations).rowcount,
        driver.executemany(_COUNT, used).rowcount,
        driver.executemany(
            _KEEP_CONSUMER, [(*_values_of(one), books.consumer_ids[one.id.int]) for one in known]
        ).rowcount,
    )
    asked = (len(generations), len(used), len(known))
    if written != asked:
        raise Bug(f"claims not written: {written} of {asked} providers, inventories and consumers were there")
    driver.executemany(_HOLD, books.allocations(changes))
    if body := books.log_body(changes):
        driver.execute(_LOG, (moment_text(log.now()), body))


def _add_consumers(driver: sqlite3.Connection, books: Books, new: Sequence[Consumer]) -> None:
    """Numbered here: SQLite tells the number of one row at a time only."""
    if not new:
        return
    (last,) = driver.execute(_LAST_CONSUMER).fetchone()
    for number, consumer in enumerate(new, start=last + 1):
        books.consumer_ids[consumer.id.int] = number
    ids = books.consumer_ids
    driver.executemany(_ADD_CONSUMER, [(*_values_of(one), ids[one.id.int], one.id.hex) for one in new])


def _values_of(consumer: Consumer) -> tuple[Any, ...]:
    return (
        consumer.type,
        consumer.project,
        consumer.user,
        consumer.cell,
        consumer.generation,
        consumer.attempt,
        None if consumer.ended_at is None else moment_text(consumer.ended_at),
        None if consumer.host is None else consumer.host.hex,
        None if consumer.group is None else consumer.group.hex,
    )


def _json(values: Sequence[int | UUID]) -> str:
    return _encode(values).decode()


def _consumer_row(row: tuple[Any, ...]) -> ConsumerRow:
    uuid, number, kind, project, user, cell, generation, attempt, ended_at, host, group = row
    return (
        *(UUID(uuid), number, kind, project, user, cell, generation, attempt),
        None if ended_at is None else datetime.fromisoformat(ended_at),
        None if host is None else UUID(host),
        None if group is None else UUID(group),
    )


def _held_row(row: tuple[Any, ...]) -> HeldRow:
    consumer_id, provider, class_id, amount = row
    return (consumer_id, UUID(provider), class_id, amount)


def _standing_row(row: tuple[Any, ...]) -> StandingRow:
    place, number, root_id, root, *rest = row
    return (place, number, root_id, UUID(root), *rest)
