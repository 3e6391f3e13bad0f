"""`moor demo`: a thousand instances find their homes, while hosts fail, fall silent and change under them."""

import asyncio
import os
from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from bus.broker import ConnectionLost, Refusal
from bus.errors import Failure
from bus.process import run_process
from moor.cloud_apart import Servers, WorkerEnded
from moor.demo.metal.playing import PATIENCE_S as METAL_PATIENCE_S
from moor.demo.metal.playing import Play as MetalPlay
from moor.demo.metal.playing import play as play_metal
from moor.demo.metal.stage import DEFAULTS as METAL_DEFAULTS
from moor.demo.metal.stage import embedded, metal_of
from moor.demo.metal.stage import play_apart as metal_apart
from moor.demo.playing import DEFAULTS, PATIENCE_S, Play, play_apart, play_embedded
from moor.options import PlacementDatabaseUrl, fail, log_as, tuned_cloud, tuning

# With fewer there may be no conflict to be won.
BOOTS_MIN = 300


def demo(
    *,
    boots: Annotated[
        int, typer.Option(min=BOOTS_MIN, max=100_000, help="How many instances to build.")
    ] = 1000,
    hosts: Annotated[int, typer.Option(min=20, max=10_000, help="Over how many hosts, in two cells.")] = 200,
    bare_metal: Annotated[
        bool,
        typer.Option(
            "--bare-metal",
            help="Build on bare-metal nodes instead, while some go into maintenance and a daemon is killed.",
        ),
    ] = False,
    nodes: Annotated[
        int, typer.Option(min=20, max=2_000, help="With --bare-metal: how many nodes, in two cells.")
    ] = 100,
    daemons: Annotated[
        int, typer.Option(min=2, max=20, help="With --bare-metal: how many daemons keep them.")
    ] = 3,
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
    if bare_metal:
        # Deploys fail on purpose, and a daemon is missed: the picture tells of it.
        log_as(os.environ, level="ERROR")
    servers = Servers(bus, db, placement_db, tuning().variables()) if bus else None
    patience_s = METAL_PATIENCE_S if bare_metal else PATIENCE_S
    try:
        run_process(
            _on_metal(MetalPlay(nodes, daemons), servers)
            if bare_metal
            else _on_hosts(Play(boots, hosts), servers)
        )
    except TimeoutError:
        fail(f"not everything ended within {patience_s:.0f} s")
    except asyncio.CancelledError:
        fail("told to end")
    except ConnectionLost as lost:
        fail(f"no broker: {lost}")
    except (Refusal, Failure, WorkerEnded) as problem:
        fail(str(problem))


def _on_hosts(play: Play, servers: Servers | None) -> Coroutine[Any, Any, None]:
    return play_embedded(play, tuned_cloud(DEFAULTS)) if servers is None else play_apart(play, servers)


async def _on_metal(play: MetalPlay, servers: Servers | None) -> None:
    metal = metal_of(play.nodes, play.daemons)
    if servers is not None:
        await metal_apart(metal, servers, lambda stage: play_metal(play, stage, tidies=True))
        return
    async with embedded(metal, tuned_cloud(METAL_DEFAULTS)) as stage:
        await play_metal(play, stage)
