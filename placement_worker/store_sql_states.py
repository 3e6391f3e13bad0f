"""Providers read whole, as the world sees them."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Row

from bus.message import ProviderId
from bus.messages.placement import InventoryState, ProviderState
from bus.sql import among
from placement_worker.store_sql_names import Names, Vocabulary
from placement_worker.tables import inventories, provider_aggregates, provider_traits, providers

root = providers.alias("root")
parent = providers.alias("parent")

_PROVIDERS = (
    sa.select(
        providers.c.id,
        providers.c.uuid,
        providers.c.name,
        root.c.uuid.label("root"),
        parent.c.uuid.label("parent"),
        providers.c.cell,
        providers.c.generation,
        root.c.shape,
        providers.c.revision,
    )
    .join(root, root.c.id == providers.c.root_id)
    .join(parent, parent.c.id == providers.c.parent_id, isouter=True)
    .order_by(providers.c.id)
)


def read_trees(
    connection: Connection, vocabulary: Vocabulary, roots: Sequence[ProviderId]
) -> tuple[ProviderState, ...]:
    return _read(connection, vocabulary, among(connection, root.c.uuid, roots))


def read_providers(
    connection: Connection, vocabulary: Vocabulary, internal: Collection[int]
) -> tuple[ProviderState, ...]:
    """Those of them that still exist."""
    if not internal:
        return ()
    return _read(connection, vocabulary, among(connection, providers.c.id, internal))


def read_page(
    connection: Connection, vocabulary: Vocabulary, after: int, limit: int
) -> tuple[ProviderState, ...]:
    return _read(connection, vocabulary, providers.c.id > after, limit)


def _read(
    connection: Connection, vocabulary: Vocabulary, which: ColumnElement[bool], limit: int | None = None
) -> tuple[ProviderState, ...]:
    rows = connection.execute(_PROVIDERS.where(which).limit(limit)).all()
    ids = [row.id for row in rows]
    stocks = read_inventories(connection, vocabulary.classes, ids)
    marks = read_traits(connection, vocabulary.traits, ids)
    memberships = read_aggregates(connection, ids)
    return tuple(
        ProviderState(
            internal=row.id,
            id=row.uuid,
            name=row.name,
            root=row.root,
            parent=row.parent,
            cell=row.cell,
            generation=row.generation,
            shape=row.shape,
            revision=row.revision,
            inventories=stocks[row.id],
            traits=tuple(sorted({name for name, _ in marks[row.id]})),
            aggregates=tuple(sorted(memberships[row.id])),
        )
        for row in rows
    )


def read_inventories(
    connection: Connection, classes: Names, ids: Collection[int]
) -> defaultdict[int, dict[str, InventoryState]]:
    rows = _of(connection, inventories, ids)
    if classes.lack(row.class_id for row in rows):
        classes.load(connection)
    found: defaultdict[int, dict[str, InventoryState]] = defaultdict(dict)
    for row in rows:
        found[row.provider_id][classes.name_of(row.class_id)] = InventoryState(
            total=row.total,
            reserved=row.reserved,
            min_unit=row.min_unit,
            max_unit=row.max_unit,
            step_size=row.step_size,
            allocation_ratio=row.allocation_ratio,
            used=row.used,
        )
    return found


def read_traits(
    connection: Connection, traits: Names, ids: Collection[int]
) -> defaultdict[int, set[tuple[str, bool]]]:
    """Each with whether an operator set it."""
    rows = _of(connection, provider_traits, ids)
    if traits.lack(row.trait_id for row in rows):
        traits.load(connection)
    found: defaultdict[int, set[tuple[str, bool]]] = defaultdict(set)
    for row in rows:
        found[row.provider_id].add((traits.name_of(row.trait_id), row.set_by_operator))
    return found


def read_aggregates(connection: Connection, ids: Collection[int]) -> defaultdict[int, set[Any]]:
    found: defaultdict[int, set[Any]] = defaultdict(set)
    for row in _of(connection, provider_aggregates, ids):
        found[row.provider_id].add(row.aggregate)
    return found


def _of(connection: Connection, table: sa.Table, ids: Collection[int]) -> Sequence[Row[Any]]:
    if not ids:
        return ()
    query = sa.select(table).where(among(connection, table.c.provider_id, ids))
    return connection.execute(query.order_by(*table.primary_key.columns)).all()
