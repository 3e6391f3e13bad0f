"""Trees of providers: locked, read whole and written, by functions that run on PostgreSQL and on SQLite."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row, Table

from bus.errors import Transient
from bus.message import ProviderId
from bus.messages.placement import ProviderGone, ReportInventory
from bus.sql import among, is_duplicate
from placement_worker.core.ledger import Forest, ProviderBook, TreeBook, TreeChanges
from placement_worker.store_sql import log
from placement_worker.store_sql.log import LogEntry
from placement_worker.store_sql.names import Vocabulary
from placement_worker.store_sql.states import (
    parent,
    read_aggregates,
    read_inventories,
    read_traits,
    root,
)
from placement_worker.store_sql.stumps import clear_stumps, lock_stumps, write_stumps
from placement_worker.tables import inventories, provider_aggregates, provider_traits, providers

# Locking


def lock_trees(
    connection: Connection, vocabulary: Vocabulary, reports: Sequence[ReportInventory]
) -> tuple[Forest, frozenset[int]]:
    """Lock the roots, one statement; read what they stand for, by later ones. With the internal ids of the roots."""
    named = {report.root for report in reports}
    locked = connection.scalars(
        sa.select(providers.c.id)
        .where(among(connection, providers.c.uuid, named), providers.c.root_id == providers.c.id)
        .order_by(providers.c.id)
        .with_for_update(key_share=True)
    ).all()
    trees = _read_trees(connection, vocabulary, locked)
    trees |= lock_stumps(connection, named - trees.keys())
    forest = Forest(trees, _elsewhere(connection, reports), _bearers(connection, reports))
    return forest, frozenset(locked)


def _read_trees(
    connection: Connection, vocabulary: Vocabulary, roots: Sequence[int]
) -> dict[ProviderId, TreeBook]:
    if not roots:
        return {}
    rows = connection.execute(
        sa.select(providers, parent.c.uuid.label("parent"))
        .join(parent, parent.c.id == providers.c.parent_id, isouter=True)
        .where(among(connection, providers.c.root_id, roots))
        .order_by(providers.c.id)
    ).all()
    books = _books(connection, vocabulary, rows)
    members: dict[int, dict[ProviderId, ProviderBook]] = {row.id: {} for row in rows if row.id == row.root_id}
    for row in rows:
        members[row.root_id][row.uuid] = books[row.id]
    return {
        row.uuid: TreeBook(
            root=row.uuid,
            cell=row.cell,
            shape=row.shape,
            epoch=row.epoch,
            sequence=row.sequence,
            providers=members[row.id],
        )
        for row in rows
        if row.id == row.root_id
    }


def _books(
    connection: Connection, vocabulary: Vocabulary, rows: Sequence[Row[Any]]
) -> dict[int, ProviderBook]:
    ids = [row.id for row in rows]
    stocks = read_inventories(connection, vocabulary.classes, ids)
    marks = read_traits(connection, vocabulary.traits, ids)
    memberships = read_aggregates(connection, ids)
    return {
        row.id: ProviderBook(
            id=row.uuid,
            name=row.name,
            parent=row.parent,
            generation=row.generation,
            inventories=stocks.get(row.id, {}),
            traits=frozenset(marks.get((row.id, False), ())),
            operator_traits=frozenset(marks.get((row.id, True), ())),
            aggregates=frozenset(memberships.get(row.id, ())),
        )
        for row in rows
    }


def _elsewhere(connection: Connection, reports: Sequence[ReportInventory]) -> dict[ProviderId, ProviderId]:
    """Not locked, since the decision can only be a refusal. What comes to stand there meanwhile is a duplicate."""
    named: dict[ProviderId, set[ProviderId]] = {}
    for report in reports:
        for provider in _named_by(report):
            named.setdefault(provider, set()).add(report.root)
    rows = connection.execute(
        sa.select(providers.c.uuid, root.c.uuid)
        .join(root, root.c.id == providers.c.root_id)
        .where(among(connection, providers.c.uuid, named))
    ).all()
    return {provider: stands_in for provider, stands_in in rows if named[provider] != {stands_in}}


def _named_by(report: ReportInventory) -> Iterable[ProviderId]:
    yield report.root
    yield from report.removed
    for provider in report.providers:
        yield provider.id
        if provider.parent is not None:
            yield provider.parent


def _bearers(connection: Connection, reports: Sequence[ReportInventory]) -> dict[str, ProviderId]:
    names = {provider.name for report in reports for provider in report.providers}
    query = sa.select(providers.c.name, providers.c.uuid).where(among(connection, providers.c.name, names))
    return {row.name: row.uuid for row in connection.execute(query)}


# Writing


def write_trees(
    connection: Connection, vocabulary: Vocabulary, changes: TreeChanges, locked: Collection[int]
) -> None:
    """Write what differs, and say in the log which providers are no longer what they were."""
    try:
        gone = _remove(connection, changes.removed)
        stored = _stored(connection, changes, locked)
        books = _changed_books(changes)
        ids = {row.uuid: row.id for row in stored.values()}
        ids |= _number(connection, [provider for provider in books if provider not in ids])
        _write_providers(connection, changes, stored, ids)
        _write_contents(connection, vocabulary, [(ids[book.id], book) for book in books.values()])
        reshaped = _write_roots(connection, changes, stored, ids)
        clear_stumps(
            connection, [tree for tree in changes.trees if tree.providers and tree.root not in stored]
        )
        write_stumps(connection, changes.trees)
    except sa.exc.IntegrityError as error:
        # It was free when we looked, without a lock: there is no row to lock for what does not exist yet.
        if is_duplicate(error):
            raise Transient(f"another report has just written the same provider: {error.orig}") from error
        raise
    touched = sorted({ids[provider] for provider in books} | set(reshaped))
    log.append(connection, LogEntry(providers=tuple(touched), gone=gone))


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
        .order_by(providers.c.id)
    ).all()
    ids = [row.id for row in rows]
    for table in (inventories, provider_traits, provider_aggregates):
        connection.execute(sa.delete(table).where(among(connection, table.c.provider_id, ids)))
    connection.execute(sa.delete(providers).where(among(connection, providers.c.id, ids)))
    return tuple(ProviderGone(internal=row.id, id=row.uuid, revision=row.revision + 1) for row in rows)


def _stored(
    connection: Connection, changes: TreeChanges, locked: Collection[int]
) -> dict[ProviderId, Row[Any]]:
    """Roots and everything that changed or is the parent of it, as far as they exist."""
    needed = {tree.root for tree in changes.trees} | set(changes.changed)
    needed |= {book.parent for book in _changed_books(changes).values() if book.parent is not None}
    rows = connection.execute(sa.select(providers).where(among(connection, providers.c.uuid, needed)))
    stored = {row.uuid: row for row in rows}
    for row in stored.values():
        if row.root_id not in locked:
            # Nor was there a row to lock here; but this one we see, and would write over it.
            raise Transient(f"another report has just written the same provider: {row.uuid}")
    return stored


def _number(connection: Connection, new: Sequence[ProviderId]) -> dict[ProviderId, int]:
    """Internal ids for providers that have none yet: known before the rows, which name each other by them."""
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


def _write_providers(
    connection: Connection,
    changes: TreeChanges,
    stored: Mapping[ProviderId, Row[Any]],
    ids: Mapping[ProviderId, int],
) -> None:
    changed = set(changes.changed)
    new, known = [], []
    for tree in changes.trees:
        for book in tree.providers.values():
            if book.id not in changed:
                continue
            row = {
                "name": book.name,
                "parent_id": None if book.parent is None else ids[book.parent],
                "root_id": ids[tree.root],
                "cell": tree.cell,
                "generation": book.generation,
            }
            if before := stored.get(book.id):
                known.append(
                    row | _revised(before.revision + 1) | {"key": before.id, "old_name": before.name}
                )
            else:
                fresh = _revised(1) | {"shape": 0, "epoch": 0, "sequence": 0}
                new.append(row | fresh | {"id": ids[book.id], "uuid": book.id})
    _free_names(connection, [row["key"] for row in known if row["name"] != row["old_name"]])
    if known:
        connection.execute(_by_key(providers), [{k: row[k] for k in row if k != "old_name"} for row in known])
    if new:
        connection.execute(sa.insert(providers), new)


def _revised(revision: int) -> dict[str, int]:
    """More of it changes than what is used."""
    return {"revision": revision, "base": revision}


def _free_names(connection: Connection, ids: Collection[int]) -> None:
    """Two providers may exchange their names, which are unique at every moment."""
    if ids:
        nameless = sa.literal("renaming ") + sa.cast(providers.c.id, sa.String)
        connection.execute(
            sa.update(providers).where(among(connection, providers.c.id, ids)).values(name=nameless)
        )


def _by_key(table: Table) -> sa.Update:
    return sa.update(table).where(table.c.id == sa.bindparam("key"))


def _write_roots(
    connection: Connection,
    changes: TreeChanges,
    stored: Mapping[ProviderId, Row[Any]],
    ids: Mapping[ProviderId, int],
) -> list[int]:
    """The trees' own counters; the roots that became news only by them."""
    changed = set(changes.changed)
    reshaped, rows = [], []
    for tree in changes.trees:
        if not tree.providers:
            # A stump; its root may stand in another tree by now.
            continue
        before = stored.get(tree.root)
        counters = {"shape": tree.shape, "epoch": tree.epoch, "sequence": tree.sequence}
        if before and counters == {name: getattr(before, name) for name in counters}:
            continue
        row = counters | {"key": ids[tree.root]}
        if tree.root in changed or not before or before.shape != tree.shape:
            reshaped.append(ids[tree.root])
            row |= _revised(before.revision + 1 if before else 1)
        else:
            row |= {"revision": before.revision, "base": before.base}
        rows.append(row)
    if rows:
        connection.execute(_by_key(providers), rows)
    return reshaped


def _write_contents(
    connection: Connection, vocabulary: Vocabulary, books: Sequence[tuple[int, ProviderBook]]
) -> None:
    if not books:
        return
    vocabulary.classes.make(connection, {name for _, book in books for name in book.inventories})
    vocabulary.traits.make(
        connection, {name for _, book in books for name in book.traits | book.operator_traits}
    )
    ids = [number for number, _ in books]
    _replace(connection, inventories, ids, _inventory_rows(vocabulary, books))
    _replace(connection, provider_traits, ids, _trait_rows(vocabulary, books))
    _replace(connection, provider_aggregates, ids, {(n, a) for n, book in books for a in book.aggregates})


def _inventory_rows(
    vocabulary: Vocabulary, books: Iterable[tuple[int, ProviderBook]]
) -> set[tuple[Any, ...]]:
    return {
        (
            number,
            vocabulary.classes.ids[name],
            inventory.total,
            inventory.reserved,
            inventory.min_unit,
            inventory.max_unit,
            inventory.step_size,
            inventory.allocation_ratio,
            inventory.used,
        )
        for number, book in books
        for name, inventory in book.inventories.items()
    }


def _trait_rows(vocabulary: Vocabulary, books: Iterable[tuple[int, ProviderBook]]) -> set[tuple[Any, ...]]:
    return {
        (number, vocabulary.traits.ids[name], by_operator)
        for number, book in books
        for names, by_operator in ((book.traits, False), (book.operator_traits, True))
        for name in names
    }


def _replace(
    connection: Connection, table: Table, ids: Collection[int], wanted: set[tuple[Any, ...]]
) -> None:
    """Of these providers the table has these rows and no others; what is there already is not written again."""
    query = sa.select(table).where(among(connection, table.c.provider_id, ids))
    stored = {tuple(row) for row in connection.execute(query)}
    names = table.columns.keys()
    keys = [column.name for column in table.primary_key]
    if gone := [dict(zip(names, row, strict=True)) for row in sorted(stored - wanted, key=str)]:
        same = sa.and_(*(table.c[key] == sa.bindparam(f"old_{key}") for key in keys))
        connection.execute(
            sa.delete(table).where(same), [{f"old_{key}": row[key] for key in keys} for row in gone]
        )
    if new := [dict(zip(names, row, strict=True)) for row in sorted(wanted - stored, key=str)]:
        connection.execute(sa.insert(table), new)
