"""`moor run`: a worker in this process, on a real broker and database."""

import asyncio
import logging
from typing import Annotated

import typer

from moor.options import BusUrl, DatabaseUrl
from placement_worker.__main__ import run as run_placement
from placement_worker.settings import PlacementSettings

WORKERS = ("placement",)


def run_workers(
    workers: Annotated[list[str], typer.Argument(metavar="WORKER...", help=f"Which: {', '.join(WORKERS)}.")],
    bus: BusUrl,
    db: DatabaseUrl,
) -> None:
    """Run workers until told to stop; SIGTERM drains them."""
    unknown = sorted(set(workers) - set(WORKERS))
    if unknown:
        raise typer.BadParameter(f"no worker {', '.join(unknown)}; there is {', '.join(WORKERS)}")
    logging.basicConfig(level="INFO", format="%(asctime)s %(name)s %(levelname)s %(message)s")
    asyncio.run(run_placement(bus, db, PlacementSettings()))
