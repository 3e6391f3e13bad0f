"""The trees that a batch names: locked, then read whole."""

from collections.abc import Collection, Mapping
from uuid import UUID

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from bus.errors import Transient
from bus.message import ProviderId
from bus.sql import PostgresTransaction, Transaction, among, array_of
from placement_worker.core.ledger import Forest, Named, TreeBook
from placement_worker.store_sql.known import Providers
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

_FIND = """
SELECT providers.id, providers.uuid, root.id, root.uuid
FROM providers JOIN providers AS root ON root.id = ANY (ARRAY[providers.root_id])
WHERE providers.uuid = ANY($1::text::uuid[])
"""
# Only locks: what the trees are is read by a later statement.
_LOCK = """
SELECT id FROM providers WHERE id = ANY($1::text::bigint[]) AND root_id = id ORDER BY id + 0 FOR NO KEY UPDATE
"""


class Locked(Struct, frozen=True):
    """The trees of a batch as they are stored."""

    trees: Mapping[ProviderId, TreeBook] = {}
    providers: Mapping[ProviderId, StoredProvider] = {}

    @property
    def roots(self) -> frozenset[int]:
        return frozenset([one.root for one in self.providers.values()])


async def lock_trees(
    transaction: Transaction, vocabulary: Vocabulary, known: Providers, named: Named
) -> tuple[Forest, Locked]:
    """Lock the roots by one statement; read what they stand for by later ones."""
    if isinstance(transaction, PostgresTransaction):
        roots = await _lock_roots(transaction, known, named.trees)
        stored = await read_trees_of(transaction, vocabulary, roots)
    else:
        stored = await read_trees_with(transaction, vocabulary, named.trees)
    locked = Locked(tree_books(stored, vocabulary), {one.id: one for one in stored})
    # A provider of a locked tree keeps its name: names are unique.
    names = named.names - {one.name for one in stored}
    others = (named.trees | named.providers) - locked.providers.keys()
    if not (others or names or named.classes or named.traits):
        return Forest(locked.trees), locked
    forest = await transaction.run(_look_beyond, locked.trees, others, names, named)
    if strayed := forest.elsewhere.keys() & named.trees:
        known.forget_ids(strayed)
        raise Transient(f"{len(strayed)} providers came to another tree while that was being locked")
    return forest, locked


async def _lock_roots(
    transaction: PostgresTransaction, known: Providers, wanted: Collection[ProviderId]
) -> list[int]:
    """The roots of their trees, by number. Where a provider is known to stand only says what to lock: if its root is gone,
    it is looked for again, and found elsewhere the batch begins anew.
    """
    if not wanted:
        return []
    driver = await transaction.driver()
    root_of = {one: found.root for one in wanted if (found := known.by_id(one.int)) is not None}
    if unknown := [one for one in wanted if one not in root_of]:
        rows = await driver.fetch(_FIND, array_of(unknown))
        known.found(rows)
        root_of |= {ProviderId(UUID(int=row[1].int)): row[2] for row in rows}
    roots = sorted({*root_of.values()})
    locked = [row[0] for row in await driver.fetch(_LOCK, array_of(roots))] if roots else []
    if len(locked) < len(roots):
        there = frozenset(locked)
        lost = [one for one, root_number in root_of.items() if root_number not in there]
        known.forget_ids(lost)
        if await driver.fetch(_FIND, array_of(lost)):
            raise Transient("a provider came into another tree while that was being locked")
    return locked


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
