"""The figures of a load run, and their JSON. docs/performance.md explains each of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

# If more than one order in a hundred is later than this, the run is marked: its orders did not come as they were planned.
LATE_MS_MAX = 10.0


class Latency(Struct, frozen=True):
    p50: float
    p90: float
    p99: float
    # 99.9 of 100.
    p999: float
    max: float


class OfKind(Struct, frozen=True, kw_only=True):
    """The figures of all orders of one kind; `latency_ms` is that of the orders that succeeded."""

    count: int
    outcomes: Mapping[str, int]
    per_s: float
    latency_ms: Latency


class Interval(Struct, frozen=True, kw_only=True):
    """A part of a run. `at_s` is its end, in seconds after the begin of the run.

    `latency_ms` is that of the orders which ended in it and succeeded. `cpu_us_each` is the CPU time of each process, and their `total`, for
    each order that ended in it; empty if none did.
    """

    at_s: float
    seconds: float
    # How many orders became due in it, and how many ended, a second; and how many were under way at its end.
    due_per_s: float
    ended_per_s: float
    under_way: int
    latency_ms: Latency
    cpu_us_each: Mapping[str, float]


class Phase(Struct, frozen=True, kw_only=True):
    """The figures of one part of a run, such as all orders of a mix, all state changes, or all deploys with their undeploys.

    `cpu_us_each` has each process and their `total`. It excludes the load generator, and a simulated Ironic with it, except
    in an embedded run, where all share one process.
    """

    count: int
    seconds: float
    per_s: float
    latency_ms: Latency
    cpu_us_each: Mapping[str, float]
    generator_us_each: float | None
    # The shares of all processors' time that this run used, and that other processes used.
    share_of_machine: float
    share_of_others: float
    # Of state changes and of deploys.
    over_time: tuple[Interval, ...] = ()


class StageLatency(Struct, frozen=True, kw_only=True):
    """The figures of a stage. `count`: so many of its observations. `max` is the end of the last bucket that has any."""

    count: int
    latency_ms: Latency


class Publishers(Struct, frozen=True, kw_only=True):
    """Independent publishers. `cpu_us_per_boot` is the CPU time of their processes; None if they are in the run's own process."""

    count: int
    processes: int
    cpu_us_per_boot: float | None


class Audited(Struct, frozen=True):
    passed: bool
    problems: tuple[str, ...]


class RunResult(Struct, frozen=True, kw_only=True):
    """What every load run reports. `workers`: how many of each kind; none if all are in one process."""

    mode: str
    cells: int
    failing: float
    workers: Mapping[str, int]
    active: int
    in_error: int
    # How many active instances are on an alternate.
    by_alternate: int
    processors: int
    notes: tuple[str, ...]
    audit: Audited


class Scheduled(RunResult, frozen=True, kw_only=True):
    """What a run at a rate reports beside.

    `late_ms`: how much later than they were due the orders were sent. `is_late`: so late that the run is not what was asked for.
    """

    # Orders per second; 0: as fast as possible.
    rate: float = 0
    arrivals: str = ""
    late_ms: Latency | None = None
    is_late: bool = False


class LoadResult(Scheduled, frozen=True, kw_only=True):
    """The figures of a load run.

    `cpu_us_per_boot` has each process and their `total`. It excludes the load generator, except in an embedded run, where
    both share one process. `flatness`: the cost of a boot in the last tenth of the run, divided by that in the second tenth.
    """

    boots: int
    hosts: int
    seconds: float
    boots_per_s: float
    latency_ms: Latency
    # The schedulers' claims, and those that placement refused since the scheduler's picture was outdated.
    claims: int
    conflicts: int
    cpu_us_per_boot: Mapping[str, float]
    load_generator_us_per_boot: float | None
    cpu_us_per_boot_by_tenth: tuple[float, ...]
    flatness: float
    # The shares of all processors' time that this run used, and that other processes used.
    share_of_machine: float
    share_of_others: float
    # The orders of a mix, or the moves that came after the boots with further boots and deletes; and the figures of each kind.
    orders: Phase | None = None
    kinds: Mapping[str, OfKind] = {}
    # The weights of `--mix`.
    mix: Mapping[str, float] = {}
    publishers: Publishers | None = None
    # By the workers' histograms; and by the rows and events of the instances.
    stages: Mapping[str, StageLatency] = {}
    steps_ms: Mapping[str, Latency] = {}
    # The most memory that each process had.
    memory_mb: Mapping[str, float] = {}
    over_time: tuple[Interval, ...] = ()


def latency_of(unsorted_s: Sequence[float]) -> Latency:
    ordered = sorted(unsorted_s)

    def at(share: float) -> float:
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1000 if ordered else 0.0

    return Latency(p50=at(0.5), p90=at(0.9), p99=at(0.99), p999=at(0.999), max=at(1.0))


def lateness_of(late_s: Sequence[float]) -> dict[str, Any]:
    """The fields by name that say how late the orders of a schedule were sent."""
    late_ms = latency_of(late_s)
    return {"late_ms": late_ms, "is_late": late_ms.p99 > LATE_MS_MAX}


def as_json(result: RunResult) -> bytes:
    return msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"
