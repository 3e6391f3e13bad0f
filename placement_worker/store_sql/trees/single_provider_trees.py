"""Write trees of one provider that keep their resource classes, such as nodes that become reserved or free, by one
statement.

In a running cloud most reports are of this kind. Until such a report is written, a scheduler may choose a host that it
must not choose.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct
from sqlalchemy import Connection

from bus.clock import now
from bus.errors import Bug
from bus.message import ProviderId
from bus.sql import (
    PostgresTransaction,
    SqliteTransaction,
    Transaction,
    columns_of,
    driver_of,
    moment_text,
)
from placement_worker.core.apply_report import limit_values
from placement_worker.core.ledger import ProviderBook, TreeBook, TreeChanges
from placement_worker.store_sql import log
from placement_worker.store_sql.name_cache import CachedVocabulary
from placement_worker.store_sql.trees.forest import LockedTrees
from placement_worker.store_sql.trees.trees import write_traits

_ON_POSTGRESQL = """
WITH counted AS (
    UPDATE providers
    SET generation = new.generation, revision = new.revision, base = new.base, shape = new.shape, epoch = new.epoch,
        sequence = new.sequence
    FROM unnest($1::text::bigint[], $2::text::bigint[], $3::text::bigint[], $4::text::bigint[], $5::text::bigint[],
                $6::text::bigint[], $7::text::bigint[])
        AS new (generation, revision, base, shape, epoch, sequence, id)
    WHERE providers.id = ANY (ARRAY[new.id])
    RETURNING 1
), stocked AS (
    UPDATE inventories
    SET total = new.total, reserved = new.reserved, min_unit = new.min_unit, max_unit = new.max_unit,
        step_size = new.step_size, allocation_ratio = new.allocation_ratio
    FROM unnest($8::text::bigint[], $9::text::bigint[], $10::text::bigint[], $11::text::bigint[],
                $12::text::bigint[], $13::text::float8[], $14::text::bigint[], $15::text::bigint[])
        AS new (total, reserved, min_unit, max_unit, step_size, allocation_ratio, provider_id, class_id)
    WHERE inventories.provider_id = ANY (ARRAY[new.provider_id]) AND inventories.class_id = new.class_id
    RETURNING 1
), logged AS (
    INSERT INTO change_log (written_by, at, body)
    SELECT pg_current_xact_id(), $16::timestamptz, $17::bytea
    WHERE $17::bytea IS NOT NULL
)
SELECT (SELECT count(*) FROM counted), (SELECT count(*) FROM stocked)
"""
_COUNT_ON_SQLITE = """
UPDATE providers SET generation = ?, revision = ?, base = ?, shape = ?, epoch = ?, sequence = ? WHERE id = ?
"""
_STOCK_ON_SQLITE = """
UPDATE inventories
SET total = ?, reserved = ?, min_unit = ?, max_unit = ?, step_size = ?, allocation_ratio = ?
WHERE provider_id = ? AND class_id = ?
"""
_COUNTERS, _AMOUNTS = 7, 8

Row = tuple[Any, ...]


class _Written(Struct, frozen=True):
    """The values that one write of single-provider trees stores, in the order of the statements' parameters."""

    counters: Sequence[Row]
    stocks: Sequence[Row]
    at: datetime
    body: bytes | None


def are_single_providers(changes: TreeChanges, locked: LockedTrees) -> bool:
    """Has each of these trees only one provider, before and after, and does that keep its name, cell, classes and
    aggregates?
    """
    return not changes.removed and all(
        (before := locked.trees.get(tree.root)) is not None and _is_lone(before, tree)
        for tree in changes.trees
    )


def _is_lone(before: TreeBook, after: TreeBook) -> bool:
    if not (len(before.providers) == 1 == len(after.providers)) or before.cell != after.cell:
        return False
    old, new = before.providers[before.root], after.providers.get(before.root)
    return new is not None and (
        (old.name, old.parent, old.aggregates, old.made_by_name)
        == (new.name, new.parent, new.aggregates, new.made_by_name)
        and old.inventories.keys() == new.inventories.keys()
        and all(stock.used == new.inventories[name].used for name, stock in old.inventories.items())
    )


async def write_single_providers(
    transaction: Transaction, vocabulary: CachedVocabulary, changes: TreeChanges, locked: LockedTrees
) -> None:
    books = [
        (locked.providers[tree.root].number, locked.trees[tree.root].providers[tree.root], book)
        for tree in changes.trees
        for book in tree.providers.values()
    ]
    if marked := [each for each in books if _are_remarked(*each[1:])]:
        await transaction.run(write_traits, vocabulary, marked)
    changed = frozenset(changes.changed)
    written = _Written(
        [_counters(tree, locked, changed) for tree in changes.trees],
        [row for number, old, new in books for row in _stocks(number, old, new, vocabulary)],
        now(),
        log.body_of(
            log.LogEntry(providers=tuple(sorted(locked.providers[provider].number for provider in changed)))
        ),
    )
    if isinstance(transaction, PostgresTransaction):
        await _write_on_postgresql(transaction, written)
    elif isinstance(transaction, SqliteTransaction):
        await transaction.run(_write_on_sqlite, written)


def _are_remarked(old: ProviderBook, new: ProviderBook) -> bool:
    return old.traits != new.traits or old.operator_traits != new.operator_traits


def _counters(tree: TreeBook, locked: LockedTrees, changed: frozenset[ProviderId]) -> Row:
    """Generation, revision, shape and report number to write for a tree. The revision grows only if the provider changed."""
    stored, book = locked.providers[tree.root], tree.providers[tree.root]
    revision, base = stored.revision, stored.base
    if tree.root in changed:
        revision = base = revision + 1
    return (book.generation, revision, base, tree.shape, tree.epoch, tree.sequence, stored.number)


def _stocks(number: int, old: ProviderBook, new: ProviderBook, vocabulary: CachedVocabulary) -> Iterator[Row]:
    for name, stock in new.inventories.items():
        if stock != old.inventories[name]:
            yield (*limit_values(stock), number, vocabulary.classes.ids[name])


async def _write_on_postgresql(transaction: PostgresTransaction, written: _Written) -> None:
    ((counted, stocked),) = await transaction.fetch(
        _ON_POSTGRESQL,
        *(columns_of(written.counters, _COUNTERS) or ("{}",) * _COUNTERS),
        *(columns_of(written.stocks, _AMOUNTS) or ("{}",) * _AMOUNTS),
        written.at,
        written.body,
    )
    _check(written, counted, stocked)


def _write_on_sqlite(connection: Connection, written: _Written) -> None:
    driver = driver_of(connection)
    counted = driver.executemany(_COUNT_ON_SQLITE, written.counters).rowcount
    stocked = driver.executemany(_STOCK_ON_SQLITE, written.stocks).rowcount
    _check(written, counted, stocked)
    if written.body is not None:
        driver.execute(log.ON_SQLITE, (moment_text(written.at), written.body))


def _check(written: _Written, counted: int, stocked: int) -> None:
    wanted = len(written.counters), len(written.stocks)
    if (max(counted, 0), max(stocked, 0)) != wanted:
        raise Bug(
            f"reports not written: {counted} of {wanted[0]} providers and {stocked} of {wanted[1]} inventories exist, "
            "although all of them were locked"
        )
