"""Read providers whole, as messages describe them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Select

from bus.message import AggregateId, ProviderId
from bus.messages.placement import InventoryState, ProviderState
from bus.sql import among
from placement_worker.store_sql.amounts import decode_used
from placement_worker.store_sql.name_cache import CachedNames, CachedVocabulary
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
        providers.c.used,
        providers.c.consumers,
    )
    .join(root, root.c.id == providers.c.root_id)
    .join(parent, parent.c.id == providers.c.parent_id, isouter=True)
    .order_by(providers.c.id)
)


def read_trees(
    connection: Connection, vocabulary: CachedVocabulary, roots: Sequence[ProviderId]
) -> tuple[ProviderState, ...]:
    return _read(connection, vocabulary, _PROVIDERS.where(among(connection, root.c.uuid, roots)))


def read_providers(
    connection: Connection, vocabulary: CachedVocabulary, internal: Collection[int]
) -> tuple[ProviderState, ...]:
    """Those of them that still exist."""
    if not internal:
        return ()
    return _read(connection, vocabulary, _PROVIDERS.where(among(connection, providers.c.id, internal)))


def read_page(
    connection: Connection, vocabulary: CachedVocabulary, after: int, limit: int
) -> tuple[ProviderState, ...]:
    return _read(connection, vocabulary, _PROVIDERS.where(providers.c.id > after).limit(limit))


def _read(
    connection: Connection, vocabulary: CachedVocabulary, query: Select[Any]
) -> tuple[ProviderState, ...]:
    rows: Sequence[Any] = connection.execute(query).all()
    ids = [row.id for row in rows]
    stocks = read_inventories(connection, vocabulary.classes, {row.id: row.used for row in rows})
    marks = read_traits(connection, vocabulary.traits, ids)
    memberships = read_aggregates(connection, ids)
    return tuple(
        [
            ProviderState(
                internal=internal,
                id=uuid,
                name=name,
                root=root_uuid,
                parent=parent_uuid,
                cell=cell,
                generation=generation,
                shape=shape,
                revision=revision,
                inventories=stocks.get(internal, {}),
                traits=tuple(sorted({*marks.get((internal, False), ()), *marks.get((internal, True), ())})),
                aggregates=tuple(sorted(memberships.get(internal, ()))),
                consumers=living,
            )
            for internal, uuid, name, root_uuid, parent_uuid, cell, generation, shape, revision, _, living in rows
        ]
    )


def read_inventories(
    connection: Connection, classes: CachedNames, used: Mapping[int, str]
) -> dict[int, dict[str, InventoryState]]:
    """The inventories of these providers; `used` is the stored usage of each."""
    rows = _of(connection, inventories, used.keys())
    if classes.lack({row[1] for row in rows}):
        classes.load(connection)
    amounts = {provider: decode_used(text) for provider, text in used.items()}
    found: dict[int, dict[str, InventoryState]] = {}
    for provider, class_id, total, reserved, min_unit, max_unit, step_size, ratio in rows:
        found.setdefault(provider, {})[classes.names[class_id]] = InventoryState(
            total=total,
            reserved=reserved,
            min_unit=min_unit,
            max_unit=max_unit,
            step_size=step_size,
            allocation_ratio=ratio,
            used=amounts[provider].get(class_id, 0),
        )
    return found


def read_traits(
    connection: Connection, traits: CachedNames, ids: Collection[int]
) -> dict[tuple[int, bool], list[str]]:
    """By provider, and by whether an operator set them. The database joins them into one row each: a host has dozens."""
    if not ids:
        return {}
    by, operator = provider_traits.c.provider_id, provider_traits.c.set_by_operator
    together = sa.func.aggregate_strings(sa.cast(provider_traits.c.trait_id, sa.String), ",")
    query = sa.select(by, operator, together).where(among(connection, by, ids)).group_by(by, operator)
    numbers = {
        (provider, by_operator): [int(number) for number in text.split(",")]
        for provider, by_operator, text in connection.execute(query)
    }
    if traits.lack({number for of_one in numbers.values() for number in of_one}):
        traits.load(connection)
    return {key: [traits.names[number] for number in of_one] for key, of_one in numbers.items()}


def read_aggregates(connection: Connection, ids: Collection[int]) -> dict[int, list[AggregateId]]:
    found: dict[int, list[AggregateId]] = {}
    for provider, aggregate in _of(connection, provider_aggregates, ids):
        found.setdefault(provider, []).append(aggregate)
    return found


def _of(connection: Connection, table: sa.Table, ids: Collection[int]) -> Sequence[Any]:
    if not ids:
        return ()
    return connection.execute(sa.select(table).where(among(connection, table.c.provider_id, ids))).all()
