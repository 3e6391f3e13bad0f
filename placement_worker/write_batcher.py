"""Batch administrators' writes: writes that wait at the same time share one transaction.

Each kind of write has a queue. A write to an idle queue starts at once, alone or with others of the same moment. Writes
that arrive during a batch form the next one. So a single write does not wait, and many writes cost the database one
transaction. A batch that fails is written again one by one, so that a bad write harms only itself. Transient errors are
retried before that.

Callers that write again as soon as they are answered would split into two halves, each waiting for the other's batch. So
the next batch first waits until it has as many writes as there were before: those of the last batch, and those that
waited behind it. It does not wait long, since those callers come back at once, or not at all. The batch is soon complete,
costs the database half, and all of the callers are answered sooner.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

from bus.errors import Transient
from bus.messages.administration import Write, WriteVerdict
from bus.retrying import Retrying
from bus.workers.worker import Transactions
from placement_worker.admin_writes import WRITES, WriteBatch, write_reshapes
from placement_worker.core.vocabulary import Vocabulary
from placement_worker.store import PlacementTransaction

# The size at which a batch of claims is cheapest.
BATCH_MAX = 200
TRIES_MAX = 8
# The next batch waits for this share of the last batch's time at most: no caller loses more than that by waiting.
LINGER_SHARE = 0.25


class WriteBatcher:
    """Collects writes that run at the same time, and commits them in batches. `batches` counts committed transactions."""

    def __init__(
        self,
        transactions: Transactions[PlacementTransaction],
        vocabulary: Vocabulary,
        clock: Callable[[], datetime],
        *,
        tries_max: int = TRIES_MAX,
    ) -> None:
        self._transactions = transactions
        self._vocabulary = vocabulary
        self._clock = clock
        self._retrying = Retrying(tries_max)
        self._queues = {write: _WriteQueue(self, write) for write in dict.fromkeys(WRITES.values())}
        self.batches = 0

    async def ask(self, write: Write) -> WriteVerdict:
        """Write this with others of its kind, and return its verdict.

        Raises `Transient` if the database cannot be reached: then nothing was written.
        """
        return await self._queues[WRITES[type(write)]].ask(write)

    async def write(self, batch: WriteBatch, writes: Sequence[Write]) -> tuple[WriteVerdict, ...]:
        """Write these writes, which are of one kind, in one transaction."""
        verdicts = await self._retrying(self._write_once, batch, writes)
        self.batches += 1
        return verdicts

    async def _write_once(self, batch: WriteBatch, writes: Sequence[Write]) -> tuple[WriteVerdict, ...]:
        async with self._transactions.transaction() as tx:
            return await batch(tx, writes, self._vocabulary, self._clock())

    async def close(self) -> None:
        """Wait until all writes are answered."""
        await asyncio.gather(*[queue.emptied() for queue in self._queues.values()])


class _PendingWrite(NamedTuple):
    write: Write
    answer: asyncio.Future[WriteVerdict]


class _WriteQueue:
    """The waiting writes of one kind. One batch runs at a time."""

    def __init__(self, batcher: WriteBatcher, batch: WriteBatch) -> None:
        self._batcher = batcher
        self._batch = batch
        self._size_max = 1 if batch is write_reshapes else BATCH_MAX
        self._waiting: deque[_PendingWrite] = deque()
        self._work: asyncio.Task[None] | None = None
        # How many writes the next batch expects, until when it waits for them, and the event that all have come.
        self._expected = 1
        self._until_s = 0.0
        self._all_there = asyncio.Event()

    async def ask(self, write: Write) -> WriteVerdict:
        loop = asyncio.get_running_loop()
        asked = _PendingWrite(write, loop.create_future())
        self._waiting.append(asked)
        if self._work is None:
            self._work = loop.create_task(self._empty())
        elif len(self._waiting) >= self._expected:
            self._all_there.set()
        return await asked.answer

    async def emptied(self) -> None:
        # After close() no more writes come.
        self._expected = 1
        self._all_there.set()
        if self._work is not None:
            await self._work

    async def _empty(self) -> None:
        try:
            while self._waiting:
                await self._linger()
                await self._write_next()
        finally:
            self._work = None

    async def _linger(self) -> None:
        left_s = self._until_s - asyncio.get_running_loop().time()
        if len(self._waiting) >= self._expected or left_s <= 0:
            return
        self._all_there.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._all_there.wait()

    async def _write_next(self) -> None:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        if batch := self._next():
            await self._settle(batch)
        ended_s = clock()
        self._expected = min(len(batch) + len(self._waiting), self._size_max)
        self._until_s = ended_s + (ended_s - began_s) * LINGER_SHARE

    def _next(self) -> list[_PendingWrite]:
        """Take the writes of the next batch from the queue, without those whose callers have given up."""
        batch: list[_PendingWrite] = []
        while self._waiting and len(batch) < self._size_max:
            asked = self._waiting.popleft()
            if not asked.answer.done():
                batch.append(asked)
        return batch

    async def _settle(self, batch: Sequence[_PendingWrite]) -> None:
        try:
            verdicts = await self._batcher.write(self._batch, [asked.write for asked in batch])
        except Exception as problem:  # noqa: BLE001 - each caller gets it; this loop also serves others
            if len(batch) == 1 or isinstance(problem, Transient):
                _fail(batch, problem)
                return
            for asked in batch:
                await self._settle((asked,))
            return
        for asked, verdict in zip(batch, verdicts, strict=True):
            if not asked.answer.done():
                asked.answer.set_result(verdict)


def _fail(batch: Sequence[_PendingWrite], problem: Exception) -> None:
    for asked in batch:
        if not asked.answer.done():
            asked.answer.set_exception(problem)
