"""The live view: the state of each node, grouped by the daemon that owns it; progress, and the latest events."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ironic_sync.core.rows import NodeRow
from moor.laboratory.demo.metal.tally import MetalTally
from moor.laboratory.demo.screen import panel, tiles_of
from moor.tables import lines_of

BAR = 40
TILES_A_ROW = 72

# One word for each kind of work on a node; TILES has its tile and style.
AVAILABLE, DEPLOYING, ACTIVE, CLEANING = "available", "deploying", "active", "cleaning"
MAINTENANCE, FAILED, OTHER = "maintenance", "failed", "other"
TILES = {
    AVAILABLE: ("□", "grey50"),
    DEPLOYING: ("◐", "bold cyan"),
    ACTIVE: ("■", "green3"),
    CLEANING: ("◌", "yellow"),
    MAINTENANCE: ("◆", "magenta"),
    FAILED: ("✗", "bold red"),
    OTHER: ("·", "white"),
}


def metal_screen(tally: MetalTally, daemons: Sequence[str], title: str) -> RenderableType:
    body = Group(
        _progress(tally),
        "",
        *[part for daemon in daemons for part in _daemon(tally, daemon)],
        _legend(tally),
        "",
        _counters(tally),
    )
    return panel(body, tally, title)


def kind_of(row: NodeRow) -> str:
    """One word for the node's present work. Maintenance hides every other word except `active`."""
    node = row.node
    state = (node.provision_state or AVAILABLE) if node is not None else ""
    if state == ACTIVE:
        return ACTIVE
    if node is not None and node.maintenance:
        return MAINTENANCE
    if state in ("deploying", "wait call-back") or (row.deploy is not None and row.deploy.kind == "deploy"):
        return DEPLOYING
    if state in ("deleting", "cleaning", "clean wait"):
        return CLEANING
    if state.endswith("failed") or state == "error":
        return FAILED
    return AVAILABLE if state == AVAILABLE else OTHER


def _progress(tally: MetalTally) -> Table:
    done = len(tally.states)
    bar = ProgressBar(max(1, tally.wanted), done, width=BAR)
    ended, deleted = (
        f"[bold]{done:,}[/bold] of {tally.wanted:,} boots ended",
        f"[bold]{len(tally.deleted):,}[/bold]",
    )
    return lines_of(((bar, ended, f"{deleted} deleted"),))


def _daemon(tally: MetalTally, daemon: str) -> tuple[RenderableType, ...]:
    rows = tally.owned_by(daemon)
    is_killed = daemon == tally.killed
    heading = Text.assemble(
        (f"{daemon:10}", "bold red strike" if is_killed else "bold"),
        f"{len(rows):4} nodes",
        ("   killed" if is_killed else "", "red"),
    )
    return heading, tiles_of(rows, _tile, TILES_A_ROW), Text("")


def _tile(rows: Sequence[NodeRow]) -> tuple[str, str]:
    return TILES[Counter(map(kind_of, rows)).most_common(1)[0][0]]


def _legend(tally: MetalTally) -> Text:
    counts = Counter(map(kind_of, tally.rows.values()))
    shown = (
        Text(f"{tile} {counts[kind]} {kind}", style=style)
        for kind, (tile, style) in TILES.items()
        if counts[kind] or kind in (AVAILABLE, DEPLOYING, ACTIVE, CLEANING, MAINTENANCE)
    )
    return Text("   ").join(shown)


def _counters(tally: MetalTally) -> Text:
    latencies = sorted(tally.flip_latencies_s)
    middle = (
        f", known to placement after {latencies[len(latencies) // 2] * 1000:,.0f} ms" if latencies else ""
    )
    boots = (
        Text(f"● {len(tally.needed_alternates)} took an alternate", style="yellow"),
        Text(f"● {tally.conflicts} claims met a node that had changed", style="cyan"),
        Text(f"● {tally.count('error')} in error", style="red"),
    )
    return Text("\n").join((Text("   ").join(boots), Text(f"◆ {tally.flips} flips{middle}", style="magenta")))
