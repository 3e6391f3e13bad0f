"""A measurement: the same work several times, with all CPU counters read before and after.

The report shows the median of the runs and their range. Other processes on the machine make figures larger and never
smaller, so the minimum is nearest to the cost of the work itself.
"""

import gc
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from msgspec import Struct

from laboratory.load.kernel import machine_cpu_s
from tools.benchmarks.cpu import Spender

BROKER = "broker"
DATABASE = "database"
# The load generator, where it is a process of its own: shown, but not counted.
GENERATOR = "generator"

US_PER_S, MS_PER_S = 1e6, 1e3
K = TypeVar("K")
V = TypeVar("V")
Details = Mapping[str, float]


class Effort(Struct, frozen=True):
    """How often to repeat, what share of the usual number of operations to run, and how many variants to measure."""

    runs: int
    scale: float
    kinds_max: int
    # Without servers, only measurements inside our own processes run.
    servers: bool

    def operations(self, usual: int, batch: int) -> int:
        """The number of operations, in whole batches, at least two."""
        return max(2, round(usual * self.scale / batch)) * batch

    def some(self, kinds: Mapping[K, V]) -> dict[K, V]:
        """The last variants, as many as are to be measured."""
        return dict(islice(kinds.items(), max(0, len(kinds) - self.kinds_max), None))


FULL = Effort(runs=3, scale=1.0, kinds_max=100, servers=True)
QUICK = Effort(runs=1, scale=0.02, kinds_max=1, servers=False)


class Run(Struct, frozen=True):
    """`cpu_us` is per operation, by kind of process. `ours` and `others` are shares of the whole machine's time."""

    operations: int
    wall_s: float
    cpu_us: dict[str, float]
    ours: float
    others: float
    details: dict[str, float] = {}

    @property
    def rate(self) -> float:
        return self.operations / self.wall_s

    @property
    def total_us(self) -> float:
        return sum(us for kind, us in self.cpu_us.items() if kind != GENERATOR)


class Result(Struct, frozen=True):
    """`what` names the measurement within its section, by table column."""

    section: str
    what: dict[str, str | int]
    runs: tuple[Run, ...]

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self.runs[0].cpu_us)

    def us(self, kind: str) -> float:
        return statistics.median(run.cpu_us[kind] for run in self.runs)

    @property
    def python_us(self) -> float:
        """The CPU time of all our own Python processes."""
        return statistics.median(
            sum(us for kind, us in run.cpu_us.items() if kind not in (BROKER, DATABASE, GENERATOR))
            for run in self.runs
        )

    @property
    def totals_us(self) -> tuple[float, ...]:
        return tuple(run.total_us for run in self.runs)

    @property
    def total_us(self) -> float:
        return statistics.median(self.totals_us)

    @property
    def rate(self) -> float:
        return statistics.median(run.rate for run in self.runs)

    @property
    def ours(self) -> float:
        return statistics.median(run.ours for run in self.runs)

    @property
    def others(self) -> float:
        return statistics.median(run.others for run in self.runs)

    def detail(self, name: str) -> float | None:
        seen = [run.details[name] for run in self.runs if name in run.details]
        return statistics.median(seen) if seen else None


class Covering(Struct, frozen=True):
    """Some results of a section: those with one of these values in each of these columns."""

    section: str
    what: dict[str, frozenset[str | int]]

    def covers(self, result: Result) -> bool:
        return result.section == self.section and all(
            result.what.get(name) in values for name, values in self.what.items()
        )


# One run: does the work, and returns details for the report.
Work = Callable[[], Awaitable[Details]]
# Does deferred work now: its CPU time counts, but its duration does not.
Settle = Callable[[], Awaitable[None]]


def waits_of(waits_s: Sequence[float]) -> Details:
    ordered = sorted(waits_s)
    return {
        "median wait ms": ordered[len(ordered) // 2] * MS_PER_S,
        "p99 wait ms": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * MS_PER_S,
        "longest wait ms": ordered[-1] * MS_PER_S,
    }


async def at_once() -> None:
    """No work is deferred."""


async def measured(
    section: str,
    what: dict[str, str | int],
    spenders: Mapping[str, Spender],
    *,
    operations: int,
    effort: Effort,
    prepare: Callable[[int], Work],
    settle: Settle = at_once,
) -> Result:
    """Run once to warm up, then as often as the effort says. `prepare` makes the work for this many operations."""
    await prepare(max(operations // 4, 1))()
    await settle()
    runs = tuple([await _run(spenders, operations, prepare(operations), settle) for _ in range(effort.runs)])
    result = Result(section, what, runs)
    _tell(result)
    return result


async def measured_once(
    section: str,
    what: dict[str, str | int],
    spenders: Mapping[str, Spender],
    *,
    operations: int,
    work: Work,
    settle: Settle = at_once,
) -> Result:
    """For work that takes long and cannot be repeated."""
    result = Result(section, what, (await _run(spenders, operations, work, settle),))
    _tell(result)
    return result


async def _run(spenders: Mapping[str, Spender], operations: int, work: Work, settle: Settle) -> Run:
    # The benchmark created the load's objects; freeze them, so that their garbage collection is not measured.
    gc.collect()
    gc.freeze()
    busy_before_s, spent_before_s = (
        machine_cpu_s(),
        {kind: each.spent_s() for kind, each in spenders.items()},
    )
    began_s = time.perf_counter()
    details = await work()
    wall_s = time.perf_counter() - began_s
    await settle()
    spent_s = {kind: each.spent_s() - spent_before_s[kind] for kind, each in spenders.items()}
    busy = machine_cpu_s() - busy_before_s
    machine_s = (time.perf_counter() - began_s) * (os.cpu_count() or 1)
    gc.unfreeze()
    ours_s = sum(spent_s.values())
    return Run(
        operations=operations,
        wall_s=wall_s,
        cpu_us={kind: spent * US_PER_S / operations for kind, spent in spent_s.items()},
        ours=ours_s / machine_s,
        # The two CPU counters differ, and one counts in ticks: their difference may be below zero.
        others=max(0.0, busy - ours_s) / machine_s,
        details=dict(details),
    )


def _tell(result: Result) -> None:
    """Progress on stderr; the tables come at the end."""
    what = ", ".join(f"{name} {value}" for name, value in result.what.items())
    parts = " + ".join(f"{result.us(kind):.1f} {kind}" for kind in result.kinds)
    print(f"{result.section}: {what}: {parts} µs, {result.rate:,.0f}/s", file=sys.stderr, flush=True)
