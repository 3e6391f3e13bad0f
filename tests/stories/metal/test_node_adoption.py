"""Nodes that Ironic has deployed are adopted with their instances, and given back: nothing is ever ordered from Ironic."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx
import pytest
from msgspec import structs

from bus.messages.audit import AdoptedState, AdoptInstance, GiveBackInstance
from bus.messages.build import BuildRejected, InstancesFound
from bus.messages.cell import AdoptDeployed
from engine.flavors import InstanceId, RequestId
from engine.inventories import ConsumerId, ProviderId, ResourceAmount, Share
from laboratory.ironic import SimulatedNode, available_nodes
from moor.client.bus_client import hosts_of
from tests.stories.metal.test_deploys import IN_MEMORY, METAL, DeploySetup, deploy_setup
from tests.stories.metal.test_restored_ironic import SWEEPS, until_swept
from tests.waiting import until

pytestmark = [IN_MEMORY]

CREATED = datetime(2024, 5, 6, tzinfo=UTC)


class WatchedWay(httpx.AsyncBaseTransport):
    """Ironic's API, and each request that came to it and did not only read."""

    def __init__(self, way: httpx.AsyncBaseTransport) -> None:
        self.way = way
        self.orders: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method != "GET":
            self.orders.append(f"{request.method} {request.url.path} {request.content.decode()}")
        return await self.way.handle_async_request(request)


def an_instance(number: int) -> InstanceId:
    return InstanceId(ConsumerId(UUID(int=(number << 64) + 7)))


@asynccontextmanager
async def deployed(
    bus: str, books: str, count: int = 1, **fields: Any
) -> AsyncIterator[tuple[DeploySetup, WatchedWay, Sequence[SimulatedNode]]]:
    """Nodes that only Ironic has deployed; its API is watched."""
    nodes = [
        structs.replace(
            node, **{"provision_state": "active", "instance_uuid": str(an_instance(number)), **fields}
        )
        for number, node in enumerate(available_nodes(count), 1)
    ]
    async with deploy_setup(bus, books, *nodes) as there:
        there.way = way = WatchedWay(there.way)
        yield there, way, nodes


def an_order(node: SimulatedNode, number: int = 1, state: AdoptedState = "active") -> AdoptInstance:
    host = ProviderId(UUID(node.uuid))
    return AdoptInstance(
        instance=an_instance(number),
        request_id=RequestId(UUID(int=500 + number)),
        of_cell="c1",
        host=node.uuid,
        share=Share(host=host, amounts=(ResourceAmount(host, "CUSTOM_BAREMETAL", 1),)),
        state=state,
        flavor=METAL,
        created_at=CREATED,
        name=f"old-{number}",
        project="shop",
        user="ann",
    )


async def until_known(there: DeploySetup, *nodes: SimulatedNode) -> None:
    """Placement has the nodes, reserved, and the scheduler knows them as hosts."""

    async def are_known() -> bool:
        stocks = await there.stocks()
        hosts = {each.name for each in await hosts_of(there.cloud.client)}
        return all(
            node.uuid in hosts and node.uuid in stocks and stocks[node.uuid].reserved == 1 for node in nodes
        )

    await until(are_known, f"{len(nodes)} nodes are known")


async def adopted(there: DeploySetup, *nodes: SimulatedNode) -> list[InstanceId]:
    for number, node in enumerate(nodes, 1):
        await there.cloud.ask(an_order(node, number), InstancesFound)
    for number, node in enumerate(nodes, 1):
        await until_lives(there, node, an_instance(number))
    return [an_instance(number) for number, _ in enumerate(nodes, 1)]


async def until_lives(there: DeploySetup, node: SimulatedNode, instance: InstanceId | None) -> None:
    await until(
        lambda: there.row(node),
        f"{instance} lives on {node.uuid}",
        lambda row: (row.living.instance if row.living else None) == instance,
    )


async def used_of(there: DeploySetup, nodes: Sequence[SimulatedNode]) -> list[int]:
    stocks = await there.stocks()
    return [stocks[node.uuid].used for node in nodes]


async def test_adopted_instances_are_active_hold_their_nodes_and_end_by_a_delete_alone(
    bus: str, books: str
) -> None:
    async with deployed(bus, books, 3) as (there, way, nodes), there.daemon("d1", SWEEPS) as parts:
        await until_known(there, *nodes)
        ids = await adopted(there, *nodes)
        # A repeated order changes nothing.
        assert await adopted(there, *nodes) == ids
        await until_swept(parts)
        told = [await there.cloud.until_state(each, "active") for each in ids]
        assert [(each.name, each.host, each.attempt, each.reason) for each in told] == [
            (f"old-{number}", node.uuid, 1, "") for number, node in enumerate(nodes, 1)
        ]
        assert await used_of(there, nodes) == [1, 1, 1]
        assert way.orders == []

        await there.gone(ids[0], nodes[0])
        assert [each.provision_state for each in there.nodes] == ["available", "active", "active"]
        assert [each for each in way.orders if nodes[0].uuid not in each] == []


async def test_what_is_given_back_stays_deployed_whatever_comes_late_and_may_come_again(
    bus: str, books: str
) -> None:
    async with deployed(bus, books) as (there, way, nodes):
        (node,) = nodes
        async with there.daemon("d1", SWEEPS) as parts:
            await until_known(there, node)
            for attempt in (1, 2):
                (instance,) = await adopted(there, node)
                assert (await there.cloud.until_state(instance, "active")).attempt == attempt
                assert isinstance(
                    await there.cloud.client.ask(GiveBackInstance(instance=instance)), InstancesFound
                )
                await there.cloud.until_state(instance, "deleted")
                assert await used_of(there, nodes) == [0]
                # The order to adopt it is delivered once more.
                late = AdoptDeployed(
                    cell="c1", instance=instance, attempt=attempt, host=ProviderId(UUID(node.uuid))
                )
                await there.cloud.send(late)
                await until_swept(parts, 6)
                row = await there.row(node)
                assert (row.living, row.deploy, row.ended) == (None, None, ())
                assert row.offer is not None
                assert row.offer.reserved
        assert way.orders == []
        assert [each.provision_state for each in there.nodes] == ["active"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"instance_uuid": str(an_instance(9))}, f"Ironic has instance {an_instance(9)}"),
        ({"instance_uuid": None}, "Ironic has no instance"),
        ({"provision_state": "deploy failed"}, "provision state of node"),
    ],
)
async def test_a_refused_adoption_destroys_nothing_and_ends_by_being_given_back(
    bus: str, books: str, changed: dict[str, Any], words: str
) -> None:
    async with deployed(bus, books, **changed) as (there, way, nodes):
        (node,) = nodes
        async with there.daemon("d1", SWEEPS) as parts:
            await until_known(there, node)
            order = an_order(node)
            assert isinstance(await there.cloud.client.ask(order), InstancesFound)
            told = await there.cloud.until_state(order.instance, "error")
            assert words in told.reason
            assert told.keeps_share
            await until_swept(parts)
            assert isinstance(
                await there.cloud.client.ask(GiveBackInstance(instance=order.instance)), InstancesFound
            )
            await there.cloud.until_state(order.instance, "deleted")
            # What was refused is no leftover, also where Ironic has it after all.
            there.simulation.ironic.restore(
                [
                    structs.replace(each, provision_state="active", instance_uuid=str(order.instance))
                    for each in there.simulation.ironic.copy()
                ]
            )
            await until_swept(parts, 6)
            assert (await there.row(node)).deploy is None
        assert way.orders == []
        assert await used_of(there, nodes) == [0]


async def test_a_node_of_an_instance_is_for_its_adoption_alone(bus: str, books: str) -> None:
    async with deployed(bus, books) as (there, way, (node,)):
        async with there.daemon("d1", SWEEPS):
            await until_known(there, node)
            await there.cloud.until_state(await there.boot(40), "error")
            await adopted(there, node)
            assert "placement refuses it" in (await there.cloud.ask(an_order(node, 2), BuildRejected)).reason
            assert (await there.cloud.ask(an_order(node, 3, state="stopped"), BuildRejected)).field == "state"
        assert way.orders == []


async def test_orders_that_wait_for_a_daemon_which_was_killed_are_obeyed_once(bus: str, books: str) -> None:
    async with deployed(bus, books, 3) as (there, way, nodes):
        kept, given, gone = nodes
        async with there.daemon("d1", SWEEPS, killed=True):
            await until_known(there, *nodes)
        for number, node in enumerate(nodes, 1):
            assert isinstance(await there.cloud.client.ask(an_order(node, number)), InstancesFound)
            await there.cloud.until_state(an_instance(number), "active")
        await there.cloud.client.ask(GiveBackInstance(instance=an_instance(2)))
        await there.delete(an_instance(3))
        async with there.daemon("d2", SWEEPS) as parts:
            await until_lives(there, kept, an_instance(1))
            await there.cloud.until_state(an_instance(2), "deleted")
            await there.cloud.until_state(an_instance(3), "deleted")
            await there.until_free(gone)
            await until_swept(parts)
            assert [each.provision_state for each in there.nodes] == ["active", "active", "available"]
            assert await used_of(there, nodes) == [1, 0, 0]
        # A person has deleted the third.
        assert {each.split()[1].split("/")[3] for each in way.orders} == {gone.uuid}
        assert sum('"deleted"' in each for each in way.orders) == 1
        assert given.uuid not in str(way.orders)
