"""`moor run`: one worker in this process, on real brokers and a real database."""

import logging
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from msgspec import structs

from bus.process import LOG_FORMAT, run_process
from cell_conductor.__main__ import run as run_conductor
from cell_conductor.settings import ConductorSettings
from compute_sim.__main__ import run as run_compute
from compute_sim.core.faults import FaultScript
from compute_sim.drivers import alike
from compute_sim.faults import BadScript, load_faults
from compute_sim.settings import ComputeSettings
from moor.options import BusUrl, DatabaseUrl, settled
from placement_worker.__main__ import run as run_placement
from placement_worker.settings import PlacementSettings
from scheduler_worker.__main__ import run as run_scheduler
from scheduler_worker.settings import SchedulerSettings


class Kind(StrEnum):
    PLACEMENT = "placement"
    SCHEDULER = "scheduler"
    CONDUCTOR = "conductor"
    COMPUTE = "compute"


def run_worker(
    worker: Annotated[
        Kind, typer.Argument(help="Which kind. Run as many of each as you like, but of computes one a cell.")
    ],
    bus: BusUrl = "",
    db: DatabaseUrl = "",
    *,
    cell: Annotated[
        str, typer.Option(envvar="MOOR_CELL", help="Which cell a conductor or the computes belong to.")
    ] = "",
    hosts: Annotated[
        int,
        typer.Option(envvar="MOOR_COMPUTE_HOSTS", min=1, help="How many hosts the computes pretend to be."),
    ] = 100,
    faults: Annotated[
        Path | None,
        typer.Option(envvar="MOOR_COMPUTE_FAULTS", help="What goes wrong on them: a TOML or JSON file."),
    ] = None,
) -> None:
    """Run one worker until it is told to stop; SIGTERM drains it. Placement and schedulers serve the cells that have a
    broker of their own (MOOR_CELL_BUS_URLS) there; a cell's own workers know that one alone.
    """
    logging.basicConfig(level="INFO", format=LOG_FORMAT)
    settings = settled(bus=bus, db=db, cells=cell)
    places = structs.replace(settings.places, bus_url=settings.bus_url)
    db = places.db_of(cell) if worker is Kind.CONDUCTOR else places.db_url
    if worker is not Kind.COMPUTE and not db:
        raise typer.BadParameter(f"a {worker.value} worker needs --db, or MOOR_DB_URL")
    if worker in (Kind.CONDUCTOR, Kind.COMPUTE) and (not cell or "," in cell):
        raise typer.BadParameter(f"a {worker.value} needs --cell, or MOOR_CELL: one cell, not {cell!r}")
    match worker:
        case Kind.PLACEMENT:
            run_process(run_placement(places, PlacementSettings()))
        case Kind.SCHEDULER:
            run_process(run_scheduler(places, SchedulerSettings()))
        case Kind.CONDUCTOR:
            run_process(run_conductor(cell, places.bus_of(cell), db, ConductorSettings()))
        case Kind.COMPUTE:
            script = _faults(faults)
            run_process(
                run_compute(places.bus_of(cell), alike(cell, hosts), ComputeSettings(cell=cell), script)
            )


def _faults(file: Path | None) -> FaultScript:
    try:
        return load_faults(file) if file else FaultScript()
    except BadScript as wrong:
        raise typer.BadParameter(str(wrong)) from None
