"""The figures of a load run, as JSON and as a table."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moor.tables import lines_of


class Latency(Struct, frozen=True):
    p50: float
    p99: float
    max: float


class OfKind(Struct, frozen=True, kw_only=True):
    """The figures of all orders of one kind; `latency_ms` is that of the orders that succeeded."""

    count: int
    outcomes: Mapping[str, int]
    per_s: float
    latency_ms: Latency


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


class LoadResult(RunResult, frozen=True, kw_only=True):
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
    # The moves that came after the boots, mixed with further boots and deletes, and the figures of each kind of order.
    orders: Phase | None = None
    kinds: Mapping[str, OfKind] = {}


def latency_of(unsorted_s: Sequence[float]) -> Latency:
    ordered = sorted(unsorted_s)

    def at(share: float) -> float:
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1000 if ordered else 0.0

    return Latency(p50=at(0.5), p99=at(0.99), max=at(1.0))


def as_json(result: RunResult) -> bytes:
    return msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"


def as_table(result: LoadResult) -> RenderableType:
    cpu = _cpu(
        "a boot",
        result.cpu_us_per_boot,
        result.load_generator_us_per_boot,
        _shares(result, result.share_of_machine, result.share_of_others),
    )
    return framed(
        result,
        (_headline(result), cpu, *_mixed(result)),
        "every request ended, every active instance holds exactly its share on its host,\n"
        "nothing else is in use, no host is over capacity, and no host has an extra instance",
    )


def framed(result: RunResult, tables: Iterable[Table], well: str) -> RenderableType:
    """The text that a load run prints: its tables, its notes, and the result of its audit.

    The result is the text `well` if the audit passed, or else the problems that it found.
    """
    passed = Text.from_markup(f"[green]audit passed[/green]: {well}")
    failed = (Text("audit failed", style="bold red"), *map(Text, result.audit.problems))
    notes = (Text(note, style="yellow") for note in result.notes)
    spaced = (part for table in tables for part in (table, ""))
    return Group(*spaced, *notes, *((passed,) if result.audit.passed else failed))


def _headline(result: LoadResult) -> Table:
    latency = result.latency_ms
    share = result.conflicts / result.claims if result.claims else 0.0
    return lines_of(
        (
            (
                f"[bold]{result.boots_per_s:,.0f}[/bold] boots/s",
                f"[bold]{result.cpu_us_per_boot['total']:,.0f}[/bold] µs CPU a boot",
                f"p50 [bold]{latency.p50:,.0f}[/bold] ms, p99 [bold]{latency.p99:,.0f}[/bold] ms",
            ),
            (
                f"[dim]{result.boots:,} in {result.seconds:.1f} s[/dim]",
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


def _mixed(result: LoadResult) -> Iterator[Table]:
    orders = result.orders
    if orders is None:
        return
    table = Table(box=None, padding=(0, 3, 0, 0))
    table.add_column(f"{orders.count:,} orders in {orders.seconds:.1f} s")
    for name in ("number", "a second", "p50 ms", "p99 ms"):
        table.add_column(name, justify="right")
    table.add_column("")
    for kind, each in result.kinds.items():
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
    yield table
    yield _cpu(
        "an order",
        orders.cpu_us_each,
        orders.generator_us_each,
        _shares(result, orders.share_of_machine, orders.share_of_others),
    )


def _cpu(what: str, cpu_us: Mapping[str, float], generator_us: float | None, shares: str) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0))
    table.add_column("process")
    table.add_column(f"µs {what}", justify="right")
    table.add_column("")
    entries = {name: us for name, us in cpu_us.items() if name != "total"}
    most = max(entries.values())
    for name, us in sorted(entries.items(), key=lambda entry: -entry[1]):
        table.add_row(name, f"{us:,.1f}", f"[cyan]{'█' * round(40 * us / most)}[/cyan]")
    table.add_row("[bold]total[/bold]", f"[bold]{cpu_us['total']:,.1f}[/bold]", "")
    if generator_us is not None:
        table.add_row("[dim]load generator, not in the total[/dim]", f"[dim]{generator_us:,.1f}[/dim]", "")
    table.add_row(shares)
    return table


def _shares(result: RunResult, ours: float, others: float) -> str:
    return f"[dim]of this machine's {result.processors} processors: this run used {ours:.0%}, other processes {others:.0%}[/dim]"
