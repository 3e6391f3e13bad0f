"""Runs the demo: sends the requests, and hears the events until all has ended. The bare-metal demo uses most of this too."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from math import ceil
from typing import ClassVar

from msgspec import Struct
from rich.console import RenderableType
from rich.live import Live

from bus.messages.build import BuildInstance, DeleteInstance, Flavor, InstanceId
from bus.messages.hosts import HostState
from bus.workers.publisher import Outgoing
from cell_conductor.settings import ConductorSettings
from compute_sim.laboratory.faults import Changes, FailsToBuild, FallsSilent, FaultScript
from compute_sim.settings import ComputeSettings
from moor.asking import Feed, during, hearing, providers_of, until_choosable
from moor.instances.request_ids import new_request_ids
from moor.laboratory.at_rest import is_in_use, problems_left
from moor.laboratory.demo.checking import conclude
from moor.laboratory.demo.screen import CELLS, TINKERED, screen
from moor.laboratory.demo.tally import Tally
from moor.laboratory.temporary_cloud import CloudPlan, TemporaryCloud, spread
from moor.options import fail, out
from moor.worker_settings import CloudSettings
from scheduler_worker.core.instances.rows import instance_id_of

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
# A host that stops answering again and again tells in between how many instances it has.
FACTS_EVERY_S = 0.5
WORKERS = {"placement": 1, "scheduler": 2, "conductor": 1}
ASKING_S, ASKING_TIMES = 3.0, 50
LOOK_EVERY_S = 0.1
REFRESH_PER_S = 8


class DemoPlan(Struct, frozen=True):
    """A demo on simulated hosts. It fails if it takes longer than `patience_s`."""

    boots: int
    hosts: int

    patience_s: ClassVar = 90.0
    defaults: ClassVar = CloudSettings(
        compute=ComputeSettings(facts_every_s=FACTS_EVERY_S),
        conductor=ConductorSettings(
            attempt_timeout_s=ATTEMPT_TIMEOUT_S, remind_every_s=ATTEMPT_TIMEOUT_S, poll_ms=100.0
        ),
    )

    def cloud(self, settings: CloudSettings) -> CloudPlan:
        cells = spread(self.hosts, CELLS)
        return CloudPlan(role="demo", cells=cells, counts=WORKERS, settings=settings, faults=FAULTS)

    async def run(self, cloud: TemporaryCloud) -> None:
        tally = Tally(self.boots + 1)
        names = self.cloud(self.defaults).host_names
        async with listening(cloud, tally, lambda hosts: names <= {host.name for host in hosts}) as feed:
            await during(_run(self, cloud, tally), hear(feed, tally))


async def _run(plan: DemoPlan, cloud: TemporaryCloud, tally: Tally) -> None:
    title = f"{plan.boots:,} boots, {plan.hosts:,} hosts, {len(CELLS)} cells, {servers_of(cloud)}"
    with live(lambda: screen(tally, title)) as drawn:
        # One request fits on no host.
        wanted = [(f"web-{number:04}", SMALL) for number in range(1, plan.boots + 1)] + [("giant", GIANT)]
        tally.begin()
        await ask(cloud, tally, wanted, ASKING_S)
        await until(lambda: tally.is_over)
        drawn.refresh()
    conclude(tally, await problems_left(cloud, tally.asked()))
    await clean_up(cloud, tally, [*tally.states])


@asynccontextmanager
async def listening(
    cloud: TemporaryCloud, tally: Tally, are_enough: Callable[[Sequence[HostState]], bool]
) -> AsyncIterator[Feed]:
    """Wait until schedulers can choose enough hosts, and yield a feed of events.

    The subscription begins before the wait, so that the feed misses no event.
    """
    async with hearing(cloud.client, "instance.#", "providers.changed") as feed:
        await until_choosable(cloud.client, are_enough)
        providers = await providers_of(cloud.client)
        if is_in_use(providers):
            fail("some inventory is already in use: the demo needs servers on which nothing is in use")
        tally.providers.update({each.id: each for each in providers})
        yield feed


async def hear(feed: Feed, tally: Tally) -> None:
    async for batch in feed:
        for heard in batch:
            tally.hear(heard.message)


def live(render: Callable[[], RenderableType]) -> Live:
    return Live(get_renderable=render, console=out, refresh_per_second=REFRESH_PER_S)


def servers_of(cloud: TemporaryCloud) -> str:
    return "RabbitMQ and PostgreSQL" if cloud.workers else "a bus in memory and SQLite"


async def until(is_so: Callable[[], bool]) -> None:
    while True:
        if is_so():
            return
        await asyncio.sleep(LOOK_EVERY_S)


async def ask(
    cloud: TemporaryCloud, tally: Tally, wanted: Sequence[tuple[str, Flavor]], asking_s: float
) -> None:
    """Send the requests in batches over a few seconds, so that hosts change between them."""
    # Each run draws new ids: with the same ids, a second run would repeat requests that have ended already.
    requests = []
    for id_, (name, flavor) in zip(new_request_ids(len(wanted)), wanted, strict=True):
        tally.flavors[instance_id_of(id_, 0)] = flavor
        requests.append(Outgoing(BuildInstance(request_id=id_, flavor=flavor, name=name, project="demo")))
    batch = ceil(len(requests) / ASKING_TIMES)
    for at in range(0, len(requests), batch):
        await cloud.client.publisher.send_all(requests[at : at + batch])
        await asyncio.sleep(asking_s / ASKING_TIMES)


async def delete(cloud: TemporaryCloud, tally: Tally, ids: Sequence[InstanceId]) -> None:
    await cloud.client.publisher.send_all([Outgoing(DeleteInstance(instance=id_)) for id_ in ids])
    await until(lambda: tally.deleted >= {*ids})


async def clean_up(cloud: TemporaryCloud, tally: Tally, ids: Sequence[InstanceId]) -> None:
    """Delete these instances on real servers, which may belong to someone: the demo leaves nothing in use there."""
    if cloud.workers:
        out.print("[dim]deleting what was built …[/dim]")
        await delete(cloud, tally, ids)
        out.print(f"[green]✓[/green] {len(tally.deleted):,} instances are deleted again")
