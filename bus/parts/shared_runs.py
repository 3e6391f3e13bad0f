"""Runs of a function that are shared: all callers that come before a run begins wait for that run."""

import asyncio
import random

from bus.parts.status import Status, Work
from bus.pauses import Pauses


class SharedRuns:
    """One run at a time. A caller that comes during a run shares the next run, which begins after the call."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    def soon(self) -> "asyncio.Task[None]":
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._run_after(self._running))
            self._next.add_done_callback(mark_seen)
        return self._next

    async def done(self) -> None:
        """Wait for a run that begins after this call, until it has succeeded. Raises the error of that run, if it fails."""
        await asyncio.shield(self.soon())

    async def close(self) -> None:
        tasks = [task for task in (self._running, self._next) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_after(self, earlier: "asyncio.Task[None] | None") -> None:
        if earlier is not None:
            await asyncio.wait((earlier,))
        # Callers that come from here on need another run.
        self._running, self._next = self._next, None
        await self._work()


def mark_seen(done: "asyncio.Future[None]") -> None:
    """Take note of the exception of a task that has ended, so that asyncio does not log it as never retrieved.

    Callers that wait for the task get the exception all the same. But it may be that no caller waits any more.
    """
    if not done.cancelled():
        done.exception()


class SingleFlight(SharedRuns):
    """Shared runs as a part of a worker. Each run is retried until it succeeds, so no caller needs to wait for it.

    If a run fails by a bug, the part ends with that exception.
    """

    def __init__(
        self,
        name: str,
        work: Work,
        *,
        is_needed: bool = False,
        pauses: Pauses | None = None,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__(self._until_done)
        self.status = Status(name, is_needed=is_needed, pauses=pauses, chance=chance)
        self._tried = work
        self._over = asyncio.Event()
        self._bug: Exception | None = None

    async def run(self) -> None:
        try:
            await self._over.wait()
        finally:
            await self.close()
        if self._bug is not None:
            raise self._bug
        self.status.ended()

    async def stop(self) -> None:
        self._over.set()

    async def _until_done(self) -> None:
        try:
            await self.status.until_done(self._tried)
        except Exception as bug:
            self._bug = bug
            self.status.ended(bug)
            self._over.set()
            raise
