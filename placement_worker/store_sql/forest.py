"""The trees that a batch names: locked, then read whole."""

from collections.abc import Collection, Mapping

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from bus.errors import Transient
from bus.message import ProviderId
from bus.sql import PostgresTransaction, Transaction, among, array_of
from placement_worker.core.ledger import Forest, Named, TreeBook
from placement_worker.store_sql.names import Vocabulary
from placement_worker.store_sql.naming import known_of
from placement_worker.store_sql.states import root
from placement_worker.store_sql.stumps import lock_stumps
from placement_worker.store_sql.whole import (
    StoredProvider,
    read_trees_of,
    read_trees_with,
    tree_books,
)
from placement_worker.tables import providers, resource_classes, traits

# Only locks: what the trees are is read by a later statement. The roots are looked up once, before any of them is waited for.
_LOCK = """
SELECT id FROM providers
WHERE id = ANY (ARRAY(SELECT root_id FROM providers WHERE uuid = ANY($1::text::uuid[]))) AND root_id = id
ORDER BY id + 0
FOR NO KEY UPDATE
"""


class Locked(Struct, frozen=True):
    """The trees of a batch as they are stored."""

    trees: Mapping[ProviderId, TreeBook] = {}
    providers: Mapping[ProviderId, StoredProvider] = {}

    @property
    def roots(self) -> frozenset[int]:
        return frozenset([one.root for one in self.providers.values()])


async def lock_trees(transaction: Transaction, vocabulary: Vocabulary, named: Named) -> tuple[Forest, Locked]:
    """Lock the roots by one statement; read what they stand for by later ones."""
    if isinstance(transaction, PostgresTransaction):
        driver = await transaction.driver()
        roots = [row[0] for row in await driver.fetch(_LOCK, array_of([*named.trees]))] if named.trees else []
        stored = await read_trees_of(transaction, vocabulary, roots)
    else:
        stored = await read_trees_with(transaction, vocabulary, named.trees)
    locked = Locked(tree_books(stored, vocabulary), {one.id: one for one in stored})
    # A provider of a locked tree keeps its name: names are unique.
    names = named.names - {one.name for one in stored}
    others = (named.trees | named.providers) - locked.providers.keys()
    # A provider that stands below another one may have left a stump where it was a root.
    below = named.trees - locked.trees.keys()
    if not (others or below or names or named.classes or named.traits):
        return Forest(locked.trees), locked
    forest = await transaction.run(_look_beyond, locked.trees, others, names, named)
    if strayed := forest.elsewhere.keys() & named.trees:
        raise Transient(f"{len(strayed)} providers came to another tree while that was being locked")
    return forest, locked


def _look_beyond(
    connection: Connection,
    trees: Mapping[ProviderId, TreeBook],
    others: Collection[ProviderId],
    names: Collection[str],
    named: Named,
) -> Forest:
    """What is named and stands in no locked tree."""
    stumps = lock_stumps(connection, named.trees - trees.keys())
    return Forest(
        {**stumps, **trees},
        _elsewhere(connection, others),
        _bearers(connection, names),
        known_of(connection, resource_classes, named.classes),
        known_of(connection, traits, named.traits),
    )


def _elsewhere(connection: Connection, named: Collection[ProviderId]) -> dict[ProviderId, ProviderId]:
    """Not locked, since the decision can only be a refusal. What comes to stand there meanwhile is a duplicate."""
    if not named:
        return {}
    rows = connection.execute(
        sa.select(providers.c.uuid, root.c.uuid.label("root"))
        .join(root, root.c.id == providers.c.root_id)
        .where(among(connection, providers.c.uuid, named))
    )
    return {row.uuid: row.root for row in rows}


def _bearers(connection: Connection, names: Collection[str]) -> dict[str, ProviderId]:
    if not names:
        return {}
    query = sa.select(providers.c.name, providers.c.uuid).where(among(connection, providers.c.name, names))
    return {row.name: row.uuid for row in connection.execute(query)}
