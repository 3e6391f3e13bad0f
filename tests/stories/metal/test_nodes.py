"""From Ironic's notifications and its REST API to the bare-metal nodes that placement and the scheduler know."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
from msgspec import Struct

from bus.broker import Connection
from bus.message import Parcel
from bus.topology import IRONIC, Exchange, Objects, objects_of
from bus.workers.sending import Link
from engine.hosts import NODE
from engine.inventories import InventoryState, ProviderId
from ironic_sync.core.node import Node
from ironic_sync.core.offers import CellMap
from ironic_sync.rest import HttpIronicApi, NodesRead
from ironic_sync.settings import DaemonRules, Inbox, IronicSettings
from ironic_sync.store_sql import IronicStore
from kit.process import Part
from laboratory.ironic import IronicSimulation, IronicTransport, available_nodes, simulated_ironic
from moor.client.bus_client import hosts_of
from tests.contracts.ironic_stores import open_ironic_store
from tests.contracts.stage import CELLS, SETTINGS
from tests.ironic_clients.nodes import delete
from tests.stories.cloud import Cloud, cloud
from tests.stories.layouts import ONE_BROKER
from tests.waiting import until

pytestmark = [pytest.mark.asyncio, ONE_BROKER]

USUAL_INBOX = Inbox(creates_exchange=True)
CELLS_OF_NODES = CellMap(default="c1")
QUICK = DaemonRules(
    # No daemon that stands still for some seconds loses its lease.
    lease_s=100.0,
    look_s=0.05,
    sweep_s=60,
    doubts_s=0.2,
    report_again_s=0.2,
    beat_s=0.2,
)
CAPTURES = Path(__file__).parents[2] / "data" / "ironic_captures"


class HidesNodes(HttpIronicApi):
    """Ironic's API for a user that cannot see all nodes."""

    def __init__(self, url: str, hidden: AbstractSet[ProviderId], transport: IronicTransport) -> None:
        super().__init__(url, transport=transport)
        self._hidden = hidden
        self.sweeps = 0

    async def pages(self) -> AsyncGenerator[NodesRead, None]:
        async for page in super().pages():
            yield NodesRead(tuple(each for each in page.nodes if each.id not in self._hidden))
        self.sweeps += 1

    async def node(self, node: ProviderId) -> Node | None:
        return None if node in self._hidden else await super().node(node)


class NodesSetup(Struct):
    cloud: Cloud
    rows: IronicStore
    connection: Connection
    # The clients of Ironic's API that the daemons have.
    apis: list[HidesNodes] = []

    def daemon(
        self,
        name: str,
        *,
        simulation: IronicSimulation | None = None,
        settings: DaemonRules = QUICK,
        cells: CellMap = CELLS_OF_NODES,
        hidden: AbstractSet[ProviderId] = frozenset(),
        inbox: Inbox = USUAL_INBOX,
        user: str = "ironic",
    ) -> AbstractAsyncContextManager[Sequence[Part]]:
        """A daemon. It uses Ironic's API if there is a simulation; its user cannot see the `hidden` nodes."""
        api = None
        if simulation is not None:
            api = HidesNodes("http://ironic", hidden, IronicTransport(simulation.ironic))
            self.apis.append(api)
        return self.cloud.daemon(self.rows, name, settings, cells, api=api, inbox=inbox, user=user)

    async def stock(self, node: ProviderId, resource: str) -> InventoryState | None:
        found = (await self.cloud.providers()).get(str(node))
        return None if found is None else found.inventories.get(resource)

    async def until_reserved(
        self, node: ProviderId, reserved: int, resource: str = "CUSTOM_BAREMETAL"
    ) -> None:
        await until(
            lambda: self.stock(node, resource),
            f"node {node} has reserved {reserved}",
            lambda stock: (stock.total, stock.reserved) == (1, reserved),
        )

    async def said(
        self, *bodies: bytes, exchange: str = IRONIC, topic: str = "ironic_versioned_notifications"
    ) -> None:
        """Publish these bodies as Ironic does."""
        for body in bodies:
            parcel = Parcel(exchange, f"{topic}.info", body)
            await self.cloud.client.publisher.offer(parcel)


@asynccontextmanager
async def nodes_setup(bus: str, books: str) -> AsyncIterator[NodesSetup]:
    async with (
        cloud(bus, books) as setup,
        open_ironic_store(books) as rows,
        setup.placement(),
        setup.scheduler(),
    ):
        operator = Link(setup.brokers.at_api("operator"), SETTINGS)
        connection = await operator.connection()
        await connection.declare(objects_of(CELLS, create_foreign=True))
        yield NodesSetup(setup, rows, connection)
        await operator.close()


def captured(name: str) -> list[bytes]:
    lines = (CAPTURES / name).read_text().splitlines()
    return [json.loads(line)["body"].encode() for line in lines]


def plainly(body: bytes) -> bytes:
    """The notification without oslo.messaging's envelope."""
    inner: str = json.loads(body)["oslo.message"]
    return inner.encode()


def node_in(body: bytes) -> ProviderId:
    payload = json.loads(plainly(body))["payload"]["ironic_object.data"]
    return ProviderId(UUID(payload["uuid"]))


@pytest.mark.parametrize("dressed", [True, False], ids=["enveloped", "plain"])
async def test_a_notification_alone_moves_a_node_in_and_out_of_placement(
    bus: str, books: str, *, dressed: bool
) -> None:
    bodies = captured("09_maintenance_by_patch.jsonl")
    if not dressed:
        bodies = [plainly(body) for body in bodies]
    node = node_in(captured("09_maintenance_by_patch.jsonl")[0])
    async with nodes_setup(bus, books) as setup, setup.daemon("d1"):
        await setup.said(*bodies[:2])
        await setup.until_reserved(node, 1)
        await setup.said(*bodies[2:])
        await setup.until_reserved(node, 0)

        await until(
            lambda: hosts_of(setup.cloud.client, str(node)),
            f"node {node} is a host",
            lambda found: [(each.up, each.kind, each.cell) for each in found] == [(True, NODE, "c1")],
        )


async def test_exchange_topics_and_queue_are_those_of_the_settings(bus: str, books: str) -> None:
    names = IronicSettings(exchange="metal", topics=("for_all", "for_us"), queue="ironic.south")
    bodies = captured("09_maintenance_by_patch.jsonl")
    node = node_in(bodies[0])
    async with nodes_setup(bus, books) as setup:
        # The rights of the role are to the usual names (`moor broker declare` gives those to other names).
        daemon = setup.daemon("d1", inbox=names.inbox, user="operator")
        await setup.connection.declare(Objects((Exchange("metal", durable=False),)))
        async with daemon:

            async def said() -> InventoryState | None:
                # What is published before the queue is bound is lost.
                await setup.said(*bodies[:2], exchange="metal", topic="for_us")
                return await setup.stock(node, "CUSTOM_BAREMETAL")

            await until(said, "notifications of one topic are heard", lambda stock: stock.reserved == 1)
            await setup.said(*bodies[2:], exchange="metal", topic="for_all")
            await setup.until_reserved(node, 0)


async def test_all_nodes_are_read_at_the_start_and_changes_heard_from_then_on(bus: str, books: str) -> None:
    async with AsyncExitStack() as stack:
        setup = await stack.enter_async_context(nodes_setup(bus, books))
        simulation = simulated_ironic(
            setup.cloud.brokers.at_api("operator"), available_nodes(20), listen=None
        )
        await stack.enter_async_context(setup.cloud.running(simulation.parts))
        await stack.enter_async_context(setup.daemon("d1", simulation=simulation))
        nodes = [ProviderId(UUID(each.uuid)) for each in simulation.ironic.nodes.values()]
        for node in nodes:
            await setup.until_reserved(node, 0)

        simulation.ironic.set_maintenance(str(nodes[3]), is_on=True, reason="disk")
        await setup.until_reserved(nodes[3], 1)
        simulation.ironic.set_maintenance(str(nodes[3]), is_on=False)
        await setup.until_reserved(nodes[3], 0)

        simulation.ironic.set_maintenance(str(nodes[4]), is_on=True)
        delete(simulation.ironic, str(nodes[4]))

        await until(
            setup.cloud.providers, f"node {nodes[4]} is gone", lambda found: str(nodes[4]) not in found
        )


async def test_an_unreadable_notification_is_dead_lettered_and_its_neighbours_are_applied(
    bus: str, books: str
) -> None:
    bodies = captured("08_maintenance_on_off_available.jsonl")
    node = node_in(bodies[0])
    async with nodes_setup(bus, books) as setup, setup.daemon("d1"):
        await setup.said(b"\xff no json", *bodies, b"{}")
        await setup.until_reserved(node, 0, "CUSTOM_BAREMETAL_GOLD")
        await until(lambda: setup.connection.depth("dead"), "two dead letters", lambda found: found == 2)
