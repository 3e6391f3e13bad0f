"""Resource classes and traits by number: allocations and traits outnumber everything else, so they are kept narrow.

A name and its number never part, so what is known of them need not be read again, by whichever transaction. Only what
a transaction made or read itself is its own secret until it commits: its names may vanish with it.
"""

from collections.abc import Collection, Iterable

import sqlalchemy as sa
from sqlalchemy import Connection, Table

from bus.sql import among, insert
from placement_worker.tables import resource_classes, traits


class KnownNames:
    """What committed transactions knew of one table of names."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.ids: dict[str, int] = {}
        self.names: dict[int, str] = {}


class Names:
    """One table of names, as one transaction sees it."""

    def __init__(self, known: KnownNames) -> None:
        self._known = known
        self._table = known.table
        self._ids: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def id_of(self, name: str) -> int:
        known = self._known.ids.get(name)
        return self._ids[name] if known is None else known

    def name_of(self, number: int) -> str:
        known = self._known.names.get(number)
        return self._names[number] if known is None else known

    def lack(self, numbers: Iterable[int]) -> bool:
        """Is any of these unheard of? Then `load`."""
        return any(number not in self._known.names and number not in self._names for number in numbers)

    def load(self, connection: Connection) -> None:
        table = self._table
        for number, name in connection.execute(sa.select(table.c.id, table.c.name)):
            self._add(number, name)

    def make(self, connection: Connection, names: Collection[str]) -> None:
        """See to it that these have numbers. In the order of the alphabet, so that no two wait for each other."""
        missing = sorted(name for name in set(names) if name not in self._known.ids and name not in self._ids)
        if not missing:
            return
        table = self._table
        # Those that stand already are looked up first: an insert that does nothing still uses up a number.
        for name in sorted(set(missing) - self._find(connection, missing)):
            connection.execute(insert(connection, table).values(name=name).on_conflict_do_nothing())
        self._find(connection, missing)

    def _find(self, connection: Connection, names: list[str]) -> set[str]:
        table = self._table
        query = sa.select(table.c.id, table.c.name).where(among(connection, table.c.name, names))
        rows = connection.execute(query).all()
        for number, name in rows:
            self._add(number, name)
        return {name for _, name in rows}

    def _add(self, number: int, name: str) -> None:
        self._ids[name] = number
        self._names[number] = name

    def committed(self) -> None:
        self._known.ids.update(self._ids)
        self._known.names.update(self._names)


class KnownVocabulary:
    def __init__(self) -> None:
        self.classes = KnownNames(resource_classes)
        self.traits = KnownNames(traits)


class Vocabulary:
    """Both tables of names, as one transaction sees them."""

    def __init__(self, known: KnownVocabulary) -> None:
        self.classes = Names(known.classes)
        self.traits = Names(known.traits)

    def committed(self) -> None:
        self.classes.committed()
        self.traits.committed()
