"""The custom names of classes and traits: locked, read and written; and a cache of the internal ids of all names.

A delete locks the name's row. A use of the name holds it in place: on PostgreSQL by the foreign key of the row that refers
to it, or by a lock of the same strength. So a name is either deleted or used, whichever transaction comes first.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection, Table

from bus.messages.books import KindOfNames
from engine.inventories import CUSTOM, ProviderId
from kit.errors import Transient
from kit.sql import Transaction, among, insert
from placement_worker.core.ledger import NameChanges, NameKeys, NamesInUse, StoredNames
from placement_worker.tables import inventories, provider_traits, providers, resource_classes, traits

_TABLES: Mapping[KindOfNames, Table] = {"classes": resource_classes, "traits": traits}
# The columns that refer to them.
_USES: Mapping[KindOfNames, sa.Column[Any]] = {
    "classes": inventories.c.class_id,
    "traits": provider_traits.c.trait_id,
}


def existing_names(connection: Connection, table: Table, names: Iterable[str]) -> frozenset[str]:
    """Those of the custom names that exist. They are locked, so they stay until the transaction ends."""
    custom = custom_of(names)
    if not custom:
        return frozenset()
    return frozenset(
        connection.scalars(
            sa.select(table.c.name)
            .where(among(connection, table.c.name, custom), table.c.is_known)
            .order_by(table.c.id)
            .with_for_update(read=True, key_share=True)
        )
    )


def revive(connection: Connection, table: Table, names: Iterable[str]) -> None:
    """Mark those of these names as existing that were deleted (`is_known` false): they are in use again.

    Before this, the caller has written the rows that use the names. If another transaction is deleting such a name, that
    write waits for its commit, so this statement sees the delete.
    """
    custom = custom_of(names)
    if custom:
        connection.execute(
            sa.update(table)
            .where(among(connection, table.c.name, custom), ~table.c.is_known)
            .values(is_known=sa.true())
        )


def lock_names(connection: Connection, keys: NameKeys) -> StoredNames:
    locked = {kind: _locked(connection, _TABLES[kind], names) for kind, names in keys.items()}
    return {
        kind: NamesInUse(
            existing=frozenset(name for name, is_known in locked[kind] if is_known),
            users=_users(connection, _TABLES[kind], _USES[kind], names),
        )
        for kind, names in keys.items()
    }


def write_names(connection: Connection, changes: NameChanges) -> None:
    for kind, change in changes.items():
        table = _TABLES[kind]
        if change.gone:
            connection.execute(
                sa.update(table)
                .where(among(connection, table.c.name, change.gone))
                .values(is_known=sa.false())
            )
        if change.new:
            _make(connection, table, change.new)


def custom_names(connection: Connection, of: KindOfNames, after: str, limit: int) -> tuple[str, ...]:
    table = _TABLES[of]
    # In the order of bytes, whatever collation the database has.
    name = sa.collate(table.c.name, "C" if connection.dialect.name == "postgresql" else "BINARY")
    query = (
        sa.select(table.c.name)
        .where(table.c.is_known, name > after, table.c.name.startswith(CUSTOM, autoescape=True))
        .order_by(name)
        .limit(limit)
    )
    return tuple(connection.scalars(query))


def _locked(connection: Connection, table: Table, names: Collection[str]) -> list[tuple[str, bool]]:
    if not names:
        return []
    rows = connection.execute(
        sa.select(table.c.name, table.c.is_known)
        .where(among(connection, table.c.name, names))
        .order_by(table.c.id)
        .with_for_update()
    )
    return [(row.name, row.is_known) for row in rows]


def _users(
    connection: Connection, table: Table, used: sa.Column[Any], names: Collection[str]
) -> dict[str, ProviderId]:
    """For each of these custom traits or resource classes that is in use: one provider that uses it."""
    if not names:
        return {}
    first = (
        sa.select(table.c.name, sa.func.min(used.table.c.provider_id).label("provider"))
        .join_from(table, used.table, used == table.c.id)
        .where(among(connection, table.c.name, names))
        .group_by(table.c.name)
        .subquery("first")
    )
    rows = connection.execute(
        sa.select(first.c.name, providers.c.uuid).join(providers, providers.c.id == first.c.provider)
    )
    return {row.name: row.uuid for row in rows}


def _make(connection: Connection, table: Table, names: Collection[str]) -> None:
    fresh = insert(connection, table)
    made = fresh.on_conflict_do_update(
        index_elements=[table.c.name], set_={"is_known": sa.true()}, where=~table.c.is_known
    ).returning(table.c.name)
    for name in names:
        # A missing name had no row to lock.
        if connection.scalar(made, {"name": name}) is None:
            raise Transient(f"another transaction has just created the name {name}: the batch is tried again")


# A cache of the internal ids of resource classes and traits.
#
# Allocations and traits have the most rows of all tables, so they store these numbers and no names. A name keeps its number
# for ever, so every transaction may use the cache. Only names that a transaction has created or read itself stay private
# until it commits: a rollback removes its new names.


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


class CachedVocabulary(NamedTuple):
    """The names of resource classes and of traits, as one transaction sees them."""

    classes: CachedNames
    traits: CachedNames


class VocabularyCache:
    def __init__(self) -> None:
        self._classes = NameCache(resource_classes)
        self._traits = NameCache(traits)

    @contextmanager
    def begun(self) -> Iterator[CachedVocabulary]:
        """The names for a transaction inside this context, which is committed at a normal exit."""
        vocabulary = CachedVocabulary(CachedNames(self._classes), CachedNames(self._traits))
        yield vocabulary
        vocabulary.classes.committed()
        vocabulary.traits.committed()


def custom_of(names: Iterable[str]) -> tuple[str, ...]:
    """The names that are not standard, in order."""
    return tuple(sorted(name for name in names if name.startswith(CUSTOM)))
