"""Placement's store in SQL: on PostgreSQL for many workers, on SQLite for one process with everything.

Most statements are the same for both. Only claims are written by each database's own statements.

Each writer takes its locks in one order: quotas, in the order of projects; server groups; consumers (inserted if missing, then locked); tree roots and
sharing providers in the order of their internal ids. It reads what it decides on only after the last lock: a statement
that locks and reads at once would judge the state from before its wait.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection

from bus.messages.books import ConsumerState
from engine.inventories import ConsumerId, ProviderId, ProviderState
from kit.parts import Retrying
from kit.sql import (
    POOL_SIZE,
    Database,
    DatabaseSettings,
    PostgresDatabase,
    PostgresTransaction,
    SqliteDatabase,
    Transaction,
    open_database,
    reads,
    runs,
    write_once,
)
from placement_worker.core.ledger import (
    Forest,
    ForestKeys,
    QuotaBook,
    TreeChanges,
)
from placement_worker.core.limits import QuotaKeys
from placement_worker.store import Holdings, Unpublished
from placement_worker.store_sql import consumers, log
from placement_worker.store_sql.audit import audit, recount
from placement_worker.store_sql.claims import ClaimLocks, QuotaCache, SqliteClaims
from placement_worker.store_sql.consumers import lock_quotas, quotas_page, recount_quotas, write_quotas
from placement_worker.store_sql.log import (
    ChangeFeed,
    begin_term,
    changes_page,
    changes_since,
    prune_log,
    revisions_page,
    snapshot_page,
    usage_since,
)
from placement_worker.store_sql.names import (
    CachedVocabulary,
    VocabularyCache,
    custom_names,
    lock_names,
    write_names,
)
from placement_worker.store_sql.postgres_claims import PostgresClaims
from placement_worker.store_sql.rows import CachedProviders, ProviderCache
from placement_worker.store_sql.trees import (
    LockedProviders,
    lock_trees,
    numbers_of,
    prune_tombstones,
    read_trees_of,
    state_of,
    write_trees,
)

P = ParamSpec("P")
T = TypeVar("T")

# The process that holds this advisory lock of PostgreSQL publishes the log. Two arbitrary numbers: "moor", and the purpose.
_LEAD = sa.text("SELECT pg_try_advisory_lock(1836019570, 1)")
_LEAD_FOR_NOW = sa.text("SELECT pg_try_advisory_xact_lock(1836019570, 1)")
# A SQLite file belongs to one process, so this set tells whether a file has a leader.
_led: set[str] = set()


class PlacementTransaction:
    """One transaction on placement's tables: all or nothing. Its writes appear in the change log when it commits."""

    def __init__(
        self, transaction: Transaction, claims: ClaimLocks[Any], vocabulary: CachedVocabulary
    ) -> None:
        self._transaction = transaction
        self._claims = claims
        # Claims are written by each database's own statements: the class of `claims` says how.
        self.lock_claims = claims.lock
        """Lock all rows that a batch of orders, or of administrators' writes of allocations, needs, then read them."""
        self.decided_at_once = claims.decided_at_once
        self.write_claims = claims.write
        self._vocabulary = vocabulary
        self._locked: LockedProviders = {}
        self.writes_quotas = False

    tombstones = runs(consumers.tombstones)
    """How many rows of consumers each of these cells has that a release left before any claim. Counting stops at `limit`."""

    async def lock_quotas(self, keys: QuotaKeys) -> QuotaBook:
        """Lock the quotas of these projects, then read them. A project without limits gets a quota that counts what it uses;
        claims wait meanwhile. In a transaction this comes before all other locks.
        """
        self.writes_quotas = True
        return await lock_quotas(self._transaction, self._vocabulary, keys)

    write_quotas = runs(write_quotas)
    """Write the limits of these quotas, all of which are locked; delete those without a limit."""

    async def recount(self) -> None:
        """Correct the numbers that follow from consumers' holdings: usages of providers and of quotas, counts of consumers by
        host, and the table of holders.

        It locks the trees that have a wrong number, and must be alone in its transaction.
        """
        # Quotas are locked before trees.
        await self._transaction.run(recount_quotas, self._vocabulary)
        await log.append(self._transaction, await self._transaction.run(recount))

    async def lock_trees(self, keys: ForestKeys) -> Forest:
        """Lock the trees of the named providers, then read them whole. A transaction that also needs `lock_claims`
        calls that first.
        """
        forest, self._locked = await lock_trees(self._transaction, self._vocabulary, keys)
        return forest

    async def write_trees(self, changes: TreeChanges) -> None:
        """Write whole providers with their usage. `write_claims` in the same transaction must not write the usage of
        these again; it may write what consumers hold of new ones.
        """
        if changes.trees:
            written = await write_trees(self._transaction, self._vocabulary, changes, self._locked)
            self._claims.made(written.made)
            await log.append(self._transaction, log.LogEntry(providers=written.changed, gone=written.gone))

    lock_names = runs(lock_names)
    """Lock these custom names of classes and traits, as far as they exist, then read which providers use them."""
    write_names = runs(write_names)

    async def read_trees(self, roots: Sequence[ProviderId]) -> tuple[ProviderState, ...]:
        """All providers of these trees, ordered by internal id."""
        numbers = await self._transaction.run(numbers_of, roots)
        stored = await read_trees_of(self._transaction, self._vocabulary, numbers)
        return tuple([state_of(one) for one in stored])


# For statements outside of a transaction, which may find that the session is broken.
_READ_AGAIN = Retrying(4)


def _reads_by(
    query: Callable[Concatenate[Transaction, CachedVocabulary, P], Awaitable[T]],
    *,
    by_keys: bool = True,
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Make a method of the store from this query. The method runs it in a reading transaction, with the cached names of
    classes and traits.
    """

    async def read(self: "PlacementStore", /, *values: P.args, **named: P.kwargs) -> T:
        database = self._database
        with self._known.begun() as vocabulary:
            async with database.reading_by_keys() if by_keys else database.reading() as transaction:
                return await query(transaction, vocabulary, *values, **named)

    return read


def _reads_named(
    query: Callable[Concatenate[Connection, CachedVocabulary, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """As `kit.sql.reads`, with the cached names of classes and traits."""

    async def run(
        transaction: Transaction, vocabulary: CachedVocabulary, /, *values: P.args, **named: P.kwargs
    ) -> T:
        return await transaction.run(query, vocabulary, *values, **named)

    return _reads_by(run, by_keys=False)


class PlacementStore:
    """Placement's store in SQL. Its tables must exist: `kit.sql.upgrade(url, "placement_worker")` creates them."""

    # Tests put a faulty class here, to see that they would notice.
    postgres_claims: type[PostgresClaims] = PostgresClaims

    def __init__(
        self, url: str | Database, *, pool_size: int = POOL_SIZE, settings: DatabaseSettings | None = None
    ) -> None:
        self._database = open_database(url, pool_size=pool_size, settings=settings)
        self._known = VocabularyCache()
        self._providers = ProviderCache()
        self._limited = QuotaCache()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PlacementTransaction]:
        """Commits at a normal exit, rolls back on any exception. Each step may raise `Transient`: try again."""
        providers = CachedProviders(self._providers)
        with self._known.begun() as vocabulary:
            async with self._database.writing() as transaction:
                claims = (
                    self.postgres_claims(transaction, vocabulary.classes, providers, self._limited)
                    if isinstance(transaction, PostgresTransaction)
                    else SqliteClaims(transaction, vocabulary.classes, providers, self._limited)
                )
                begun = PlacementTransaction(transaction, claims, vocabulary)
                yield begun
        providers.committed()
        if begun.writes_quotas:
            self._limited.known = None

    # What readers with a copy of the providers in memory ask.

    snapshot_page = _reads_by(snapshot_page)
    changes_page = _reads_by(changes_page)
    """A page of the providers that changed since this cursor, and all members of server groups that joined or left.

    None if the log does not reach back so far, if it has more entries since then than are read at once, or if the cursor comes from
    another database.
    """
    _changes_since = _reads_by(changes_since)
    revisions_page = reads(revisions_page)
    members_page = reads(consumers.members_page)
    """The members of all server groups, a page at a time. `after` is the `next` of the page before."""

    # What only the database has, and no copy of the providers in memory: which consumer holds what, and custom names.

    holders_of = _reads_named(consumers.holders_of)
    """Consumers that hold something of this provider, each with everything it holds, ordered by id."""
    books_page = _reads_named(consumers.books_page)
    """A page of the consumers that hold something, in the order of their ids."""
    book_entries = _reads_named(consumers.book_entries)
    """The named consumers that have a row, as `BookEntry`s in the order of their ids.

    An entry `is_new` if the change log has a claim of its consumer since `new_since`.
    """
    usages = _reads_named(consumers.usages)
    """The holdings of a project's consumers, summed up by consumer type. If `user` is given, only that user's
    consumers count.
    """
    custom_names = reads(custom_names)
    """A page of the custom names of this kind that follow `after`, sorted by bytes."""
    quotas = reads(quotas_page)
    """The quota of this project, if it has one; or if no project is named, a page of all that follow `after`."""

    async def changes_since(self, since: str) -> Unpublished | None:
        """Everything that changed since this cursor, in one answer without pages. If only claims changed a provider,
        only its usage is included.

        None if the log does not reach back so far, if it has more entries since then than are read at once, or if the cursor comes from
        another database.
        """
        if isinstance(self._database, PostgresDatabase):
            with self._known.begun() as vocabulary:
                if (usage := await usage_since(self._database, vocabulary, since)) is not None:
                    return usage
        return await self._changes_since(since)

    async def consumer(self, which: ConsumerId) -> ConsumerState | None:
        """The state of a consumer; None if it holds nothing."""
        found = await self.holdings(which)
        return None if found is None else found.consumer

    async def holdings(self, which: ConsumerId) -> Holdings | None:
        """A consumer, with the generations of the providers that it holds something of; None if it holds nothing."""
        return await _READ_AGAIN(self._holdings, which)

    async def _holdings(self, which: ConsumerId) -> Holdings | None:
        with self._known.begun() as vocabulary:
            async with self._database.reading_each() as statements:
                return await consumers.holdings(statements, vocabulary, which)

    @asynccontextmanager
    async def lead_feed(self) -> AsyncIterator[ChangeFeed | None]:
        """Become the leader that publishes the change log, for as long as this context is open; None if another process
        leads.
        """
        match self._database:
            case PostgresDatabase() as postgres:
                async with postgres.dedicated() as session:
                    async with session.writing() as transaction:
                        leads = await transaction.run(Connection.scalar, _LEAD)
                        begun = await transaction.run(begin_term) if leads else None
                    # The lock outlives the transaction: it belongs to the connection, which is closed at the end.
                    yield ChangeFeed(session, self._known, *begun) if begun else None
            case SqliteDatabase() as file:
                if file.path in _led:
                    yield None
                    return
                _led.add(file.path)
                try:
                    begun = await write_once(file, begin_term)
                    yield ChangeFeed(file, self._known, *begun)
                finally:
                    _led.discard(file.path)

    async def prune(
        self, ended_before: datetime, logged_before: datetime, *, unpublished_too: bool = False
    ) -> int:
        """Delete ended consumers, tombstones, published log rows older than these times. With `unpublished_too`, log rows that were
        not published go, too, if no process leads the feed.

        Server groups without members are deleted, too. Returns how many rows were deleted.

        When a tombstone is deleted, the shapes of its tree are forgotten, and a new tree with the same root counts from
        the start. Messages for the old tree were sent before that. For an unknown consumer they are refused as too old;
        for a known one, mostly by their attempt.

        Three kinds of messages are not refused if they were under way for this whole time: a swap, a claim with a later
        attempt of an ended consumer, and a report. The first two are judged by the free amounts, if the new tree happens
        to have the shape that they name. The report creates the old tree again.
        """
        path = self._database.path if isinstance(self._database, SqliteDatabase) else ""
        async with self._database.writing(takes_long=True) as transaction:
            pruned = await transaction.run(_prune, ended_before)
        some = log.PRUNED_MAX
        while some == log.PRUNED_MAX:
            async with self._database.writing(takes_long=True) as transaction:
                some = await transaction.run(_prune_log, path, logged_before, unpublished_too)
            pruned += some
        return pruned

    async def audit(self) -> tuple[str, ...]:
        """One sentence for each place where the data contradicts itself; empty if there is none."""
        with self._known.begun() as vocabulary:
            async with self._database.reading(takes_long=True) as transaction:
                return await transaction.run(audit, vocabulary)

    async def close(self) -> None:
        await self._database.close()


def _prune(connection: Connection, ended_before: datetime) -> int:
    """Delete old rows, except for rows that another transaction has locked.

    Those are deleted another time. So nothing is waited for, and the locks need no order.
    """
    ended = consumers.prune_ended(connection, ended_before) + prune_tombstones(connection, ended_before)
    return ended + consumers.prune_groups(connection)


def _prune_log(connection: Connection, path: str, logged_before: datetime, unpublished_too: bool) -> int:  # noqa: FBT001 - `run` passes values by position
    """`path` is that of the SQLite file. No process becomes the leader until this transaction has ended, if none is."""
    is_led = not unpublished_too or (path in _led if path else not connection.scalar(_LEAD_FOR_NOW))
    return prune_log(connection, logged_before, is_published=is_led)
