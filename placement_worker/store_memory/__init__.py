"""Placement's books in the memory of one process, for the embedded mode, tests and simulation.

One transaction runs at a time, and readers wait for it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from uuid import UUID

from bus.message import ConsumerId, ProviderId
from bus.messages.administration import ConsumerState, KindOfNames, TypeUsage
from bus.messages.placement import LogPosition, RevisionsPage, SnapshotPage
from placement_worker.core.audit import contradictions
from placement_worker.store import ChangeFeed, KeptPage, PlacementTransaction, Unpublished
from placement_worker.store_memory.books import Books, KeptAnswer
from placement_worker.store_memory.feed import MemoryFeed, logged_since
from placement_worker.store_memory.transaction import MemoryTransaction


def _now() -> datetime:
    return datetime.now(UTC)


class MemoryPlacementStore:
    """`clock` says when a log row was written or a tree felled, which only pruning asks for."""

    def __init__(self, clock: Callable[[], datetime] = _now) -> None:
        self._books = Books()
        self._lock = asyncio.Lock()
        self._clock = clock
        self._is_led = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PlacementTransaction]:
        async with self._lock:
            transaction = MemoryTransaction(self._books, self._clock)
            try:
                yield transaction
            except BaseException:
                # A cancellation undoes it, too.
                transaction.roll_back()
                raise
            transaction.commit()

    async def snapshot_page(self, after: int, limit: int) -> SnapshotPage:
        async with self._lock:
            books = self._books
            following = sorted(internal for internal in books.internals if internal > after)
            page = following[:limit]
            return SnapshotPage(
                providers=books.states_of(books.internals[internal] for internal in page),
                published=books.published,
                next=page[-1] if len(following) > limit else None,
                cursor=str(books.logged),
            )

    async def changes_page(self, since: str, after: int, limit: int) -> SnapshotPage | None:
        async with self._lock:
            books = self._books
            if not since.isdecimal() or not books.pruned <= int(since) <= books.logged:
                return None
            entries = books.logged_after(int(since))
            changed = books.states_of(one for entry in entries for one in (*entry.touched, *entry.used))
            following = [state for state in changed if state.internal > after]
            page = tuple(following[:limit])
            return SnapshotPage(
                providers=page,
                published=books.published,
                next=page[-1].internal if len(following) > limit else None,
                since=since,
                cursor=str(books.logged),
                gone=tuple(gone for entry in entries for gone in entry.gone),
            )

    async def changes_since(self, since: str) -> Unpublished | None:
        async with self._lock:
            books = self._books
            if not since.isdecimal() or not books.pruned <= int(since) <= books.logged:
                return None
            return logged_since(books, int(since))

    async def consumer(self, consumer: ConsumerId) -> ConsumerState | None:
        async with self._lock:
            return self._books.consumer(consumer)

    async def holders_of(
        self, provider: ProviderId, after: ConsumerId | None, limit: int
    ) -> tuple[ConsumerState, ...]:
        async with self._lock:
            books = self._books
            holders = sorted(
                (
                    holder
                    for holder, held in books.held.items()
                    if any(amount.provider == provider for amount in held)
                    and (after is None or holder > after)
                ),
            )
            found = (books.consumer(holder) for holder in holders[:limit])
            return tuple(state for state in found if state is not None)

    async def usages(self, project: str, user: str) -> tuple[TypeUsage, ...]:
        async with self._lock:
            return self._books.usages(project, user)

    async def custom_names(self, of: KindOfNames, after: str, limit: int) -> tuple[str, ...]:
        async with self._lock:
            names = self._books.classes if of == "classes" else self._books.traits
            return tuple(sorted(name for name in names if name > after)[:limit])

    async def keep_answer(self, answer: UUID, pages: Sequence[bytes]) -> None:
        async with self._lock:
            kept = tuple(KeptPage(body, number == len(pages)) for number, body in enumerate(pages, 1))
            self._books.kept_answers.setdefault(answer, KeptAnswer(answer, self._clock(), kept))

    async def kept_page(self, answer: UUID, page: int) -> KeptPage | None:
        async with self._lock:
            kept = self._books.kept_answers.get(answer)
            return kept.pages[page - 1] if kept and page <= len(kept.pages) else None

    async def revisions_page(self, after: int, limit: int) -> RevisionsPage:
        async with self._lock:
            books = self._books
            following = sorted(internal for internal in books.internals if internal > after)
            page = following[:limit]
            return RevisionsPage(
                internals=tuple(page),
                revisions=tuple(books.providers[books.internals[internal]].revision for internal in page),
                next=page[-1] if len(following) > limit else None,
            )

    @asynccontextmanager
    async def lead_feed(self) -> AsyncIterator[ChangeFeed | None]:
        if self._is_led:
            yield None
            return
        self._is_led = True
        term = self._books.published.term + 1
        self._books.published = LogPosition(term=term, position=0)
        try:
            yield MemoryFeed(self._books, self._lock, term)
        finally:
            self._is_led = False

    async def prune(self, ended_before: datetime, logged_before: datetime) -> int:
        async with self._lock:
            books = self._books
            forgotten = [
                consumer.id
                for consumer in books.consumers.values()
                if consumer.ended_at is not None and consumer.ended_at < ended_before
            ]
            for consumer in forgotten:
                del books.consumers[consumer]
            rotten = [root for root, stump in books.stumps.items() if stump.felled_at < ended_before]
            for root in rotten:
                del books.stumps[root]
            stale = [kept.answer for kept in books.kept_answers.values() if kept.kept_at < logged_before]
            for answer in stale:
                del books.kept_answers[answer]
            kept = [entry for entry in books.log if entry.number > books.marked or entry.at >= logged_before]
            gone = [entry for entry in books.log if entry.number <= books.marked and entry.at < logged_before]
            books.pruned = max([books.pruned, *[entry.number for entry in gone]])
            books.log = kept
            return len(forgotten) + len(rotten) + len(stale) + len(gone)

    async def audit(self) -> tuple[str, ...]:
        async with self._lock:
            books = self._books
            trees = {root: books.tree_book(root) for root in books.trees}
            counted = {provider: row.consumers for provider, row in books.providers.items()}
            return contradictions(books.consumers, books.held, trees, counted)

    async def close(self) -> None:
        """Nothing to let go of."""
