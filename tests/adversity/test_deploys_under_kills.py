"""Daemons are killed, the broker is restarted and Ironic is down, in the middle of 300 deploys and deletes on real
servers, and in the middle of rebuilds.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec
import pytest

from bus.messages.build import (
    AskInstances,
    BuildInstance,
    DeleteInstance,
    InstancesFound,
    InstanceState,
    RebuildInstance,
)
from engine.flavors import Image, RequestId
from ironic_sync.core.rows import NodeRow
from laboratory.ironic import (
    IronicScript,
    IronicSimSettings,
    SimulatedIronic,
    WorkDurations,
)
from laboratory.ironic.script import Loses, WorkFails
from tests.adversity.real_cloud import METAL, RealCloud, a_build, instance_of, real_cloud, with_ironic
from tests.waiting import until

pytestmark = [pytest.mark.rabbitmq, pytest.mark.postgresql, pytest.mark.timeout(400)]

NODES = 110
WAVES = 3
OF_A_WAVE = 100
REBUILT = 50
NEW = Image(source="http://images/fedora", checksum="1b2c")
DAEMONS = ("ironic-d1", "ironic-d2")
DELAYS = WorkDurations(deploy_s=0.6, tear_down_s=0.4, clean_s=0.3, power_s=0.1)
SETTINGS = IronicSimSettings(delays=DELAYS)
# Some deploys fail, and some notifications are lost; the daemons find lost ones by reading Ironic's nodes.
SCRIPT = IronicScript(
    seed=5,
    faults=(WorkFails(work="deploy", probability=0.05), Loses(event_types=("*.end",), probability=0.05)),
)
# Each check opens a new connection.
HELD = "SELECT count(*) FROM holders"
OWNERS = "SELECT owner, count(*) FROM ironic_nodes WHERE NOT needs_read GROUP BY owner"
UNDER_WAY = "SELECT count(*) FROM ironic_nodes WHERE due_us IS NOT NULL"
OFFERED = "SELECT count(*) FROM inventories WHERE reserved = 0"


class Watched:
    """A simulated Ironic whose states are all checked: an instance is on one node at a time. It counts how often nodes became active.

    The notification by which a deploy ends may be lost: then it would be counted at the next one, which may be that of a later order. So
    the number is counted when it is read, too. The start of each rebuild and of each delete is told, so no node becomes active twice
    between two looks.
    """

    ironic: SimulatedIronic

    def __init__(self) -> None:
        self.twice: list[bytes] = []
        self._active: frozenset[str] = frozenset()
        self._deployed = 0

    def look(self, told: bytes = b"") -> None:
        nodes = [node for node in self.ironic.nodes.values() if node.instance_uuid]
        if len({node.instance_uuid for node in nodes}) < len(nodes):
            self.twice.append(told)
        active = frozenset(node.uuid for node in nodes if node.provision_state == "active")
        self._deployed += len(active - self._active)
        self._active = active

    @property
    def deployed(self) -> int:
        """How often a node became active."""
        self.look()
        return self._deployed

    def states(self) -> Counter[str]:
        return Counter(node.provision_state for node in self.ironic.nodes.values())


def a_metal_build(number: int) -> BuildInstance:
    image = Image(source="http://images/debian", checksum="0a1b")
    return a_build(number, flavor=METAL, name=f"metal-{number}", image=image)


async def until_settled(here: RealCloud, watched: Watched) -> None:
    """Wait until all nodes are free and offered, nothing is held, and no work is left."""

    async def found() -> tuple[Any, ...]:
        counts = await here.rows(f"SELECT ({HELD}), ({OFFERED}), ({UNDER_WAY})")
        return *counts[0], watched.states()

    settled = (0, NODES, 0, {"available": NODES})
    await until(found, "all nodes are free and offered, and nothing is held", lambda each: each == settled)


@asynccontextmanager
async def a_metal_cloud() -> AsyncIterator[tuple[RealCloud, Watched]]:
    """Two daemons have read every node, and placement offers all."""
    watched = Watched()
    async with (
        real_cloud("c1", has_nodes=True) as here,
        with_ironic(here, NODES, SETTINGS, script=SCRIPT, told=watched.look) as watched.ironic,
    ):
        await here.start("placement-1", "scheduler-1", "conductor-c1", *DAEMONS)
        await here.until_up(NODES)
        await until(
            lambda: here.rows(OWNERS),
            "every node has an owner who has read it",
            lambda found: sum(count for _, count in found) == NODES,
        )
        await until(
            lambda: here.rows(OFFERED), "placement offers every node", lambda found: found == [(NODES,)]
        )
        yield here, watched


async def test_300_deploys_and_deletes_settle_whatever_is_killed_restarted_or_away() -> None:
    async with a_metal_cloud() as (here, watched):
        ended = 0
        for wave in range(WAVES):
            builds = [a_metal_build(1 + wave * OF_A_WAVE + number) for number in range(OF_A_WAVE)]
            await here.send(builds)
            await here.until_in(ended + OF_A_WAVE // 4, "active", "error", "deleted")
            match wave:
                case 0:
                    await here.kill_and_start_again("ironic-d1")
                case 1:
                    await here.under_test.restart()
                case _:
                    watched.ironic.go_away(3.0, refuses=True)
                    await here.kill_and_start_again("ironic-d2")
            await here.until_in(ended + OF_A_WAVE, "active", "error", "deleted")

            await here.send([DeleteInstance(instance=instance_of(build)) for build in builds])
            await here.until_in(ended + OF_A_WAVE // 4, "deleted")
            if wave == 0:
                watched.ironic.go_away(3.0)
            elif wave == 1:
                await here.kill_and_start_again("ironic-d1")
            ended += OF_A_WAVE
            await here.until_in(ended, "deleted")
            await until_settled(here, watched)

        await nothing_contradicts(here, watched)
        # The alternates of the others failed too, or there were none.
        assert watched.deployed > WAVES * OF_A_WAVE * 0.8


async def states_of(here: RealCloud) -> list[InstanceState]:
    found = await here.client.ask(AskInstances(limit=200))
    assert isinstance(found, InstancesFound)
    return list(found.instances)


async def test_rebuilds_end_whatever_is_killed_restarted_or_away_and_none_is_done_again() -> None:
    builds = [a_metal_build(number) for number in range(1, REBUILT + 1)]
    async with a_metal_cloud() as (here, watched):
        await here.send(builds)
        await here.until_in(REBUILT, "active", "error")
        orders = [
            RebuildInstance(request_id=RequestId(UUID(int=1_000 + number)), instance=each.id, image=NEW)
            for number, each in enumerate(await states_of(here))
            if each.state == "active"
        ]

        await here.send(orders)
        await here.until_in(1, "rebuilding")
        await here.kill_and_start_again("ironic-d1")
        await here.under_test.restart()
        watched.ironic.go_away(3.0, refuses=True)
        await here.kill_and_start_again("conductor-c1")
        await here.until_in(REBUILT, "active", "error")

        states = await states_of(here)
        nodes = {node.instance_uuid: node for node in watched.ironic.nodes.values() if node.instance_uuid}
        rebuilt = [each for each in states if each.rebuild is not None]
        assert {each.id for each in rebuilt} == {order.instance for order in orders}
        for each in rebuilt:
            assert each.rebuild is not None
            assert each.rebuild.failure in ("", "deploy failed: scripted failure")
            assert (each.state == "active") == (each.rebuild.failure == "")
            node = nodes[str(each.id)]
            assert node.instance_info["image_source"] == NEW.source
            assert (node.provision_state == "active") == (each.state == "active")

        # Each is requested once more, and nothing is done twice.
        deployed = watched.deployed
        await asyncio.gather(*[here.client.ask(order) for order in orders])
        assert await states_of(here) == states
        await here.send([DeleteInstance(instance=each.id) for each in states])
        await here.until_in(REBUILT, "deleted")
        await until_settled(here, watched)
        assert watched.deployed == deployed
        await nothing_contradicts(here, watched)


async def nothing_contradicts(here: RealCloud, watched: Watched) -> None:
    assert watched.twice == []
    assert all(not node.vifs and not node.instance_info for node in watched.ironic.nodes.values())
    rows = [
        msgspec.json.decode(body, type=NodeRow)
        for (body,) in await here.rows("SELECT body FROM ironic_nodes")
    ]
    assert [row for row in rows if row.deploy or row.deployed or row.answers] == []
    assert {*await here.rows("SELECT state FROM cell_instances")} == {("deleted",)}
    assert await here.books.audit() == ()
    await here.nothing_is_buried()
