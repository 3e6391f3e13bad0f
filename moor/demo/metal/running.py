"""Runs the bare-metal demo.

1. Boot requests are sent over a few seconds. Meanwhile a simulated operator puts free nodes into maintenance and takes them
   out again.
2. When a third of the boots on nodes has ended, a daemon is killed.
3. When all boots have ended, some instances are deleted, and new instances use their nodes.
4. The operator stops, all work ends, and the results are compared.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct
from rich.console import RenderableType
from rich.live import Live

from bus.errors import Locked, Unavailable
from bus.message import ProviderId
from bus.messages.build import BuildInstance, DeleteInstance, Flavor, InstanceId
from bus.messages.hosts import NODE
from bus.publisher import Outgoing
from ironic_sync.core.rows import NodeRow
from moor.bare_metal import flavor_of_nodes
from moor.demo.metal.checking import conclude
from moor.demo.metal.clouds import CELLS, HOSTS_PER_CELL, DemoCloud
from moor.demo.metal.screen import metal_screen
from moor.demo.metal.tally import MetalTally
from moor.demo.running import Feed, hearing
from moor.demo.tally import News
from moor.load.auditing import all_hosts, all_providers
from moor.load.node_auditing import VIRTUAL_NAME
from moor.options import out
from moor.request_ids import new_request_ids

SMALL = Flavor(name="small", vcpus=1, ram_mb=1024, root_gb=5)
METAL = flavor_of_nodes()
# As shares of the nodes: how many boots come first, and how many instances are then deleted and booted again.
FIRST, AGAIN = 0.5, 0.2
# How many boots go to hypervisors meanwhile.
VIRTUAL = 20
ASKING_S, ASKING_TIMES = 4.0, 40
# The daemon is killed when this share of the first boots on nodes has ended.
KILLED_AT = 1 / 3
FLIP_EVERY_S, FLIPPED_FOR_S = 0.12, 1.0
LOOK_EVERY_S = 0.2
PATIENCE_S = 150.0
REFRESH_PER_S = 8
PROJECT = "demo"


class MetalDemoPlan(Struct, frozen=True):
    nodes: int
    daemons: int

    @property
    def first(self) -> int:
        return int(self.nodes * FIRST)

    @property
    def again(self) -> int:
        return int(self.nodes * AGAIN)


async def run_demo(plan: MetalDemoPlan, cloud: DemoCloud, *, cleans_up: bool = False) -> None:
    async with asyncio.timeout(PATIENCE_S), hearing(cloud.client) as feed:
        tally = MetalTally(plan.first + VIRTUAL)
        await _until_up(plan, cloud)
        tally.read(await _rows(cloud))
        for provider in [provider async for provider in all_providers(cloud.client)]:
            tally.providers[provider.id] = provider
        await _with_background(
            _run(plan, cloud, tally, cleans_up=cleans_up), _hear(feed, tally), _poll_rows(cloud, tally)
        )


async def _run(plan: MetalDemoPlan, cloud: DemoCloud, tally: MetalTally, *, cleans_up: bool) -> None:
    title = f"[bold]Moorage[/bold]  {plan.nodes:,} bare-metal nodes, {plan.daemons} daemons, {len(CELLS)} cells, {cloud.servers}"

    def render() -> RenderableType:
        return metal_screen(tally, cloud.daemons, title)

    with Live(get_renderable=render, console=out, refresh_per_second=REFRESH_PER_S) as live:
        await _with_background(_run_steps(plan, cloud, tally), _flip_until_stopped(cloud, tally))
        await _settle(cloud, tally)
        live.refresh()
    await conclude(cloud, tally)
    if cleans_up:
        # The servers may belong to someone: the demo leaves nothing in use there.
        out.print("[dim]deleting what was built …[/dim]")
        await _delete(cloud, tally, _active(tally))
        out.print(f"[green]✓[/green] {len(tally.deleted):,} instances are deleted again")


async def _with_background(work: Coroutine[Any, Any, None], *others: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end, and the others meanwhile. If one of the others fails, raise its failure."""
    tasks = [asyncio.create_task(each) for each in (work, *others)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run_steps(plan: MetalDemoPlan, cloud: DemoCloud, tally: MetalTally) -> None:
    tally.begin()
    virtual = [(f"{VIRTUAL_NAME}{number:03}", SMALL) for number in range(1, VIRTUAL + 1)]
    metal = [(f"metal-{number:03}", METAL) for number in range(1, plan.first + 1)]
    asking = asyncio.create_task(_ask(cloud, [*virtual, *metal]))
    await _until(lambda: _ended_on_metal(tally) >= plan.first * KILLED_AT)
    tally.kill(cloud.daemons[1 % len(cloud.daemons)])
    cloud.kill(tally.killed)
    await asking
    await _until(lambda: tally.is_over)
    deleted = _active(tally, on_metal=True)[: plan.again]
    tally.news.append(News("blue", f"{len(deleted)} instances are deleted, and their nodes cleaned"))
    tally.wanted += plan.again
    await _delete(cloud, tally, deleted)
    await _ask(cloud, [(f"again-{number:03}", METAL) for number in range(1, plan.again + 1)])
    await _until(lambda: tally.is_over)


async def _settle(cloud: DemoCloud, tally: MetalTally) -> None:
    """End the maintenance of all nodes, and wait until no work is under way."""
    for row in await _rows(cloud):
        if row.node is not None and row.node.maintenance:
            await cloud.api.set_maintenance(row.id, is_on=False)
    await _until(lambda: all(map(_is_settled, tally.rows.values())))


def _is_settled(row: NodeRow) -> bool:
    """Neither Ironic nor the daemon has work left on the node."""
    node = row.node
    is_idle = node is not None and not node.target_provision_state and not node.maintenance
    is_reported = not row.needs_report and not row.needs_read and row.read_epoch == row.epoch
    return is_idle and is_reported and row.deploy is None and not row.answers


async def _flip_until_stopped(cloud: DemoCloud, tally: MetalTally) -> None:
    """An operator puts free nodes into maintenance and takes them out again. A build may have claimed such a node
    meanwhile; it then goes to an alternate.
    """
    chance = random.Random(5)
    async with asyncio.TaskGroup() as flips:
        while True:
            await asyncio.sleep(FLIP_EVERY_S)
            free = sorted(
                row.id for row in tally.rows.values() if row.offer is not None and not row.offer.reserved
            )
            if free:
                flips.create_task(_flip(cloud, tally, chance.choice(free)))


async def _flip(cloud: DemoCloud, tally: MetalTally, node: ProviderId) -> None:
    # An Ironic conductor that has just begun to work on the node holds its lock: the operator gives up.
    with suppress(Locked):
        tally.flip(node)
        await cloud.api.set_maintenance(node, "an operator looks at it")
        await asyncio.sleep(FLIPPED_FOR_S)
        await cloud.api.set_maintenance(node, is_on=False)
        tally.flips += 1


async def _hear(feed: Feed, tally: MetalTally) -> None:
    async for batch in feed:
        for heard in batch:
            tally.hear(heard.message)


async def _poll_rows(cloud: DemoCloud, tally: MetalTally) -> None:
    while True:
        tally.read(await _rows(cloud))
        await asyncio.sleep(LOOK_EVERY_S)


async def _rows(cloud: DemoCloud) -> Sequence[NodeRow]:
    owned = await cloud.rows.owners()
    return [*(await cloud.rows.read([each.id for each in owned])).values()]


async def _until(is_so: Callable[[], bool]) -> None:
    while True:
        if is_so():
            return
        await asyncio.sleep(LOOK_EVERY_S / 2)


async def _until_up(plan: MetalDemoPlan, cloud: DemoCloud) -> None:
    """Wait until all nodes and hypervisors are known (schedulers never choose an unknown host) and all daemons own nodes."""
    wanted = (plan.nodes, HOSTS_PER_CELL * len(CELLS))
    found = (0, 0)
    owners = 0
    while found != wanted or owners != plan.daemons:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            up = [host async for host in all_hosts(cloud.client) if host.up]
            known = {provider.id async for provider in all_providers(cloud.client)}
        except Unavailable:
            # The workers that answer are still starting.
            continue
        is_node = [host.kind == NODE for host in up if host.id in known]
        found = (sum(is_node), len(is_node) - sum(is_node))
        owners = len({each.owner for each in await cloud.rows.owners()} - {""})


async def _ask(cloud: DemoCloud, wanted: Sequence[tuple[str, Flavor]]) -> None:
    """Send the requests in batches over a few seconds."""
    requests = [
        BuildInstance(request_id=id_, flavor=flavor, name=name, project=PROJECT)
        for id_, (name, flavor) in zip(new_request_ids(len(wanted)), wanted, strict=True)
    ]
    batch = -(-len(requests) // ASKING_TIMES)
    for at in range(0, len(requests), batch):
        await cloud.client.publisher.send_all([Outgoing(each) for each in requests[at : at + batch]])
        await asyncio.sleep(ASKING_S / ASKING_TIMES)


def _active(tally: MetalTally, *, on_metal: bool = False) -> list[InstanceId]:
    nodes = {str(id_) for id_ in tally.rows}
    return [
        state.id
        for state in sorted(tally.states.values(), key=lambda each: each.name)
        if state.state == "active" and state.id not in tally.deleted and (not on_metal or state.host in nodes)
    ]


def _ended_on_metal(tally: MetalTally) -> int:
    return sum(not state.name.startswith(VIRTUAL_NAME) for state in tally.states.values())


async def _delete(cloud: DemoCloud, tally: MetalTally, ids: Sequence[InstanceId]) -> None:
    await cloud.client.publisher.send_all([Outgoing(DeleteInstance(instance=id_)) for id_ in ids])
    await _until(lambda: tally.deleted >= {*ids})
