"""Parts that run one coroutine, call a function at an interval, or must succeed once."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

from bus.parts.status import Status, Work
from bus.pauses import Pauses


class Supervised:
    """A part that runs one coroutine, and runs it again after each operational failure.

    The coroutine calls `status.well()` when it has started up. `stop` cancels the coroutine if `is_cut_short` is set.
    Otherwise the coroutine checks the event `stopping` itself, and returns.
    """

    def __init__(
        self,
        name: str,
        work: Work,
        *,
        is_needed: bool = False,
        is_cut_short: bool = True,
        pauses: Pauses | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.status = Status(name, is_needed=is_needed, pauses=pauses, chance=chance)
        self.stopping = asyncio.Event()
        self._work = work
        self._is_cut_short = is_cut_short

    async def run(self) -> None:
        try:
            await (self._until_stopped() if self._is_cut_short else self._repeat())
        except Exception as bug:
            self.status.ended(bug)
            raise
        self.status.ended()

    async def stop(self) -> None:
        self.stopping.set()

    async def _until_stopped(self) -> None:
        working = asyncio.create_task(self._repeat())
        stopping = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            working.cancel()
            stopping.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)
        with suppress(asyncio.CancelledError):
            working.result()

    async def _repeat(self) -> None:
        while not self.stopping.is_set():
            pause_s = await self.status.tried(self._work)
            if pause_s is None:
                return
            await wait_at_most(self.stopping, pause_s)


class Periodic(Supervised):
    """A part that calls a function at an interval, and at once when `wake` is called.

    `stop` lets the current call finish, or cancels it if `is_cut_short` is set. The event `has_run` is set when a call
    has succeeded.
    """

    def __init__(
        self,
        name: str,
        work: Work,
        every_s: float | Callable[[], float],
        *,
        is_needed: bool = False,
        is_cut_short: bool = False,
        rests_first: bool = False,
        pauses: Pauses | None = None,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__(
            name, work, is_needed=is_needed, is_cut_short=is_cut_short, pauses=pauses, chance=chance
        )
        self._every_s = every_s
        self._rests_first = rests_first
        self._woken = asyncio.Event()
        self.has_run = asyncio.Event()

    def wake(self) -> None:
        """Run the work now instead of after its pause: there is something to do."""
        self._woken.set()

    async def stop(self) -> None:
        await super().stop()
        self._woken.set()

    async def _repeat(self) -> None:
        if self._rests_first:
            await self._rest()
        while not self.stopping.is_set():
            # Cleared before the run: a wake-up during the run causes another run.
            self._woken.clear()
            pause_s = await self.status.tried(self._work)
            if pause_s is None:
                self.status.well()
                self.has_run.set()
                await self._rest()
            else:
                await wait_at_most(self.stopping, pause_s)

    async def _rest(self) -> None:
        every_s = self._every_s if isinstance(self._every_s, float | int) else self._every_s()
        if not self.stopping.is_set():
            await wait_at_most(self._woken, every_s)


class Once(Supervised):
    """Work that must succeed once before the worker is ready, such as migrating the tables."""

    def __init__(self, name: str, work: Work) -> None:
        super().__init__(name, work, is_needed=True)

    async def run(self) -> None:
        await self._until_stopped()
        if not self.stopping.is_set():
            self.status.well()


async def wait_at_most(event: asyncio.Event, seconds: float | None) -> None:
    """Wait for the event, at most so many seconds; for ever with None."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
