"""The cloud of the demo, embedded or on real servers, and what is asked of it."""

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
from compute_sim.core.faults import Changes, FailsToBuild, FallsSilent, FaultScript
from compute_sim.drivers import alike
from moor.cloud import cloud
from moor.cloud_apart import Servers, cloud_apart
from moor.demo.concluding import conclude
from moor.demo.picture import CELLS, TINKERED, picture
from moor.demo.tally import Tally
from moor.load.auditing import all_hosts, all_providers
from moor.options import out
from moor.request_ids import new_request_ids
from moor.tuning import CloudSettings
from placement_worker.store_sql import SqlPlacementStore

SMALL = Flavor(name="small", vcpus=12, ram_mb=8192, root_gb=20)
GIANT = Flavor(name="giant", vcpus=500, ram_mb=8192, root_gb=20)
# Not what one would wish for: one build in twenty fails, some hosts fall silent now and then, and others never stay
# what they are for long.
MISFORTUNES = FaultScript(
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


class Play:
    """So many boots over so many hosts."""

    def __init__(self, boots: int, hosts: int) -> None:
        self.boots = boots
        self.hosts = {cell: hosts // len(CELLS) + (n < hosts % len(CELLS)) for n, cell in enumerate(CELLS)}


async def play_embedded(play: Play, settings: CloudSettings) -> None:
    """All in this process; what it leaves is thrown away."""
    broker = MemoryBroker(alone=True).as_user()
    hosts = {cell: alike(cell, count) for cell, count in play.hosts.items()}
    with tempfile.TemporaryDirectory(prefix="moor-demo-") as place:
        url = f"sqlite+aiosqlite:///{Path(place) / 'moor.db'}"
        async with (
            cloud(broker, url, hosts, faults=MISFORTUNES, settings=settings) as store,
            client_on(broker) as client,
        ):
            await _play(play, client, store, "a bus in memory and SQLite")


async def play_apart(play: Play, servers: Servers) -> None:
    """Each worker in a process of its own, on these servers; what was built is deleted again."""
    broker = broker_at(servers.bus_url)
    # What is stated of each of them by its own variable goes before this.
    environment = {"MOOR_ATTEMPT_TIMEOUT_S": str(ATTEMPT_TIMEOUT_S), **servers.environment}
    out.print("[dim]starting a process for each worker …[/dim]")
    async with cloud_apart(broker, environment, play.hosts, WORKERS, MISFORTUNES) as crew:
        names = ", ".join(worker.name for worker in crew.workers)
        out.print(f"[dim]{names}[/dim]\n", highlight=False)
        store = SqlPlacementStore(servers.placement_url or servers.database_url)
        try:
            async with client_on(broker) as client:
                await crew.during(_play(play, client, store, "RabbitMQ and PostgreSQL", tidies=True))
        finally:
            await store.close()


@asynccontextmanager
async def client_on(broker: Broker) -> AsyncIterator[Station]:
    client = Station(broker, process_name("demo"), asks=True)
    told = asyncio.Event()
    running = asyncio.create_task(run_until(told, (client,), drain_s_max=5))
    try:
        yield client
    finally:
        told.set()
        await running
        await client.close()


async def _play(
    play: Play, client: Station, store: SqlPlacementStore, servers: str, *, tidies: bool = False
) -> None:
    async with asyncio.timeout(PATIENCE_S), hearing(client) as feed:
        tally = Tally(play.boots + 1)
        await _until_up(client, play)
        for provider in [provider async for provider in all_providers(client)]:
            tally.providers[provider.id] = provider
        title = f"[bold]Moorage[/bold]  {play.boots:,} boots, {sum(play.hosts.values()):,} hosts, {len(CELLS)} cells, {servers}"
        with _live(tally, title) as live:
            await _boot(client, feed, tally, play)
            live.refresh()
        await conclude(client, tally, await store.audit())
        if tidies:
            await _tidy(client, feed, tally)


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
    return Live(get_renderable=lambda: picture(tally, title), console=out, refresh_per_second=REFRESH_PER_S)


async def _until_up(client: Station, play: Play) -> None:
    """A host that nobody has heard of is not chosen: wait for all of them."""
    wanted = {host.name for cell, count in play.hosts.items() for host in alike(cell, count)}
    known: set[str] = set()
    while not wanted <= known:
        await asyncio.sleep(0.05)
        try:
            up = {host.name async for host in all_hosts(client) if host.up}
            known = up & {provider.name async for provider in all_providers(client)}
        except Unavailable:
            # Nobody is there to answer yet.
            continue


async def _boot(client: Station, feed: Feed, tally: Tally, play: Play) -> None:
    """Ask for all of them, and for one that cannot be; then listen until each has ended."""
    wanted = [(f"web-{number:04}", SMALL) for number in range(1, play.boots + 1)] + [("giant", GIANT)]
    # Another time it is asked for others: the same ids would be the same requests, which have ended already.
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
    """Not all at once, but over a few seconds: hosts are to have the time to change between one and the next."""
    at_once = ceil(len(requests) / ASKING_TIMES)
    for at in range(0, len(requests), at_once):
        await client.publisher.send_all([Outgoing(each) for each in requests[at : at + at_once]])
        await asyncio.sleep(ASKING_S / ASKING_TIMES)


async def _tidy(client: Station, feed: Feed, tally: Tally) -> None:
    """These servers are somebody's: nothing of ours stays in use there."""
    out.print("[dim]deleting what was built …[/dim]")
    await client.publisher.send_all([Outgoing(DeleteInstance(instance=id_)) for id_ in tally.states])
    while not tally.deleted >= tally.states.keys():
        for heard in await anext(feed):
            tally.hear(heard.message)
    out.print(f"[green]✓[/green] {len(tally.deleted):,} instances are deleted again")
