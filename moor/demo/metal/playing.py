"""What is asked, flipped and killed, and when.

Boots are asked over a few seconds. All the while an operator puts nodes that are free into maintenance, and takes them out
again. When a third of the boots has ended, a daemon is killed. When all have ended, some instances are deleted, and others
take their nodes. Then the flips stop, everything settles, and everybody is asked.
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
from moor.demo.metal.concluding import conclude
from moor.demo.metal.picture import metal_picture
from moor.demo.metal.stage import CELLS, HOSTS_PER_CELL, Stage
from moor.demo.metal.tally import MetalTally
from moor.demo.playing import Feed, hearing
from moor.demo.tally import News
from moor.load.auditing import all_hosts, all_providers
from moor.load.node_auditing import VIRTUAL_NAME
from moor.options import out
from moor.request_ids import new_request_ids

SMALL = Flavor(name="small", vcpus=1, ram_mb=1024, root_gb=5)
METAL = flavor_of_nodes()
# Of the nodes: so many boots on them at first, then so many deletes and boots again. Beside them, boots on hypervisors.
FIRST, AGAIN = 0.5, 0.2
VIRTUAL = 20
ASKING_S, ASKING_TIMES = 4.0, 40
# The daemon is killed when this share of the first boots on nodes has ended.
KILLED_AT = 1 / 3
FLIP_EVERY_S, FLIPPED_FOR_S = 0.12, 1.0
LOOK_EVERY_S = 0.2
PATIENCE_S = 150.0
REFRESH_PER_S = 8
PROJECT = "demo"


class Play(Struct, frozen=True):
    nodes: int
    daemons: int

    @property
    def first(self) -> int:
        return int(self.nodes * FIRST)

    @property
    def again(self) -> int:
        return int(self.nodes * AGAIN)


async def play(it: Play, stage: Stage, *, tidies: bool = False) -> None:
    async with asyncio.timeout(PATIENCE_S), hearing(stage.client) as feed:
        tally = MetalTally(it.first + VIRTUAL)
        await _until_up(it, stage)
        tally.read(await _rows(stage))
        for provider in [provider async for provider in all_providers(stage.client)]:
            tally.providers[provider.id] = provider
        await _beside(_whole(it, stage, tally, tidies=tidies), _hear(feed, tally), _look(stage, tally))


async def _whole(it: Play, stage: Stage, tally: MetalTally, *, tidies: bool) -> None:
    title = f"[bold]Moorage[/bold]  {it.nodes:,} bare-metal nodes, {it.daemons} daemons, {len(CELLS)} cells, {stage.servers}"

    def render() -> RenderableType:
        return metal_picture(tally, stage.daemons, title)

    with Live(get_renderable=render, console=out, refresh_per_second=REFRESH_PER_S) as live:
        await _beside(_play(it, stage, tally), _flip_until_stopped(stage, tally))
        await _settle(stage, tally)
        live.refresh()
    await conclude(stage, tally)
    if tidies:
        # These servers are somebody's: nothing of ours stays in use there.
        out.print("[dim]deleting what was built …[/dim]")
        await _delete(stage, tally, _active(tally))
        out.print(f"[green]✓[/green] {len(tally.deleted):,} instances are deleted again")


async def _beside(work: Coroutine[Any, Any, None], *others: Coroutine[Any, Any, None]) -> None:
    """The work to its end; the others run as long as that. If one of those fails, so does this."""
    tasks = [asyncio.create_task(each) for each in (work, *others)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _play(it: Play, stage: Stage, tally: MetalTally) -> None:
    tally.begin()
    virtual = [(f"{VIRTUAL_NAME}{number:03}", SMALL) for number in range(1, VIRTUAL + 1)]
    metal = [(f"metal-{number:03}", METAL) for number in range(1, it.first + 1)]
    asking = asyncio.create_task(_ask(stage, [*virtual, *metal]))
    await _until(lambda: _ended_on_metal(tally) >= it.first * KILLED_AT)
    tally.kill(stage.daemons[1 % len(stage.daemons)])
    stage.kill(tally.killed)
    await asking
    await _until(lambda: tally.is_over)
    going = _active(tally, on_metal=True)[: it.again]
    tally.news.append(News("blue", f"{len(going)} instances are deleted, and their nodes cleaned"))
    tally.wanted += it.again
    await _delete(stage, tally, going)
    await _ask(stage, [(f"again-{number:03}", METAL) for number in range(1, it.again + 1)])
    await _until(lambda: tally.is_over)


async def _settle(stage: Stage, tally: MetalTally) -> None:
    """Nobody flips any more: all nodes are given back, and what is under way comes to its end."""
    for row in await _rows(stage):
        if row.node is not None and row.node.maintenance:
            await stage.api.set_maintenance(row.id, is_on=False)
    await _until(lambda: all(map(_is_settled, tally.rows.values())))


def _is_settled(row: NodeRow) -> bool:
    """Nothing is left to be done about the node."""
    node = row.node
    is_at_rest = node is not None and not node.target_provision_state and not node.maintenance
    is_told = not row.needs_report and not row.needs_read and row.read_epoch == row.epoch
    return is_at_rest and is_told and row.deploy is None and not row.answers


async def _flip_until_stopped(stage: Stage, tally: MetalTally) -> None:
    """An operator takes free nodes out of use, and gives them back; one that a build has claimed meanwhile is lost to it."""
    chance = random.Random(5)
    async with asyncio.TaskGroup() as flips:
        while True:
            await asyncio.sleep(FLIP_EVERY_S)
            free = sorted(
                row.id for row in tally.rows.values() if row.offer is not None and not row.offer.reserved
            )
            if free:
                flips.create_task(_flip(stage, tally, chance.choice(free)))


async def _flip(stage: Stage, tally: MetalTally, node: ProviderId) -> None:
    # A conductor that has just begun to work on it holds its lock: then an operator would come back later.
    with suppress(Locked):
        tally.flip(node)
        await stage.api.set_maintenance(node, "an operator looks at it")
        await asyncio.sleep(FLIPPED_FOR_S)
        await stage.api.set_maintenance(node, is_on=False)
        tally.flips += 1


async def _hear(feed: Feed, tally: MetalTally) -> None:
    async for batch in feed:
        for heard in batch:
            tally.hear(heard.message)


async def _look(stage: Stage, tally: MetalTally) -> None:
    while True:
        tally.read(await _rows(stage))
        await asyncio.sleep(LOOK_EVERY_S)


async def _rows(stage: Stage) -> Sequence[NodeRow]:
    owned = await stage.rows.owners()
    return [*(await stage.rows.read([each.id for each in owned])).values()]


async def _until(is_so: Callable[[], bool]) -> None:
    while True:
        if is_so():
            return
        await asyncio.sleep(LOOK_EVERY_S / 2)


async def _until_up(it: Play, stage: Stage) -> None:
    """A node that nobody has heard of is not chosen: wait for all of them, and for the hypervisors."""
    wanted = (it.nodes, HOSTS_PER_CELL * len(CELLS))
    found = (0, 0)
    shared = 0
    while found != wanted or shared != it.daemons:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            up = [host async for host in all_hosts(stage.client) if host.up]
            known = {provider.id async for provider in all_providers(stage.client)}
        except Unavailable:
            # Nobody is there to answer yet.
            continue
        there = [host.kind == NODE for host in up if host.id in known]
        found = (sum(there), len(there) - sum(there))
        shared = len({each.owner for each in await stage.rows.owners()} - {""})


async def _ask(stage: Stage, wanted: Sequence[tuple[str, Flavor]]) -> None:
    """Not all at once, but over a few seconds."""
    requests = [
        BuildInstance(request_id=id_, flavor=flavor, name=name, project=PROJECT)
        for id_, (name, flavor) in zip(new_request_ids(len(wanted)), wanted, strict=True)
    ]
    at_once = -(-len(requests) // ASKING_TIMES)
    for at in range(0, len(requests), at_once):
        await stage.client.publisher.send_all([Outgoing(each) for each in requests[at : at + at_once]])
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


async def _delete(stage: Stage, tally: MetalTally, ids: Sequence[InstanceId]) -> None:
    await stage.client.publisher.send_all([Outgoing(DeleteInstance(instance=id_)) for id_ in ids])
    await _until(lambda: tally.deleted >= {*ids})
