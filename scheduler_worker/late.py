"""A transaction that begins when somebody first writes, and rows as the bus's outbox.

A request waits for placement's verdict between its acceptance and its end. A transaction that was open all the while
would hold up every other, and on SQLite there is only one.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta

from bus.handling import Kept
from bus.message import Message
from scheduler_worker.instances import InstanceRow, messages_of
from scheduler_worker.store import SchedulerStore, SchedulerTransaction

UNSAID_PAGE = 500


class LateTransaction:
    """`begun` begins it, once; the worker loop ends it."""

    def __init__(self, store: SchedulerStore, stack: AsyncExitStack) -> None:
        self._store = store
        self._stack = stack
        self._transaction: SchedulerTransaction | None = None

    async def begun(self) -> SchedulerTransaction:
        if self._transaction is None:
            self._transaction = await self._stack.enter_async_context(self._store.transaction())
        return self._transaction


class LateTransactions:
    """A store's transactions and outbox, as the worker loop wants them."""

    def __init__(self, store: SchedulerStore, unsaid_after: timedelta, clock: Callable[[], datetime]) -> None:
        self._store = store
        self.unsaid_after = unsaid_after
        self._clock = clock

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[LateTransaction]:
        async with AsyncExitStack() as stack:
            yield LateTransaction(self._store, stack)

    async def clear(self, late: LateTransaction, said: Sequence[Kept]) -> None:
        await (await late.begun()).confirm(said)

    async def pending(self) -> Sequence[tuple[Kept, Message]]:
        return [each async for row in self.unsaid() for each in kept_messages(row)]

    async def unsaid(self) -> AsyncIterator[InstanceRow]:
        """All that still have something to say, a page at a time."""
        before, after = self._clock() - self.unsaid_after, None
        while page := await self._store.unsaid(before, after, UNSAID_PAGE):
            for row in page:
                yield row
            after = page[-1].id


class Unswept:
    """An outbox for one of several workers of a process: another one of them looks for what is unsaid."""

    def __init__(self, rows: LateTransactions) -> None:
        self.clear = rows.clear

    async def pending(self) -> Sequence[tuple[Kept, Message]]:
        return ()


def kept_messages(row: InstanceRow) -> list[tuple[Kept, Message]]:
    """What is to be said of this row, with its place there."""
    return [(Kept(str(row.id), row.told.sequence), message) for message in messages_of(row)]
