"""Runs the bare-metal demo.

1. Boot requests are sent over a few seconds. Meanwhile a simulated operator puts free nodes into maintenance and takes them
   out again.
2. When a third of the boots on nodes has ended, a daemon is killed.
3. When all boots have ended, some instances are deleted, and new instances use their nodes.
4. The operator stops, all work ends, and the results are compared.
"""

import asyncio
import random
from contextlib import suppress
from typing import ClassVar

from msgspec import Struct

from bus.message import ProviderId
from bus.messages.build import Flavor, InstanceId
from compute_sim.laboratory.ironic import IronicScript, RequestRefused
from compute_sim.laboratory.ironic.core.script import WorkFails
from ironic_sync.core.rows import NodeRow
from ironic_sync.settings import IronicSettings
from moor.asking import during
from moor.clouds.bare_metal import BareMetalPlan, cells_of_groups, flavor_of_nodes
from moor.laboratory.at_rest import problems_left
from moor.laboratory.demo.metal.checking import conclude
from moor.laboratory.demo.metal.screen import metal_screen
from moor.laboratory.demo.metal.tally import VIRTUAL_NAME, MetalTally
from moor.laboratory.demo.running import ask, clean_up, delete, hear, listening, live, servers_of, until
from moor.laboratory.demo.tally import News
from moor.laboratory.temporary_cloud import CloudPlan, TemporaryCloud
from moor.worker_settings import CloudSettings
from scheduler_worker.settings import SchedulerSettings

CELLS = ("harbour", "island")
HOSTS_PER_CELL = 2
# A deploy and a cleaning take about half a second; one deploy in fifteen fails.
PACE = 0.3
IRONIC_FAULTS = IronicScript(
    seed=11,
    faults=(WorkFails(work="deploy", probability=0.07, reason="the image cannot be written"),),
)
# Short leases: the other daemons take over from a killed one after four seconds, not after ten.
QUICK = IronicSettings(
    lease_s=4.0,
    renew_s=0.5,
    renew_wait_s=2.0,
    lease_margin_s=1.0,
    look_s=0.1,
    doubts_s=0.2,
    report_again_s=0.3,
    beat_s=1.0,
    due_s=0.2,
    deploy_read_s=1.0,
    deploy_retry_s_first=0.2,
    deploy_retry_s_max=2.0,
)
# More alternates than usual: there are few nodes, and the operator takes some of them away.
ALTERNATES_MAX = 8
WORKERS = {"placement": 1, "scheduler": 2, "conductor": 1}

SMALL = Flavor(name="small", vcpus=1, ram_mb=1024, root_gb=5)
METAL = flavor_of_nodes()
# As shares of the nodes: how many boots come first, and how many instances are then deleted and booted again.
FIRST, AGAIN = 0.5, 0.2
# How many boots go to hypervisors meanwhile.
VIRTUAL = 20
ASKING_S = 4.0
# The daemon is killed when this share of the first boots on nodes has ended.
KILLED_AT = 1 / 3
FLIP_EVERY_S, FLIPPED_FOR_S = 0.12, 1.0
LOOK_EVERY_S = 0.2


class MetalDemoPlan(Struct, frozen=True):
    """A demo on bare-metal nodes. It fails if it takes longer than `patience_s`."""

    nodes: int
    daemons: int

    patience_s: ClassVar = 150.0
    defaults: ClassVar = CloudSettings(
        ironic=QUICK, scheduler=SchedulerSettings(alternates_max=ALTERNATES_MAX)
    )

    @property
    def first(self) -> int:
        return int(self.nodes * FIRST)

    @property
    def again(self) -> int:
        return int(self.nodes * AGAIN)

    @property
    def metal(self) -> BareMetalPlan:
        cells = cells_of_groups(CELLS)
        return BareMetalPlan(
            nodes=self.nodes, daemons=self.daemons, cells=cells, pace=PACE, script=IRONIC_FAULTS
        )

    def cloud(self, settings: CloudSettings) -> CloudPlan:
        cells = dict.fromkeys(CELLS, HOSTS_PER_CELL)
        return CloudPlan(role="demo", cells=cells, counts=WORKERS, settings=settings, metal=self.metal)

    async def run(self, cloud: TemporaryCloud) -> None:
        tally = MetalTally(self.first + VIRTUAL)
        wanted = self.nodes + HOSTS_PER_CELL * len(CELLS)
        async with listening(cloud, tally, lambda hosts: len(hosts) >= wanted) as feed:
            await during(_run(self, cloud, tally), hear(feed, tally), _poll_rows(cloud, tally))


async def _run(plan: MetalDemoPlan, cloud: TemporaryCloud, tally: MetalTally) -> None:
    title = (
        f"{plan.nodes:,} bare-metal nodes, {plan.daemons} daemons, {len(CELLS)} cells, {servers_of(cloud)}"
    )
    await until(lambda: len({row.owner for row in tally.rows.values()} - {""}) == plan.daemons)
    with live(lambda: metal_screen(tally, [*cloud.daemons], title)) as drawn:
        await during(_run_steps(plan, cloud, tally), _flip_until_stopped(cloud, tally))
        await _settle(cloud, tally)
        drawn.refresh()
    conclude(tally, await problems_left(cloud, tally.asked(METAL)))
    await clean_up(cloud, tally, _active(tally))


async def _run_steps(plan: MetalDemoPlan, cloud: TemporaryCloud, tally: MetalTally) -> None:
    tally.begin()
    virtual = [(f"{VIRTUAL_NAME}{number:03}", SMALL) for number in range(1, VIRTUAL + 1)]
    metal = [(f"metal-{number:03}", METAL) for number in range(1, plan.first + 1)]
    await asyncio.gather(ask(cloud, tally, [*virtual, *metal], ASKING_S), _kill_one(plan, cloud, tally))
    await until(lambda: tally.is_over)
    deleted = _active(tally, on_metal=True)[: plan.again]
    tally.news.append(News("blue", f"{len(deleted)} instances are deleted, and their nodes cleaned"))
    tally.wanted += plan.again
    await delete(cloud, tally, deleted)
    await ask(cloud, tally, [(f"again-{number:03}", METAL) for number in range(1, plan.again + 1)], ASKING_S)
    await until(lambda: tally.is_over)


async def _kill_one(plan: MetalDemoPlan, cloud: TemporaryCloud, tally: MetalTally) -> None:
    await until(lambda: _ended_on_metal(tally) >= plan.first * KILLED_AT)
    tally.kill([*cloud.daemons][1 % len(cloud.daemons)])
    cloud.daemons[tally.killed].kill()


async def _settle(cloud: TemporaryCloud, tally: MetalTally) -> None:
    """End the maintenance of all nodes, and wait until no work is under way."""
    for node in [*cloud.ironic.nodes.values()]:
        if node.maintenance:
            cloud.ironic.set_maintenance(node.uuid, is_on=False)
    await until(lambda: all(map(_is_settled, tally.rows.values())))


def _is_settled(row: NodeRow) -> bool:
    """True if neither Ironic nor the node's daemon has work left to do on the node."""
    node = row.node
    is_idle = node is not None and not node.target_provision_state and not node.maintenance
    is_reported = not row.needs_report and not row.needs_read and row.read_epoch == row.epoch
    return is_idle and is_reported and row.deploy is None and not row.answers


async def _flip_until_stopped(cloud: TemporaryCloud, tally: MetalTally) -> None:
    """Put free nodes into maintenance and take them out again, as an operator would, until cancelled.

    A build may have claimed such a node meanwhile; the build then goes to an alternate.
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


async def _flip(cloud: TemporaryCloud, tally: MetalTally, node: ProviderId) -> None:
    # An Ironic conductor that has just begun to work on the node holds its lock: the operator gives up.
    with suppress(RequestRefused):
        tally.flip(node)
        cloud.ironic.set_maintenance(str(node), is_on=True, reason="an operator looks at it")
        await asyncio.sleep(FLIPPED_FOR_S)
        cloud.ironic.set_maintenance(str(node), is_on=False)
        tally.flips += 1


async def _poll_rows(cloud: TemporaryCloud, tally: MetalTally) -> None:
    while True:
        owned = await cloud.rows.owners()
        tally.read((await cloud.rows.read([each.id for each in owned])).values())
        await asyncio.sleep(LOOK_EVERY_S)


def _active(tally: MetalTally, *, on_metal: bool = False) -> list[InstanceId]:
    nodes = {str(id_) for id_ in tally.rows}
    return [
        state.id
        for state in sorted(tally.states.values(), key=lambda each: each.name)
        if state.state == "active" and state.id not in tally.deleted and (not on_metal or state.host in nodes)
    ]


def _ended_on_metal(tally: MetalTally) -> int:
    return sum(not state.name.startswith(VIRTUAL_NAME) for state in tally.states.values())
