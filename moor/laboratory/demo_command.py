"""`moor demo`: builds a thousand instances while hosts fail, stop answering and change their traits."""

import os
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Annotated, Any

import typer

from bus.process import run_process
from moor.clouds.cloud_processes import Servers, servers_at
from moor.laboratory.demo import running as demo_run
from moor.laboratory.demo.metal import running as metal_run
from moor.laboratory.temporary_cloud import CloudPlan, TemporaryCloud, temporary_cloud
from moor.options import PlacementDatabaseUrl, SchedulerFlags, fail, log_as, out, run, tuned_cloud

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
    scheduler: SchedulerFlags = None,
) -> None:
    """Watch a thousand boots over two hundred hosts in two cells, some of which misbehave.

    By default all workers run in this process, on a bus in memory and SQLite. With --bus and --db they run on real servers,
    each worker as its own process.
    """
    servers = servers_at(bus, db, placement_db)
    if bare_metal:
        # Deploys fail on purpose and a daemon is killed; the screen shows both, so warnings would only disturb it.
        log_as(os.environ, level="ERROR")
        metal = metal_run.MetalDemoPlan(nodes, daemons)
        cloud, work = (
            metal.cloud(tuned_cloud(metal_run.DEFAULTS, scheduler)),
            partial(metal_run.run_demo, metal),
        )
    else:
        plan = demo_run.DemoPlan(boots, hosts)
        cloud, work = plan.cloud(tuned_cloud(demo_run.DEFAULTS, scheduler)), partial(demo_run.run_demo, plan)
    patience_s = metal_run.PATIENCE_S if bare_metal else demo_run.PATIENCE_S
    try:
        run(_run(cloud, servers, work), by=run_process)
    except TimeoutError:
        fail(f"not everything ended within {patience_s:.0f} s")


async def _run(
    plan: CloudPlan, servers: Servers | None, work: Callable[[TemporaryCloud], Coroutine[Any, Any, None]]
) -> None:
    if servers:
        out.print("[dim]starting a process for each worker …[/dim]")
    async with temporary_cloud(plan, servers) as cloud:
        if servers:
            out.print(f"[dim]{', '.join(each.name for each in cloud.workers)}[/dim]\n")
        await cloud.during(work(cloud))
