"""Read providers with all their contents, by the drivers' own statements: for batches of reports, and for the feed.

On PostgreSQL one statement reads a batch. It sees what was committed when it began, so a deciding caller locks first.
"""

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct, structs
from sqlalchemy import Connection

from bus.message import AggregateId, ProviderId
from bus.messages.placement import InventoryState, ProviderState
from bus.sql import PostgresTransaction, Transaction, array_of, driver_of
from placement_worker.core.ledger import ProviderBook, TreeBook
from placement_worker.store_sql.amounts import decode_used
from placement_worker.store_sql.name_cache import CachedVocabulary

_COLUMNS = """
SELECT providers.id, providers.uuid, root.id, root.uuid, parent.uuid, providers.name, providers.cell,
       providers.generation, providers.revision, providers.base, root.shape, providers.epoch, providers.sequence,
       providers.used, providers.consumers
"""
_USED, _COLUMN_COUNT = 13, 15
# One row for each inventory, or one with NULLs. An operator's traits have negative numbers.
_ON_POSTGRESQL = f"""
{_COLUMNS},
       ARRAY(
           SELECT CASE WHEN mark.set_by_operator THEN -mark.trait_id ELSE mark.trait_id END
           FROM provider_traits AS mark WHERE mark.provider_id = ANY (ARRAY[providers.id])
       ),
       ARRAY(
           SELECT member.aggregate
           FROM provider_aggregates AS member WHERE member.provider_id = ANY (ARRAY[providers.id])
       ),
       stock.class_id, stock.total, stock.reserved, stock.min_unit, stock.max_unit, stock.step_size,
       stock.allocation_ratio
FROM providers
JOIN providers AS root ON root.id = ANY (ARRAY[providers.root_id])
LEFT JOIN providers AS parent ON parent.id = ANY (ARRAY[providers.parent_id])
LEFT JOIN inventories AS stock ON stock.provider_id = ANY (ARRAY[providers.id])
WHERE %s = ANY ($1::text::bigint[])
ORDER BY providers.id + 0
"""  # noqa: S608 - no words but ours, here and below
_OF_TREES = _ON_POSTGRESQL % "providers.root_id"
_OF_NUMBERS = _ON_POSTGRESQL % "providers.id"

_AMONG = "IN (SELECT value FROM json_each(?))"
_ON_SQLITE = f"""
{_COLUMNS}
FROM providers
JOIN providers AS root ON root.id = providers.root_id
LEFT JOIN providers AS parent ON parent.id = providers.parent_id
WHERE
"""
_TREES_ON_SQLITE = f"""
{_ON_SQLITE} providers.root_id IN (SELECT root_id FROM providers WHERE uuid {_AMONG}) ORDER BY providers.id
"""  # noqa: S608
_NUMBERS_ON_SQLITE = f"{_ON_SQLITE} providers.id {_AMONG} ORDER BY providers.id"
_STOCKS_ON_SQLITE = f"""
SELECT provider_id, class_id, total, reserved, min_unit, max_unit, step_size, allocation_ratio
FROM inventories WHERE provider_id {_AMONG}
"""  # noqa: S608
_TRAITS_ON_SQLITE = f"""
SELECT provider_id, CASE WHEN set_by_operator THEN -trait_id ELSE trait_id END
FROM provider_traits WHERE provider_id {_AMONG}
"""  # noqa: S608
_AGGREGATES_ON_SQLITE = f"SELECT provider_id, aggregate FROM provider_aggregates WHERE provider_id {_AMONG}"  # noqa: S608


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
    inventories: Mapping[int, InventoryState]
    consumers: int
    traits: tuple[int, ...]
    aggregates: tuple[AggregateId, ...]


async def read_trees_of(
    transaction: Transaction, vocabulary: CachedVocabulary, roots: Collection[int]
) -> list[StoredProvider]:
    """On PostgreSQL: all providers of the trees of these roots (internal ids)."""
    assert isinstance(transaction, PostgresTransaction), (
        "SQLite's trees are found by the ids of their providers"
    )
    return await _known(transaction, vocabulary, await _fetched(transaction, _OF_TREES, roots))


async def read_trees_with(
    transaction: Transaction, vocabulary: CachedVocabulary, providers: Iterable[ProviderId]
) -> list[StoredProvider]:
    """On SQLite, where nothing needs a lock before: all providers of the trees that these providers are in."""
    sought = [provider.hex for provider in providers]
    return await _known(
        transaction, vocabulary, await transaction.run(_read_on_sqlite, _TREES_ON_SQLITE, sought)
    )


async def read_states(
    transaction: Transaction, vocabulary: CachedVocabulary, numbers: Collection[int]
) -> tuple[ProviderState, ...]:
    """States of those that still exist, ordered by internal id, as messages describe them."""
    if isinstance(transaction, PostgresTransaction):
        found = await _fetched(transaction, _OF_NUMBERS, numbers)
    elif numbers:
        found = await transaction.run(_read_on_sqlite, _NUMBERS_ON_SQLITE, [*numbers])
    else:
        return ()
    return tuple([_state(one, vocabulary) for one in await _known(transaction, vocabulary, found)])


def tree_books(stored: Iterable[StoredProvider], vocabulary: CachedVocabulary) -> dict[ProviderId, TreeBook]:
    """Whole trees, by their roots."""
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


def _state(stored: StoredProvider, vocabulary: CachedVocabulary) -> ProviderState:
    """Messages do not tell an operator's traits from the reporter's."""
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
    )


async def _known(
    transaction: Transaction, vocabulary: CachedVocabulary, stored: list[StoredProvider]
) -> list[StoredProvider]:
    """Make sure that the names of their classes and traits are in the cache."""
    if vocabulary.classes.lack({number for one in stored for number in one.inventories}):
        await transaction.run(vocabulary.classes.load)
    if vocabulary.traits.lack({abs(number) for one in stored for number in one.traits}):
        await transaction.run(vocabulary.traits.load)
    return stored


# PostgreSQL's rows


async def _fetched(
    transaction: PostgresTransaction, statement: str, numbers: Collection[int]
) -> list[StoredProvider]:
    if not numbers:
        return []
    driver = await transaction.driver()
    rows = await driver.fetch(statement, array_of([*numbers]))
    stocks: dict[int, dict[int, InventoryState]] = {}
    firsts = []
    for row in rows:
        number, class_id, amounts = row[0], row[_COLUMN_COUNT + 2], row[_COLUMN_COUNT + 3 :]
        if number not in stocks:
            stocks[number] = {}
            firsts.append(row)
        if class_id is not None:
            stocks[number][class_id] = InventoryState(*amounts)
    return [
        _stored(
            row[:_COLUMN_COUNT],
            stocks[row[0]],
            row[_COLUMN_COUNT],
            [_id(aggregate) for aggregate in row[_COLUMN_COUNT + 1]],
        )
        for row in firsts
    ]


# SQLite's


def _read_on_sqlite(
    connection: Connection, statement: str, sought: Sequence[str | int]
) -> list[StoredProvider]:
    if not sought:
        return []
    driver = driver_of(connection)
    rows = driver.execute(statement, (_json(sought),)).fetchall()
    numbers = _json([row[0] for row in rows])
    stocks: dict[int, dict[int, InventoryState]] = {row[0]: {} for row in rows}
    for number, class_id, *amounts in driver.execute(_STOCKS_ON_SQLITE, (numbers,)):
        stocks[number][class_id] = InventoryState(*amounts)
    traits = _by_provider(driver, _TRAITS_ON_SQLITE, numbers)
    aggregates = _by_provider(driver, _AGGREGATES_ON_SQLITE, numbers)
    return [
        _stored(
            row, stocks[row[0]], traits.get(row[0], ()), [UUID(each) for each in aggregates.get(row[0], ())]
        )
        for row in rows
    ]


def _by_provider(driver: sqlite3.Connection, statement: str, numbers: str) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for number, value in driver.execute(statement, (numbers,)):
        found.setdefault(number, []).append(value)
    return found


def _json(values: Sequence[str | int]) -> str:
    return msgspec.json.encode(values).decode()


# Both


def _stored(
    row: Sequence[Any],
    inventories: Mapping[int, InventoryState],
    traits: Iterable[int],
    aggregates: Iterable[UUID],
) -> StoredProvider:
    amounts = decode_used(row[_USED])
    stocks = {
        number: structs.replace(stock, used=amount) if (amount := amounts.get(number)) else stock
        for number, stock in inventories.items()
    }
    id_, root_id, parent = (None if each is None else _id(each) for each in (row[1], row[3], row[4]))
    fields: tuple[Any, ...] = (
        *(row[0], id_, row[2], root_id, parent, *row[5:_USED], stocks, row[_USED + 1]),
        *(tuple(traits), tuple(map(AggregateId, aggregates))),
    )
    return StoredProvider(*fields)


def _id(found: UUID | str) -> UUID:
    """Ids from asyncpg are of its own type, which is slower to hash and to compare."""
    return UUID(found) if isinstance(found, str) else UUID(int=found.int)
