"""Runs the demo: starts its cloud, embedded or on real servers, and sends the requests."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from math import ceil
from pathlib import Path

from rich.live import Live

from bus.broker import Broker
from bus.codec import CODEC
from bus.errors import Unavailable
from bus.handling import Received
from bus.link import Link
from bus.listening import listen
from bus.memory import MemoryBroker
from bus.message import Message
from bus.messages.build import BuildInstance, DeleteInstance, Flavor
from bus.process import run_until
from bus.publisher import Outgoing
from bus.station import Station, process_name
from bus.topology import EVENTS, Grant
from bus.urls import broker_at
from cell_conductor.settings import ConductorSettings
from compute_sim.simulated.faults import Changes, FailsToBuild, FallsSilent, FaultScript
from compute_sim.simulated.hosts import equal_hosts
from moor.cloud import cloud
from moor.cloud_processes import Servers, cloud_in_processes
from moor.demo.checking import conclude
from moor.demo.screen import CELLS, TINKERED, screen
from moor.demo.tally import Tally
from moor.load.auditing import all_hosts, all_providers
from moor.options import out
from moor.request_ids import new_request_ids
from moor.tuning import CloudSettings
from placement_worker.store_sql import SqlPlacementStore

SMALL = Flavor(name="small", vcpus=12, ram_mb=8192, root_gb=20)
GIANT = Flavor(name="giant", vcpus=500, ram_mb=8192, root_gb=20)
# One build in twenty fails, some hosts stop answering for a while, and others change their traits again and again.
FAULTS = FaultScript(
    seed=7,
    spawn_ms=300.0,
    faults=(
        FailsToBuild(probability=0.05),
        FallsSilent(share=0.03, after_s=0.5, for_s=3.0, every_s=4.5),
        *(
            Changes(share=0.06, after_s=after_s, for_s=0.15, every_s=0.3, traits_gained=(TINKERED,))
            for after_s in (0.3, 0.32, 0.34, 0.37, 0.39, 0.41)
        ),
    ),
)
ATTEMPT_TIMEOUT_S = 3.0
DEFAULTS = CloudSettings(
    conductor=ConductorSettings(
        attempt_timeout_s=ATTEMPT_TIMEOUT_S, remind_every_s=ATTEMPT_TIMEOUT_S, poll_ms=100.0
    )
)
WORKERS = {"placement": 1, "scheduler": 2, "conductor": 1}
ASKING_S, ASKING_TIMES = 3.0, 60
PATIENCE_S = 90.0
REFRESH_PER_S = 8

Feed = AsyncGenerator[Sequence[Received[Message]], None]


class DemoPlan:
    """How many boots, over how many hosts in each cell."""

    def __init__(self, boots: int, hosts: int) -> None:
        self.boots = boots
        self.hosts = {cell: hosts // len(CELLS) + (n < hosts % len(CELLS)) for n, cell in enumerate(CELLS)}


async def run_embedded(plan: DemoPlan, settings: CloudSettings) -> None:
    """Run all workers in this process, and delete the database at the end."""
    broker = MemoryBroker().as_user()
    hosts = {cell: equal_hosts(cell, count) for cell, count in plan.hosts.items()}
    with tempfile.TemporaryDirectory(prefix="moor-demo-") as directory:
        url = f"sqlite+aiosqlite:///{Path(directory) / 'moor.db'}"
        async with (
            cloud(broker, url, hosts, faults=FAULTS, settings=settings) as store,
            client_on(broker) as client,
        ):
            await _run(plan, client, store, "a bus in memory and SQLite")


async def run_on_servers(plan: DemoPlan, servers: Servers) -> None:
    """Run each worker as its own process on these servers, and delete the built instances at the end."""
    broker = broker_at(servers.bus_url)
    # A variable that the operator set overrides the demo's value.
    environment = {"MOOR_ATTEMPT_TIMEOUT_S": str(ATTEMPT_TIMEOUT_S), **servers.environment}
    out.print("[dim]starting a process for each worker …[/dim]")
    async with cloud_in_processes(broker, environment, plan.hosts, WORKERS, FAULTS) as processes:
        names = ", ".join(worker.name for worker in processes.workers)
        out.print(f"[dim]{names}[/dim]\n", highlight=False)
        store = SqlPlacementStore(servers.placement_url or servers.database_url)
        try:
            async with client_on(broker) as client:
                await processes.during(_run(plan, client, store, "RabbitMQ and PostgreSQL", cleans_up=True))
        finally:
            await store.close()


@asynccontextmanager
async def client_on(broker: Broker) -> AsyncIterator[Station]:
    client = Station(broker, process_name("demo"), asks=True)
    stop = asyncio.Event()
    running = asyncio.create_task(run_until(stop, (client,), drain_s_max=5))
    try:
        yield client
    finally:
        stop.set()
        await running
        await client.close()


async def _run(
    plan: DemoPlan, client: Station, store: SqlPlacementStore, servers: str, *, cleans_up: bool = False
) -> None:
    async with asyncio.timeout(PATIENCE_S), hearing(client) as feed:
        tally = Tally(plan.boots + 1)
        await _until_up(client, plan)
        for provider in [provider async for provider in all_providers(client)]:
            tally.providers[provider.id] = provider
        title = f"[bold]Moorage[/bold]  {plan.boots:,} boots, {sum(plan.hosts.values()):,} hosts, {len(CELLS)} cells, {servers}"
        with _live(tally, title) as live:
            await _boot(client, feed, tally, plan)
            live.refresh()
        await conclude(client, tally, await store.audit())
        if cleans_up:
            await _delete_all(client, feed, tally)


@asynccontextmanager
async def hearing(client: Station) -> AsyncIterator[Feed]:
    link = Link(client.consuming.broker, client.settings)
    grant = Grant(EVENTS, ("instance.#", "providers.changed"))
    feed = listen(link, [grant], process=client.name, settings=client.settings, codec=CODEC)
    await anext(feed)
    try:
        yield feed
    finally:
        await feed.aclose()
        await link.close()


def _live(tally: Tally, title: str) -> Live:
    return Live(get_renderable=lambda: screen(tally, title), console=out, refresh_per_second=REFRESH_PER_S)


async def _until_up(client: Station, plan: DemoPlan) -> None:
    """Wait until all hosts are known: schedulers never choose an unknown host."""
    wanted = {host.name for cell, count in plan.hosts.items() for host in equal_hosts(cell, count)}
    known: set[str] = set()
    while not wanted <= known:
        await asyncio.sleep(0.05)
        try:
            up = {host.name async for host in all_hosts(client) if host.up}
            known = up & {provider.name async for provider in all_providers(client)}
        except Unavailable:
            # The workers that answer are still starting.
            continue


async def _boot(client: Station, feed: Feed, tally: Tally, plan: DemoPlan) -> None:
    """Send all requests, and one that fits on no host; then hear events until each has ended."""
    wanted = [(f"web-{number:04}", SMALL) for number in range(1, plan.boots + 1)] + [("giant", GIANT)]
    # Each run draws new ids: with the same ids, a second run would repeat requests that have ended already.
    requests = [
        BuildInstance(request_id=id_, flavor=flavor, name=name, project="demo")
        for id_, (name, flavor) in zip(new_request_ids(len(wanted)), wanted, strict=True)
    ]
    tally.begin()
    async with asyncio.TaskGroup() as asking:
        asking.create_task(_ask(client, requests))
        while not tally.is_over:
            for heard in await anext(feed):
                tally.hear(heard.message)


async def _ask(client: Station, requests: Sequence[BuildInstance]) -> None:
    """Send the requests in batches over a few seconds, so that hosts change between them."""
    batch = ceil(len(requests) / ASKING_TIMES)
    for at in range(0, len(requests), batch):
        await client.publisher.send_all([Outgoing(each) for each in requests[at : at + batch]])
        await asyncio.sleep(ASKING_S / ASKING_TIMES)


async def _delete_all(client: Station, feed: Feed, tally: Tally) -> None:
    """Delete all instances: the servers may belong to someone, and the demo leaves nothing in use there."""
    out.print("[dim]deleting what was built …[/dim]")
    await client.publisher.send_all([Outgoing(DeleteInstance(instance=id_)) for id_ in tally.states])
    while not tally.deleted >= tally.states.keys():
        for heard in await anext(feed):
            tally.hear(heard.message)
    out.print(f"[green]✓[/green] {len(tally.deleted):,} instances are deleted again")
