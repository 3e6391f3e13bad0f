"""The trees that a batch names: locked, then read whole, by functions that run on PostgreSQL and on SQLite."""

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from bus.errors import Transient
from bus.message import ProviderId
from bus.sql import among
from placement_worker.core.ledger import Forest, Named, ProviderBook, TreeBook
from placement_worker.store_sql.names import Vocabulary
from placement_worker.store_sql.naming import known_of
from placement_worker.store_sql.states import (
    parent,
    read_aggregates,
    read_inventories,
    read_traits,
    root,
)
from placement_worker.store_sql.stumps import lock_stumps
from placement_worker.tables import providers, resource_classes, traits


def lock_trees(connection: Connection, vocabulary: Vocabulary, named: Named) -> tuple[Forest, frozenset[int]]:
    """Lock the roots, one statement; read what they stand for, by later ones. With the internal ids of the roots."""
    roots = connection.scalars(
        sa.select(providers.c.root_id).where(among(connection, providers.c.uuid, named.trees)).distinct()
    ).all()
    locked = connection.scalars(
        sa.select(providers.c.id)
        .where(among(connection, providers.c.id, roots), providers.c.root_id == providers.c.id)
        .order_by(providers.c.id + 0)
        .with_for_update(key_share=True)
    ).all()
    trees = lock_stumps(connection, named.trees) | _read_trees(connection, vocabulary, locked)
    standing = {provider for tree in trees.values() for provider in tree.providers}
    elsewhere = _elsewhere(connection, (named.trees | named.providers) - standing)
    if strayed := elsewhere.keys() & named.trees:
        raise Transient(f"{len(strayed)} providers came to another tree while that was being locked")
    # A provider of a locked tree keeps its name: names are unique.
    borne = {book.name for tree in trees.values() for book in tree.providers.values()}
    forest = Forest(
        trees,
        elsewhere,
        _bearers(connection, named.names - borne),
        known_of(connection, resource_classes, named.classes),
        known_of(connection, traits, named.traits),
    )
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
        .order_by(providers.c.id + 0)
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
    stocks = read_inventories(connection, vocabulary.classes, {row.id: row.used for row in rows})
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
