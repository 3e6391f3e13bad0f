"""The figures of a load run, as JSON and as a table."""

from collections.abc import Mapping

import msgspec
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


class Latency(Struct, frozen=True):
    p50: float
    p99: float
    max: float


class Audited(Struct, frozen=True):
    passed: bool
    problems: tuple[str, ...]


class LoadResult(Struct, frozen=True):
    """The figures of a load run.

    `cpu_us_per_boot` has each process and their `total`. It excludes the load generator, except in an embedded run, where
    both share one process. `flatness`: the cost of a boot in the last tenth of the run, divided by that in the second tenth.
    """

    mode: str
    boots: int
    hosts: int
    cells: int
    failing: float
    workers: Mapping[str, int]
    seconds: float
    boots_per_s: float
    latency_ms: Latency
    cpu_us_per_boot: Mapping[str, float]
    load_generator_us_per_boot: float | None
    cpu_us_per_boot_by_tenth: tuple[float, ...]
    flatness: float
    processors: int
    # The shares of all processors' time that this run used, and that other processes used.
    share_of_machine: float
    share_of_others: float
    active: int
    in_error: int
    by_alternate: int
    notes: tuple[str, ...]
    audit: Audited


def as_json(result: LoadResult) -> bytes:
    return msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"


def as_table(result: LoadResult) -> RenderableType:
    return Group(_headline(result), "", _cpu(result), "", *map(_note, result.notes), _verdict(result))


def _headline(result: LoadResult) -> Table:
    table = Table.grid(padding=(0, 3))
    latency = result.latency_ms
    table.add_row(
        f"[bold]{result.boots_per_s:,.0f}[/bold] boots/s",
        f"[bold]{result.cpu_us_per_boot['total']:,.0f}[/bold] µs CPU a boot",
        f"p50 [bold]{latency.p50:,.0f}[/bold] ms, p99 [bold]{latency.p99:,.0f}[/bold] ms",
    )
    table.add_row(
        f"[dim]{result.boots:,} in {result.seconds:.1f} s[/dim]",
        f"[dim]last tenth / second: {result.flatness:.2f}[/dim]",
        f"[dim]{result.active:,} active, {result.by_alternate:,} of them by an alternate; {result.in_error} in error[/dim]",
    )
    return table


def _cpu(result: LoadResult) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0))
    table.add_column("process")
    table.add_column("µs a boot", justify="right")
    table.add_column("")
    entries = {name: us for name, us in result.cpu_us_per_boot.items() if name != "total"}
    most = max(entries.values())
    for name, us in sorted(entries.items(), key=lambda entry: -entry[1]):
        table.add_row(name, f"{us:,.1f}", f"[cyan]{'█' * round(40 * us / most)}[/cyan]")
    table.add_row("[bold]total[/bold]", f"[bold]{result.cpu_us_per_boot['total']:,.1f}[/bold]", "")
    if result.load_generator_us_per_boot is not None:
        us = result.load_generator_us_per_boot
        table.add_row("[dim]load generator, not in the total[/dim]", f"[dim]{us:,.1f}[/dim]", "")
    table.add_row(
        f"[dim]of this machine's {result.processors} processors: this run used {result.share_of_machine:.0%}, "
        f"other processes {result.share_of_others:.0%}[/dim]"
    )
    return table


def _note(note: str) -> Text:
    return Text(note, style="yellow")


def _verdict(result: LoadResult) -> RenderableType:
    if result.audit.passed:
        return Text.from_markup(
            "[green]audit passed[/green]: every request ended, every active instance holds exactly its share on its host,\n"
            "nothing else is in use, no host is over capacity, and no host has an extra instance"
        )
    return Group(
        Text("audit failed", style="bold red"), *(Text(problem) for problem in result.audit.problems)
    )
