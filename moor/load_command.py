"""`moor load`: makes boots as fast as possible, measures what each costs, and audits the result."""

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
from moor.cloud_processes import Servers, WorkerEnded
from moor.load.firing import NoProgress
from moor.load.metal.results import as_json as metal_as_json
from moor.load.metal.results import as_table as metal_as_table
from moor.load.metal.running import DEFAULTS as METAL_DEFAULTS
from moor.load.metal.running import MetalPlan
from moor.load.metal.running import run_embedded as run_metal_embedded
from moor.load.metal.running import run_on_servers as run_metal_on_servers
from moor.load.results import as_json, as_table
from moor.load.running import Plan, run_embedded, run_on_servers
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
# How many workers of each kind a run has, conductors per cell. There is always one compute process per cell.
COUNTS = {"placement": 1, "scheduler": 1, "conductor": 1}


def load(
    *,
    boots: Annotated[int, typer.Option(min=1, max=10_000_000, help="How many instances to build.")] = 20_000,
    hosts: Annotated[int, typer.Option(min=1, max=100_000, help="Over how many simulated hosts.")] = 1000,
    cells: Annotated[int, typer.Option(min=1, max=100, help="In how many cells.")] = 2,
    bus: BusUrl = "",
    db: DatabaseUrl = "",
    placement_db: PlacementDatabaseUrl = "",
    failing: Annotated[
        float, typer.Option(min=0, max=1, help="The share of spawns that fail, from 0 to 1.")
    ] = 0.05,
    in_flight: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default=False,
            help="How many boots, or state changes, are under way at most. Default: 2000, or 100 on bare metal.",
        ),
    ] = None,
    bare_metal: Annotated[
        bool,
        typer.Option(
            "--bare-metal", help="Instead, change the states of bare-metal nodes and deploy onto them."
        ),
    ] = False,
    nodes: Annotated[
        int, typer.Option(min=10, max=20_000, help="With --bare-metal: how many simulated nodes.")
    ] = 500,
    daemons: Annotated[
        int, typer.Option(min=1, max=50, help="With --bare-metal: how many daemons manage them.")
    ] = 2,
    changes: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="With --bare-metal: how many state changes.")
    ] = 5_000,
    rate: Annotated[
        float,
        typer.Option(min=0, help="With --bare-metal: state changes per second; 0: as fast as possible."),
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
            help="How many placement, scheduler or conductor workers (conductors per cell). Default: one of each.",
        ),
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the figures to this file.")
    ] = None,
) -> None:
    """Build many instances as fast as possible, measure the cost of each, and audit the result.

    With --bus and --db the workers run on real servers, each as its own process. Without them, all run in this process.
    """
    if bool(bus) != bool(db):
        raise typer.BadParameter(
            "only one of --bus and --db is given: a real broker needs a real database; give both or neither"
        )
    if placement_db and not db:
        raise typer.BadParameter(
            f"--placement-db is {placement_db!r} without --db: then everything is in one SQLite file; give both or neither"
        )
    check_writable("--json", json)
    if hosts < cells:
        raise typer.BadParameter(f"--hosts is {hosts}, must be at least --cells, which is {cells}")
    servers = Servers(bus, db, placement_db, tuning().variables()) if bus else None
    counts = counts_of(workers or [])
    if workers and servers is None:
        raise typer.BadParameter(
            f"--workers is {', '.join(workers)} without --bus and --db: then one worker of each kind runs in this process"
        )
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
            lambda url: run_metal_embedded(metal, url, settings),
            None if servers is None else lambda: run_metal_on_servers(metal, servers, counts),
        )
        _print(json, metal_as_json(on_metal), metal_as_table(on_metal), passed=on_metal.audit.passed)
        return
    plan = Plan(boots=boots, cells=_spread(hosts, cells), failing=failing, in_flight=in_flight or IN_FLIGHT)
    result = _run(
        lambda url: run_embedded(plan, url, tuned_cloud()),
        None if servers is None else lambda: run_on_servers(plan, servers, counts),
    )
    _print(json, as_json(result), as_table(result), passed=result.audit.passed)


def _print(file: Path | None, figures: bytes, table: RenderableType, *, passed: bool) -> None:
    if file is not None:
        file.write_bytes(figures)
    out.print(table)
    if not passed:
        raise typer.Exit(1)


def _run(
    embedded: Callable[[str], Coroutine[Any, Any, R]],
    on_servers: Callable[[], Coroutine[Any, Any, R]] | None,
) -> R:
    """Run on servers if they were named; else embedded, with a temporary database."""
    try:
        if on_servers is not None:
            return run_process(on_servers())
        with tempfile.TemporaryDirectory(prefix="moor-load-") as directory:
            return run_process(embedded(f"sqlite+aiosqlite:///{Path(directory) / 'moor.db'}"))
    except asyncio.CancelledError:
        fail("stopped by a signal")
    except ConnectionLost as lost:
        fail(f"no broker: {lost}")
    except (Refusal, Failure, NoProgress, WorkerEnded) as problem:
        fail(str(problem))


def counts_of(workers: Sequence[str]) -> Mapping[str, int]:
    counts = dict(COUNTS)
    for each in workers:
        kind, _, number = each.partition("=")
        if kind not in counts or not number.isdecimal() or not int(number):
            raise typer.BadParameter(
                f"--workers is {each!r}: must be KIND=N, where KIND is one of {', '.join(counts)} and N at least 1"
            )
        counts[kind] = int(number)
    return counts


def _spread(hosts: int, cells: int) -> dict[str, int]:
    """Spread the hosts evenly over the cells; the first cells get the remainder."""
    return {f"c{n}": hosts // cells + (n <= hosts % cells) for n in range(1, cells + 1)}
