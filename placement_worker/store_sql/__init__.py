"""Placement's books in SQL: on PostgreSQL for many workers, on SQLite for everything in one process.

What is hot, claims, is written for each of the two; the rest once for both.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Protocol
from uuid import UUID

import sqlalchemy as sa
from msgspec import structs
from sqlalchemy import Connection

from bus.message import ConsumerId, ProviderId
from bus.messages.administration import ConsumerState, KindOfNames, TypeUsage
from bus.messages.placement import ProviderState, RevisionsPage, SnapshotPage
from bus.sql import (
    POOL_SIZE,
    DatabaseSettings,
    PostgresDatabase,
    SqliteDatabase,
    Transaction,
    open_database,
)
from placement_worker.core.ledger import (
    ClaimChanges,
    ClaimOrder,
    Forest,
    Ledger,
    NameChanges,
    Named,
    NamedNames,
    NamedShares,
    Names,
    TreeChanges,
)
from placement_worker.core.vocabulary import custom_of
from placement_worker.store import ChangeFeed, KeptPage, Unpublished
from placement_worker.store_sql import holding
from placement_worker.store_sql.answers import keep_answer, kept_page, prune_answers
from placement_worker.store_sql.audit import audit
from placement_worker.store_sql.feed import SqlFeed, begin_term
from placement_worker.store_sql.following import changes_since
from placement_worker.store_sql.forest import Locked, lock_trees
from placement_worker.store_sql.known import KnownProviders, Providers
from placement_worker.store_sql.lone_providers import are_lone, write_lone
from placement_worker.store_sql.named import Named as NamedOrders
from placement_worker.store_sql.named import named_by, named_in
from placement_worker.store_sql.names import KnownVocabulary, Vocabulary
from placement_worker.store_sql.naming import custom_names, known_of, lock_names, write_names
from placement_worker.store_sql.pages import changes_page, prune_log, revisions_page, snapshot_page
from placement_worker.store_sql.postgresql import PostgresClaims
from placement_worker.store_sql.sqlite import SqliteClaims
from placement_worker.store_sql.states import read_trees
from placement_worker.store_sql.stumps import prune_stumps
from placement_worker.store_sql.trees import write_trees
from placement_worker.tables import consumers, resource_classes

# Whoever holds this lock of PostgreSQL's publishes the log. Two numbers of our own choice: "moor", and what for.
_LEAD = "SELECT pg_try_advisory_lock(1836019570, 1)"
# SQLite's file belongs to one process, so what is led here is led.
_led: set[str] = set()


class Claims(Protocol):
    async def lock(self, named: NamedOrders) -> Ledger: ...

    async def write(self, changes: ClaimChanges) -> None: ...


class SqlPlacementTransaction:
    def __init__(self, transaction: Transaction, claims: Claims, vocabulary: Vocabulary) -> None:
        self._transaction = transaction
        self._claims = claims
        self._vocabulary = vocabulary
        self._locked = Locked()

    async def lock_claims(self, orders: Sequence[ClaimOrder]) -> Ledger:
        return await self._claims.lock(named_by(orders))

    async def lock_shares(self, named: NamedShares) -> Ledger:
        ledger = await self._claims.lock(named_in(named))
        if not custom_of(named.classes):
            return ledger
        classes = await self._transaction.run(known_of, resource_classes, named.classes)
        return structs.replace(ledger, classes=classes)

    async def write_claims(self, changes: ClaimChanges) -> None:
        await self._claims.write(changes)

    async def lock_trees(self, named: Named) -> Forest:
        forest, self._locked = await lock_trees(self._transaction, self._vocabulary, named)
        return forest

    async def write_trees(self, changes: TreeChanges) -> None:
        if are_lone(changes, self._locked):
            if changes.trees:
                await write_lone(self._transaction, self._vocabulary, changes, self._locked)
            return
        await self._transaction.run(write_trees, self._vocabulary, changes, self._locked.roots)

    async def lock_names(self, named: NamedNames) -> Names:
        return await self._transaction.run(lock_names, named)

    async def write_names(self, changes: NameChanges) -> None:
        await self._transaction.run(write_names, changes)

    async def read_trees(self, roots: Sequence[ProviderId]) -> tuple[ProviderState, ...]:
        return await self._transaction.run(read_trees, self._vocabulary, roots)


class SqlPlacementStore:
    """On tables that stand: `bus.sql.upgrade(url, "placement_worker")` makes them."""

    # Tests plant another one here, to see that they would notice.
    postgres_claims: type[PostgresClaims] = PostgresClaims

    def __init__(
        self, url: str, *, pool_size: int = POOL_SIZE, settings: DatabaseSettings | None = None
    ) -> None:
        self._database = open_database(url, pool_size=pool_size, settings=settings)
        self._known = KnownVocabulary()
        self._providers = KnownProviders()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[SqlPlacementTransaction]:
        vocabulary, providers = Vocabulary(self._known), Providers(self._providers)
        match self._database:
            case PostgresDatabase() as postgres:
                async with postgres.writing() as transaction:
                    claims = self.postgres_claims(transaction, vocabulary.classes, providers)
                    yield SqlPlacementTransaction(transaction, claims, vocabulary)
            case SqliteDatabase() as file:
                async with file.writing() as writing:
                    of_file = SqliteClaims(writing, vocabulary.classes, providers)
                    yield SqlPlacementTransaction(writing, of_file, vocabulary)
        vocabulary.committed()
        providers.committed()

    async def snapshot_page(self, after: int, limit: int) -> SnapshotPage:
        vocabulary = Vocabulary(self._known)
        async with self._database.reading() as transaction:
            page = await transaction.run(snapshot_page, vocabulary, after, limit)
        vocabulary.committed()
        return page

    async def changes_page(self, since: str, after: int, limit: int) -> SnapshotPage | None:
        vocabulary = Vocabulary(self._known)
        async with self._database.reading() as transaction:
            page = await transaction.run(changes_page, vocabulary, since, after, limit)
        vocabulary.committed()
        return page

    async def changes_since(self, since: str) -> Unpublished | None:
        vocabulary = Vocabulary(self._known)
        async with self._database.reading() as transaction:
            changes = await changes_since(transaction, vocabulary, since)
        vocabulary.committed()
        return changes

    async def revisions_page(self, after: int, limit: int) -> RevisionsPage:
        async with self._database.reading() as transaction:
            return await transaction.run(revisions_page, after, limit)

    async def consumer(self, consumer: ConsumerId) -> ConsumerState | None:
        async with self._database.reading() as transaction:
            return await transaction.run(holding.consumer, Vocabulary(self._known), consumer)

    async def holders_of(
        self, provider: ProviderId, after: ConsumerId | None, limit: int
    ) -> tuple[ConsumerState, ...]:
        async with self._database.reading() as transaction:
            return await transaction.run(holding.holders_of, Vocabulary(self._known), provider, after, limit)

    async def usages(self, project: str, user: str) -> tuple[TypeUsage, ...]:
        async with self._database.reading() as transaction:
            return await transaction.run(holding.usages, Vocabulary(self._known), project, user)

    async def custom_names(self, of: KindOfNames, after: str, limit: int) -> tuple[str, ...]:
        async with self._database.reading() as transaction:
            return await transaction.run(custom_names, of, after, limit)

    async def keep_answer(self, answer: UUID, pages: Sequence[bytes]) -> None:
        async with self._database.writing() as transaction:
            await transaction.run(keep_answer, answer, pages)

    async def kept_page(self, answer: UUID, page: int) -> KeptPage | None:
        async with self._database.reading() as transaction:
            return await transaction.run(kept_page, answer, page)

    @asynccontextmanager
    async def lead_feed(self) -> AsyncIterator[ChangeFeed | None]:
        match self._database:
            case PostgresDatabase() as postgres:
                async with postgres.dedicated() as session:
                    async with session.writing() as transaction:
                        leads = await transaction.run(_scalar, _LEAD)
                        begun = await transaction.run(begin_term) if leads else None
                    # The lock outlives the transaction: it is the connection's, which is closed at the end.
                    yield SqlFeed(session, self._known, *begun) if begun else None
            case SqliteDatabase() as file:
                if file.path in _led:
                    yield None
                    return
                _led.add(file.path)
                try:
                    async with file.writing() as writing:
                        begun = await writing.run(begin_term)
                    yield SqlFeed(file, self._known, *begun)
                finally:
                    _led.discard(file.path)

    async def prune(self, ended_before: datetime, logged_before: datetime) -> int:
        async with self._database.writing(takes_long=True) as transaction:
            return await transaction.run(_prune, ended_before, logged_before)

    async def audit(self) -> tuple[str, ...]:
        async with self._database.reading(takes_long=True) as transaction:
            return await transaction.run(audit)

    async def close(self) -> None:
        await self._database.close()


def _scalar(connection: Connection, query: str) -> bool:
    return bool(connection.scalar(sa.text(query)))


def _prune(connection: Connection, ended_before: datetime, logged_before: datetime) -> int:
    """What somebody else holds locked just now is left for the next time: no order of locks has to be kept."""
    over = sa.select(consumers.c.id).where(consumers.c.ended_at < ended_before)
    over = over.with_for_update(skip_locked=True)
    forgotten = connection.execute(sa.delete(consumers).where(consumers.c.id.in_(over)))
    rotten = prune_stumps(connection, ended_before)
    stale = prune_answers(connection, logged_before)
    return forgotten.rowcount + rotten + stale + prune_log(connection, logged_before)
