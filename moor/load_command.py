"""`moor load`: so many boots as fast as they go, what each costs whom, and whether all the books agree afterwards."""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from bus.broker import ConnectionLost, Refusal
from bus.errors import Failure
from bus.process import run_process
from moor.cloud_apart import Servers, WorkerEnded
from moor.load.firing import Silence
from moor.load.results import LoadResult, as_json, as_table
from moor.load.running import Plan, run_apart, run_embedded
from moor.options import BusUrl, DatabaseUrl, PlacementDatabaseUrl, fail, out, tuned_cloud, tuning
from moor.tuning import CloudSettings

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
    in_flight: Annotated[int, typer.Option(min=1, help="How many boots are under way at most.")] = 2000,
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
    if hosts < cells:
        raise typer.BadParameter(f"--hosts is {hosts}, must be at least --cells, which is {cells}")
    plan = Plan(boots=boots, cells=_spread(hosts, cells), failing=failing, in_flight=in_flight)
    servers = Servers(bus, db, placement_db, tuning().variables()) if bus else None
    result = _run(plan, servers, tuned_cloud(), workers or [])
    if json is not None:
        json.write_bytes(as_json(result))
    out.print(as_table(result))
    if not result.audit.passed:
        raise typer.Exit(1)


def _run(plan: Plan, servers: Servers | None, settings: CloudSettings, workers: Sequence[str]) -> LoadResult:
    try:
        if servers is not None:
            return run_process(run_apart(plan, servers, counts_of(workers)))
        if workers:
            raise typer.BadParameter("--workers: embedded, all workers are in this process, one of each kind")
        with tempfile.TemporaryDirectory(prefix="moor-load-") as place:
            return run_process(run_embedded(plan, f"sqlite+aiosqlite:///{Path(place) / 'moor.db'}", settings))
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
