"""The notes of rows whose messages may not have reached the broker, read a page at a time."""

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime, timedelta

from bus.workers.handling import OutboxKey
from scheduler_worker.store import OutboxNote, SchedulerStore

# How many rows are read at once: those of as few notes as have so many.
UNSAID_PAGE = 500


class OutboxNotes:
    def __init__(self, store: SchedulerStore, unsaid_after: timedelta, clock: Callable[[], datetime]) -> None:
        self._store = store
        # Messages of younger notes are still on their way.
        self.unsaid_after = unsaid_after
        self._clock = clock

    async def pages(self, after: OutboxKey | None = None) -> AsyncIterator[Sequence[OutboxNote]]:
        """Pages of the outbox notes behind `after` that still have messages to send."""
        before = self._clock() - self.unsaid_after
        while page := await self._store.unsaid(before, after, UNSAID_PAGE):
            # Cells have reported all of these rows, or later notes name them.
            await self.confirm([note.kept for note in page if not note.rows])
            yield [note for note in page if note.rows]
            after = page[-1].kept

    async def confirm(self, said: Sequence[OutboxKey]) -> None:
        if said:
            async with self._store.transaction() as transaction:
                await transaction.confirm(said)
