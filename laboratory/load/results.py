"""The figures of a load run, their JSON, and how they are printed. docs/performance.md explains each of them."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moor.tables import lines_of

# If more than one order in a hundred is later than this, the run is marked: its orders did not come as they were planned.
LATE_MS_MAX = 10.0
PERCENTILES = ("p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms")
FINE_BELOW_MS = 10
# The steps of a boot between the moments that its row and its events have.
STEPS = {
    "accepted": "until a scheduler stored it",
    "placed": "until it had its host",
    "active": "until its cell wrote that it is active",
    "heard": "until that was heard",
}
GENERATOR = "load generator"
WELL = (
    "every request ended, every active instance holds exactly its share on its host,\n"
    "nothing else is in use, no host is over capacity, and no host has an extra instance"
)


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
    """The figures of one part of a run, such as all orders of a mix, or all state changes.

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
    over_time: tuple[Interval, ...]


class Audited(Struct, frozen=True):
    passed: bool
    problems: tuple[str, ...]


class LoadResult(Struct, frozen=True, kw_only=True):
    """The figures of a load run. `boots` has those of the instances that the boots or the mix made: the cost of an instance in a mix
    includes that of the deletes and moves between. `workers`: how many of each kind; none if all are in one process.

    `late_ms`: how much later than they were due the orders of a run at a rate were sent. `is_late`: so late that the run is not what was
    asked for. `flatness`: the cost of a boot in the last tenth of the run, divided by that in the second tenth.
    """

    boots: Phase
    mode: str
    cells: int
    hosts: int
    # Simulated bare-metal nodes.
    nodes: int
    failing: float
    workers: Mapping[str, int]
    active: int
    in_error: int
    # How many active instances are on an alternate.
    by_alternate: int
    processors: int
    notes: tuple[str, ...]
    audit: Audited
    # Orders per second; 0: as fast as possible.
    rate: float
    arrivals: str
    late_ms: Latency | None
    is_late: bool
    # The schedulers' claims, and those that placement refused since the scheduler's picture was outdated.
    claims: int
    conflicts: int
    cpu_us_per_boot_by_tenth: tuple[float, ...]
    flatness: float
    # On bare metal, the state changes that came first.
    changes: Phase | None
    # The orders of a mix, or the moves that came after the boots with further boots and deletes; and the figures of each kind.
    orders: Phase | None
    kinds: Mapping[str, OfKind]
    # The weights of `--mix`.
    mix: Mapping[str, float]
    # How many independent ones sent the orders; 0: the run's own client.
    publishers: int
    # By the rows and events of the instances.
    steps_ms: Mapping[str, Latency]
    # The most memory that each process had.
    memory_mb: Mapping[str, float]


# The names in the JSON of the figures of boots, which stand there beside those of the run.
OF_BOOTS = {
    "count": "boots",
    "per_s": "boots_per_s",
    "cpu_us_each": "cpu_us_per_boot",
    "generator_us_each": "load_generator_us_per_boot",
}


def latency_of(unsorted_s: Sequence[float]) -> Latency:
    ordered = sorted(unsorted_s)

    def at(share: float) -> float:
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1000 if ordered else 0.0

    return Latency(p50=at(0.5), p90=at(0.9), p99=at(0.99), p999=at(0.999), max=at(1.0))


def as_json(result: LoadResult) -> bytes:
    figures = msgspec.to_builtins(result)
    boots = {OF_BOOTS.get(name, name): figure for name, figure in figures.pop("boots").items()}
    return msgspec.json.format(msgspec.json.encode({**figures, **boots}), indent=2) + b"\n"


def as_table(result: LoadResult) -> RenderableType:
    passed = Text.from_markup(f"[green]audit passed[/green]: {WELL}")
    failed = (Text("audit failed", style="bold red"), *map(Text, result.audit.problems))
    notes = (Text(note, style="yellow") for note in (*result.notes, *_late(result)))
    spaced = (part for table in _tables(result) for part in (table, ""))
    return Group(*spaced, *notes, *((passed,) if result.audit.passed else failed))


def _late(result: LoadResult) -> Iterator[str]:
    if result.late_ms and result.is_late:
        yield (
            f"the orders were sent late: one of 100 by {result.late_ms.p99:,.0f} ms or more, at most {LATE_MS_MAX:.0f} is usual. Latencies "
            "count from when an order was due, so they have this in them, but the cloud was not given the rate that was asked for"
        )


def _tables(result: LoadResult) -> Iterator[Table]:
    if result.changes is not None:
        yield _changes(result.changes)
        yield _cpu("a change", result.changes, result)
    yield _headline(result)
    yield _cpu("a boot", result.boots, result, result.memory_mb)
    if result.orders is not None:
        yield _mixed(result.orders, result.kinds)
        yield _cpu("an order", result.orders, result)
    yield _latencies(result)


def _changes(changes: Phase) -> Table:
    latency = changes.latency_ms
    return lines_of(
        (
            (
                f"[bold]{changes.per_s:,.0f}[/bold] state changes/s",
                f"p50 [bold]{latency.p50:,.0f}[/bold] ms, p99 [bold]{latency.p99:,.0f}[/bold] ms until placement has it",
                f"[dim]{changes.count:,} in {changes.seconds:.1f} s[/dim]",
            ),
        ),
        gap=3,
    )


def _headline(result: LoadResult) -> Table:
    boots, latency = result.boots, result.boots.latency_ms
    share = result.conflicts / result.claims if result.claims else 0.0
    return lines_of(
        (
            (
                f"[bold]{boots.per_s:,.0f}[/bold] boots/s",
                f"[bold]{boots.cpu_us_each['total']:,.0f}[/bold] µs CPU a boot",
                f"p50 [bold]{latency.p50:,.0f}[/bold] ms, p99 [bold]{latency.p99:,.0f}[/bold] ms",
            ),
            (
                f"[dim]{boots.count:,} in {boots.seconds:.1f} s[/dim]",
                f"[dim]last tenth / second: {result.flatness:.2f}[/dim]",
                f"[dim]{result.active:,} active, {result.by_alternate:,} of them by an alternate; {result.in_error} in error[/dim]",
            ),
            (
                f"[bold]{share:.2%}[/bold] conflicts",
                f"[dim]{result.conflicts:,} of {result.claims:,} claims were refused[/dim]",
            ),
        ),
        gap=3,
    )


def _figures(what: str, *names: str) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0))
    table.add_column(what)
    for name in names:
        table.add_column(name, justify="right")
    return table


def _latencies(result: LoadResult) -> Table:
    """How long boots took, as a client sees it, and by their rows."""
    table = _figures("boots", *PERCENTILES)
    rows = [
        (
            "[bold]from due to heard[/bold]" if result.rate else "[bold]from sent to heard[/bold]",
            result.boots.latency_ms,
        )
    ]
    if result.late_ms is not None:
        rows.append(("  of it, sent late", result.late_ms))
    rows += [(f"  {STEPS[name]}", each) for name, each in result.steps_ms.items()]
    for name, each in rows:
        figures = (each.p50, each.p90, each.p99, each.p999, each.max)
        table.add_row(name, *(_ms(figure) for figure in figures))
    return table


def _ms(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= FINE_BELOW_MS else f"{figure:,.1f}"


def _mixed(orders: Phase, kinds: Mapping[str, OfKind]) -> Table:
    names = ("number", "a second", "p50 ms", "p99 ms")
    table = _figures(f"{orders.count:,} orders in {orders.seconds:.1f} s", *names)
    table.add_column("")
    for kind, each in kinds.items():
        outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(each.outcomes.items()))
        latency = each.latency_ms
        table.add_row(
            kind,
            f"{each.count:,}",
            f"{each.per_s:,.1f}",
            f"{latency.p50:,.0f}",
            f"{latency.p99:,.0f}",
            f"[dim]{outcomes}[/dim]",
        )
    return table


def _cpu(what: str, phase: Phase, result: LoadResult, memory_mb: Mapping[str, float] | None = None) -> Table:
    memory = memory_mb or {}
    table = _figures("process", f"µs {what}", "MB" if memory else "")
    table.add_column("")
    entries = {name: us for name, us in phase.cpu_us_each.items() if name != "total"}
    most = max(entries.values())

    def mb(*names: str) -> str:
        return f"{sum(memory.get(name, 0) for name in names):,.0f}" if memory else ""

    for name, us in sorted(entries.items(), key=lambda entry: -entry[1]):
        bar = f"[cyan]{'█' * round(40 * us / most)}[/cyan]" if most else ""
        table.add_row(name, f"{us:,.1f}", mb(name), bar)
    table.add_row("[bold]total[/bold]", f"[bold]{phase.cpu_us_each['total']:,.1f}[/bold]", mb(*entries), "")
    if (generator_us := phase.generator_us_each) is not None:
        table.add_row(f"[dim]{GENERATOR}, not in the total[/dim]", f"[dim]{generator_us:,.1f}[/dim]", "", "")
    table.add_row(
        f"[dim]of this machine's {result.processors} processors: this run used {phase.share_of_machine:.0%}, "
        f"other processes {phase.share_of_others:.0%}[/dim]"
    )
    return table
