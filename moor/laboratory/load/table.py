"""The figures of a load run on the screen."""

from collections.abc import Iterable, Iterator, Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moor.laboratory.load.results import LATE_MS_MAX, LoadResult, RunResult, Scheduled
from moor.tables import lines_of

PERCENTILES = ("p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms")
FINE_BELOW_MS = 10
# The steps of a boot between the moments that its row and its events have.
STEPS = {
    "accepted": "until a scheduler stored it",
    "placed": "until it had its host",
    "active": "until its cell wrote that it is active",
    "heard": "until that was heard",
}


def as_table(result: LoadResult) -> RenderableType:
    publishers = result.publishers
    cpu = _cpu(
        "a boot",
        result.cpu_us_per_boot,
        result.load_generator_us_per_boot,
        _shares(result, result.share_of_machine, result.share_of_others),
        publishers_us=publishers.cpu_us_per_boot if publishers else None,
        memory_mb=result.memory_mb,
    )
    return framed(
        result,
        (_headline(result), cpu, *_mixed(result), _latencies(result)),
        "every request ended, every active instance holds exactly its share on its host,\n"
        "nothing else is in use, no host is over capacity, and no host has an extra instance",
    )


def framed(result: RunResult, tables: Iterable[Table], well: str) -> RenderableType:
    """The text that a load run prints: its tables, its notes, and the result of its audit.

    The result is the text `well` if the audit passed, or else the problems that it found.
    """
    passed = Text.from_markup(f"[green]audit passed[/green]: {well}")
    failed = (Text("audit failed", style="bold red"), *map(Text, result.audit.problems))
    notes = (Text(note, style="yellow") for note in (*result.notes, *_late(result)))
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


def _late(result: RunResult) -> Iterator[str]:
    if isinstance(result, Scheduled) and result.late_ms and result.is_late:
        yield (
            f"the orders were sent late: one of 100 by {result.late_ms.p99:,.0f} ms or more, at most {LATE_MS_MAX:.0f} is usual. Latencies "
            "count from when an order was due, so they have this in them, but the cloud was not given the rate that was asked for"
        )


def _latencies(result: LoadResult) -> Table:
    """How long boots took, as a client sees it, by their rows, and by the stages that workers measure."""
    table = Table(box=None, padding=(0, 3, 0, 0))
    table.add_column("boots")
    for name in PERCENTILES:
        table.add_column(name, justify="right")
    rows = [
        (
            "[bold]from due to heard[/bold]" if result.rate else "[bold]from sent to heard[/bold]",
            result.latency_ms,
        )
    ]
    if result.late_ms is not None:
        rows.append(("  of it, sent late", result.late_ms))
    rows += [(f"  {STEPS[name]}", each) for name, each in result.steps_ms.items()]
    rows += [
        (f"[dim]stage {name}, as workers measure it[/dim]", each.latency_ms)
        for name, each in result.stages.items()
    ]
    for name, each in rows:
        figures = (each.p50, each.p90, each.p99, each.p999, each.max)
        table.add_row(name, *(_ms(figure) for figure in figures))
    return table


def _ms(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= FINE_BELOW_MS else f"{figure:,.1f}"


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


def _cpu(
    what: str,
    cpu_us: Mapping[str, float],
    generator_us: float | None,
    shares: str,
    *,
    publishers_us: float | None = None,
    memory_mb: Mapping[str, float] | None = None,
) -> Table:
    memory = memory_mb or {}
    table = Table(box=None, padding=(0, 3, 0, 0))
    table.add_column("process")
    table.add_column(f"µs {what}", justify="right")
    table.add_column("MB" if memory else "", justify="right")
    table.add_column("")
    entries = {name: us for name, us in cpu_us.items() if name != "total"}
    most = max(entries.values())
    for name, us in sorted(entries.items(), key=lambda entry: -entry[1]):
        bar = f"[cyan]{'█' * round(40 * us / most)}[/cyan]" if most else ""
        table.add_row(name, f"{us:,.1f}", _mb(memory, name), bar)
    table.add_row("[bold]total[/bold]", f"[bold]{cpu_us['total']:,.1f}[/bold]", _mb(memory, *entries), "")
    apart = {"load generator": generator_us, "independent publishers": publishers_us}
    for name, apart_us in apart.items():
        if apart_us is not None:
            table.add_row(f"[dim]{name}, not in the total[/dim]", f"[dim]{apart_us:,.1f}[/dim]", "", "")
    table.add_row(shares)
    return table


def _mb(memory: Mapping[str, float], *names: str) -> str:
    return f"{sum(memory.get(name, 0) for name in names):,.0f}" if memory else ""


def _shares(result: RunResult, ours: float, others: float) -> str:
    return f"[dim]of this machine's {result.processors} processors: this run used {ours:.0%}, other processes {others:.0%}[/dim]"
