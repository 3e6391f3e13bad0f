"""`moor status` and `moor capacity`: the whole cloud on one screen, and whether it is healthy."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Annotated

import click
from msgspec import Struct, structs
from rich.console import Group, RenderableType
from rich.text import Text

from bus.topology import CELL0
from kit.metrics import BUCKETS_S
from moor.client import (
    FILL_PARTS,
    CellFill,
    CellState,
    ClassUse,
    Client,
    ClientError,
    Durations,
    Overview,
    ShapeRoom,
    StageTimes,
    WorkerHeard,
)
from moor.flags import option
from moor.options import (
    NOT_DONE,
    BusUrl,
    Cells,
    IronicDatabaseUrl,
    IronicUrl,
    Output,
    client,
    command_settings,
    out,
    run,
    run_with,
    wants_document,
)
from moor.overview.gathering import CloudView, CloudViewer, notes_of, troubles_of
from moor.settings import Settings
from moor.showing import COLOURS, MAIN_CLASSES, cell_life, in_order, print_json, shortened
from moor.tables import Columns, Rows, styled


async def _notes_on_nodes(moor: Client | None, settings: Settings) -> tuple[str, Sequence[str]]:
    """Why bare-metal nodes are not known, and what keeps them unused, if the settings name anything of an Ironic. Without a client,
    flavors are not asked for.
    """
    if not settings.ironic_url and not settings.addresses.ironic_db_url:
        return "", ()
    # Many modules, which other clouds need not load.
    from moor.bare_metal.nodes import notes_on_nodes  # noqa: PLC0415

    return await notes_on_nodes(moor, settings)


def status(
    bus: BusUrl = "",
    cells: Cells = "",
    ironic: IronicUrl = "",
    ironic_db: IronicDatabaseUrl = "",
    *,
    within: Annotated[float, option(metavar="S", min=0.1, help="How long a scheduler has to answer.")] = 10.0,
    _output: Output = None,
) -> None:
    """Show the whole cloud on one screen: what is wrong, cells, room, workers, queues. Exit code 1 if anything is wrong."""
    settings = command_settings(bus=bus, cells=cells, ironic=ironic, ironic_db=ironic_db)

    moor = client(settings, patience_s=within)

    async def work() -> CloudView:
        silent = ""
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(moor)
            except ClientError as problem:
                # The screen says so, beside what others know: this command is for the worst hour.
                silent = str(problem)
            viewer = CloudViewer(moor, settings, once=True)
            stack.push_async_callback(viewer.close)
            view = await viewer.look(silent)
            trouble, notes = await _notes_on_nodes(moor if view.overview else None, settings)
            return structs.replace(view, nodes=tuple(notes), nodes_trouble=trouble)

    view = run(work())
    troubles = troubles_of(view)
    if wants_document():
        print_json(
            {
                "healthy": not troubles,
                "troubles": troubles,
                "notes": notes_of(view),
                "overview": view.overview,
                "brokers": view.brokers,
            }
        )
    else:
        out.print(overview_in_words(view))
    if troubles:
        raise click.exceptions.Exit(NOT_DONE)


def capacity(bus: BusUrl = "", cells: Cells = "", *, _output: Output = None) -> None:
    """Show how much room is left: of each resource class, and for each shape that is usually asked for."""
    settings = command_settings(bus=bus, cells=cells)
    overview = run_with(client(settings), lambda moor: moor.overview(once=True))
    uses = uses_in_all(overview.uses)
    if wants_document():
        print_json({"uses": uses, "shapes": overview.shapes})
        return
    out.print(Group(Rows(uses, USES), Text(), Rows(overview.shapes, SHAPES)))


# The tables of an overview.

STEPS = "▁▂▃▄▅▆▇█"
BAR = 20
# A class is named if an operator sizes hosts by it, or if so much of it is used.
NEARLY_USED_UP = 0.9
# Counts that are older say how old they are.
OLD_AFTER_S = 2.0


def overview_in_words(view: CloudView) -> RenderableType:
    troubles, notes = troubles_of(view), notes_of(view)
    health = (
        Text("healthy", "bold green")
        if not troubles
        else Text(f"{len(troubles)} {'trouble' if len(troubles) == 1 else 'troubles'}", "bold red")
    )
    lines: list[RenderableType] = [Text.assemble(("Moorage  ", "bold"), health)]
    lines += [Text.assemble(("✗ ", "red"), each) for each in troubles]
    lines += [Text.assemble(("• ", "yellow"), each) for each in shortened(notes)]
    if view.overview is not None:
        lines += _tables(view.overview)
    if queues := queue_rows(view):
        lines += [Text(), Rows(queues, QUEUES)]
    return Group(*lines)


def _tables(overview: Overview) -> list[RenderableType]:
    found: list[RenderableType] = [Text(), instances_in_words(overview)]
    fills = {each.cell: each for each in overview.fill}
    for rows in (
        Rows([(each, fills.get(each.cell)) for each in overview.cells], CELLS),
        Rows(main_uses(overview.uses), USES),
        Rows(overview.stages, STAGES),
        Rows(worker_groups(overview.workers), WORKERS),
    ):
        if rows.items:
            found += [Text(), rows]
    return found


def instance_counts(overview: Overview) -> Counter[str]:
    """How many instances are in each state, in all cells."""
    counts = Counter[str]()
    for each in overview.instances:
        counts[each.state] += each.count
    return counts


def instances_in_words(overview: Overview) -> Text:
    counts = instance_counts(overview)
    line = Text(f"{sum(counts.values()):,} instances")
    for state, colour in COLOURS.items():
        if counts[state]:
            line.append(f"   {counts[state]:,} {state}", colour)
    for kind, count in overview.moving.items():
        line.append(f"   {count:,} {kind} under way", "cyan")
    if overview.age_s > OLD_AFTER_S:
        line.append(f"   ({overview.age_s:.0f} s ago, at {overview.made_at:%Y-%m-%d %H:%M:%S %Z})", "dim")
    return line


def histogram(fill: CellFill | None) -> str:
    """How many hosts are how full, from empty to full, as a row of small bars."""
    if fill is None:
        return ""
    most = max(fill.hosts)
    return "".join(STEPS[-(-count * (len(STEPS) - 1) // most)] if count else " " for count in fill.hosts)


CELLS = Columns[tuple[CellState, CellFill | None]](
    {
        "cell": lambda each: each[0].cell,
        "state": lambda each: styled(cell_life(each[0].life)),
        "hosts up": lambda each: f"{each[0].hosts_up:,} of {each[0].hosts:,}",
        "empty▕▏full": lambda each: histogram(each[1]).ljust(FILL_PARTS + 1),
        "instances": lambda each: f"{each[0].instances:,}",
        "unanswered": lambda each: f"{each[0].waiting:,}" if each[0].waiting else "",
        "conductors up": lambda each: (
            f"{sum(one.life == 'up' for one in each[0].conductors)} of {len(each[0].conductors)}"
        ),
    }
)


def uses_in_all(uses: Sequence[ClassUse]) -> list[ClassUse]:
    """The sums over all cells; the classes first that an operator sizes hosts by."""
    used, capacities = Counter[str](), Counter[str]()
    for each in uses:
        used[each.resource_class] += each.used
        capacities[each.resource_class] += each.capacity
    return [
        ClassUse(resource_class=name, cell="", used=used[name], capacity=capacity)
        for name, capacity in in_order(capacities)
    ]


def main_uses(uses: Sequence[ClassUse]) -> list[ClassUse]:
    """The uses that an overview names, summed over all cells."""
    return [
        each
        for each in uses_in_all(uses)
        if each.resource_class in MAIN_CLASSES or each.used >= each.capacity * NEARLY_USED_UP
    ]


def _share(use: ClassUse) -> float:
    return use.used / use.capacity if use.capacity > 0 else 1.0


def _bar(use: ClassUse) -> Text:
    filled = min(round(BAR * _share(use)), BAR)
    colour = "red" if _share(use) >= NEARLY_USED_UP else "green"
    return Text.assemble(("█" * filled, colour), ("░" * (BAR - filled), "dim"))


USES = Columns[ClassUse](
    {
        "room": lambda each: each.resource_class,
        "used": lambda each: f"{each.used:,} of {each.capacity:,}",
        "share": lambda each: f"{_share(each):.0%}",
        "": _bar,
    }
)


SHAPES = Columns[ShapeRoom](
    {
        "usual shape": lambda each: ", ".join(f"{name} {amount:,}" for name, amount in each.amounts.items()),
        "of requests": lambda each: f"{each.share:.1%}",
        "more of it fit": lambda each: f"{each.fit:,}",
    },
    numbers=("of requests", "more of it fit"),
)


def seconds_in_words(seconds: float) -> str:
    """A percentile. Within the first bucket nothing is known of it, nor in the last one."""
    if seconds < BUCKETS_S[0]:
        return f"< {BUCKETS_S[0] * 1000:.0f} ms"
    if seconds >= BUCKETS_S[-1]:
        return f"> {BUCKETS_S[-1]:.0f} s"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def per_second(durations: Durations) -> float:
    return durations.count / durations.seconds if durations.seconds > 0 else 0.0


STAGES = Columns[StageTimes](
    {
        "stage": lambda each: each.stage,
        "per second": lambda each: f"{per_second(each.minute):,.1f}" if each.minute.count else "",
        "p50": lambda each: seconds_in_words(each.minute.p50_s) if each.minute.count else "",
        "p99": lambda each: seconds_in_words(each.minute.p99_s) if each.minute.count else "",
        "in the hour": lambda each: f"{each.hour.count:,}",
        "p50 of it": lambda each: seconds_in_words(each.hour.p50_s),
        "p99 of it": lambda each: seconds_in_words(each.hour.p99_s),
    }
)


class WorkerGroup(Struct, frozen=True):
    """The workers of one role, cell and release."""

    role: str
    cell: str
    release: str
    workers: tuple[WorkerHeard, ...]

    @property
    def ready(self) -> int:
        return sum(each.life == "up" and not each.beat.awaits for each in self.workers)


def worker_groups(workers: Sequence[WorkerHeard]) -> list[WorkerGroup]:
    groups = defaultdict[tuple[str, str, str], list[WorkerHeard]](list)
    for each in workers:
        groups[each.beat.role, each.beat.cell, each.beat.release].append(each)
    return [WorkerGroup(*key, tuple(found)) for key, found in sorted(groups.items())]


def _readiness(group: WorkerGroup) -> Text:
    told = f"{group.ready} of {len(group.workers)} ready"
    return Text(told, "green" if group.ready == len(group.workers) else "red")


WORKERS = Columns[WorkerGroup](
    {
        "workers": lambda each: each.role,
        "cell": lambda each: "" if each.cell == CELL0 else each.cell,
        "release": lambda each: each.release,
        "": _readiness,
        "handled": lambda each: f"{sum(sum(one.beat.handled.values()) for one in each.workers):,}",
        "dead letters": lambda each: (
            f"{buried:,}" if (buried := sum(one.beat.buried for one in each.workers)) else ""
        ),
    }
)


def queue_rows(view: CloudView) -> list[tuple[str, int]]:
    """The queues in which something waits."""
    return [(name, depth) for broker in view.brokers for name, depth in broker.queues.items() if depth]


QUEUES = Columns[tuple[str, int]](
    {"queue": lambda each: each[0], "waiting parcels": lambda each: f"{each[1]:,}"}
)
