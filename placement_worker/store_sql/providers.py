"""Rows of providers and their trees."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from engine.inventories import AggregateId, InventoryState, ProviderId, ProviderState
from kit.errors import Transient
from kit.sql import Transaction, among, insert
from kit.times import now
from placement_worker.core.ledger import Forest, ForestKeys, ProviderBook, TreeBook
from placement_worker.store_sql.names import CachedVocabulary, existing_names
from placement_worker.store_sql.rows import Statement, decode_used, id_of, portable, rows_of
from placement_worker.tables import providers, resource_classes, traits, tree_tombstones

# Read providers with all their contents, by the drivers' own statements.
#
# Outside of a reading transaction each statement sees what was committed when it began. So a caller that decides by what it
# reads locks first.


# An operator's traits have negative numbers.
_READ = """
SELECT providers.id, providers.uuid, root.id, root.uuid, parent.uuid, providers.name, providers.cell,
       providers.generation, providers.revision, providers.base, root.shape, providers.epoch, providers.sequence,
       providers.consumers, providers.used,
       (
           SELECT json_agg(CASE WHEN mark.set_by_operator THEN -mark.trait_id ELSE mark.trait_id END)::text
           FROM provider_traits AS mark WHERE mark.provider_id = ANY (ARRAY[providers.id])
       ),
       (
           SELECT json_agg(member.aggregate)::text
           FROM provider_aggregates AS member WHERE member.provider_id = ANY (ARRAY[providers.id])
       ),
       providers.made_by_name
FROM providers
JOIN providers AS root ON root.id = ANY (ARRAY[providers.root_id])
LEFT JOIN providers AS parent ON parent.id = ANY (ARRAY[providers.parent_id])
WHERE {} = ANY ($1::text::bigint[])
ORDER BY providers.id + 0
"""
_OF_TREES = portable(_READ.format("providers.root_id"))
_OF_NUMBERS = portable(_READ.format("providers.id"))

_STOCKS = portable(
    "SELECT provider_id, class_id, total, reserved, min_unit, max_unit, step_size, allocation_ratio"
    " FROM inventories WHERE provider_id = ANY ($1::text::bigint[])"
)

_decode_numbers = msgspec.json.Decoder(tuple[int, ...]).decode
_decode_ids = msgspec.json.Decoder(tuple[UUID, ...]).decode


class StoredProvider(Struct, frozen=True, gc=False):
    """A provider as it is stored, with classes and traits by number. `shape` is its tree's. `epoch` and `sequence` are valid
    for a root only. An operator's traits have negative numbers.
    """

    number: int
    id: ProviderId
    root: int
    root_id: ProviderId
    parent: ProviderId | None
    name: str
    cell: str
    generation: int
    revision: int
    base: int
    shape: int
    epoch: int
    sequence: int
    consumers: int
    inventories: Mapping[int, InventoryState]
    traits: tuple[int, ...]
    aggregates: tuple[AggregateId, ...]
    made_by_name: bool


def numbers_of(connection: Connection, of: Collection[ProviderId]) -> list[int]:
    """The internal ids of these providers, as far as they exist."""
    return [*connection.scalars(sa.select(providers.c.id).where(among(connection, providers.c.uuid, of)))]


async def read_trees_of(
    transaction: Transaction, vocabulary: CachedVocabulary, roots: Collection[int]
) -> list[StoredProvider]:
    """All providers of the trees of these roots (internal ids), ordered by internal id."""
    return await _read(transaction, vocabulary, await rows_of(transaction, _OF_TREES, roots))


async def read_states(
    transaction: Transaction, vocabulary: CachedVocabulary, numbers: Collection[int]
) -> tuple[ProviderState, ...]:
    """States of the providers that still exist, in the form that messages have, ordered by internal id."""
    stored = await _read(transaction, vocabulary, await rows_of(transaction, _OF_NUMBERS, numbers))
    return tuple([state_of(one, vocabulary) for one in stored])


def tree_books(stored: Iterable[StoredProvider], vocabulary: CachedVocabulary) -> dict[ProviderId, TreeBook]:
    """Combine stored providers into whole trees, by the ids of their roots."""
    trees: dict[ProviderId, dict[ProviderId, ProviderBook]] = {}
    roots = []
    for one in stored:
        trees.setdefault(one.root_id, {})[one.id] = _book(one, vocabulary)
        if one.number == one.root:
            roots.append(one)
    return {
        one.id: TreeBook(
            root=one.id,
            cell=one.cell,
            shape=one.shape,
            epoch=one.epoch,
            sequence=one.sequence,
            providers=trees[one.id],
        )
        for one in roots
    }


def state_of(stored: StoredProvider, vocabulary: CachedVocabulary) -> ProviderState:
    """The state of a stored provider, as messages have it: operators' traits and reported traits are one list there."""
    classes, traits = vocabulary.classes.names, vocabulary.traits.names
    return ProviderState(
        internal=stored.number,
        id=stored.id,
        name=stored.name,
        root=stored.root_id,
        parent=stored.parent,
        cell=stored.cell,
        generation=stored.generation,
        shape=stored.shape,
        revision=stored.revision,
        inventories={classes[class_id]: stock for class_id, stock in stored.inventories.items()},
        traits=tuple(sorted({traits[abs(number)] for number in stored.traits})),
        aggregates=tuple(sorted(stored.aggregates)),
        consumers=stored.consumers,
        made_by_name=stored.made_by_name,
    )


def _book(stored: StoredProvider, vocabulary: CachedVocabulary) -> ProviderBook:
    classes, traits = vocabulary.classes.names, vocabulary.traits.names
    return ProviderBook(
        id=stored.id,
        name=stored.name,
        parent=stored.parent,
        generation=stored.generation,
        inventories={classes[class_id]: stock for class_id, stock in stored.inventories.items()},
        traits=frozenset([traits[number] for number in stored.traits if number > 0]),
        operator_traits=frozenset([traits[-number] for number in stored.traits if number < 0]),
        aggregates=frozenset(stored.aggregates),
        made_by_name=stored.made_by_name,
    )


async def _read(
    transaction: Transaction, vocabulary: CachedVocabulary, rows: Sequence[Any]
) -> list[StoredProvider]:
    """Complete these rows of providers with their inventories.

    Afterwards the cache has the names of all their resource classes and traits.
    """
    stocks = await rows_of(transaction, _STOCKS, [row[0] for row in rows])
    used = {row[0]: decode_used(row[14]) for row in rows}
    inventories: dict[int, dict[int, InventoryState]] = {number: {} for number in used}
    for number, class_id, *fields in stocks:
        fields.append(used[number].get(class_id, 0))
        inventories[number][class_id] = InventoryState(*fields)
    stored = [_stored(row, inventories[row[0]]) for row in rows]
    await vocabulary.classes.naming(transaction, {number for one in stored for number in one.inventories})
    await vocabulary.traits.naming(transaction, {abs(number) for one in stored for number in one.traits})
    return stored


def _stored(row: Sequence[Any], inventories: Mapping[int, InventoryState]) -> StoredProvider:
    number, uuid, root, root_uuid, parent, *fields, _, traits, aggregates, made_by_name = row
    values: tuple[Any, ...] = (
        *(number, id_of(uuid), root, id_of(root_uuid), None if parent is None else id_of(parent)),
        *(*fields, inventories, _decode_numbers(traits or "[]"), _decode_ids(aggregates or "[]")),
        bool(made_by_name),
    )
    return StoredProvider(*values)


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


# The trees that a batch names: lock them, then read them whole.


# This statement only locks; later ones read the trees. It looks up the roots once, before it waits for any of them.
_LOCK = Statement(
    """
SELECT id FROM providers
WHERE id = ANY (ARRAY(SELECT root_id FROM providers WHERE uuid = ANY($1::text::uuid[]))) AND root_id = id
ORDER BY id + 0
FOR NO KEY UPDATE
""",
    "SELECT DISTINCT root_id FROM providers WHERE uuid IN (SELECT value FROM json_each(?))",
)


_root = providers.alias("root")


class LockedTrees(Struct, frozen=True):
    """The trees of a batch, as they are stored."""

    trees: Mapping[ProviderId, TreeBook] = {}
    providers: Mapping[ProviderId, StoredProvider] = {}

    @property
    def roots(self) -> frozenset[int]:
        return frozenset([one.root for one in self.providers.values()])


async def lock_trees(
    transaction: Transaction, vocabulary: CachedVocabulary, keys: ForestKeys
) -> tuple[Forest, LockedTrees]:
    """Lock the roots by one statement, then read their trees by later ones."""
    roots = [row[0] for row in await rows_of(transaction, _LOCK, keys.trees)]
    stored = await read_trees_of(transaction, vocabulary, roots)
    locked = LockedTrees(tree_books(stored, vocabulary), {one.id: one for one in stored})
    # Names are unique, and a provider of a locked tree keeps its name: no other provider can take it.
    names = keys.names - {one.name for one in stored}
    others = (keys.trees | keys.providers) - locked.providers.keys()
    # A provider that is below another one now may have left a tombstone, if it was a root before.
    below = keys.trees - locked.trees.keys()
    if not (others or below or names or keys.classes or keys.traits):
        return Forest(locked.trees), locked
    forest = await transaction.run(_look_beyond, locked.trees, others, names, keys)
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
