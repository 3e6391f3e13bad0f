"""Gives the orders of a run, a bounded number at a time, and hears events until each has ended."""

import asyncio
import time
from collections.abc import Callable, Sequence

from bus.errors import Failure
from bus.message import Message
from bus.workers.publisher import Outgoing
from bus.workers.station import Station
from moor.asking import Feed

# A run fails if no event comes for this long while orders are under way.
SILENCE_S_MAX = 60.0


class NoProgress(Failure):
    """Orders are under way, but no event has come for SILENCE_S_MAX."""


class Run:
    """A part of a load run: `count` orders, of which each is begun, and ends by what events tell."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.sent = 0
        self.ended = 0
        # The times in seconds from sending to end of the orders that succeeded.
        self.latencies_s: list[float] = []
        self._began_s = self._ended_s = time.perf_counter()

    @property
    def seconds(self) -> float:
        """The time from the beginning until the last order ended."""
        return self._ended_s - self._began_s

    def next_orders(self, count: int) -> Sequence[Message]:
        """Begin the next orders, `count` of them or fewer. Returns what to send: the caller sends it at once, since
        latencies count from here.
        """
        raise NotImplementedError

    def hear(self, message: Message) -> None:
        raise NotImplementedError

    def _has_ended(self, sent_s: float | None = None) -> None:
        """Count an order that has ended; if it succeeded, with the time at which it was sent."""
        self.ended += 1
        self._ended_s = time.perf_counter()
        if sent_s is not None:
            self.latencies_s.append(self._ended_s - sent_s)


class Firing:
    """Fires one run after the other, while `listen` hears all events for them."""

    def __init__(self, client: Station, feed: Feed) -> None:
        self._client = client
        self._feed = feed
        self._run: Run | None = None
        self._heard = asyncio.Event()
        self._heard_s = 0.0

    async def listen(self) -> None:
        async for batch in self._feed:
            for each in batch:
                if self._run is not None:
                    self._run.hear(each.message)
            self._heard_s = asyncio.get_running_loop().time()
            self._heard.set()

    async def fire(
        self, run: Run, in_flight: int, progress: Callable[[int], None], *, look_s: float = SILENCE_S_MAX
    ) -> None:
        """Give all orders of a run, with at most `in_flight` under way; call `progress` with the number that has ended.

        Orders are given when events come, and at least every `look_s`.
        """
        self._run, self._heard_s = run, asyncio.get_running_loop().time()
        while run.ended < run.count:
            self._heard.clear()
            room = min(in_flight - (run.sent - run.ended), run.count - run.sent)
            self._client.publisher.send_all([Outgoing(each) for each in run.next_orders(room)])
            try:
                async with asyncio.timeout(look_s):
                    await self._heard.wait()
            except TimeoutError:
                self._check_progress(run)
            progress(run.ended)

    def _check_progress(self, run: Run) -> None:
        is_silent = asyncio.get_running_loop().time() - self._heard_s >= SILENCE_S_MAX
        if is_silent and run.sent > run.ended:
            raise NoProgress(
                f"{run.ended} of {run.count} orders have ended, and no event came in the last {SILENCE_S_MAX:.0f} s"
            )
