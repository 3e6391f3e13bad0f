"""`moor demo`: builds a thousand instances while hosts fail, stop answering and change their traits."""

import asyncio
import os
from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from bus.broker import ConnectionLost, Refusal
from bus.errors import Failure
from bus.process import run_process
from moor.cloud_processes import Servers, WorkerEnded
from moor.demo.metal.clouds import DEFAULTS as METAL_DEFAULTS
from moor.demo.metal.clouds import embedded, metal_of
from moor.demo.metal.clouds import run_on_servers as run_metal_on_servers
from moor.demo.metal.running import PATIENCE_S as METAL_PATIENCE_S
from moor.demo.metal.running import MetalDemoPlan
from moor.demo.metal.running import run_demo as run_metal
from moor.demo.running import DEFAULTS, PATIENCE_S, DemoPlan, run_embedded, run_on_servers
from moor.options import PlacementDatabaseUrl, fail, log_as, tuned_cloud, tuning

# With fewer boots there may be no conflict to show.
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
        int, typer.Option(min=2, max=20, help="With --bare-metal: how many daemons manage them.")
    ] = 3,
    bus: Annotated[
        str, typer.Option(metavar="URL", help="A real broker: amqp://user:password@host/vhost")
    ] = "",
    db: Annotated[
        str, typer.Option(metavar="URL", help="A real database: postgresql+asyncpg://user:password@host/name")
    ] = "",
    placement_db: PlacementDatabaseUrl = "",
) -> None:
    """Watch a thousand boots over two hundred hosts in two cells, some of which misbehave.

    By default all workers run in this process, on a bus in memory and SQLite. With --bus and --db they run on real servers,
    each worker as its own process.
    """
    if bool(bus) != bool(db):
        raise typer.BadParameter(
            "only one of --bus and --db is given: a real broker needs a real database; give both or neither"
        )
    if placement_db and not db:
        raise typer.BadParameter(
            f"--placement-db is {placement_db!r} without --db: then everything is in one SQLite file; give both or neither"
        )
    if bare_metal:
        # Deploys fail on purpose and a daemon is killed; the screen shows both, so warnings would only disturb it.
        log_as(os.environ, level="ERROR")
    servers = Servers(bus, db, placement_db, tuning().variables()) if bus else None
    patience_s = METAL_PATIENCE_S if bare_metal else PATIENCE_S
    try:
        run_process(
            _on_metal(MetalDemoPlan(nodes, daemons), servers)
            if bare_metal
            else _on_hosts(DemoPlan(boots, hosts), servers)
        )
    except TimeoutError:
        fail(f"not everything ended within {patience_s:.0f} s")
    except asyncio.CancelledError:
        fail("stopped by a signal")
    except ConnectionLost as lost:
        fail(f"no broker: {lost}")
    except (Refusal, Failure, WorkerEnded) as problem:
        fail(str(problem))


def _on_hosts(plan: DemoPlan, servers: Servers | None) -> Coroutine[Any, Any, None]:
    return run_embedded(plan, tuned_cloud(DEFAULTS)) if servers is None else run_on_servers(plan, servers)


async def _on_metal(plan: MetalDemoPlan, servers: Servers | None) -> None:
    metal = metal_of(plan.nodes, plan.daemons)
    if servers is not None:
        await run_metal_on_servers(metal, servers, lambda cloud: run_metal(plan, cloud, cleans_up=True))
        return
    async with embedded(metal, tuned_cloud(METAL_DEFAULTS)) as cloud:
        await run_metal(plan, cloud)
