"""Placement's store in memory, with its rows for the checkers. Triggers note which rows a transaction writes, and only these are
read again: a checker looks at the books after each commit.
"""

from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from engine.inventories import ConsumerId, ProviderId, ProviderState
from placement_worker.store_sql.consumers import book_entries
from placement_worker.store_sql.names import VocabularyCache, custom_names
from placement_worker.store_sql.trees import read_states
from tests.sqlite_memory import MemoryTransaction, Tables
from tests.stores_in_memory import MemoryPlacementStore

if TYPE_CHECKING:
    from bus.messages.audit import BookEntry

T = TypeVar("T")
# Which column of a table names the provider, the consumer, the tombstone or the name that a statement writes.
_NAMED_BY = {
    "providers": ("provider", "id"),
    "inventories": ("provider", "provider_id"),
    "provider_traits": ("provider", "provider_id"),
    "provider_places": ("provider", "provider_id"),
    "provider_aggregates": ("provider", "provider_id"),
    "consumers": ("consumer", "uuid"),
    "stumps": ("tombstone", "root"),
    "resource_classes": ("name", "id"),
    "traits": ("name", "id"),
}
_TRIGGER = "CREATE TRIGGER {0}_{1} AFTER {1} ON {0} BEGIN INSERT INTO written VALUES ('{2}', {3}.{4}); END"
_MANY = 1_000_000


class StoredRows:
    """The committed rows."""

    def __init__(self, tables: Tables) -> None:
        self.providers: dict[ProviderId, ProviderState] = {}
        # Of the consumers that hold something.
        self.holders: dict[ConsumerId, BookEntry] = {}
        self.tombstones: frozenset[ProviderId] = frozenset()
        self.custom: dict[str, frozenset[str]] = {"classes": frozenset(), "traits": frozenset()}
        # How often rows were written.
        self.writes = 0
        self._tables = tables
        self._vocabulary = VocabularyCache()
        self._ids: dict[int, ProviderId] = {}
        tables.driver.execute("CREATE TABLE written (kind TEXT NOT NULL, row NOT NULL)")
        for table, (kind, column) in _NAMED_BY.items():
            for how, side in (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
                tables.driver.execute(_TRIGGER.format(table, how, kind, side, column))

    def has_tree(self, root: ProviderId) -> bool:
        return root in self.providers and self.providers[root].root == root

    def states_of(self, providers: Iterable[ProviderId]) -> tuple[ProviderState, ...]:
        """States of those that exist, ordered by internal id."""
        found = [self.providers[one] for one in dict.fromkeys(providers) if one in self.providers]
        return tuple(sorted(found, key=lambda state: state.internal))

    def read(self) -> None:
        """Read what was written since. While a transaction is open, the rows stay as they were before it."""
        driver = self._tables.driver
        if driver.in_transaction or not (found := driver.execute("SELECT * FROM written").fetchall()):
            return
        driver.execute("DELETE FROM written")
        self.writes += 1
        written: dict[str, dict[Any, None]] = {}
        for kind, row in found:
            written.setdefault(kind, {})[row] = None
        if numbers := written.get("provider"):
            self._read_providers([*numbers])
        if ids := written.get("consumer"):
            self._read_consumers([ConsumerId(UUID(each)) for each in ids])
        if "tombstone" in written:
            self.tombstones = frozenset(
                ProviderId(UUID(root)) for (root,) in driver.execute("SELECT root FROM stumps")
            )
        if "name" in written:
            connection = self._tables.connection
            for of in ("classes", "traits"):
                self.custom[of] = frozenset(custom_names(connection, of, "", _MANY))

    def _read_providers(self, numbers: list[int]) -> None:
        for number in numbers:
            if number in self._ids:
                self.providers.pop(self._ids.pop(number), None)
        transaction = MemoryTransaction(self._tables, writes=False)
        with self._vocabulary.begun() as vocabulary:
            states = _at_once(read_states(transaction, vocabulary, numbers))
        for state in states:
            self._ids[state.internal] = state.id
            self.providers[state.id] = state

    def _read_consumers(self, ids: list[ConsumerId]) -> None:
        for one in ids:
            self.holders.pop(one, None)
        with self._vocabulary.begun() as vocabulary:
            entries = book_entries(self._tables.connection, vocabulary, ids, None)
        self.holders |= {entry.id: entry for entry in entries if entry.held}


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of work that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waits")


class InspectableStore(MemoryPlacementStore):
    def __init__(self) -> None:
        super().__init__()
        self._rows = StoredRows(self.tables)

    @property
    def rows(self) -> StoredRows:
        self._rows.read()
        return self._rows

    @asynccontextmanager
    async def committed(self) -> AsyncIterator[StoredRows]:
        """The rows while no transaction is open. The block must not await anything."""
        async with self.tables.queue:
            yield self.rows
