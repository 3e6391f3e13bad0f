"""Gives the orders of a run, and hears events until each has ended: a bounded number at a time, or each when it is due.

When the orders at a rate are due is fixed before the run begins, whatever the cloud does. The latency of an order counts from the time at
which it is due. If it counted from the time of sending, a generator that waits for a slow cloud would send less while the cloud is slow,
and the percentiles would not show it: coordinated omission.
"""

import asyncio
import os
import random
import time
from array import array
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import accumulate, cycle
from typing import Literal, get_args

from msgspec import Struct

from bus.broker import Broker
from bus.message import Message
from bus.messages.build import InstanceState
from bus.settings import BusSettings
from bus.workers.publisher import Outgoing, Publisher
from bus.workers.sending import Link
from engine.flavors import Flavor, RequestId
from kit.errors import Failure
from moor.client.bus_client import Feed

# A run fails if no event comes for this long while orders are under way.
SILENCE_S_MAX = 60.0
Arrivals = Literal["even", "poisson"]
ARRIVALS: tuple[Arrivals, ...] = get_args(Arrivals)
SEED = 1


class _Alone(BusSettings, frozen=True):
    """Each order is a message of its own."""

    PARCEL_ITEMS_MAX = 1


class NoProgress(Failure):
    """Orders are under way, but no event has come for SILENCE_S_MAX."""


class Boot(Struct):
    """An instance of a load run: when it was due, how its boot ended and when that was heard; its state at the end of its last order, and
    its present flavor.
    """

    flavor: Flavor
    due_s: float
    on_node: bool = False
    built: InstanceState | None = None
    heard_s: float = 0.0
    state: InstanceState | None = None
    is_large: bool = False


class Order(Struct):
    """One order of a load run, with the times at which it was due and ended.

    `outcome` is how a move ended, or the state of the instance after a boot or a delete; `rejected` if the
    schedulers refused the order. It is empty while the order is under way: it waits for `left` instances.
    """

    kind: str
    due_s: float
    request: RequestId | None = None
    boots: Sequence[Boot] = ()
    ended_s: float = 0.0
    outcome: str = ""
    left: int = 1


# How an order ends that did what it should.
DONE = ("active", "deleted", "confirmed", "changed")


def latencies_of(orders: Iterable[Order]) -> list[float]:
    """The times in seconds from when they were due to their end of the orders that succeeded."""
    return [each.ended_s - each.due_s for each in orders if each.outcome in DONE]


class Sender:
    """Sends by these publishers in turn; with a single one, all that is due together."""

    def __init__(self, *publishers: Publisher) -> None:
        self._publishers = publishers
        self._turns = cycle(publishers)
        self._problem: BaseException | None = None

    def send(self, orders: Sequence[Message]) -> None:
        if self._problem is not None:
            raise self._problem
        parts = [orders] if len(self._publishers) == 1 else [(each,) for each in orders]
        for part in parts:
            outgoing = [Outgoing(each) for each in part]
            next(self._turns).send_all(outgoing).add_done_callback(self._told)

    def _told(self, sent: asyncio.Future[None]) -> None:
        if not sent.cancelled() and (problem := sent.exception()):
            self._problem = problem


@asynccontextmanager
async def independent_publishers(broker: Broker, count: int) -> AsyncIterator[Sender]:
    """Independent publishers: each has a connection of its own, and sends each order as a message of its own, as many small clients do."""
    async with AsyncExitStack() as stack:
        yield Sender(*[await _connected(broker, number, stack) for number in range(1, count + 1)])


async def _connected(broker: Broker, number: int, stack: AsyncExitStack) -> Publisher:
    alone = _Alone()
    link = Link(broker, alone)
    stack.push_async_callback(link.close)
    await link.connection()
    publisher = Publisher(link, alone, f"load-publisher-{number}-{os.getpid()}")
    stack.push_async_callback(publisher.close)
    return publisher


def due_times_s(arrivals: Arrivals, rate: float, count: int) -> Sequence[float]:
    """When each of `count` orders is due, in seconds after the begin, at `rate` orders per second.

    `even`: at equal distances. `poisson`: at random, as orders of many clients come that know nothing of each other. The
    same numbers give the same times.
    """
    if arrivals == "even":
        return array("d", (number / rate for number in range(count)))
    chance = random.Random(SEED)
    return array("d", accumulate(chance.expovariate(rate) for _ in range(count)))


class Run:
    """A part of a load run: `count` orders, of which each is begun, and ends by what events tell.

    With `due_s`, the order with each number is due so many seconds after the begin; without it, as soon as there is room for it.
    """

    def __init__(self, count: int, due_s: Sequence[float] = ()) -> None:
        self.count = count
        self.sent = 0
        self.ended = 0
        self.orders: list[Order] = []
        # How much later than they were due this process gave the orders.
        self.late_s: list[float] = []
        # How many orders were begun, or wait for an instance.
        self.taken = 0
        self._due_s = due_s
        self.began_s = self._ended_s = 0.0

    @property
    def seconds(self) -> float:
        """The time from the beginning until the last order ended."""
        return self._ended_s - self.began_s

    @property
    def is_scheduled(self) -> bool:
        return bool(self._due_s)

    def begin(self) -> None:
        self.began_s = self._ended_s = time.perf_counter()

    def room(self, in_flight: int) -> int:
        """How many orders may be begun now: all that are due, or else as many as keep `in_flight` under way."""
        if self._due_s:
            return bisect_right(self._due_s, self._elapsed_s()) - self.taken
        return min(in_flight - (self.sent - self.ended), self.count - self.taken)

    def next_in_s(self) -> float | None:
        """In how many seconds the next order is due. None if no order becomes due by itself."""
        elapsed_s = self._elapsed_s()
        number = bisect_right(self._due_s, elapsed_s)
        return self._due_s[number] - elapsed_s if number < len(self._due_s) else None

    def _elapsed_s(self) -> float:
        return time.perf_counter() - self.began_s

    def _take(self) -> float:
        """Take the next order. Returns the time at which it is due."""
        number, self.taken = self.taken, self.taken + 1
        return self.began_s + self._due_s[number] if self._due_s else time.perf_counter()

    def next_orders(self, count: int) -> Sequence[Message]:
        """Begin the next orders, `count` of them or fewer. Returns what to send: the caller sends it at once."""
        raise NotImplementedError

    def hear(self, message: Message) -> None:
        raise NotImplementedError

    def _note(self, order: Order) -> None:
        self.orders.append(order)
        self.sent += 1
        self.late_s.append(time.perf_counter() - order.due_s)

    def _end(self, order: Order, outcome: str) -> None:
        order.outcome, order.ended_s = outcome, time.perf_counter()
        self.ended += 1
        self._ended_s = order.ended_s


class Firing:
    """Fires one run after the other, while `listen` hears all events for them."""

    def __init__(self, sender: Sender, feed: Feed) -> None:
        self._sender = sender
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

    async def fire(self, run: Run, in_flight: int, progress: Callable[[int], None] = lambda _: None) -> None:
        """Give all orders of a run: each when it is due, or with at most `in_flight` under way. Call `progress` with the number that
        has ended.
        """
        self._run, self._heard_s = run, asyncio.get_running_loop().time()
        run.begin()
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
