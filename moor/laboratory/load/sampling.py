"""Reads the CPU time and the memory of all processes once a second, and says how rate, latencies and cost went over time."""

import asyncio
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from math import ceil

from msgspec import Struct

from moor.laboratory.load.clocks import Clocks
from moor.laboratory.load.results import Interval, latency_of

EVERY_S = 1.0
# A longer run has longer intervals.
INTERVALS_MAX = 240


class LoadSample(Struct, frozen=True):
    at_s: float
    cpu_s: Mapping[str, float]


class EndedOrder(Struct, frozen=True):
    """An order that has ended: when it was due, when it ended, and whether it succeeded."""

    due_s: float
    ended_s: float
    is_done: bool


class Sampler:
    """Samples while `sampling` is open. It reads in a thread: the tree of a database takes milliseconds, in which orders may be due."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self.samples: list[LoadSample] = []
        # The most that each process had.
        self.memory_mb: dict[str, float] = {}

    def sample(self) -> None:
        cpu_s = {name: clock() for name, clock in self._clocks.processes.items()}
        self.samples.append(LoadSample(time.perf_counter(), cpu_s))
        for name, reader in self._clocks.memory_mb.items():
            self.memory_mb[name] = max(self.memory_mb.get(name, 0.0), reader())

    @asynccontextmanager
    async def sampling(self) -> AsyncIterator[None]:
        await asyncio.to_thread(self.sample)
        task = asyncio.create_task(self._repeat())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await asyncio.to_thread(self.sample)

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await asyncio.to_thread(self.sample)


def intervals_of(
    samples: Sequence[LoadSample], orders: Sequence[EndedOrder], began_s: float
) -> tuple[Interval, ...]:
    """What happened between the samples; between every second, third ... one in a long run."""
    step = max(1, ceil((len(samples) - 1) / INTERVALS_MAX))
    kept = [*samples[:-1:step], *samples[-1:]]
    # What is left at the end is part of the interval before it.
    rest_s = kept[-1].at_s - kept[max(0, len(kept) - 2)].at_s
    between = kept[1:-1]
    if between and rest_s < EVERY_S * step / 2:
        kept.remove(between[-1])
    ended = sorted(orders, key=lambda each: each.ended_s)
    ended_s = [each.ended_s for each in ended]
    due_s = sorted(each.due_s for each in orders)
    found = []
    for before, after in pairwise(kept):
        here = ended[bisect_left(ended_s, before.at_s) : bisect_left(ended_s, after.at_s)]
        due = bisect_left(due_s, after.at_s)
        seconds = after.at_s - before.at_s
        cpu_us = {name: (spent - before.cpu_s[name]) * 1e6 for name, spent in after.cpu_s.items()}
        each_us = {name: us / len(here) for name, us in cpu_us.items()} if here else {}
        found.append(
            Interval(
                at_s=after.at_s - began_s,
                seconds=seconds,
                due_per_s=(due - bisect_left(due_s, before.at_s)) / seconds,
                ended_per_s=len(here) / seconds,
                under_way=due - bisect_left(ended_s, after.at_s),
                latency_ms=latency_of([each.ended_s - each.due_s for each in here if each.is_done]),
                cpu_us_each={"total": sum(each_us.values()), **each_us} if each_us else {},
            )
        )
    return tuple(found)
