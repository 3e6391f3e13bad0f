"""The figures of a load run on bare metal, as JSON and as a table."""

from rich.console import RenderableType
from rich.table import Table

from moor.laboratory.load.plot import PlottedPart, pace_in_words, svg_of
from moor.laboratory.load.results import Latency, Phase, Scheduled
from moor.laboratory.load.table import framed
from moor.tables import lines_of


class MetalLoadResult(Scheduled, frozen=True, kw_only=True):
    """The figures of a load run on bare metal.

    `free_again_ms` is the time from the delete of an instance until placement offers its node again.
    """

    nodes: int
    daemons: int
    changes: Phase
    deploys: Phase
    free_again_ms: Latency


def as_svg(result: MetalLoadResult) -> str:
    changes, deploys = result.changes, result.deploys
    return svg_of(
        f"{changes.count:,} state changes and {deploys.count:,} deploys on {result.nodes:,} nodes, {pace_in_words(result)}",
        f"{changes.per_s:,.0f} state changes/s, {changes.cpu_us_each['total']:,.0f} µs CPU each, p99 {changes.latency_ms.p99:,.0f} ms · "
        f"{deploys.per_s:,.0f} deploys/s, {deploys.cpu_us_each['total']:,.0f} µs CPU each, p99 {deploys.latency_ms.p99:,.0f} ms · "
        f"{result.mode}, {result.processors} processors",
        [
            PlottedPart(
                orders=f"{name}s",
                order=name,
                over_time=phase.over_time,
                cpu_us_each=phase.cpu_us_each,
                is_scheduled=bool(result.rate) and phase is changes,
            )
            for name, phase in (("state change", changes), ("deploy", deploys))
        ],
    )


def as_table(result: MetalLoadResult) -> RenderableType:
    return framed(
        result,
        (_headlines(result), _cpu(result)),
        f"{result.active:,} active ({result.by_alternate:,} by an alternate), {result.in_error:,} in error, all deleted "
        "again;\nevery node is clean and owned, placement offers what Ironic has available, and nothing is in use",
    )


def _headlines(result: MetalLoadResult) -> Table:
    lines = [
        (
            f"[bold]{phase.per_s:,.0f}[/bold] {name}/s",
            f"p50 [bold]{phase.latency_ms.p50:,.0f}[/bold] ms, p99 [bold]{phase.latency_ms.p99:,.0f}[/bold] ms",
            f"[dim]{phase.count:,} in {phase.seconds:.1f} s[/dim]",
        )
        for name, phase in (("state changes", result.changes), ("deploys", result.deploys))
    ]
    free = result.free_again_ms
    again = ("[dim]node free again[/dim]", f"[dim]p50 {free.p50:,.0f} ms, p99 {free.p99:,.0f} ms[/dim]")
    return lines_of((*lines, again), gap=3)


def _cpu(result: MetalLoadResult) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0))
    table.add_column("process")
    phases = (result.changes, result.deploys)
    for name in ("µs a change", "µs a deploy"):
        table.add_column(name, justify="right")
    names = sorted(
        {*result.changes.cpu_us_each} - {"total"}, key=lambda name: -result.deploys.cpu_us_each[name]
    )
    for name in names:
        table.add_row(name, *(f"{phase.cpu_us_each[name]:,.1f}" for phase in phases))
    table.add_row(
        "[bold]total[/bold]", *(f"[bold]{phase.cpu_us_each['total']:,.1f}[/bold]" for phase in phases)
    )
    if result.changes.generator_us_each is not None:
        own = (f"[dim]{phase.generator_us_each or 0:,.1f}[/dim]" for phase in phases)
        table.add_row("[dim]load generator and simulated Ironic, not in the total[/dim]", *own)
    shares = (
        f"[dim]{phase.share_of_machine:.0%}, others {phase.share_of_others:.0%}[/dim]" for phase in phases
    )
    table.add_row(f"[dim]of this machine's {result.processors} processors[/dim]", *shares)
    return table
