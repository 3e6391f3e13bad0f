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

from msgspec import Struct

from bus.messages.build import InstanceDetails
from engine.flavors import InstanceId
from laboratory.load.firing import Boot, Order, Run, latencies_of
from laboratory.load.kernel import (
    listener_of,
    machine_cpu_s,
    process_cpu_s,
    process_peak_mb,
    process_tree_cpu_s,
    process_tree_mb,
)
from laboratory.load.results import GENERATOR, Interval, Latency, Phase, latency_of
from moor.clouds.temporary_cloud import Servers, WorkerProcess

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
    pids = {worker.name: worker.process.pid for worker in workers}
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


class Meter:
    """Reads the CPU clocks while `count` orders are given: at the begin, after each tenth of them, once a second, and at the end. The
    time of the load generator and of the whole machine is read too, and not counted as a cost.
    """

    def __init__(self, clocks: Clocks, count: int) -> None:
        self._clocks = clocks
        self.count = count
        self._ended = 0
        # All readings, and those at the begin, after each tenth and at the end.
        self.readings: list[Reading] = []
        self._parts: list[Reading] = []
        # The most that each process had.
        self.memory_mb: dict[str, float] = {}

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Read each second in a thread: to read the tree of a database takes milliseconds, in which orders may be due."""
        self._parts.append(await asyncio.to_thread(self._read))
        task = asyncio.create_task(self._repeat())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._ended = self.count
        self._parts.append(await asyncio.to_thread(self._read))

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await asyncio.to_thread(self._read)

    def _read(self) -> Reading:
        reading = self._read_clocks()
        for name, reader in self._clocks.memory_mb.items():
            self.memory_mb[name] = max(self.memory_mb.get(name, 0.0), reader())
        return reading

    def _read_clocks(self) -> Reading:
        clocks, ended = self._clocks, self._ended
        cpu_s = {name: clock() for name, clock in clocks.processes.items()}
        generator_s = clocks.generator() if clocks.generator else 0.0
        reading = Reading(time.perf_counter(), ended, cpu_s, generator_s, machine_cpu_s())
        self.readings.append(reading)
        return reading

    def progress(self, ended: int) -> None:
        """Read the clocks if a further tenth of the orders has ended: a reading costs about a millisecond."""
        self._ended = ended
        if ended < self.count and ended * PARTS // self.count > self._parts[-1].ended * PARTS // self.count:
            self._parts.append(self._read_clocks())

    def parts_us(self, count: int) -> tuple[float, ...]:
        """CPU time of each tenth of the run, in the order of time, for each of `count` that the orders made."""
        return tuple(
            (after.total_s - before.total_s) * 1e6 / (after.ended - before.ended) * self.count / count
            for before, after in pairwise(self._parts)
            if after.ended > before.ended
        )

    def phase(self, run: Run, count: int = 0, measured: Iterable[Order] | None = None) -> Phase:
        """The figures of this run; for each of `count` that its orders made, and with the latencies of the `measured` orders."""
        first, last = self._parts[0], self._parts[-1]
        count = count or self.count
        us_each = 1e6 / count
        cpu_us = {name: (spent - first.cpu_s[name]) * us_each for name, spent in last.cpu_s.items()}
        generator_s = last.generator_s - first.generator_s
        available_s = (last.at_s - first.at_s) * (os.cpu_count() or 1)
        ours_s = last.total_s - first.total_s + generator_s
        others_s = max(0.0, last.machine_s - first.machine_s - ours_s)
        return Phase(
            count=count,
            seconds=run.seconds,
            per_s=count / run.seconds,
            latency_ms=latency_of(latencies_of(run.orders if measured is None else measured)),
            cpu_us_each={"total": sum(cpu_us.values()), **cpu_us},
            generator_us_each=generator_s * us_each if self._clocks.generator else None,
            share_of_machine=ours_s / available_s,
            share_of_others=others_s / available_s,
            over_time=_intervals(self.readings, run),
        )


def _intervals(readings: Sequence[Reading], run: Run) -> tuple[Interval, ...]:
    """What happened between readings that are a second apart, or more in a long run. The last interval has what is left, too."""
    *earlier, last = sorted(readings, key=lambda each: each.at_s)
    kept = earlier[:1]
    wide_s = max(EVERY_S, (last.at_s - kept[0].at_s) / INTERVALS_MAX)
    for each in earlier:
        # A sleep may be a little too short for the clock.
        if each.at_s - kept[-1].at_s >= wide_s * 0.99 and last.at_s - each.at_s >= wide_s / 2:
            kept.append(each)
    ended = sorted(run.orders, key=lambda each: each.ended_s)
    ended_s = [each.ended_s for each in ended]
    due_s = sorted(each.due_s for each in ended)
    found = []
    for before, after in pairwise((*kept, last)):
        here = ended[bisect_left(ended_s, before.at_s) : bisect_left(ended_s, after.at_s)]
        due = bisect_left(due_s, after.at_s)
        seconds = after.at_s - before.at_s
        each_us = {
            name: (spent - before.cpu_s[name]) * 1e6 / max(1, len(here))
            for name, spent in after.cpu_s.items()
        }
        found.append(
            Interval(
                at_s=after.at_s - run.began_s,
                seconds=seconds,
                due_per_s=(due - bisect_left(due_s, before.at_s)) / seconds,
                ended_per_s=len(here) / seconds,
                under_way=due - bisect_left(ended_s, after.at_s),
                latency_ms=latency_of(latencies_of(here)),
                cpu_us_each={"total": sum(each_us.values()), **each_us} if here else {},
            )
        )
    return tuple(found)


def steps_of(
    boots: Iterable[Boot], details: Mapping[InstanceId, InstanceDetails], clock_to_time_s: float
) -> dict[str, Latency]:
    """How long the boots of active instances took between the moments that rows and events have, from when they were due.

    `clock_to_time_s` added to the run's clock gives the time of day.
    """
    steps: dict[str, list[float]] = {"accepted": [], "placed": [], "active": [], "heard": []}
    for each in boots:
        state = each.built
        if state is None or state.state != "active":
            continue
        row = details.get(state.id)
        moments = (
            each.due_s + clock_to_time_s,
            _time_s(row.accepted_at if row else None),
            _time_s(row.placed_at if row else None),
            _time_s(state.changed_at),
            each.heard_s + clock_to_time_s,
        )
        if all(moments):
            for name, began_s, ended_s in zip(steps, moments[:-1], moments[1:], strict=True):
                # Clocks of two machines differ.
                steps[name].append(max(0.0, ended_s - began_s))
    return {name: latency_of(some) for name, some in steps.items() if some}


def _time_s(moment: datetime | None) -> float:
    return moment.timestamp() if moment else 0.0
