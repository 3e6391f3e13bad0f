"""Read providers with all their contents, by the drivers' own statements.

Outside of a reading transaction each statement sees what was committed when it began. So a caller that decides by what it
reads locks first.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from bus.message import AggregateId, ProviderId
from bus.messages.placement import InventoryState, ProviderState
from bus.sql import Transaction, among
from placement_worker.core.ledger import ProviderBook, TreeBook
from placement_worker.store_sql.driver_rows import decode_used, id_of, portable, rows_of
from placement_worker.store_sql.name_cache import CachedVocabulary
from placement_worker.tables import providers

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
