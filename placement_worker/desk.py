"""Where writes by name are handed in: those that wait together are written together.

Each kind of write has a lane. Who comes to an idle lane is served at once, by itself or with whoever came in the same
moment; who comes while a batch is being written makes up the next one. So one alone does not wait, and many cost the
database one transaction. A batch that fails is written again one by one, so that one harms only itself; what is nobody's
fault is tried again before.

Those who ask again as soon as they are answered would fall into two halves, each of which waits for the other's batch.
So after a batch the next one waits for as many as there were, in it and behind it, but not for long: they come back at
once, or not at all. It is soon whole, costs the database half, and all of them are sooner answered.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import datetime
from typing import Protocol

import tenacity

from bus.errors import Transient
from bus.messages.administration import Write, WriteVerdict
from placement_worker.core.vocabulary import Vocabulary
from placement_worker.store import PlacementTransaction
from placement_worker.writing import WRITES, WriteBatch, write_reshape

# As many as a batch of claims has where it is cheapest.
BATCH_MAX = 200
TRIES_MAX = 8
RETRY_DELAY_S_FIRST = 0.005
RETRY_DELAY_S_MAX = 0.5
# How long the next batch waits for those of the last, as a share of what that took: so nobody loses more by waiting.
LINGER_SHARE = 0.25


class Transactions(Protocol):
    def transaction(self) -> AbstractAsyncContextManager[PlacementTransaction]: ...


class Desk:
    """`batches` counts the transactions that were committed, `asked` the writes that were handed in."""

    def __init__(
        self,
        transactions: Transactions,
        vocabulary: Vocabulary,
        clock: Callable[[], datetime],
        *,
        tries_max: int = TRIES_MAX,
    ) -> None:
        self._transactions = transactions
        self._vocabulary = vocabulary
        self._clock = clock
        self._tries_max = tries_max
        self._lanes = {write: _Lane(self, write) for write in dict.fromkeys(WRITES.values())}
        self.asked = 0
        self.batches = 0

    async def ask(self, write: Write) -> WriteVerdict:
        """What becomes of this write. Raises `Transient` if the books cannot be reached: then nothing was written."""
        self.asked += 1
        return await self._lanes[WRITES[type(write)]].ask(write)

    async def write(self, batch: WriteBatch, writes: Sequence[Write]) -> tuple[WriteVerdict, ...]:
        """All of these, which are of one kind, in one transaction."""
        verdicts: tuple[WriteVerdict, ...] = await _retrying(self._tries_max)(self._write_once, batch, writes)
        self.batches += 1
        return verdicts

    async def _write_once(self, batch: WriteBatch, writes: Sequence[Write]) -> tuple[WriteVerdict, ...]:
        async with self._transactions.transaction() as tx:
            return await batch(tx, writes, self._vocabulary, self._clock())

    async def close(self) -> None:
        """When all that was handed in has been answered."""
        await asyncio.gather(*[lane.emptied() for lane in self._lanes.values()])


class _Asked:
    __slots__ = ("answer", "write")

    def __init__(self, write: Write) -> None:
        self.write = write
        self.answer: asyncio.Future[WriteVerdict] = asyncio.get_running_loop().create_future()


class _Lane:
    """Writes of one kind, one batch at a time."""

    def __init__(self, desk: Desk, batch: WriteBatch) -> None:
        self._desk = desk
        self._batch = batch
        self._size_max = 1 if batch is write_reshape else BATCH_MAX
        self._waiting: deque[_Asked] = deque()
        self._work: asyncio.Task[None] | None = None
        # How many may come to the next batch, until when they are waited for, and that all of them are there.
        self._expected = 1
        self._until_s = 0.0
        self._all_there = asyncio.Event()

    async def ask(self, write: Write) -> WriteVerdict:
        asked = _Asked(write)
        self._waiting.append(asked)
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._empty())
        elif len(self._waiting) >= self._expected:
            self._all_there.set()
        return await asked.answer

    async def emptied(self) -> None:
        # Nobody comes to a desk that closes.
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

    def _next(self) -> list[_Asked]:
        """Without those who do not wait any more."""
        batch: list[_Asked] = []
        while self._waiting and len(batch) < self._size_max:
            asked = self._waiting.popleft()
            if not asked.answer.done():
                batch.append(asked)
        return batch

    async def _settle(self, batch: Sequence[_Asked]) -> None:
        try:
            verdicts = await self._desk.write(self._batch, [asked.write for asked in batch])
        except Exception as problem:  # noqa: BLE001 - it is the askers' to handle: this loop serves others, too
            if len(batch) == 1 or isinstance(problem, Transient):
                _fail(batch, problem)
                return
            for asked in batch:
                await self._settle((asked,))
            return
        for asked, verdict in zip(batch, verdicts, strict=True):
            if not asked.answer.done():
                asked.answer.set_result(verdict)


def _fail(batch: Sequence[_Asked], problem: Exception) -> None:
    for asked in batch:
        if not asked.answer.done():
            asked.answer.set_exception(problem)


def _retrying(tries_max: int) -> tenacity.AsyncRetrying:
    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(Transient),
        wait=tenacity.wait_random_exponential(multiplier=RETRY_DELAY_S_FIRST, max=RETRY_DELAY_S_MAX),
        stop=tenacity.stop_after_attempt(tries_max),
        reraise=True,
    )
