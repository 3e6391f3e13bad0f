"""Placement's tables in the memory of one process, for tests and simulation.

One transaction runs at a time, and readers wait for it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from msgspec import structs

from bus.messages.administration import ConsumerState, KindOfNames, TypeUsage
from bus.messages.audit import BookEntry
from bus.messages.placement import LogPosition, MembersPage, RevisionsPage, SnapshotPage
from engine.inventories import ConsumerId, GroupMember, ProviderId, QuotaState
from placement_worker.core.limits import wrong_quota
from placement_worker.store import ChangeFeed, Holdings, PlacementTransaction, Unpublished
from tests.memory_stores.placement.audit import contradictions
from tests.memory_stores.placement.feed import MemoryFeed, logged_since
from tests.memory_stores.placement.memory_tables import MemoryTables
from tests.memory_stores.placement.transaction import MemoryTransaction


def _now() -> datetime:
    return datetime.now(UTC)


class MemoryPlacementStore:
    """`clock` dates log rows and tombstones, for pruning only."""

    def __init__(self, clock: Callable[[], datetime] = _now) -> None:
        self._tables = MemoryTables()
        self._lock = asyncio.Lock()
        self._clock = clock
        self._is_led = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PlacementTransaction]:
        async with self._lock:
            transaction = MemoryTransaction(self._tables, self._clock)
            try:
                yield transaction
            except BaseException:
                # A cancellation is rolled back, too.
                transaction.roll_back()
                raise
            transaction.commit()

    async def snapshot_page(self, after: int, limit: int) -> SnapshotPage:
        async with self._lock:
            tables = self._tables
            following = sorted(internal for internal in tables.internals if internal > after)
            page = following[:limit]
            return SnapshotPage(
                providers=tables.states_of(tables.internals[internal] for internal in page),
                published=tables.published,
                next=page[-1] if len(following) > limit else None,
                cursor=str(tables.logged),
            )

    async def changes_page(self, since: str, after: int, limit: int) -> SnapshotPage | None:
        async with self._lock:
            tables = self._tables
            if not since.isdecimal() or not tables.pruned <= int(since) <= tables.logged:
                return None
            entries = tables.logged_after(int(since))
            changed = tables.states_of(one for entry in entries for one in (*entry.touched, *entry.used))
            following = [state for state in changed if state.internal > after]
            page = tuple(following[:limit])
            return SnapshotPage(
                providers=page,
                published=tables.published,
                next=page[-1].internal if len(following) > limit else None,
                since=since,
                cursor=str(tables.logged),
                gone=tuple(gone for entry in entries for gone in entry.gone),
                joined=tuple(member for entry in entries for member in entry.joined),
                left=tuple(holder for entry in entries for holder in entry.left),
            )

    async def changes_since(self, since: str) -> Unpublished | None:
        async with self._lock:
            tables = self._tables
            if not since.isdecimal() or not tables.pruned <= int(since) <= tables.logged:
                return None
            return logged_since(tables, int(since))

    async def members_page(self, after: int, limit: int) -> MembersPage:
        async with self._lock:
            everyone = [one for members in self._tables.members.values() for one in members.values()]
            following = sorted((one for one in everyone if one[0] > after), key=lambda one: one[0])
            page = following[:limit]
            return MembersPage(
                members=tuple(
                    GroupMember(group=row.group, consumer=row.id, attempt=row.attempt, host=row.host)
                    for _, row in page
                    if row.group is not None and row.host is not None
                ),
                next=page[-1][0] if len(following) > limit else None,
            )

    async def consumer(self, consumer: ConsumerId) -> ConsumerState | None:
        async with self._lock:
            return self._tables.consumer(consumer)

    async def holdings(self, consumer: ConsumerId) -> Holdings | None:
        async with self._lock:
            found = self._tables.consumer(consumer)
            if found is None:
                return None
            named = {one.provider: self._tables.providers[one.provider] for one in found.held}
            return Holdings(found, {provider: row.book.generation for provider, row in named.items()})

    async def holders_of(
        self, provider: ProviderId, after: ConsumerId | None, limit: int
    ) -> tuple[ConsumerState, ...]:
        async with self._lock:
            tables = self._tables
            holders = sorted(
                (
                    holder
                    for holder, held in tables.held.items()
                    if any(amount.provider == provider for amount in held)
                    and (after is None or holder > after)
                ),
            )
            found = (tables.consumer(holder) for holder in holders[:limit])
            return tuple(state for state in found if state is not None)

    async def books_page(self, after: ConsumerId | None, limit: int) -> tuple[BookEntry, ...]:
        async with self._lock:
            following = sorted(one for one in self._tables.held if after is None or one > after)
            return tuple(self._tables.book_entry(one) for one in following[:limit])

    async def book_entries(
        self, consumers: Sequence[ConsumerId], new_since: datetime | None
    ) -> tuple[BookEntry, ...]:
        async with self._lock:
            tables = self._tables
            entries = [each for each in tables.log if new_since is not None and each.at >= new_since]
            new = {holder.consumer for each in entries for holder in each.claimed}
            known = sorted(one for one in {*consumers} if one in tables.consumers)
            return tuple(structs.replace(tables.book_entry(one), is_new=one in new) for one in known)

    async def usages(self, project: str, user: str) -> tuple[TypeUsage, ...]:
        async with self._lock:
            return self._tables.usages(project, user)

    async def quotas(self, project: str, after: str, limit: int) -> tuple[QuotaState, ...]:
        async with self._lock:
            quotas = self._tables.quotas
            named = [project] if project else sorted(one for one in quotas if one > after)[:limit]
            found = [quotas[one] for one in named if one in quotas]
            return tuple(
                QuotaState(project=one.project, limits=dict(one.limits), used=dict(one.used)) for one in found
            )

    async def custom_names(self, of: KindOfNames, after: str, limit: int) -> tuple[str, ...]:
        async with self._lock:
            return tuple(sorted(name for name in self._tables.custom[of] if name > after)[:limit])

    async def revisions_page(self, after: int, limit: int) -> RevisionsPage:
        async with self._lock:
            tables = self._tables
            following = sorted(internal for internal in tables.internals if internal > after)
            page = following[:limit]
            return RevisionsPage(
                internals=tuple(page),
                revisions=tuple(tables.providers[tables.internals[internal]].revision for internal in page),
                next=page[-1] if len(following) > limit else None,
            )

    @asynccontextmanager
    async def lead_feed(self) -> AsyncIterator[ChangeFeed | None]:
        if self._is_led:
            yield None
            return
        self._is_led = True
        term = self._tables.published.term + 1
        self._tables.published = LogPosition(term=term, position=0)
        try:
            yield MemoryFeed(self._tables, self._lock, term)
        finally:
            self._is_led = False

    async def prune(self, ended_before: datetime, logged_before: datetime) -> int:
        async with self._lock:
            tables = self._tables
            forgotten = [
                consumer.id
                for consumer in tables.consumers.values()
                if consumer.ended_at is not None and consumer.ended_at < ended_before
            ]
            for consumer in forgotten:
                del tables.consumers[consumer]
            expired = [
                root for root, tombstone in tables.tombstones.items() if tombstone.felled_at < ended_before
            ]
            for root in expired:
                del tables.tombstones[root]
            empty = [group for group in tables.groups if group not in tables.members]
            for group in empty:
                del tables.groups[group]
            kept = [
                entry for entry in tables.log if entry.number > tables.marked or entry.at >= logged_before
            ]
            gone = [
                entry for entry in tables.log if entry.number <= tables.marked and entry.at < logged_before
            ]
            tables.pruned = max([tables.pruned, *[entry.number for entry in gone]])
            tables.log = kept
            return len(forgotten) + len(expired) + len(empty) + len(gone)

    async def audit(self) -> tuple[str, ...]:
        async with self._lock:
            tables = self._tables
            trees = {root: tables.tree_book(root) for root in tables.trees}
            counted = {provider: row.consumers for provider, row in tables.providers.items()}
            wrong = [
                wrong_quota(quota, used)
                for quota in tables.quotas.values()
                if (used := tables.used_by(quota.project)) != quota.used
            ]
            return (*contradictions(tables.consumers, tables.held, trees, counted), *wrong)

    async def close(self) -> None:
        """There is nothing to close."""
