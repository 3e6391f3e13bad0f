"""Gives the orders of a run, and hears events until each has ended: a bounded number at a time, or each when it is due.

When the orders at a rate are due is fixed before the run begins, whatever the cloud does. The latency of an order counts from the time at
which it is due. If it counted from the time of sending, a generator that waits for a slow cloud would send less while the cloud is slow,
and the percentiles would not show it: coordinated omission.
"""

import asyncio
import random
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple, Protocol, get_args

from bus.message import Message
from kit.errors import Failure
from moor.asking import Feed

# A run fails if no event comes for this long while orders are under way.
SILENCE_S_MAX = 60.0
Clock = Callable[[], float]
Arrivals = Literal["even", "poisson"]
ARRIVALS: tuple[Arrivals, ...] = get_args(Arrivals)
SEED = 1


class NoProgress(Failure):
    """Orders are under way, but no event has come for SILENCE_S_MAX."""


class DueOrder(NamedTuple):
    """An order, and the time at which it is to be sent, by the clock of the run."""

    at_s: float
    message: Message


class EndedOrder(NamedTuple):
    """An order that has ended: when it was due, when it ended, and whether it succeeded."""

    due_s: float
    ended_s: float
    is_done: bool


class Sender(Protocol):
    """Sends orders when they are due. `ahead_s`: so long before that, it wants to have them."""

    ahead_s: float

    def send(self, orders: Sequence[DueOrder]) -> None:
        """Raise if an earlier order could not be sent."""


def due_times_s(arrivals: Arrivals, rate: float, count: int) -> Sequence[float]:
    """When each of `count` orders is due, in seconds after the begin, at `rate` orders per second.

    `even`: at equal distances. `poisson`: at random, as orders of many clients come that know nothing of each other. The
    same numbers give the same times.
    """
    if arrivals == "even":
        return array("d", (number / rate for number in range(count)))
    chance = random.Random(SEED)
    return array("d", accumulate(chance.expovariate(rate) for _ in range(count)))


def due_by(due_s: Sequence[float], elapsed_s: float) -> int:
    """How many orders are due at this time."""
    return bisect_right(due_s, elapsed_s)


class Run:
    """A part of a load run: `count` orders, of which each is begun, and ends by what events tell.

    With `due_s`, the order with each number is due so many seconds after the begin; without it, as soon as there is room for it.
    """

    def __init__(
        self,
        count: int,
        *,
        due_s: Sequence[float] = (),
        ahead_s: float = 0.0,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.count = count
        self.sent = 0
        self.ended = 0
        self.ends: list[EndedOrder] = []
        # How much later than they were due this process gave the orders.
        self.late_s: list[float] = []
        self.clock = clock
        # How many orders were begun, or wait for an instance.
        self.taken = 0
        self._due_s = due_s
        self._ahead_s = ahead_s
        # Who sends gets the first orders ahead, too.
        self.began_s = self._ended_s = clock() + ahead_s

    @property
    def seconds(self) -> float:
        """The time from the beginning until the last order ended."""
        return self._ended_s - self.began_s

    @property
    def latencies_s(self) -> list[float]:
        """The times in seconds from when they were due to their end of the orders that succeeded."""
        return [each.ended_s - each.due_s for each in self.ends if each.is_done]

    @property
    def is_scheduled(self) -> bool:
        return bool(self._due_s)

    def room(self, in_flight: int) -> int:
        """How many orders may be begun now: all that are due, or else as many as keep `in_flight` under way."""
        if self._due_s:
            return due_by(self._due_s, self._elapsed_s()) - self.taken
        return min(in_flight - (self.sent - self.ended), self.count - self.taken)

    def next_in_s(self) -> float | None:
        """In how many seconds the next order is due. None if no order becomes due by itself."""
        elapsed_s = self._elapsed_s()
        number = due_by(self._due_s, elapsed_s)
        return self._due_s[number] - elapsed_s if number < len(self._due_s) else None

    def _elapsed_s(self) -> float:
        return self.clock() + self._ahead_s - self.began_s

    def _take(self) -> float:
        """Take the next order. Returns the time at which it is due."""
        number, self.taken = self.taken, self.taken + 1
        return self.began_s + self._due_s[number] if self._due_s else self.clock()

    def next_orders(self, count: int) -> Sequence[DueOrder]:
        """Begin the next orders, `count` of them or fewer. Returns what to send: the caller sends it at once."""
        raise NotImplementedError

    def hear(self, message: Message) -> None:
        raise NotImplementedError

    def _has_ended(self) -> None:
        """Count an order that has ended. Its latency may have ended before."""
        self.ended += 1
        self._ended_s = self.clock()


class Firing:
    """Fires one run after the other, while `listen` hears all events for them."""

    def __init__(self, sender: Sender, feed: Feed, *others: Callable[[Message], None]) -> None:
        """`others` also hear each event."""
        self._sender = sender
        self._feed = feed
        self._others = others
        self._run: Run | None = None
        self._heard = asyncio.Event()
        self._heard_s = 0.0

    async def listen(self) -> None:
        async for batch in self._feed:
            for each in batch:
                if self._run is not None:
                    self._run.hear(each.message)
                for hear in self._others:
                    hear(each.message)
            self._heard_s = asyncio.get_running_loop().time()
            self._heard.set()

    async def fire(self, run: Run, in_flight: int, progress: Callable[[int], None] = lambda _: None) -> None:
        """Give all orders of a run: each when it is due, or with at most `in_flight` under way. Call `progress` with the number that
        has ended.
        """
        self._run, self._heard_s = run, asyncio.get_running_loop().time()
        while run.ended < run.count:
            self._heard.clear()
            self._sender.send(run.next_orders(run.room(in_flight)))
            if run.ended < run.count:
                await self._wait(run)
            progress(run.ended)

    async def _wait(self, run: Run) -> None:
        """Wait for events, or until the next order is due. Raise `NoProgress` after SILENCE_S_MAX without any."""
        next_in_s = run.next_in_s()
        try:
            async with asyncio.timeout(SILENCE_S_MAX if next_in_s is None else next_in_s):
                await self._heard.wait()
        except TimeoutError:
            is_silent = asyncio.get_running_loop().time() - self._heard_s >= SILENCE_S_MAX
            if is_silent and run.sent > run.ended:
                raise NoProgress(
                    f"{run.ended} of {run.count} orders have ended, and no event came in the last {SILENCE_S_MAX:.0f} s"
                ) from None
