"""A placement worker's store that injects faults."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

from bus.messages.administration import ConsumerState, KindOfNames, TypeUsage
from bus.messages.audit import BookEntry
from bus.messages.placement import LogPosition, MembersPage, RevisionsPage, SnapshotPage
from engine.inventories import ConsumerId, ProviderId, ProviderState, QuotaState
from placement_worker.core.ledger import (
    ClaimChanges,
    ClaimKeys,
    ClaimOrder,
    Forest,
    ForestKeys,
    Ledger,
    NameChanges,
    NameKeys,
    Quota,
    QuotaBook,
    StoredNames,
    TreeChanges,
)
from placement_worker.core.limits import QuotaKeys
from placement_worker.core.owners import Owner
from placement_worker.store import (
    FEED_ENTRIES,
    AdminDecision,
    ChangeFeed,
    DecideAllocations,
    Holdings,
    PlacementStore,
    PlacementTransaction,
    Unpublished,
)
from tests.simulation.process import SimProcess
from tests.simulation.store_faults import (
    CommitObserver,
    after_commit,
    before_commit,
    fail_if_armed,
    reach_database,
)


class FaultyPlacementStore:
    def __init__(self, store: PlacementStore, process: SimProcess, observer: CommitObserver) -> None:
        self._store = store
        self._process = process
        self._observer = observer

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["_BooksTransaction"]:
        await reach_database(self._process)
        async with self._store.transaction() as inner:
            self._observer.books_opened()
            tx = _BooksTransaction(inner, self._process, self._observer)
            yield tx
            await before_commit(self._process)
        if tx.quotas:
            self._observer.quotas_written(tx.quotas)
        self._observer.books_written(tx.orders, tx.written)
        await after_commit(self._process)

    async def snapshot_page(self, after: int, limit: int) -> SnapshotPage:
        await reach_database(self._process)
        return await self._store.snapshot_page(after, limit)

    async def changes_since(self, since: str) -> Unpublished | None:
        await reach_database(self._process)
        return await self._store.changes_since(since)

    async def changes_page(self, since: str, after: int, limit: int) -> SnapshotPage | None:
        await reach_database(self._process)
        return await self._store.changes_page(since, after, limit)

    async def revisions_page(self, after: int, limit: int) -> RevisionsPage:
        await reach_database(self._process)
        return await self._store.revisions_page(after, limit)

    async def members_page(self, after: int, limit: int) -> MembersPage:
        await reach_database(self._process)
        return await self._store.members_page(after, limit)

    async def consumer(self, consumer: ConsumerId) -> ConsumerState | None:
        await reach_database(self._process)
        return await self._store.consumer(consumer)

    async def holdings(self, consumer: ConsumerId) -> Holdings | None:
        await reach_database(self._process)
        return await self._store.holdings(consumer)

    async def holders_of(
        self, provider: ProviderId, after: ConsumerId | None, limit: int
    ) -> tuple[ConsumerState, ...]:
        await reach_database(self._process)
        return await self._store.holders_of(provider, after, limit)

    async def books_page(self, after: ConsumerId | None, limit: int) -> tuple[BookEntry, ...]:
        await reach_database(self._process)
        return await self._store.books_page(after, limit)

    async def book_entries(
        self, consumers: Sequence[ConsumerId], new_since: datetime | None
    ) -> tuple[BookEntry, ...]:
        await reach_database(self._process)
        return await self._store.book_entries(consumers, new_since)

    async def usages(self, project: str, user: str) -> tuple[TypeUsage, ...]:
        await reach_database(self._process)
        return await self._store.usages(project, user)

    async def quotas(self, project: str, after: str, limit: int) -> tuple[QuotaState, ...]:
        await reach_database(self._process)
        return await self._store.quotas(project, after, limit)

    async def custom_names(self, of: KindOfNames, after: str, limit: int) -> tuple[str, ...]:
        await reach_database(self._process)
        return await self._store.custom_names(of, after, limit)

    @asynccontextmanager
    async def lead_feed(self) -> AsyncIterator[ChangeFeed | None]:
        await reach_database(self._process)
        async with self._store.lead_feed() as feed:
            yield None if feed is None else _Feed(feed, self._process)

    async def prune(self, ended_before: datetime, logged_before: datetime) -> int:
        await reach_database(self._process)
        return await self._store.prune(ended_before, logged_before)

    async def audit(self) -> tuple[str, ...]:
        return await self._store.audit()

    async def close(self) -> None: ...


class _BooksTransaction:
    def __init__(self, inner: PlacementTransaction, process: SimProcess, observer: CommitObserver) -> None:
        self._inner = inner
        self._process = process
        self._observer = observer
        # The ids of the locked rows, by kind of row.
        self._locked: dict[str, set[object]] = {}
        self.orders: Sequence[ClaimOrder] = ()
        self.written: list[ClaimChanges | TreeChanges] = []
        self.quotas: Sequence[Quota] = ()

    def _lock(self, kind: str, ids: Iterable[object]) -> None:
        """Tell the observer which rows the transaction locks. Rows that it has locked before do not count again."""
        fail_if_armed(self._process, "deadlock")
        if new := set(ids) - self._locked.get(kind, set()):
            self._observer.locks(kind, after=tuple(self._locked))
            self._locked.setdefault(kind, set()).update(new)

    async def lock_claims(self, keys: ClaimKeys) -> Ledger:
        self._lock("consumers", keys.consumers)
        self.orders = keys.orders
        return await self._inner.lock_claims(keys)

    async def write_claims(self, changes: ClaimChanges) -> None:
        self.written.append(changes)
        await self._inner.write_claims(changes)

    async def decided_at_once(self, keys: ClaimKeys, decide: DecideAllocations) -> AdminDecision | None:
        return await self._inner.decided_at_once(keys, decide)

    async def lock_quotas(self, keys: QuotaKeys) -> QuotaBook:
        self._lock("quotas", keys[0])
        return await self._inner.lock_quotas(keys)

    async def write_quotas(self, changed: Sequence[Quota]) -> None:
        self.quotas = changed
        await self._inner.write_quotas(changed)

    async def recount(self) -> None:
        await self._inner.recount()

    async def lock_trees(self, keys: ForestKeys) -> Forest:
        self._lock("trees", keys.trees)
        return await self._inner.lock_trees(keys)

    async def lock_names(self, keys: NameKeys) -> StoredNames:
        self._lock("names", keys["classes"] | keys["traits"])
        return await self._inner.lock_names(keys)

    async def write_names(self, changes: NameChanges) -> None:
        await self._inner.write_names(changes)

    async def write_trees(self, changes: TreeChanges) -> None:
        self.written.append(changes)
        await self._inner.write_trees(changes)

    async def tombstones(self, owners: Sequence[Owner], limit: int) -> Mapping[Owner, int]:
        return await self._inner.tombstones(owners, limit)

    async def read_trees(self, roots: Sequence[ProviderId]) -> tuple[ProviderState, ...]:
        return await self._inner.read_trees(roots)


class _Feed:
    def __init__(self, inner: ChangeFeed, process: SimProcess) -> None:
        self._inner = inner
        self._process = process

    @property
    def published(self) -> LogPosition:
        return self._inner.published

    async def read(self, entries_max: int = FEED_ENTRIES) -> Unpublished:
        await reach_database(self._process)
        return await self._inner.read(entries_max)

    async def mark(self, position: int, cursor: str) -> None:
        await self._process.point("in_timer")
        await reach_database(self._process)
        fail_if_armed(self._process, "lost_before_commit")
        await self._inner.mark(position, cursor)
        fail_if_armed(self._process, "lost_after_commit")
