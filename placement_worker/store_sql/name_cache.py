"""A cache of the internal ids of resource classes and traits.

Allocations and traits have the most rows of all tables, so they store these numbers and no names. A name keeps its number
for ever, so every transaction may use the cache. Only names that a transaction has created or read itself stay private
until it commits: a rollback removes its new names.
"""

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Table

from bus.sql import Transaction, among, insert
from placement_worker.tables import resource_classes, traits


class NameCache:
    """The names and numbers of resource classes, or of traits, that committed transactions have read.

    Its dictionaries are replaced, never changed, so that a transaction can go on with those that it began with.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.ids: dict[str, int] = {}
        self.names: dict[int, str] = {}


class CachedNames:
    """The names and numbers of resource classes, or of traits, as one transaction sees them."""

    def __init__(self, known: NameCache) -> None:
        self._known = known
        self._table = known.table
        self.ids = known.ids
        self.names = known.names

    async def naming(self, transaction: Transaction, numbers: AbstractSet[int]) -> Mapping[int, str]:
        """The names by internal id, with those of all these internal ids."""
        if not self.names.keys() >= numbers:
            await transaction.run(self._load)
        return self.names

    def naming_now(self, connection: Connection, numbers: AbstractSet[int]) -> Mapping[int, str]:
        """As `naming`, inside a function that already runs on the connection."""
        if not self.names.keys() >= numbers:
            self._load(connection)
        return self.names

    def _load(self, connection: Connection) -> None:
        self._add(connection.execute(sa.select(self._table.c.id, self._table.c.name)))

    def make(self, connection: Connection, names: Collection[str]) -> None:
        """Insert those of these names that have no row yet, and cache the numbers of all.

        Rows are inserted in alphabetical order, so that two transactions never wait for each other in a circle.
        """
        missing = sorted(set(names) - self.ids.keys())
        if not missing:
            return
        table = self._table
        # Look up existing names first: an insert that does nothing still uses up a number.
        for name in sorted(set(missing) - self._find(connection, missing)):
            connection.execute(insert(connection, table).values(name=name).on_conflict_do_nothing())
        self._find(connection, missing)

    def _find(self, connection: Connection, names: list[str]) -> set[str]:
        table = self._table
        query = sa.select(table.c.id, table.c.name).where(among(connection, table.c.name, names))
        rows = connection.execute(query).all()
        self._add(rows)
        return {name for _, name in rows}

    def _add(self, rows: Iterable[Any]) -> None:
        found = {name: number for number, name in rows}
        self.ids = self.ids | found
        self.names = self.names | {number: name for name, number in found.items()}

    def committed(self) -> None:
        if self.ids is not self._known.ids:
            self._known.ids = self._known.ids | self.ids
            self._known.names = self._known.names | self.names


class VocabularyCache:
    def __init__(self) -> None:
        self.classes = NameCache(resource_classes)
        self.traits = NameCache(traits)


class CachedVocabulary:
    """The names of resource classes and of traits, as one transaction sees them."""

    def __init__(self, known: VocabularyCache) -> None:
        self.classes = CachedNames(known.classes)
        self.traits = CachedNames(known.traits)

    def committed(self) -> None:
        self.classes.committed()
        self.traits.committed()
