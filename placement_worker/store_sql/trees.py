"""Write trees of providers, by the same statements on PostgreSQL and SQLite."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection, Table
from sqlalchemy import Row as TreesRow

from bus.messages.placement import ProviderGone
from engine.inventories import ProviderId
from kit.errors import Bug, Transient
from kit.sql import (
    PostgresTransaction,
    SqliteTransaction,
    Transaction,
    among,
    columns_of,
    driver_of,
    is_duplicate,
    moment_text,
)
from kit.times import now
from placement_worker.core.forest import limit_values
from placement_worker.core.ledger import ProviderBook, TreeBook, TreeChanges
from placement_worker.store_sql import log
from placement_worker.store_sql.log import LogEntry
from placement_worker.store_sql.names import CachedVocabulary, revive
from placement_worker.store_sql.providers import LockedTrees, clear_tombstones, write_tombstones
from placement_worker.store_sql.rows import NOTHING, encode_amounts
from placement_worker.tables import (
    consumers,
    inventories,
    provider_aggregates,
    provider_traits,
    providers,
    resource_classes,
    traits,
)


def write_trees(
    connection: Connection, vocabulary: CachedVocabulary, changes: TreeChanges, locked: Collection[int]
) -> None:
    """Write what changed in these trees, and add the changed providers to the change log."""
    try:
        gone = _remove(connection, changes.removed)
        stored = _stored(connection, changes, locked)
        books = _changed_books(changes)
        ids = {row.uuid: row.id for row in stored.values()}
        ids |= _number(connection, [provider for provider in books if provider not in ids])
        used_classes, used_traits = _classes_of(books.values()), _traits_of(books.values())
        vocabulary.classes.make(connection, used_classes)
        vocabulary.traits.make(connection, used_traits)
        _write_providers(connection, vocabulary, changes, stored, ids)
        _write_contents(
            connection, vocabulary, [(ids[book.id], book) for book in books.values()], changes.before
        )
        # Names that a provider had before exist, since they were in use.
        known = changes.before.values()
        revive(connection, resource_classes, used_classes - _classes_of(known))
        revive(connection, traits, used_traits - _traits_of(known))
        _write_numbers(connection, changes, stored)
        clear_tombstones(connection, [tree for tree in changes.trees if _is_planted(tree, stored)])
        write_tombstones(connection, changes.trees)
    except sa.exc.IntegrityError as error:
        # It did not exist when it was looked up, and a missing row cannot be locked.
        if is_duplicate(error):
            raise Transient(
                f"another transaction has just written the same provider: {error.orig}"
            ) from error
        raise
    touched = sorted(ids[provider] for provider in books)
    log.append(connection, LogEntry(providers=tuple(touched), gone=gone))


def _is_planted(tree: TreeBook, stored: Mapping[ProviderId, TreesRow[Any]]) -> bool:
    """Is this tree new: did the database have no tree with this root?"""
    before = stored.get(tree.root)
    return bool(tree.providers) and (before is None or before.root_id != before.id)


def _changed_books(changes: TreeChanges) -> dict[ProviderId, ProviderBook]:
    changed = set(changes.changed)
    return {
        provider: book
        for tree in changes.trees
        for provider, book in tree.providers.items()
        if provider in changed
    }


def _remove(connection: Connection, removed: Sequence[ProviderId]) -> tuple[ProviderGone, ...]:
    if not removed:
        return ()
    rows = connection.execute(
        sa.select(providers.c.id, providers.c.uuid, providers.c.revision)
        .where(among(connection, providers.c.uuid, removed))
        .order_by(providers.c.id + 0)
    ).all()
    ids = [row.id for row in rows]
    for table in (inventories, provider_traits, provider_aggregates):
        connection.execute(sa.delete(table).where(among(connection, table.c.provider_id, ids)))
    connection.execute(sa.delete(providers).where(among(connection, providers.c.id, ids)))
    return tuple(ProviderGone(internal=row.id, id=row.uuid, revision=row.revision + 1) for row in rows)


def _stored(
    connection: Connection, changes: TreeChanges, locked: Collection[int]
) -> dict[ProviderId, TreesRow[Any]]:
    """The rows of the roots, of all changed providers, and of their parents, as far as they exist."""
    needed = {tree.root for tree in changes.trees} | set(changes.changed)
    needed |= {book.parent for book in _changed_books(changes).values() if book.parent is not None}
    rows = connection.execute(sa.select(providers).where(among(connection, providers.c.uuid, needed)))
    stored = {row.uuid: row for row in rows}
    for row in stored.values():
        if row.root_id not in locked:
            # A missing row could not be locked here either. This one exists by now, and must not be overwritten.
            raise Transient(f"another transaction has just written the same provider: {row.uuid}")
    return stored


def _number(connection: Connection, new: Sequence[ProviderId]) -> dict[ProviderId, int]:
    """Choose internal ids for new providers, before their rows are inserted: the rows refer to each other by these ids."""
    if not new:
        return {}
    if connection.dialect.name == "postgresql":
        numbers = connection.scalars(
            sa.text(
                "SELECT nextval(pg_get_serial_sequence('providers', 'id')) FROM generate_series(1, :count)"
            ),
            {"count": len(new)},
        ).all()
    else:
        last = connection.scalar(sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'providers'")) or 0
        numbers = range(last + 1, last + 1 + len(new))
    return dict(zip(new, numbers, strict=True))


def _classes_of(books: Iterable[ProviderBook]) -> set[str]:
    return {name for book in books for name in book.inventories}


def _traits_of(books: Iterable[ProviderBook]) -> set[str]:
    return {name for book in books for name in book.traits | book.operator_traits}


def _write_providers(
    connection: Connection,
    vocabulary: CachedVocabulary,
    changes: TreeChanges,
    stored: Mapping[ProviderId, TreesRow[Any]],
    ids: Mapping[ProviderId, int],
) -> None:
    changed, class_ids = set(changes.changed), vocabulary.classes.ids
    living = _living_on(connection, [one for one in changed if one not in stored])
    new: list[dict[str, Any]] = []
    known: list[dict[str, Any]] = []
    for tree in changes.trees:
        # They are valid on the root only.
        counters = {"shape": tree.shape, "epoch": tree.epoch, "sequence": tree.sequence}
        for book in tree.providers.values():
            if book.id not in changed:
                continue
            before = stored.get(book.id)
            # More than the usage changes, so `base` moves with the revision.
            revision = before.revision + 1 if before else 1
            row = counters | {
                "name": book.name,
                "parent_id": None if book.parent is None else ids[book.parent],
                "root_id": ids[tree.root],
                "cell": tree.cell,
                "generation": book.generation,
                "revision": revision,
                "base": revision,
                # Has each class that exists, even if nothing is used: readers then need not ask for the inventories.
                "used": encode_amounts(
                    {class_ids[name]: inventory.used for name, inventory in book.inventories.items()}
                ),
                "made_by_name": book.made_by_name,
            }
            if before:
                known.append(row | {"key": before.id, "old_name": before.name})
            else:
                new.append(row | {"consumers": living.get(book.id, 0), "id": ids[book.id], "uuid": book.id})
    _free_names(connection, [row["key"] for row in known if row["name"] != row["old_name"]])
    if known:
        connection.execute(_BY_KEY, [{k: row[k] for k in row if k != "old_name"} for row in known])
    if new:
        connection.execute(sa.insert(providers), new)


def _living_on(connection: Connection, new: Collection[ProviderId]) -> dict[ProviderId, int]:
    """How many consumers already name each of these new providers as their host.

    Such a provider has existed before and was deleted. At that time its consumers still held something of its tree,
    whose root was another provider.
    """
    if not new:
        return {}
    rows = connection.execute(
        sa.select(consumers.c.host, sa.func.count())
        .where(among(connection, consumers.c.host, new), consumers.c.held != NOTHING)
        .group_by(consumers.c.host)
    )
    return {row[0]: row[1] for row in rows}


def _free_names(connection: Connection, ids: Collection[int]) -> None:
    """Give these providers temporary names, before they get new ones. Two of them may exchange their names, which are
    unique.
    """
    if ids:
        nameless = sa.literal("renaming ") + sa.cast(providers.c.id, sa.String)
        connection.execute(
            sa.update(providers).where(among(connection, providers.c.id, ids)).values(name=nameless)
        )


_BY_KEY = sa.update(providers).where(providers.c.id == sa.bindparam("key"))


def _write_numbers(
    connection: Connection, changes: TreeChanges, stored: Mapping[ProviderId, TreesRow[Any]]
) -> None:
    """Write the epoch and sequence of the last report to roots that the report has not changed otherwise.

    Trees without providers are skipped: their root may be in another tree by now.
    """
    changed = set(changes.changed)
    numbers = [
        {"key": before.id, "epoch": tree.epoch, "sequence": tree.sequence}
        for tree in changes.trees
        if tree.providers and tree.root not in changed
        for before in (stored[tree.root],)
        if (before.epoch, before.sequence) != (tree.epoch, tree.sequence)
    ]
    if numbers:
        connection.execute(_BY_KEY, numbers)


Numbered = tuple[int, ProviderBook]


def _write_contents(
    connection: Connection,
    vocabulary: CachedVocabulary,
    books: Sequence[Numbered],
    before: Mapping[ProviderId, ProviderBook],
) -> None:
    """Write the inventories, traits and aggregates of providers as far as they differ from what is stored.

    So a batch that changes one thing of each provider needs a statement or two. A new provider has nothing stored: what a
    deleted one with its id had was deleted with it.
    """
    old = [(number, before[book.id]) for number, book in books if book.id in before]
    _rewrite(connection, inventories, _inventory_rows(vocabulary, old), _inventory_rows(vocabulary, books))
    _rewrite(connection, provider_traits, _trait_rows(vocabulary, old), _trait_rows(vocabulary, books))
    _rewrite(connection, provider_aggregates, _aggregate_rows(old), _aggregate_rows(books))


def write_traits(
    connection: Connection,
    vocabulary: CachedVocabulary,
    books: Sequence[tuple[int, ProviderBook, ProviderBook]],
) -> None:
    """Write the traits of stored providers. Each is given by its internal id, its state before and its state after."""
    before = [(number, old) for number, old, _ in books]
    after = [(number, new) for number, _, new in books]
    known, wanted = (_traits_of(book for _, book in numbered) for numbered in (before, after))
    vocabulary.traits.make(connection, wanted)
    _rewrite(connection, provider_traits, _trait_rows(vocabulary, before), _trait_rows(vocabulary, after))
    revive(connection, traits, wanted - known)


def _aggregate_rows(books: Iterable[Numbered]) -> set[tuple[Any, ...]]:
    return {(number, each) for number, book in books for each in book.aggregates}


def _inventory_rows(
    vocabulary: CachedVocabulary, books: Iterable[tuple[int, ProviderBook]]
) -> set[tuple[Any, ...]]:
    return {
        (number, vocabulary.classes.ids[name], *limit_values(inventory))
        for number, book in books
        for name, inventory in book.inventories.items()
    }


def _trait_rows(
    vocabulary: CachedVocabulary, books: Iterable[tuple[int, ProviderBook]]
) -> set[tuple[Any, ...]]:
    return {
        (number, vocabulary.traits.ids[name], by_operator)
        for number, book in books
        for names, by_operator in ((book.traits, False), (book.operator_traits, True))
        for name in names
    }


def _rewrite(
    connection: Connection, table: Table, stored: set[tuple[Any, ...]], wanted: set[tuple[Any, ...]]
) -> None:
    """Replace the stored rows by the wanted ones; a row that keeps its key is updated."""
    if stored == wanted:
        return
    names = table.columns.keys()
    keys = [column.name for column in table.primary_key]
    same = sa.and_(*(table.c[key] == sa.bindparam(f"old_{key}") for key in keys))

    def by_key(rows: set[tuple[Any, ...]]) -> dict[tuple[Any, ...], dict[str, Any]]:
        named = (dict(zip(names, row, strict=True)) for row in sorted(rows, key=str))
        return {tuple(row[key] for key in keys): row for row in named}

    old, new = by_key(stored - wanted), by_key(wanted - stored)
    if gone := [{f"old_{key}": row[key] for key in keys} for at, row in old.items() if at not in new]:
        connection.execute(sa.delete(table).where(same), gone)
    if kept := [
        {f"old_{key}": row[key] for key in keys} | {name: row[name] for name in names if name not in keys}
        for at, row in new.items()
        if at in old
    ]:
        connection.execute(sa.update(table).where(same), kept)
    if made := [row for at, row in new.items() if at not in old]:
        connection.execute(sa.insert(table), made)


# Write trees of one provider that keep their resource classes, such as nodes that become reserved or free, by one
# statement.
#
# In a running cloud most reports are of this kind. Until such a report is written, a scheduler may choose a host that it
# must not choose.


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
