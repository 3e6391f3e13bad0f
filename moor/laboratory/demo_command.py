"""`moor demo`: builds a thousand instances while hosts fail, stop answering and change their traits."""

import asyncio
import os
from enum import StrEnum
from typing import Annotated

import typer

from bus.process import run_process
from moor.clouds.cloud_processes import Servers, servers_at
from moor.laboratory.demo.metal.running import MetalDemoPlan
from moor.laboratory.demo.running import DemoPlan
from moor.laboratory.private_servers.starting import DidNotStartError
from moor.laboratory.temporary_cloud import temporary_cloud
from moor.options import PlacementDatabaseUrl, SchedulerFlags, fail, log_as, out, run, tuned_cloud
from moor.worker_settings import CloudSettings

# With fewer boots there may be no conflict to show.
BOOTS_MIN = 300


class GuestsOf(StrEnum):
    QEMU = "qemu"
    KVM = "kvm"


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
    libvirt: Annotated[
        bool,
        typer.Option(
            "--libvirt",
            help="Build twenty real guests of QEMU instead, on libvirtds of the demo's own; needs libvirt and QEMU.",
        ),
    ] = False,
    domain_type: Annotated[
        GuestsOf,
        typer.Option(
            help="With --libvirt: qemu emulates, and works everywhere; kvm is faster, where the machine has it."
        ),
    ] = GuestsOf.QEMU,
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
    if libvirt:
        _with_guests(domain_type, servers, scheduler)
        return
    plan: DemoPlan | MetalDemoPlan = DemoPlan(boots, hosts)
    if bare_metal:
        # Deploys fail on purpose and a daemon is killed; the screen shows both, so warnings would only disturb it.
        log_as(os.environ, level="ERROR")
        plan = MetalDemoPlan(nodes, daemons)
    settings = tuned_cloud(plan.defaults, scheduler)
    try:
        run(_run(plan, settings, servers), by=run_process)
    except TimeoutError:
        fail(f"not everything ended within {plan.patience_s:.0f} s")


def _with_guests(domain_type: GuestsOf, servers: Servers | None, scheduler: SchedulerFlags) -> None:
    if servers:
        raise typer.BadParameter("--libvirt runs on a bus in memory and SQLite: leave --bus and --db out")
    try:
        # It needs libvirt's own library, which nothing else of the demo does.
        from moor.laboratory.demo.guests.running import GuestDemoPlan, run_guests  # noqa: PLC0415
    except ImportError as missing:
        fail(f"{missing}: the demo with libvirt needs libvirt-python: pip install 'moorage[libvirt]'")
    # A libvirtd is killed; the demo shows what follows.
    log_as(os.environ, level="ERROR")
    plan = GuestDemoPlan(domain_type.value)
    settings = tuned_cloud(plan.defaults, scheduler)
    try:
        run(run_guests(plan, settings), by=run_process)
    except TimeoutError:
        fail(f"not everything ended within {plan.patience_s:.0f} s")
    except DidNotStartError as failed:
        fail(str(failed))


async def _run(plan: DemoPlan | MetalDemoPlan, settings: CloudSettings, servers: Servers | None) -> None:
    if servers:
        out.print("[dim]starting a process for each worker …[/dim]")
    async with temporary_cloud(plan.cloud(settings), servers) as cloud:
        if servers:
            out.print(f"[dim]{', '.join(each.name for each in cloud.workers)}[/dim]\n")
        async with asyncio.timeout(plan.patience_s):
            await cloud.during(plan.run(cloud))
