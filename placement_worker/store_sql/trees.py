"""Trees of providers: read, locked and written by the same statements on PostgreSQL and SQLite, and tombstones of deleted trees.

Outside of a reading transaction each statement sees what was committed when it began. So a caller that decides by what it
reads locks first.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection, Table

from bus.messages.placement import ProviderGone
from engine.inventories import AggregateId, InventoryState, ProviderId, ProviderState
from kit.clock import now
from kit.errors import Transient
from kit.sql import RowColumns, Transaction, Values, among, by_keys, insert, is_duplicate
from placement_worker.core.forest import limit_values
from placement_worker.core.ledger import Forest, ForestKeys, ProviderBook, TreeBook, TreeChanges, used_in
from placement_worker.store_sql.names import CachedVocabulary, existing_names, revive
from placement_worker.store_sql.rows import (
    NOTHING,
    decode_used,
    encode_amounts,
    id_of,
)
from placement_worker.tables import (
    consumers,
    inventories,
    provider_aggregates,
    provider_places,
    provider_traits,
    providers,
    resource_classes,
    traits,
    tree_tombstones,
)

# In the order of `_stored`. An operator's traits have negative numbers, and an operator's place has a mark before it.
_READ = """
SELECT providers.id, root.id, root.uuid, providers.cell, providers.revision, root.shape, providers.epoch, providers.sequence,
       providers.consumers,
       providers.uuid, providers.name, parent.uuid, providers.generation, providers.made_by_name,
       (
           SELECT json_agg(CASE WHEN spot.set_by_operator THEN '=' || spot.place ELSE spot.place END)::text
           FROM provider_places AS spot WHERE spot.provider_id = ANY (ARRAY[providers.id])
       ),
       providers.used,
       (
           SELECT json_agg(CASE WHEN mark.set_by_operator THEN -mark.trait_id ELSE mark.trait_id END)::text
           FROM provider_traits AS mark WHERE mark.provider_id = ANY (ARRAY[providers.id])
       ),
       (
           SELECT json_agg(member.aggregate)::text
           FROM provider_aggregates AS member WHERE member.provider_id = ANY (ARRAY[providers.id])
       )
FROM providers
JOIN providers AS root ON root.id = ANY (ARRAY[providers.root_id])
LEFT JOIN providers AS parent ON parent.id = ANY (ARRAY[providers.parent_id])
WHERE {} = ANY ($1::text::bigint[])
ORDER BY providers.id + 0
"""
_OF_TREES = by_keys(_READ.format("providers.root_id"))
_OF_NUMBERS = by_keys(_READ.format("providers.id"))

_STOCKS = by_keys(
    "SELECT provider_id, class_id, total, reserved, min_unit, max_unit, step_size, allocation_ratio"
    " FROM inventories WHERE provider_id = ANY ($1::text::bigint[])"
)

_decode_numbers = msgspec.json.Decoder(tuple[int, ...]).decode
_decode_places = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_ids = msgspec.json.Decoder(tuple[UUID, ...]).decode


class StoredProvider(Struct, frozen=True, gc=False):
    """A provider as it is stored: its counters, and the book of what it contains. `shape` is its tree's. `epoch` and `sequence` are
    valid for a root only.
    """

    number: int
    root: int
    root_id: ProviderId
    cell: str
    revision: int
    shape: int
    epoch: int
    sequence: int
    consumers: int
    book: ProviderBook


def numbers_of(connection: Connection, of: Collection[ProviderId]) -> list[int]:
    """The internal ids of these providers, as far as they exist."""
    return [*connection.scalars(sa.select(providers.c.id).where(among(connection, providers.c.uuid, of)))]


async def read_trees_of(
    transaction: Transaction, vocabulary: CachedVocabulary, roots: Collection[int]
) -> list[StoredProvider]:
    """All providers of the trees of these roots (internal ids), ordered by internal id."""
    return await _read(transaction, vocabulary, await _OF_TREES.fetch(transaction, roots))


async def read_states(
    transaction: Transaction, vocabulary: CachedVocabulary, numbers: Collection[int]
) -> tuple[ProviderState, ...]:
    """States of the providers that still exist, in the form that messages have, ordered by internal id."""
    stored = await _read(transaction, vocabulary, await _OF_NUMBERS.fetch(transaction, numbers))
    return tuple([state_of(one) for one in stored])


def tree_books(stored: Sequence[StoredProvider]) -> dict[ProviderId, TreeBook]:
    """Combine stored providers into whole trees, by the ids of their roots."""
    trees: dict[ProviderId, dict[ProviderId, ProviderBook]] = {}
    for one in stored:
        trees.setdefault(one.root_id, {})[one.book.id] = one.book
    return {
        one.root_id: TreeBook(
            root=one.root_id,
            cell=one.cell,
            shape=one.shape,
            epoch=one.epoch,
            sequence=one.sequence,
            providers=trees[one.root_id],
        )
        for one in stored
        if one.number == one.root
    }


def state_of(stored: StoredProvider) -> ProviderState:
    """The state of a stored provider, as messages have it: operators' traits and reported traits are one list there."""
    book = stored.book
    return ProviderState(
        internal=stored.number,
        id=book.id,
        name=book.name,
        root=stored.root_id,
        parent=book.parent,
        cell=stored.cell,
        generation=book.generation,
        shape=stored.shape,
        revision=stored.revision,
        inventories=dict(book.inventories),
        traits=tuple(sorted(book.traits | book.operator_traits)),
        aggregates=tuple(sorted(book.aggregates)),
        consumers=stored.consumers,
        made_by_name=book.made_by_name,
        place=book.place,
    )


async def _read(
    transaction: Transaction, vocabulary: CachedVocabulary, rows: Sequence[Any]
) -> list[StoredProvider]:
    """Complete these rows of providers with their inventories, and with the names of classes and traits."""
    used = {row[0]: decode_used(row[-3]) for row in rows}
    traits = {row[0]: _decode_numbers(row[-2] or "[]") for row in rows}
    stocks = await _STOCKS.fetch(transaction, used)
    classes = await vocabulary.classes.naming(transaction, {row[1] for row in stocks})
    names = await vocabulary.traits.naming(
        transaction, {abs(number) for of_one in traits.values() for number in of_one}
    )
    inventories: dict[int, dict[str, InventoryState]] = {number: {} for number in used}
    for number, class_id, *limits in stocks:
        inventories[number][classes[class_id]] = InventoryState(*(*limits, used[number].get(class_id, 0)))
    return [_stored(row, inventories[row[0]], traits[row[0]], names) for row in rows]


def _stored(
    row: Sequence[Any],
    inventories: Mapping[str, InventoryState],
    traits: Sequence[int],
    names: Mapping[int, str],
) -> StoredProvider:
    (
        number,
        root,
        root_uuid,
        *counters,
        uuid,
        name,
        parent,
        generation,
        made_by_name,
        places,
        _,
        _,
        aggregates,
    ) = row
    spots = _decode_places(places) if places else ()
    book = ProviderBook(
        id=ProviderId(id_of(uuid)),
        name=name,
        parent=None if parent is None else ProviderId(id_of(parent)),
        generation=generation,
        inventories=inventories,
        traits=frozenset([names[each] for each in traits if each > 0]),
        operator_traits=frozenset([names[-each] for each in traits if each < 0]),
        aggregates=frozenset(map(AggregateId, _decode_ids(aggregates or "[]"))),
        made_by_name=bool(made_by_name),
        reported_place=next((spot for spot in spots if not spot.startswith("=")), ""),
        operator_place=next((spot[1:] for spot in spots if spot.startswith("=")), ""),
    )
    return StoredProvider(*(number, root, ProviderId(id_of(root_uuid)), *counters, book))


# Lock the trees that a batch names, then read them whole.

# This statement only locks; later ones read the trees. It looks up the roots once, before it waits for any of them.
_LOCK = by_keys(
    """
SELECT id FROM providers
WHERE id = ANY (ARRAY(SELECT root_id FROM providers WHERE uuid = ANY($1::text::uuid[]))) AND root_id = id
ORDER BY id + 0
FOR NO KEY UPDATE
""",
    "SELECT DISTINCT root_id FROM providers WHERE uuid IN (SELECT value FROM json_each(?))",
)


_root = providers.alias("root")


# The providers of the trees of a batch, as they are stored.
LockedProviders = Mapping[ProviderId, StoredProvider]


async def lock_trees(
    transaction: Transaction, vocabulary: CachedVocabulary, keys: ForestKeys
) -> tuple[Forest, LockedProviders]:
    """Lock the roots by one statement, then read their trees by later ones."""
    roots = [row[0] for row in await _LOCK.fetch(transaction, keys.trees)]
    stored = await read_trees_of(transaction, vocabulary, roots)
    trees, locked = tree_books(stored), {one.book.id: one for one in stored}
    # Names are unique, and a provider of a locked tree keeps its name: no other provider can take it.
    names = keys.names - {one.book.name for one in stored}
    others = (keys.trees | keys.providers) - locked.keys()
    # A provider that is below another one now may have left a tombstone, if it was a root before.
    below = keys.trees - trees.keys()
    if not (others or below or names or keys.classes or keys.traits):
        return Forest(trees), locked
    forest = await transaction.run(_look_beyond, trees, others, names, keys)
    if strayed := forest.elsewhere.keys() & keys.trees:
        raise Transient(
            f"{len(strayed)} providers moved to another tree while their locks were awaited: the batch is tried again"
        )
    return forest, locked


def _look_beyond(
    connection: Connection,
    trees: Mapping[ProviderId, TreeBook],
    others: Collection[ProviderId],
    names: Collection[str],
    keys: ForestKeys,
) -> Forest:
    """The locked trees, together with what else the batch must know.

    That is tombstones, the trees of other named providers, the owners of provider names, and which custom names exist.
    """
    tombstones = lock_tombstones(connection, keys.trees - trees.keys())
    bearers = _bearers(connection, names)
    return Forest(
        {**tombstones, **trees},
        _elsewhere(connection, others),
        {row.name: row.uuid for row in bearers},
        {row.uuid: row.cell for row in bearers},
        existing_names(connection, resource_classes, keys.classes),
        existing_names(connection, traits, keys.traits),
    )


def _elsewhere(connection: Connection, keys: Collection[ProviderId]) -> dict[ProviderId, ProviderId]:
    """The roots of these providers, which are outside of the locked trees.

    They are read without locks, since a batch that names one can only be refused. If a provider is created meanwhile, the
    batch fails when it inserts the same one.
    """
    if not keys:
        return {}
    rows = connection.execute(
        sa.select(providers.c.uuid, _root.c.uuid.label("root"))
        .join(_root, _root.c.id == providers.c.root_id)
        .where(among(connection, providers.c.uuid, keys))
    )
    return {row.uuid: row.root for row in rows}


def _bearers(connection: Connection, names: Collection[str]) -> Sequence[Any]:
    """The providers that have these names, with the cells of their trees."""
    if not names:
        return ()
    query = (
        sa.select(providers.c.name, providers.c.uuid, _root.c.cell)
        .join(_root, _root.c.id == providers.c.root_id)
        .where(among(connection, providers.c.name, names))
    )
    return connection.execute(query).all()


# Write trees, as far as they differ from what is stored.
#
# In a running cloud most reports change only amounts, such as those of a node that becomes reserved or free. They cost two
# statements by the driver for a whole batch. Until such a report is written, a scheduler may choose a host that it must not choose.


# `base` moves with the revision: more than the usage changes.
_COUNT = RowColumns(providers, "id", "generation", "revision", "shape", "epoch", "sequence").update(
    base="CASE WHEN new.revision > kept.revision THEN new.revision ELSE kept.base END"
)
_STOCK = RowColumns(inventories, *inventories.columns.keys()).update()


async def write_trees(
    transaction: Transaction, vocabulary: CachedVocabulary, changes: TreeChanges, locked: LockedProviders
) -> "WrittenTrees":
    """Write what changed in these locked trees."""
    written = await transaction.run(_write, vocabulary, changes, locked)
    await _COUNT.change(transaction, written.counters)
    await _STOCK.change(transaction, written.stocks)
    return written


class WrittenTrees(NamedTuple):
    """The internal ids of the changed providers, the deleted ones, and the new ones with their internal ids. Then the rows that are
    written last: new counters of stored providers, and new limits of stored inventories.
    """

    changed: tuple[int, ...]
    gone: tuple[ProviderGone, ...]
    made: Mapping[ProviderId, int]
    counters: Sequence[Values]
    stocks: Sequence[Values]


def _write(
    connection: Connection, vocabulary: CachedVocabulary, changes: TreeChanges, locked: LockedProviders
) -> WrittenTrees:
    try:
        gone = _remove(connection, changes.removed, locked)
        # A removed provider that is there again is a new one.
        stored = {id_: one for id_, one in locked.items() if id_ not in changes.removed}
        books = _changed_books(changes)
        before = [(stored[id_].number, stored[id_].book) for id_ in books if id_ in stored]
        made = _number(connection, [provider for provider in books if provider not in stored])
        ids = {id_: one.number for id_, one in stored.items()} | made
        used_classes, used_traits = _classes_of(books.values()), _traits_of(books.values())
        vocabulary.classes.make(connection, used_classes)
        vocabulary.traits.make(connection, used_traits)
        _write_providers(connection, vocabulary, changes, stored, ids)
        old, wanted = (
            _contents(vocabulary, some)
            for some in (before, [(ids[id_], book) for id_, book in books.items()])
        )
        left = {table: _rewrite(connection, table, old[table], wanted[table]) for table in _CONTENTS}
        # Names that a provider had before exist, since they were in use.
        known = [book for _, book in before]
        revive(connection, resource_classes, used_classes - _classes_of(known))
        revive(connection, traits, used_traits - _traits_of(known))
        clear_tombstones(connection, [tree for tree in changes.trees if _is_planted(tree, stored)])
        write_tombstones(connection, changes.trees)
    except sa.exc.IntegrityError as error:
        # It did not exist when it was looked up, and a missing row cannot be locked.
        if is_duplicate(error):
            raise Transient(
                f"another transaction has just written the same provider: {error.orig}"
            ) from error
        raise
    numbers = tuple(sorted(ids[provider] for provider in books))
    return WrittenTrees(numbers, gone, made, _counters(changes, stored), left[inventories])


def _is_planted(tree: TreeBook, stored: Mapping[ProviderId, StoredProvider]) -> bool:
    """Is this tree new: did the database have no tree with this root?"""
    before = stored.get(tree.root)
    return bool(tree.providers) and (before is None or before.root != before.number)


def _changed_books(changes: TreeChanges) -> dict[ProviderId, ProviderBook]:
    changed = set(changes.changed)
    return {
        provider: book
        for tree in changes.trees
        for provider, book in tree.providers.items()
        if provider in changed
    }


def _remove(
    connection: Connection, removed: Sequence[ProviderId], locked: LockedProviders
) -> tuple[ProviderGone, ...]:
    if not removed:
        return ()
    rows = sorted([locked[one] for one in removed], key=lambda row: row.number)
    ids = [row.number for row in rows]
    for table in _CONTENTS:
        connection.execute(sa.delete(table).where(among(connection, table.c.provider_id, ids)))
    connection.execute(sa.delete(providers).where(among(connection, providers.c.id, ids)))
    return tuple(ProviderGone(internal=row.number, id=row.book.id, revision=row.revision + 1) for row in rows)


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


_NUMBERS = ("generation", "revision", "base", "shape", "epoch", "sequence")
_VALUES = ("name", "parent_id", "root_id", "cell", "used", "made_by_name")
_NO_NUMBER = -1


def _write_providers(
    connection: Connection,
    vocabulary: CachedVocabulary,
    changes: TreeChanges,
    stored: Mapping[ProviderId, StoredProvider],
    ids: Mapping[ProviderId, int],
) -> None:
    """Write new providers, and stored ones of which more than the counters and contents changes."""
    changed, class_ids = set(changes.changed), vocabulary.classes.ids
    living = _living_on(connection, [one for one in changed if one not in stored])
    new: list[dict[str, Any]] = []
    known: list[dict[str, Any]] = []
    for tree in changes.trees:
        for book in tree.providers.values():
            if book.id not in changed:
                continue
            before = stored.get(book.id)
            # Has each class that exists, even if nothing is used: readers then need not ask for the inventories.
            used = used_in(book.inventories)
            parent = None if book.parent is None else ids[book.parent]
            values = (book.name, parent, ids[tree.root], tree.cell, used, book.made_by_name)
            if before and values == _stored_values(before, stored):
                continue
            by_id = encode_amounts({class_ids[name]: amount for name, amount in used.items()})
            row = dict(zip(_VALUES, values, strict=True)) | {"used": by_id}
            if before:
                known.append(row | {"key": before.number, "old_name": before.book.name})
                continue
            numbers = (book.generation, 1, 1, tree.shape, tree.epoch, tree.sequence)
            row |= dict(zip(_NUMBERS, numbers, strict=True))
            new.append(row | {"consumers": living.get(book.id, 0), "id": ids[book.id], "uuid": book.id})
    _free_names(connection, [row["key"] for row in known if row["name"] != row["old_name"]])
    if known:
        connection.execute(_BY_KEY, [{k: row[k] for k in row if k != "old_name"} for row in known])
    if new:
        connection.execute(sa.insert(providers), new)


def _stored_values(one: StoredProvider, stored: Mapping[ProviderId, StoredProvider]) -> Values:
    # A parent that was removed may be there again, with another number.
    book = one.book
    parent = (
        None if book.parent is None else stored[book.parent].number if book.parent in stored else _NO_NUMBER
    )
    return (book.name, parent, one.root, one.cell, used_in(book.inventories), book.made_by_name)


def _counters(changes: TreeChanges, stored: Mapping[ProviderId, StoredProvider]) -> list[Values]:
    """The rows of `_COUNT`: for stored providers that change, and for roots of which a report changes only its own number.

    Trees without providers are skipped: their root may be in another tree by now.
    """
    changed = set(changes.changed)
    rows: list[Values] = []
    for tree in changes.trees:
        # They are valid on the root only.
        numbers = (tree.shape, tree.epoch, tree.sequence)
        for book in tree.providers.values():
            before = stored.get(book.id)
            if before is None:
                continue
            if book.id in changed:
                rows.append((before.number, book.generation, before.revision + 1, *numbers))
            elif book.id == tree.root and numbers != (before.shape, before.epoch, before.sequence):
                rows.append((before.number, before.book.generation, before.revision, *numbers))
    return rows


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


# These tables have the contents of providers.
_CONTENTS = (provider_traits, provider_places, provider_aggregates, inventories)


def _contents(
    vocabulary: CachedVocabulary, books: Sequence[tuple[int, ProviderBook]]
) -> dict[Table, set[tuple[Any, ...]]]:
    """The rows of what these providers contain. A new provider has nothing stored: what a deleted one with its id had was deleted with
    it.
    """
    class_ids, trait_ids = vocabulary.classes.ids, vocabulary.traits.ids
    return {
        provider_traits: {
            (number, trait_ids[name], by_operator)
            for number, book in books
            for names, by_operator in ((book.traits, False), (book.operator_traits, True))
            for name in names
        },
        provider_places: {
            (number, by_operator, place)
            for number, book in books
            for place, by_operator in ((book.reported_place, False), (book.operator_place, True))
            if place
        },
        provider_aggregates: {(number, each) for number, book in books for each in book.aggregates},
        inventories: {
            (number, class_ids[name], *limit_values(inventory))
            for number, book in books
            for name, inventory in book.inventories.items()
        },
    }


def _rewrite(
    connection: Connection, table: Table, stored: set[tuple[Any, ...]], wanted: set[tuple[Any, ...]]
) -> list[Values]:
    """Replace the stored rows by the wanted ones; those that keep their key are not written, but returned."""
    if stored == wanted:
        return []
    names = table.columns.keys()
    # The first columns of each table.
    keys = [column.name for column in table.primary_key]
    old = {row[: len(keys)] for row in stored - wanted}
    new = {row[: len(keys)]: row for row in sorted(wanted - stored)}
    if gone := sorted(old - new.keys()):
        same = sa.and_(*(table.c[key] == sa.bindparam(f"old_{key}") for key in keys))
        rows = [{f"old_{key}": value for key, value in zip(keys, at, strict=True)} for at in gone]
        connection.execute(sa.delete(table).where(same), rows)
    if made := [dict(zip(names, row, strict=True)) for at, row in new.items() if at not in old]:
        connection.execute(sa.insert(table), made)
    return [row for at, row in new.items() if at in old]


# Tombstones: they stay when a tree is deleted, so that a new tree under the same root continues its counters.


_COUNTERS = ("cell", "shape", "epoch", "sequence")


def lock_tombstones(connection: Connection, roots: Collection[ProviderId]) -> dict[ProviderId, TreeBook]:
    """Lock and read the tombstones of these trees. The caller has locked the roots before.

    If a tree was deleted while the caller waited for its root, the tombstone is found here.
    """
    if not roots:
        return {}
    rows = connection.execute(
        sa.select(tree_tombstones)
        .where(among(connection, tree_tombstones.c.root, roots))
        .order_by(tree_tombstones.c.root)
        .with_for_update()
    )
    return {
        row.root: TreeBook(
            root=row.root, cell=row.cell, shape=row.shape, epoch=row.epoch, sequence=row.sequence
        )
        for row in rows
    }


def write_tombstones(connection: Connection, trees: Iterable[TreeBook]) -> None:
    """Write tombstones for those of these trees that have no providers any more.

    Existing rows are updated, not deleted and inserted anew: a transaction that waits for the row must still find it.
    """
    left = [
        {"root": tree.root, "felled_at": now(), **{name: getattr(tree, name) for name in _COUNTERS}}
        for tree in trees
        if not tree.providers
    ]
    if not left:
        return
    new = insert(connection, tree_tombstones)
    kept: dict[str, sa.ColumnElement[Any]] = {name: new.excluded[name] for name in ("felled_at", *_COUNTERS)}
    # If there was no row to lock, another transaction may have inserted one meanwhile: shapes never count backwards.
    kept["shape"] = sa.case(
        (tree_tombstones.c.shape > new.excluded.shape, tree_tombstones.c.shape), else_=new.excluded.shape
    )
    connection.execute(new.on_conflict_do_update(index_elements=[tree_tombstones.c.root], set_=kept), left)


def clear_tombstones(connection: Connection, recreated: Collection[TreeBook]) -> None:
    """Delete the tombstones of trees that exist again.

    Another transaction may have created and deleted a tree with the same root since this transaction looked for the
    tombstone. There was none then, so nothing was locked. The tombstone that the other transaction left has a shape that
    is not lower than that of the new tree. Then Transient is raised, and the batch is tried again. If it is not raised,
    no other transaction can create such a tree before this one ends, since this one has written the new trees' providers.
    """
    if not recreated:
        return
    shapes = {tree.root: tree.shape for tree in recreated}
    cleared = connection.execute(
        sa.delete(tree_tombstones)
        .where(among(connection, tree_tombstones.c.root, shapes))
        .returning(tree_tombstones.c.root, tree_tombstones.c.shape)
    ).all()
    for root, shape in cleared:
        if shape >= shapes[root]:
            raise Transient(
                f"another transaction has just deleted the tree of {root}, at shape {shape}: the batch is tried again"
            )


def prune_tombstones(connection: Connection, felled_before: datetime) -> int:
    expired = (
        sa.select(tree_tombstones.c.root)
        .where(tree_tombstones.c.felled_at < felled_before)
        .with_for_update(skip_locked=True)
    )
    return connection.execute(sa.delete(tree_tombstones).where(tree_tombstones.c.root.in_(expired))).rowcount
