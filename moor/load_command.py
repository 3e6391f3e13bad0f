"""`moor load`: so many boots as fast as they go, what each costs whom, and whether all the books agree afterwards."""

import asyncio
import os
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import RenderableType

from bus.broker import ConnectionLost, Refusal
from bus.errors import Failure
from bus.process import run_process
from moor.cloud_apart import Servers, WorkerEnded
from moor.load.firing import Silence
from moor.load.metal.results import as_json as metal_as_json
from moor.load.metal.results import as_table as metal_as_table
from moor.load.metal.running import DEFAULTS as METAL_DEFAULTS
from moor.load.metal.running import MetalPlan
from moor.load.metal.running import run_apart as metal_apart
from moor.load.metal.running import run_embedded as metal_embedded
from moor.load.results import as_json, as_table
from moor.load.running import Plan, run_apart, run_embedded
from moor.options import (
    BusUrl,
    DatabaseUrl,
    PlacementDatabaseUrl,
    check_writable,
    fail,
    log_as,
    out,
    tuned_cloud,
    tuning,
)

R = TypeVar("R")

IN_FLIGHT, METAL_IN_FLIGHT = 2000, 100
# So many of each in a run, conductors in each cell; there is one compute a cell.
COUNTS = {"placement": 1, "scheduler": 1, "conductor": 1}


def load(
    *,
    boots: Annotated[int, typer.Option(min=1, max=10_000_000, help="How many instances to build.")] = 20_000,
    hosts: Annotated[int, typer.Option(min=1, max=100_000, help="Over how many pretended hosts.")] = 1000,
    cells: Annotated[int, typer.Option(min=1, max=100, help="In how many cells.")] = 2,
    bus: BusUrl = "",
    db: DatabaseUrl = "",
    placement_db: PlacementDatabaseUrl = "",
    failing: Annotated[float, typer.Option(min=0, max=1, help="How many of the spawns fail, of 1.")] = 0.05,
    in_flight: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default=False,
            help="How many boots, or state changes, are under way at most. Left out: 2000, or 100 on bare metal.",
        ),
    ] = None,
    bare_metal: Annotated[
        bool,
        typer.Option(
            "--bare-metal", help="Fire state changes of bare-metal nodes, and deploys onto them, instead."
        ),
    ] = False,
    nodes: Annotated[
        int, typer.Option(min=10, max=20_000, help="With --bare-metal: how many simulated nodes.")
    ] = 500,
    daemons: Annotated[
        int, typer.Option(min=1, max=50, help="With --bare-metal: how many daemons keep them.")
    ] = 2,
    changes: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="With --bare-metal: how many state changes.")
    ] = 5_000,
    rate: Annotated[
        float, typer.Option(min=0, help="With --bare-metal: state changes a second; 0: as many as go.")
    ] = 0,
    deploys: Annotated[
        int,
        typer.Option(
            min=1, max=10_000_000, help="With --bare-metal: how many deploys, each undeployed again."
        ),
    ] = 300,
    workers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=N",
            help="How many placement, scheduler or conductor workers; of conductors in each cell. One of each, if not said.",
        ),
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there, too.")
    ] = None,
) -> None:
    """Build many instances, as fast as it goes; say what each costs, and check everybody's books afterwards.

    With --bus and --db on real servers, each worker a process of its own; without them embedded, all in this process.
    """
    if bool(bus) != bool(db):
        raise typer.BadParameter(
            "a real broker wants a real database, and the other way round: both --bus and --db, or neither"
        )
    if placement_db and not db:
        raise typer.BadParameter("--placement-db: without --db everything is in one SQLite file")
    check_writable("--json", json)
    if hosts < cells:
        raise typer.BadParameter(f"--hosts is {hosts}, must be at least --cells, which is {cells}")
    servers = Servers(bus, db, placement_db, tuning().variables()) if bus else None
    counts = counts_of(workers or [])
    if workers and servers is None:
        raise typer.BadParameter("--workers: embedded, all workers are in this process, one of each kind")
    if bare_metal:
        metal = MetalPlan(
            changes=changes,
            deploys=deploys,
            nodes=nodes,
            daemons=daemons,
            cells=cells,
            failing=failing,
            in_flight=in_flight or METAL_IN_FLIGHT,
            rate=rate,
        )
        # Deploys fail on purpose.
        log_as(os.environ, level="ERROR")
        settings = tuned_cloud(METAL_DEFAULTS)
        on_metal = _run(
            lambda url: metal_embedded(metal, url, settings),
            None if servers is None else lambda: metal_apart(metal, servers, counts),
        )
        _tell(json, metal_as_json(on_metal), metal_as_table(on_metal), passed=on_metal.audit.passed)
        return
    plan = Plan(boots=boots, cells=_spread(hosts, cells), failing=failing, in_flight=in_flight or IN_FLIGHT)
    result = _run(
        lambda url: run_embedded(plan, url, tuned_cloud()),
        None if servers is None else lambda: run_apart(plan, servers, counts),
    )
    _tell(json, as_json(result), as_table(result), passed=result.audit.passed)


def _tell(file: Path | None, figures: bytes, table: RenderableType, *, passed: bool) -> None:
    if file is not None:
        file.write_bytes(figures)
    out.print(table)
    if not passed:
        raise typer.Exit(1)


def _run(
    embedded: Callable[[str], Coroutine[Any, Any, R]], apart: Callable[[], Coroutine[Any, Any, R]] | None
) -> R:
    """On servers, or else embedded with a database that is thrown away."""
    try:
        if apart is not None:
            return run_process(apart())
        with tempfile.TemporaryDirectory(prefix="moor-load-") as place:
            return run_process(embedded(f"sqlite+aiosqlite:///{Path(place) / 'moor.db'}"))
    except asyncio.CancelledError:
        fail("told to end")
    except ConnectionLost as lost:
        fail(f"no broker: {lost}")
    except (Refusal, Failure, Silence, WorkerEnded) as problem:
        fail(str(problem))


def counts_of(workers: Sequence[str]) -> Mapping[str, int]:
    counts = dict(COUNTS)
    for each in workers:
        kind, _, number = each.partition("=")
        if kind not in counts or not number.isdecimal() or not int(number):
            raise typer.BadParameter(
                f"--workers {each!r}: it must be KIND=N, with a kind of {', '.join(counts)} and N at least 1"
            )
        counts[kind] = int(number)
    return counts


def _spread(hosts: int, cells: int) -> dict[str, int]:
    """As many in each cell as in any other, or one more."""
    return {f"c{n}": hosts // cells + (n <= hosts % cells) for n in range(1, cells + 1)}
