"""Deploys on bare metal while clocks jump, a cell's broker is away, daemons have one name, or the last daemon drains."""

import asyncio
import json
import re
from collections.abc import Sequence
from operator import not_

import httpx
import pytest
from msgspec import structs

from engine.flavors import InstanceId
from ironic_sync.core.offers import CellMap
from kit.parts import PartState, Status, statuses
from kit.process import Part
from laboratory.ironic import IronicSimSettings, SimulatedNode, available_nodes
from tests.stories.layouts import BACKENDS_APART
from tests.stories.metal.test_deploys import (
    IN_MEMORY,
    LONG_DEPLOYS,
    QUICK,
    SHORT,
    DeploySetup,
    deploy_setup,
    offered,
)
from tests.waiting import until

SLOW = IronicSimSettings(delays=structs.replace(SHORT, deploy_s=0.8))
BY_RACK = CellMap(groups={"rack1": "c1", "rack2": "c2"})


def status_of(name: str, parts: Sequence[Part]) -> Status:
    return next(each for each in statuses(parts) if each.name == name)


def two_racks(count: int) -> tuple[list[SimulatedNode], list[SimulatedNode]]:
    nodes = available_nodes(2 * count, conductor_group="rack1")
    second = [structs.replace(node, conductor_group="rack2") for node in nodes[count:]]
    return [*nodes[:count]], second


async def until_deploying(there: DeploySetup, *instances: InstanceId) -> None:
    """Or until Ironic is done with some of them already."""
    await until(
        lambda: [node for each in instances for node in there.with_instance(each)],
        "all deploy",
        lambda begun: (
            len(begun) == len(instances) and all(node.provision_state != "available" for node in begun)
        ),
    )


# A cell's broker


# Twelve deploys and their deletes, one after another: 28 s, and over 120 s beside seven others on two cores.
@pytest.mark.timeout(300)
@BACKENDS_APART
async def test_while_one_cell_s_broker_is_away_its_answers_are_kept_and_the_other_cell_goes_on(
    bus: str, books: str
) -> None:
    first, second = two_racks(3)
    quick = structs.replace(QUICK, page=2)
    async with (
        deploy_setup(bus, books, *first, *second, settings=LONG_DEPLOYS, cells=BY_RACK) as there,
        there.daemon("d2", quick),
    ):
        async with there.daemon("d1", quick, killed=True):
            await there.until_offered(*first, *second)
            await until(there.is_shared, "both own nodes")
            away = [await there.boot(n, hosts=(node.uuid,)) for n, node in enumerate(first, 1)]
            await until_deploying(there, *away)

            await there.cloud.brokers.cells["c1"].unplug()
            here = [await there.boot(10 + n, hosts=(node.uuid,)) for n, node in enumerate(second)]
            for instance in here:
                await there.until_active(instance)
            for number in (20, 30):
                await asyncio.gather(*map(there.delete, here))
                for instance in here:
                    await there.cloud.until_state(instance, "deleted")
                await there.until_free(*second)
                here = [await there.boot(number + n, hosts=(node.uuid,)) for n, node in enumerate(second)]
                for instance in here:
                    await there.until_active(instance)

            # What Ironic did for the other cell meanwhile is on the rows.
            async def are_kept() -> bool:
                rows = [await there.row(node) for node in first]
                return all(row.answers and row.deploy is None for row in rows)

            await until(are_kept, "what is to be said is kept")
            assert {node.provision_state for node in there.nodes} == {"active"}
        # One daemon dies with what it had to say; its nodes go to the other.
        await there.until_owned_by("d2")
        await there.cloud.brokers.cells["c1"].plug_in()

        for instance in away:
            assert (await there.cloud.until_state(instance, "active")).attempt == 1
        await asyncio.gather(*map(there.delete, (*away, *here)))
        await there.until_free(*first, *second)


# Names


@IN_MEMORY
async def test_of_two_daemons_with_one_name_the_second_refuses_and_takes_over_when_the_first_is_gone(
    bus: str, books: str
) -> None:
    nodes = available_nodes(4)
    async with deploy_setup(bus, books, *nodes, settings=SLOW) as there:
        first, second = CountsOrders(there.way), CountsOrders(there.way)
        there.way = first
        async with there.daemon("d1", killed=True):
            await there.until_offered(*nodes)
            there.way = second
            async with there.daemon("d1") as parts:
                lease = status_of("ring lease", parts)
                await until(lambda: lease.state is PartState.FAILING, "the second fails")
                taken = r"daemon name 'd1' is taken: incarnation d1-\d+ has a lease for another "
                assert re.search(taken, lease.last_error)
                assert "give each daemon a name of its own" in lease.last_error
                assert lease.awaits, "it is not ready"
                instances = [await there.boot(number) for number in range(1, 5)]
                for instance in instances:
                    assert (await there.cloud.until_state(instance, "active")).attempt == 1
                # Each was ordered once, by the first.
                assert (first.deploys, second.deploys) == (4, 0)
                assert lease.state is PartState.FAILING
                assert {row.owner for row in [await there.row(node) for node in nodes]} == {"d1"}
                assert (await there.cloud.until_state(await there.boot(9), "error")).failures == ()
        # Killed, and the second has ended in peace: a third one, after the lease.
        async with there.daemon("d1", killed=True):
            epochs = [(await there.row(node)).epoch for node in nodes]
            await asyncio.gather(*map(there.delete, instances))
            await there.until_free(*nodes)
            assert [(await there.row(node)).epoch for node in nodes] == [each + 1 for each in epochs]


class CountsOrders(httpx.AsyncBaseTransport):
    """A daemon's way to Ironic that counts the deploys that it orders, and loses the answers to them. A change of a node stays on the way
    until it `is_open`.
    """

    def __init__(self, way: httpx.AsyncBaseTransport) -> None:
        self._way = way
        self.deploys = 0
        self.on_the_way = 0
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method != "GET":
            self.on_the_way += 1
            try:
                await self.is_open.wait()
            finally:
                self.on_the_way -= 1
        response = await self._way.handle_async_request(request)
        is_order = request.url.path.endswith("/states/provision")
        if is_order and json.loads(await request.aread())["target"] == "active":
            self.deploys += 1
            raise httpx.ReadError("the answer is lost")
        return response


# Draining


@IN_MEMORY
async def test_the_last_daemon_that_drains_keeps_its_nodes_and_goes_on_until_another_comes(
    bus: str, books: str
) -> None:
    nodes = available_nodes(3)
    async with offered(bus, books, *nodes, settings=SLOW) as (there, _):
        first = await there.boot(1)
        await until_deploying(there, first)
        assert await there.rows.set_draining("d1", draining=True)
        second = await there.boot(2)
        for instance in (first, second):
            await there.cloud.until_state(instance, "active")
        await there.delete(first)
        await there.cloud.until_state(first, "deleted")
        await there.until_offered(*[node for node in there.nodes if not node.instance_uuid])

        third = await there.boot(3)
        await until_deploying(there, third)
        before = [each.internal for each in (await there.cloud.providers()).values()]
        way = there.way = CountsOrders(there.way)
        async with there.daemon("d2"):
            await there.until_owned_by("d2")
            assert (await there.cloud.until_state(third, "active")).attempt == 1
            await asyncio.gather(*map(there.delete, (second, third)))
            await there.until_free(*nodes)
            assert {(await there.row(node)).owner for node in nodes} == {"d2"}
            # It is of use again, and takes its share or all; what the other one orders is broken off.
            way.is_open.clear()
            last = await there.boot(4)
            await until(lambda: way.on_the_way, "Ironic does not get the order")
            assert await there.rows.set_draining("d1", draining=False)
            assert await there.rows.set_draining("d2", draining=True)
            await there.until_owned_by("d1")
            await until(lambda: way.on_the_way, "nothing is on the way", not_)
            await there.cloud.until_state(last, "active")
            await there.delete(last)
            await there.until_free(*nodes)
            assert [each.internal for each in (await there.cloud.providers()).values()] == before


# Clocks
