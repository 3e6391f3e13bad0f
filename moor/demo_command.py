"""`moor demo`: a thousand instances find their homes, while hosts fail, fall silent and change under them."""

import asyncio
from typing import Annotated

import typer

from bus.broker import ConnectionLost, Refusal
from bus.errors import Failure
from bus.process import run_process
from moor.cloud_apart import Servers, WorkerEnded
from moor.demo.playing import DEFAULTS, PATIENCE_S, Play, play_apart, play_embedded
from moor.options import PlacementDatabaseUrl, fail, tuned_cloud, tuning

# With fewer there may be no conflict to be won.
BOOTS_MIN = 300


def demo(
    boots: Annotated[
        int, typer.Option(min=BOOTS_MIN, max=100_000, help="How many instances to build.")
    ] = 1000,
    hosts: Annotated[int, typer.Option(min=20, max=10_000, help="Over how many hosts, in two cells.")] = 200,
    bus: Annotated[
        str, typer.Option(metavar="URL", help="A real broker: amqp://user:password@host/vhost")
    ] = "",
    db: Annotated[
        str, typer.Option(metavar="URL", help="A real database: postgresql+asyncpg://user:password@host/name")
    ] = "",
    placement_db: PlacementDatabaseUrl = "",
) -> None:
    """A thousand boots over two hundred hosts in two cells, some of which misbehave; watch them find their homes.

    All in this process, on a bus in memory and SQLite; or with --bus and --db on real servers, a process for each worker.
    """
    if bool(bus) != bool(db):
        raise typer.BadParameter(
            "a real broker wants a real database, and the other way round: --bus and --db, or neither"
        )
    if placement_db and not db:
        raise typer.BadParameter("--placement-db: without --db everything is in one SQLite file")
    play = Play(boots, hosts)
    settings, variables = tuned_cloud(DEFAULTS), tuning().variables()
    try:
        run_process(
            play_apart(play, Servers(bus, db, placement_db, variables))
            if bus
            else play_embedded(play, settings)
        )
    except TimeoutError:
        fail(f"not everything ended within {PATIENCE_S:.0f} s")
    except asyncio.CancelledError:
        fail("told to end")
    except ConnectionLost as lost:
        fail(f"no broker: {lost}")
    except (Refusal, Failure, WorkerEnded) as problem:
        fail(str(problem))
