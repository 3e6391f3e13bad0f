"""What the demo has heard and what it draws: progress, rate, what each host or node is doing, and the latest failures and retries.

The tally counts the events that were received, and keeps the daemons' rows of nodes; the screen shows only these values. Hosts are drawn by
cell, with how full they are. Nodes are drawn by the daemon that owns them, with their state.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import ceil
from typing import NamedTuple, TypeVar

from msgspec import structs
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bus.message import Message
from bus.messages.build import (
    ClaimRefused,
    InstanceActive,
    InstanceDeleted,
    InstanceFailed,
    InstancePlaced,
    InstanceState,
)
from bus.messages.placement import ProvidersChanged
from engine.flavors import Flavor, InstanceId
from engine.inventories import ProviderId, ProviderState, ProviderUsage
from ironic_sync.core.rows import NodeRow
from kit.parts import batches_of
from laboratory.at_rest import Asked
from moor.options import fail, out
from moor.showing import amounts_of, shortened
from moor.tables import lines_of

NEWS_MAX = 5
SLICE_S = 0.1


class Tally:
    """What was heard of the cloud. Of bare metal also the rows of nodes, maintenance flips, and how the nodes of a killed daemon are
    taken over. A flip is a node's change into maintenance or out of it.
    """

    def __init__(self, wanted: int = 0) -> None:
        self.wanted = wanted
        # Of the instances that are asked for.
        self.flavors: dict[InstanceId, Flavor] = {}
        self.began_s = time.monotonic()
        self.ended_s = self.began_s
        # Instances that have ended, in their end state.
        self.states: dict[InstanceId, InstanceState] = {}
        self.deleted: set[InstanceId] = set()
        self.refusals: dict[InstanceId, tuple[ClaimRefused, ...]] = {}
        self.providers: dict[ProviderId, ProviderState] = {}
        # How often any provider's traits changed.
        self.changes = 0
        self.ends_by_slice: dict[int, int] = {}
        self.news: deque[Text] = deque(maxlen=NEWS_MAX)
        self.silent: dict[str, None] = {}
        self.rows: dict[ProviderId, NodeRow] = {}
        self.flips = 0
        # When each node was put into maintenance; removed once placement reports it as reserved.
        self._flipping: dict[ProviderId, float] = {}
        self.flip_latencies_s: list[float] = []
        self.killed = ""
        self._killed_s = 0.0
        # The nodes of the killed daemon; the time until all had a new owner, and until the new owners had reported all.
        self.orphaned: frozenset[ProviderId] = frozenset()
        self.taken_over_s: float | None = None
        self.reported_s: float | None = None

    def begin(self) -> None:
        """Start the clock: the first request is about to be sent."""
        self.began_s = self.ended_s = time.monotonic()

    def hear(self, message: Message) -> None:
        match message:
            case InstanceActive(instance=state) | InstanceFailed(instance=state):
                self._ended(state)
            case InstancePlaced(instance=state) if state.refusals and state.id not in self.refusals:
                self._won(state)
            case InstanceDeleted(instance=state) if state.id in self.states:
                self.deleted.add(state.id)
            case ProvidersChanged(providers=providers, usage=usages):
                for provider in providers:
                    self._changed(provider)
                for usage in usages:
                    self._used(usage)
            case _:
                pass

    # What the screen and the checks ask

    @property
    def is_over(self) -> bool:
        return len(self.states) >= self.wanted

    @property
    def rate(self) -> float:
        return len(self.states) / max(self.ended_s - self.began_s, SLICE_S)

    @property
    def needed_alternates(self) -> list[InstanceState]:
        return [each for each in self.states.values() if each.state == "active" and each.failures]

    @property
    def conflicts(self) -> int:
        """How many claims placement refused because the host had changed after the scheduler chose it."""
        return sum(map(len, self.refusals.values()))

    @property
    def conflicts_won(self) -> int:
        """How many instances got a host although placement had refused a claim of theirs."""
        return len(self.refusals)

    @property
    def active(self) -> list[InstanceState]:
        """The instances that are active and not deleted, by their names."""
        return sorted(
            (each for id_, each in self.states.items() if each.state == "active" and id_ not in self.deleted),
            key=lambda each: each.name,
        )

    def asked(self, of_nodes: Flavor | None = None) -> dict[InstanceId, Asked]:
        """Each instance with its flavor and the last state that was heard. `of_nodes` is the flavor for bare metal."""
        heard = {id_: state.state for id_, state in self.states.items()} | dict.fromkeys(
            self.deleted, "deleted"
        )
        return {
            id_: Asked(heard.get(id_, ""), amounts_of(flavor), on_node=flavor == of_nodes)
            for id_, flavor in self.flavors.items()
        }

    def count(self, state: str) -> int:
        return sum(each.state == state for each in self.states.values())

    def owned_by(self, daemon: str) -> Sequence[NodeRow]:
        mine = [row for row in self.rows.values() if row.owner == daemon]
        return sorted(mine, key=lambda row: (row.cell, row.node.name or "" if row.node else "", row.id))

    # What the demo itself does to nodes, and the rows that it reads

    def flip(self, node: ProviderId) -> None:
        """Record that the demo is about to have Ironic put the node into maintenance."""
        self.flips += 1
        self._flipping[node] = time.monotonic()

    def kill(self, daemon: str) -> None:
        self.killed, self._killed_s = daemon, time.monotonic()
        self.orphaned = frozenset(row.id for row in self.rows.values() if row.owner == daemon)
        self.news.append(Text(f"daemon {daemon} is killed: it owned {len(self.orphaned)} nodes", "bold red"))

    def read(self, rows: Iterable[NodeRow]) -> None:
        """Take over rows that were read from the daemons' database. Note when other daemons own all nodes of a killed one."""
        for row in rows:
            self.rows[row.id] = row
        if not self.killed:
            return
        orphaned = [self.rows[id_] for id_ in self.orphaned]
        after_s = time.monotonic() - self._killed_s
        if self.taken_over_s is None and all(row.owner not in ("", self.killed) for row in orphaned):
            self.taken_over_s = after_s
            self.news.append(Text(f"all {len(orphaned)} nodes of {self.killed} have a new owner", "green"))
        if (
            self.taken_over_s is not None
            and self.reported_s is None
            and all(row.read_epoch == row.epoch for row in orphaned)
        ):
            self.reported_s = after_s
            self.news.append(Text(f"all {len(orphaned)} were read and reported by their new owners", "green"))

    # Events

    def _ended(self, state: InstanceState) -> None:
        known = self.states.get(state.id)
        if known is not None and known.sequence >= state.sequence:
            return
        self.states[state.id] = state
        self.ended_s = time.monotonic()
        if known is None:
            slice_ = int((self.ended_s - self.began_s) / SLICE_S)
            self.ends_by_slice[slice_] = self.ends_by_slice.get(slice_, 0) + 1
        for failure in state.failures:
            if failure.reason.startswith("no message from the host"):
                self.silent[failure.host] = None
        if state.failures and state.state == "active":
            last = state.failures[-1]
            tried, now = self._name_of(last.host), self._name_of(state.host)
            self.news.append(Text(f"{state.name}: {tried}, {short(last.reason)}; now on {now}", "yellow"))
        elif state.state == "error":
            self.news.append(Text(f"{state.name} ended in error: {state.reason or 'no valid host'}", "red"))

    def _won(self, state: InstanceState) -> None:
        self.refusals[state.id] = state.refusals
        last = state.refusals[-1]
        how = "asked again, and got it" if last.host == state.host else f"took {self._name_of(state.host)}"
        self.news.append(Text(f"{state.name}: {self._name_of(last.host)}, {last.reason}; {how}", "cyan"))

    def _changed(self, provider: ProviderState) -> None:
        known = self.providers.get(provider.id)
        if known is not None and known.revision >= provider.revision:
            return
        self.providers[provider.id] = provider
        if known is not None and known.traits != provider.traits:
            self.changes += 1
        is_held = any(stock.reserved for stock in provider.inventories.values())
        if is_held and (ordered_s := self._flipping.pop(provider.id, None)) is not None:
            self.flip_latencies_s.append(time.monotonic() - ordered_s)

    def _used(self, usage: ProviderUsage) -> None:
        known = self.providers.get(usage.id)
        if known is not None and known.revision < usage.revision:
            inventories = {
                resource: structs.replace(stock, used=usage.used.get(resource, 0))
                for resource, stock in known.inventories.items()
            }
            self.providers[usage.id] = structs.replace(
                known, generation=usage.generation, revision=usage.revision, inventories=inventories
            )

    def _name_of(self, host: str) -> str:
        """The host's name for the screen. That of a node is its uuid: Ironic's name of the node is shown."""
        found = next((row.node for id_, row in self.rows.items() if str(id_) == host), None)
        return (found.name if found else None) or host


def short(reason: str) -> str:
    """The reason without its details: the part before the first colon."""
    return reason.partition(":")[0]


T = TypeVar("T")

CELLS = ("harbour", "island")
TINKERED = "CUSTOM_TINKERED_WITH"
WIDTH = 92
SLICES_SHOWN = 40
HOSTS_A_ROW, NODES_A_ROW = 50, 72
HOST, CHANGED, SILENT = "■", "◆", "✗"
BARS = " ▁▂▃▄▅▆▇█"
# From empty to full.
SHADES = ("grey23", "dark_green", "green4", "green3", "chartreuse3", "gold3", "dark_orange", "red3")
# One word for each kind of work on a node; NODE_TILES has its tile and style.
AVAILABLE, DEPLOYING, ACTIVE, CLEANING = "available", "deploying", "active", "cleaning"
MAINTENANCE, FAILED, OTHER = "maintenance", "failed", "other"
NODE_TILES = {
    AVAILABLE: ("□", "grey50"),
    DEPLOYING: ("◐", "bold cyan"),
    ACTIVE: ("■", "green3"),
    CLEANING: ("◌", "yellow"),
    MAINTENANCE: ("◆", "magenta"),
    FAILED: ("✗", "bold red"),
    OTHER: ("·", "white"),
}


def screen(tally: Tally, title: str, daemons: Sequence[str] = ()) -> RenderableType:
    """The hosts of each cell; with `daemons`, the nodes of each of them."""
    if daemons:
        groups = [_daemon(tally, daemon) for daemon in daemons]
        counters: tuple[RenderableType, ...] = (_legend(tally), "", _node_counters(tally))
    else:
        groups = [_cell(tally, cell) for cell in CELLS]
        counters = (_host_counters(tally),)
    tiles = [part for heading, drawn in groups for part in (heading, drawn, Text(""))]
    return Panel(
        Group(_progress(tally), "", *tiles, *counters, "", _news(tally)),
        title=f"[bold]Moorage[/bold]  {title}",
        title_align="left",
        border_style="blue",
        width=WIDTH,
        padding=(1, 2),
    )


class Check(NamedTuple):
    """Something that the demo has checked: what it says if there are no problems."""

    says: str
    problems: Sequence[str] = ()


def conclude(checks: Iterable[Check]) -> None:
    """Print what was checked. Any problem ends the demo with exit code 1."""
    checks = tuple(checks)
    if problems := [problem for check in checks for problem in check.problems]:
        fail("\n".join(["the demo found problems:", *shortened(problems)]))
    for each in checks:
        out.print(f"[green]✓[/green] {each.says}")


def _progress(tally: Tally) -> Table:
    done = len(tally.states)
    bar = ProgressBar(max(1, tally.wanted), done, width=SLICES_SHOWN)
    deleted = f"[bold]{len(tally.deleted):,}[/bold] deleted" if tally.deleted else ""
    return lines_of(
        (
            (
                bar,
                f"[bold]{done:,}[/bold] of {tally.wanted:,} boots ended",
                f"[bold]{tally.rate:,.0f}[/bold] boots/s",
            ),
            (Text(_sparkline(tally), style="blue"), "[dim]ended, over time[/dim]", deleted),
        )
    )


def _sparkline(tally: Tally) -> str:
    """The latest time slices; the height of each is the number of boots that ended in it."""
    last = int((tally.ended_s - tally.began_s) / SLICE_S)
    counts = [tally.ends_by_slice.get(n, 0) for n in range(max(0, last + 1 - SLICES_SHOWN), last + 1)]
    highest = max([*counts, 1])
    return "".join(BARS[ceil(count / highest * (len(BARS) - 1))] for count in counts)


def _tiles(items: Sequence[T], tile: Callable[[Sequence[T]], tuple[str, str]], a_row: int) -> Text:
    """One tile per item; if they do not fit in two rows, one tile for several neighbours."""
    text = Text()
    for number, some in enumerate(batches_of(items, max(1, ceil(len(items) / (2 * a_row))))):
        if number and number % a_row == 0:
            text.append("\n")
        text.append(*tile(some))
    return text


def _news(tally: Tally) -> Text:
    """The latest news as text. Always NEWS_MAX lines, so that the screen does not jump."""
    lines = [*tally.news]
    text = Text("\n").join([*lines, *[Text("")] * (NEWS_MAX - len(lines))])
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


# Hosts


def _cell(tally: Tally, cell: str) -> tuple[Text, Text]:
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
    return heading, _tiles(hosts, partial(_host_tile, tally), HOSTS_A_ROW)


def _host_tile(tally: Tally, hosts: Sequence[ProviderState]) -> tuple[str, str]:
    if any(host.name in tally.silent for host in hosts):
        return SILENT, "bold magenta"
    full = sum(map(_used, hosts)) / max(1, sum(map(_capacity, hosts)))
    shade = SHADES[min(len(SHADES) - 1, ceil(full * (len(SHADES) - 1)))]
    return (CHANGED if any(TINKERED in host.traits for host in hosts) else HOST), shade


def _host_counters(tally: Tally) -> Table:
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


def _used(host: ProviderState) -> int:
    stock = host.inventories.get("VCPU")
    return stock.used if stock else 0


def _capacity(host: ProviderState) -> int:
    stock = host.inventories.get("VCPU")
    return int((stock.total - stock.reserved) * stock.allocation_ratio) if stock else 0


# Nodes


def _daemon(tally: Tally, daemon: str) -> tuple[Text, Text]:
    rows = tally.owned_by(daemon)
    is_killed = daemon == tally.killed
    heading = Text.assemble(
        (f"{daemon:10}", "bold red strike" if is_killed else "bold"),
        f"{len(rows):4} nodes",
        ("   killed" if is_killed else "", "red"),
    )
    return heading, _tiles(
        rows, lambda some: NODE_TILES[Counter(map(kind_of, some)).most_common(1)[0][0]], NODES_A_ROW
    )


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


def _legend(tally: Tally) -> Text:
    counts = Counter(map(kind_of, tally.rows.values()))
    shown = (
        Text(f"{tile} {counts[kind]} {kind}", style=style)
        for kind, (tile, style) in NODE_TILES.items()
        if counts[kind] or kind in (AVAILABLE, DEPLOYING, ACTIVE, CLEANING, MAINTENANCE)
    )
    return Text("   ").join(shown)


def _node_counters(tally: Tally) -> Text:
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
