"""A transaction that begins when somebody first writes, and rows as the bus's outbox.

A request waits for placement's verdict between its acceptance and its end. A transaction that was open all the while
would hold up every other, and on SQLite there is only one.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta

from bus.handling import Kept
from bus.message import Message
from scheduler_worker.core.instances.lifecycle import InstanceRow, messages_of
from scheduler_worker.store import Noted, SchedulerStore, SchedulerTransaction

# How many rows are read at once: those of as few notes as have so many.
UNSAID_PAGE = 500


class Names:
    """By which name each of some rows is noted: all by one, but for those that are noted apart."""

    def __init__(self, common: Kept | None = None, apart: Mapping[int, Kept] | None = None) -> None:
        self._common = common
        self._apart = apart or {}

    def kept_messages(self, row: InstanceRow) -> Iterator[tuple[Kept, Message]]:
        """What this row says, with the name by which it is kept."""
        for message in messages_of(row):
            kept = self._apart.get(row.id.int, self._common) if self._apart else self._common
            assert kept is not None, "who has something to say is noted"
            yield kept, message


class LateTransaction:
    """`begun` begins it, once; the worker loop ends it."""

    def __init__(self, store: SchedulerStore, stack: AsyncExitStack) -> None:
        self._store = store
        self._stack = stack
        self._transaction: SchedulerTransaction | None = None
        self._learning: list[Callable[[], None]] = []

    def learn(self, what: Callable[[], None]) -> None:
        """What this process is to know when the transaction is committed, and never if it is not."""
        self._learning.append(what)

    def committed(self) -> None:
        for what in self._learning:
            what()

    async def begun(self) -> SchedulerTransaction:
        if self._transaction is None:
            self._transaction = await self._stack.enter_async_context(self._store.transaction())
        return self._transaction

    async def note(self, rows: Iterable[InstanceRow]) -> Names:
        """Those of these rows that have something to say are kept by these names, until it is confirmed."""
        unsaid = [row for row in rows if row.has_to_say]
        if not unsaid:
            return Names()
        (common,) = await (await self.begun()).note([unsaid])
        return Names(common)


class LateTransactions:
    """A store's transactions and outbox, as the worker loop wants them."""

    def __init__(
        self,
        store: SchedulerStore,
        unsaid_after: timedelta,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self.unsaid_after = unsaid_after
        self._clock = clock

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[LateTransaction]:
        async with AsyncExitStack() as stack:
            late = LateTransaction(self._store, stack)
            yield late
        late.committed()

    async def clear(self, late: LateTransaction, said: Sequence[Kept]) -> None:
        await (await late.begun()).confirm(said)

    async def pending(self, after: Kept | None = None) -> Sequence[tuple[Kept, Message]]:
        async for page in self.pages(after):
            if found := [(note.kept, message) for note in page for message in said_by(note)]:
                return found
        return ()

    async def unsaid(self) -> AsyncIterator[Noted]:
        """All that still have something to say, read a page at a time."""
        async for page in self.pages():
            for note in page:
                yield note

    async def pages(self, behind: Kept | None = None) -> AsyncIterator[Sequence[Noted]]:
        before = self._clock() - self.unsaid_after
        after = behind
        while page := await self._store.unsaid(before, after, UNSAID_PAGE):
            if over := [note.kept for note in page if not note.rows]:
                # Cells have spoken of all of it, or later notes have what is to be said of it now.
                async with self._store.transaction() as transaction:
                    await transaction.confirm(over)
            yield [note for note in page if note.rows]
            after = page[-1].kept


class Unswept:
    """An outbox for one of several workers of a process: another one of them looks for what is unsaid."""

    def __init__(self, rows: LateTransactions) -> None:
        self.clear = rows.clear

    async def pending(self, after: Kept | None = None) -> Sequence[tuple[Kept, Message]]:  # noqa: ARG002 - the port has it
        return ()


def said_by(note: Noted) -> list[Message]:
    return [message for row in note.rows for message in messages_of(row)]
