"""A transaction that begins when somebody first writes, and rows as the bus's outbox.

A request waits for placement's verdict between its acceptance and its end. A transaction that was open all the while
would hold up every other, and on SQLite there is only one.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from uuid import UUID

from bus.handling import Kept
from bus.message import Message
from bus.messages.build import InstanceId
from scheduler_worker.instances import InstanceRow, messages_of
from scheduler_worker.store import SchedulerStore, SchedulerTransaction

UNSAID_PAGE = 500

# What rows still keep although it is confirmed, and since when. Most rows are written soon by what their cell says of
# them, which clears them too: a write of their own would be a third of all writes.
Confirmed = deque[tuple[datetime, Sequence[Kept]]]


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


class LateTransactions:
    """A store's transactions and outbox, as the worker loop wants them."""

    def __init__(
        self,
        store: SchedulerStore,
        unsaid_after: timedelta,
        clock: Callable[[], datetime],
        confirmed: Confirmed | None = None,
    ) -> None:
        self._store = store
        self.unsaid_after = unsaid_after
        self._clock = clock
        # Of all who clear and sweep the same rows.
        self.confirmed: Confirmed = deque() if confirmed is None else confirmed

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[LateTransaction]:
        async with AsyncExitStack() as stack:
            late = LateTransaction(self._store, stack)
            yield late
        late.committed()

    async def clear(self, late: LateTransaction, said: Sequence[Kept]) -> None:
        """Not yet, but before a sweep finds them. Those that a failure keeps from being cleared it will say again."""
        now = self._clock()
        self.confirmed.append((now, said))
        waiting: list[Kept] = []
        while self.confirmed and now - self.confirmed[0][0] >= self.unsaid_after / 2:
            waiting += self.confirmed.popleft()[1]
        if waiting:
            await (await late.begun()).confirm(waiting)

    async def pending(self, after: Kept | None = None) -> Sequence[tuple[Kept, Message]]:
        async for page in self.pages(after):
            if found := [each for row in page if self._is_ours(row) for each in kept_messages(row)]:
                return found
        return ()

    def _is_ours(self, row: InstanceRow) -> bool:  # noqa: ARG002 - others leave some rows to a sweep of their own
        return True

    async def unsaid(self) -> AsyncIterator[InstanceRow]:
        """All that still have something to say, read a page at a time."""
        async for page in self.pages():
            for row in page:
                yield row

    async def pages(self, behind: Kept | None = None) -> AsyncIterator[Sequence[InstanceRow]]:
        before = self._clock() - self.unsaid_after
        after = InstanceId(UUID(behind.entity)) if behind else None
        while page := await self._store.unsaid(before, after, UNSAID_PAGE):
            confirmed = {kept for _, said in self.confirmed for kept in said}
            yield [row for row in page if _kept(row) not in confirmed]
            after = page[-1].id


class Unswept:
    """An outbox for one of several workers of a process: another one of them looks for what is unsaid."""

    def __init__(self, rows: LateTransactions) -> None:
        self.clear = rows.clear

    async def pending(self, after: Kept | None = None) -> Sequence[tuple[Kept, Message]]:  # noqa: ARG002 - the port has it
        return ()


def kept_messages(row: InstanceRow) -> list[tuple[Kept, Message]]:
    """What is to be said of this row, with its place there."""
    messages = messages_of(row)
    if not messages:
        return []
    kept = _kept(row)
    return [(kept, message) for message in messages]


def _kept(row: InstanceRow) -> Kept:
    return Kept(row.id.hex, row.told.sequence)
