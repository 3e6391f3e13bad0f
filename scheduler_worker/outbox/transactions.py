"""A transaction that begins when a handler first asks for it.

A request waits for placement's verdict between its acceptance and its end. A transaction that was open all that time
would hold up every other one, and SQLite has only one.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from scheduler_worker.store import SchedulerStore, SchedulerTransaction


class LazyTransaction:
    """`begun` begins it, once; the worker loop commits it, or rolls it back."""

    def __init__(self, store: SchedulerStore, stack: AsyncExitStack) -> None:
        self._store = store
        self._stack = stack
        self._transaction: SchedulerTransaction | None = None
        self._when_committed: list[Callable[[], None]] = []

    async def begun(self) -> SchedulerTransaction:
        if self._transaction is None:
            self._transaction = await self._stack.enter_async_context(self._store.transaction())
        return self._transaction

    def when_committed(self, do: Callable[[], None]) -> None:
        """Call this after the commit, and never if the transaction is rolled back."""
        self._when_committed.append(do)

    def committed(self) -> None:
        for do in self._when_committed:
            do()


class LazyTransactions:
    """The transactions of handlers that send no messages which rows keep."""

    def __init__(self, store: SchedulerStore) -> None:
        self._store = store

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[LazyTransaction]:
        async with AsyncExitStack() as stack:
            transaction = LazyTransaction(self._store, stack)
            yield transaction
        transaction.committed()
