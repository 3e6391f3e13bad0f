"""Measures a load run: the CPU time and the memory of processes, over all orders and over time; and how long boots took
between the moments whose exact times the rows and the events have.
"""

import asyncio
import os
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from itertools import pairwise
from math import ceil

from msgspec import Struct

from bus.messages.build import InstanceDetails
from engine.flavors import InstanceId
from laboratory.load.firing import EndedOrder
from laboratory.load.kernel import (
    listener_of,
    machine_cpu_s,
    process_cpu_s,
    process_peak_mb,
    process_tree_cpu_s,
    process_tree_mb,
)
from laboratory.load.orders import Booted
from laboratory.load.results import GENERATOR, Interval, Latency, latency_of
from laboratory.temporary_cloud import Servers, WorkerProcess

# How the names of the servers' processes start.
BROKER, DATABASE = ("beam", "erl"), ("postgres", "postmaster")
PARTS = 10
EVERY_S = 1.0
# A longer run has longer intervals.
INTERVALS_MAX = 240
Reader = Callable[[], float]


class Clocks(Struct, frozen=True):
    """The CPU clocks that a load run reads.

    `processes` has those whose time is the cost of a boot, by name. `generator` is the load generator's; None if it runs
    in one of these processes. `notes` say what the total of `processes`
    includes or excludes. `memory_mb` reads the memory of all of them.
    """

    processes: Mapping[str, Reader]
    generator: Reader | None = None
    notes: tuple[str, ...] = ()
    memory_mb: Mapping[str, Reader] = {}


def clocks_of(workers: Sequence[WorkerProcess], servers: Servers | None) -> Clocks:
    """A CPU clock for each worker and server process; and notes that say which servers cannot be measured, and why."""
    own = partial(process_cpu_s, os.getpid())
    if servers is None:
        return Clocks(
            {"embedded": own},
            notes=("embedded: all is in one process, so the total includes the load generator",),
            memory_mb={"embedded": partial(process_peak_mb, os.getpid())},
        )
    pids = {worker.name: worker.pid for worker in workers}
    trees, notes = _servers(servers)
    return Clocks(
        {
            **{name: partial(process_cpu_s, pid) for name, pid in pids.items()},
            **{name: partial(process_tree_cpu_s, pid) for name, pid in trees.items()},
        },
        own,
        notes,
        memory_mb={
            **{name: partial(process_peak_mb, pid) for name, pid in pids.items()},
            **{name: partial(process_tree_mb, pid) for name, pid in trees.items()},
            GENERATOR: partial(process_peak_mb, os.getpid()),
        },
    )


def _servers(servers: Servers) -> tuple[dict[str, int], tuple[str, ...]]:
    """The first process of each server on this machine, and why others are not measured."""
    found: dict[str, int] = {}
    notes = []
    measured = [("broker", servers.bus_url, BROKER), ("database", servers.database_url, DATABASE)]
    if servers.placement_url:
        measured.append(("placement_database", servers.placement_url, DATABASE))
    for name, url, programs in measured:
        match listener_of(url, programs):
            case str(why):
                notes.append(f"{name}: {why}, so the total excludes it")
            case pid if pid not in found.values():
                found[name] = pid
    return found, tuple(notes)


class Reading(Struct, frozen=True):
    """CPU times of all processes at one moment, and how many orders had ended by then."""

    at_s: float
    ended: int
    cpu_s: Mapping[str, float]
    generator_s: float
    machine_s: float

    @property
    def total_s(self) -> float:
        return sum(self.cpu_s.values())


class LoadSample(Struct, frozen=True):
    at_s: float
    cpu_s: Mapping[str, float]


class Meter:
    """Measures the CPU time of each of `count` orders: at the begin, after each tenth of them and at the end; and once a second while
    `sampling` is open. The time of the load generator and of the whole machine is measured too, and not counted as a cost.
    """

    def __init__(self, clocks: Clocks, count: int) -> None:
        self._clocks = clocks
        self.count = count
        self.readings: list[Reading] = []
        self.samples: list[LoadSample] = []
        # The most that each process had.
        self.memory_mb: dict[str, float] = {}

    def read(self, ended: int) -> None:
        clocks = self._clocks
        cpu_s = {name: clock() for name, clock in clocks.processes.items()}
        generator_s = clocks.generator() if clocks.generator else 0.0
        self.readings.append(Reading(time.perf_counter(), ended, cpu_s, generator_s, machine_cpu_s()))

    def progress(self, ended: int) -> None:
        """Read the clocks if a further tenth of the orders has ended: a reading costs about a millisecond."""
        if ended < self.count and ended * PARTS // self.count > self.readings[-1].ended * PARTS // self.count:
            self.read(ended)

    def us_each(self, count: int = 0) -> dict[str, float]:
        """CPU time per order of each process, and the total; for so many orders, if they are not those that it counts."""
        first, last = self.readings[0], self.readings[-1]
        cpu_us = {
            name: (last.cpu_s[name] - first.cpu_s[name]) * 1e6 / (count or self.count)
            for name in self._clocks.processes
        }
        return {"total": sum(cpu_us.values()), **cpu_us}

    def generator_us(self, count: int = 0) -> float | None:
        if self._clocks.generator is None:
            return None
        return (self.readings[-1].generator_s - self.readings[0].generator_s) * 1e6 / (count or self.count)

    def parts_us(self, count: int = 0) -> tuple[float, ...]:
        """CPU time per order in each part of the run, in the order of time."""
        share = self.count / (count or self.count)
        return tuple(
            (after.total_s - before.total_s) * 1e6 / (after.ended - before.ended) * share
            for before, after in pairwise(self.readings)
            if after.ended > before.ended
        )

    def shares(self, processors: int) -> tuple[float, float]:
        """The shares of the processors' time that this run used, and that all other processes used."""
        first, last = self.readings[0], self.readings[-1]
        available_s = (last.at_s - first.at_s) * processors
        ours_s = last.total_s - first.total_s + last.generator_s - first.generator_s
        return ours_s / available_s, max(0.0, last.machine_s - first.machine_s - ours_s) / available_s

    def sample(self) -> None:
        cpu_s = {name: clock() for name, clock in self._clocks.processes.items()}
        self.samples.append(LoadSample(time.perf_counter(), cpu_s))
        for name, reader in self._clocks.memory_mb.items():
            self.memory_mb[name] = max(self.memory_mb.get(name, 0.0), reader())

    @asynccontextmanager
    async def sampling(self) -> AsyncIterator[None]:
        """Sample in a thread: to read the tree of a database takes milliseconds, in which orders may be due."""
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


def steps_of(
    booted: Iterable[Booted], details: Mapping[InstanceId, InstanceDetails], clock_to_time_s: float
) -> dict[str, Latency]:
    """How long the boots of active instances took between the moments that rows and events have, from when they were due.

    `clock_to_time_s` added to the run's clock gives the time of day.
    """
    steps: dict[str, list[float]] = {"accepted": [], "placed": [], "active": [], "heard": []}
    for each in booted:
        row = details.get(each.state.id)
        moments = (
            each.due_s + clock_to_time_s,
            _time_s(row.accepted_at if row else None),
            _time_s(row.placed_at if row else None),
            _time_s(each.state.changed_at),
            each.heard_s + clock_to_time_s,
        )
        if each.state.state == "active" and all(moments):
            for name, began_s, ended_s in zip(steps, moments[:-1], moments[1:], strict=True):
                # Clocks of two machines differ.
                steps[name].append(max(0.0, ended_s - began_s))
    return {name: latency_of(some) for name, some in steps.items() if some}


def _time_s(moment: datetime | None) -> float:
    return moment.timestamp() if moment else 0.0
