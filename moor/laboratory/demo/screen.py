"""The live view of the demo: progress, rate, how full each host is, and the latest failures and retries."""

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bus.messages.placement import ProviderState
from moor.asking import batches_of
from moor.laboratory.demo.tally import NEWS_MAX, SLICE_S, Tally
from moor.tables import lines_of

T = TypeVar("T")

CELLS = ("harbour", "island")
TINKERED = "CUSTOM_TINKERED_WITH"
WIDTH = 92
SLICES_SHOWN = 40
TILES_A_ROW = 50
HOST, CHANGED, SILENT = "■", "◆", "✗"
BARS = " ▁▂▃▄▅▆▇█"
# From empty to full.
SHADES = ("grey23", "dark_green", "green4", "green3", "chartreuse3", "gold3", "dark_orange", "red3")


def screen(tally: Tally, title: str) -> RenderableType:
    body = Group(
        _progress(tally),
        "",
        *[part for cell in CELLS for part in _cell(tally, cell)],
        _counters(tally),
    )
    return panel(body, tally, title)


def panel(body: RenderableType, tally: Tally, title: str) -> RenderableType:
    """A frame around `body` and the latest news."""
    return Panel(
        Group(body, "", _news(tally)),
        title=f"[bold]Moorage[/bold]  {title}",
        title_align="left",
        border_style="blue",
        width=WIDTH,
        padding=(1, 2),
    )


def _progress(tally: Tally) -> Table:
    done = len(tally.states)
    bar = ProgressBar(tally.wanted, done, width=SLICES_SHOWN)
    return lines_of(
        (
            (bar, f"[bold]{done:,}[/bold] of {tally.wanted:,}", f"[bold]{tally.rate:,.0f}[/bold] boots/s"),
            (Text(_sparkline(tally), style="blue"), "[dim]ended, over time[/dim]", ""),
        )
    )


def _sparkline(tally: Tally) -> str:
    """The latest time slices; the height of each is the number of boots that ended in it."""
    last = int((tally.ended_s - tally.began_s) / SLICE_S)
    counts = [tally.ends_by_slice.get(n, 0) for n in range(max(0, last + 1 - SLICES_SHOWN), last + 1)]
    highest = max([*counts, 1])
    return "".join(BARS[ceil(count / highest * (len(BARS) - 1))] for count in counts)


def _cell(tally: Tally, cell: str) -> tuple[RenderableType, ...]:
    hosts = sorted(
        (each for each in tally.providers.values() if each.cell == cell), key=lambda each: each.name
    )
    used, capacity = sum(map(_used, hosts)), sum(map(_capacity, hosts))
    busy = sum(_used(host) > 0 for host in hosts)
    heading = Text.assemble(
        (f"{cell:10}", "bold"),
        f"{used:,} of {capacity:,} VCPU in use",
        (f" on {busy} hosts", "dim"),
    )
    return heading, tiles_of(hosts, partial(_tile, tally), TILES_A_ROW), Text("")


def tiles_of(items: Sequence[T], tile: Callable[[Sequence[T]], tuple[str, str]], a_row: int) -> Text:
    """One tile per item; if they do not fit in two rows, one tile for several neighbours."""
    text = Text()
    for number, some in enumerate(batches_of(items, max(1, ceil(len(items) / (2 * a_row))))):
        if number and number % a_row == 0:
            text.append("\n")
        text.append(*tile(some))
    return text


def _tile(tally: Tally, hosts: Sequence[ProviderState]) -> tuple[str, str]:
    if any(host.name in tally.silent for host in hosts):
        return SILENT, "bold magenta"
    full = sum(map(_used, hosts)) / max(1, sum(map(_capacity, hosts)))
    shade = SHADES[min(len(SHADES) - 1, ceil(full * (len(SHADES) - 1)))]
    return (CHANGED if any(TINKERED in host.traits for host in hosts) else HOST), shade


def _counters(tally: Tally) -> Table:
    return lines_of(
        (
            (
                Text(f"● {tally.count('active'):,} active", style="green"),
                Text(f"● {tally.conflicts} conflicts retried, {tally.conflicts_won} won", style="cyan"),
                Text(f"{SILENT} {len(tally.silent)} silent hosts", style="magenta"),
            ),
            (
                Text(f"● {tally.count('error')} in error", style="red"),
                Text(f"● {len(tally.needed_alternates)} took an alternate", style="yellow"),
                Text(f"{CHANGED} {tally.changes:,} trait changes", style="dim"),
            ),
        ),
        gap=3,
    )


def _news(tally: Tally) -> Text:
    """The latest news as text. Always NEWS_MAX lines, so that the screen does not jump."""
    lines = [Text(news.text, style=news.style) for news in tally.news]
    text = Text("\n").join([*lines, *[Text("")] * (NEWS_MAX - len(lines))])
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _used(host: ProviderState) -> int:
    stock = host.inventories.get("VCPU")
    return stock.used if stock else 0


def _capacity(host: ProviderState) -> int:
    stock = host.inventories.get("VCPU")
    return int((stock.total - stock.reserved) * stock.allocation_ratio) if stock else 0
