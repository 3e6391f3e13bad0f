"""The trees that a batch names: lock them, then read them whole."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from bus.errors import Transient
from bus.message import ProviderId
from bus.sql import Transaction, among
from placement_worker.core.ledger import Forest, ForestKeys, TreeBook
from placement_worker.store_sql.custom_names import existing_names
from placement_worker.store_sql.driver_rows import Statement, rows_of
from placement_worker.store_sql.name_cache import CachedVocabulary
from placement_worker.store_sql.trees.stored_providers import StoredProvider, read_trees_of, tree_books
from placement_worker.store_sql.trees.tombstones import lock_tombstones
from placement_worker.tables import providers, resource_classes, traits

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
