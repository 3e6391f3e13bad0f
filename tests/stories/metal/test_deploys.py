"""From a build request to an instance on a bare-metal node of a simulated Ironic, and back: every worker is real."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from operator import not_
from typing import Any
from uuid import UUID

import httpx
import pytest
from msgspec import Struct, structs

from bus.messages.build import DeleteInstance, InstanceState
from bus.topology import objects_of
from bus.workers.sending import Link
from cell_conductor.settings import ConductorPace
from cell_conductor.store_sql import ConductorStore
from engine.flavors import Flavor, Image, InstanceId
from engine.inventories import InventoryState, ProviderId
from engine.picture.picture import Picture
from ironic_sync.core.offers import CellMap
from ironic_sync.core.ordering import Belief
from ironic_sync.core.rows import NodeRow
from ironic_sync.rest import HttpIronicApi
from ironic_sync.settings import DaemonRules
from ironic_sync.store_sql import IronicStore
from kit.parts import Pauses
from kit.process import Part
from kit.rest import RestLimits
from laboratory.ironic import (
    IronicScript,
    IronicSimSettings,
    IronicSimulation,
    IronicTransport,
    SimulatedNode,
    WorkDurations,
    available_nodes,
    simulated_ironic,
)
from laboratory.ironic import RequestRefused as RefusedByIronic
from laboratory.ironic.script import WorkFails
from tests.contracts.stage import CELLS, SETTINGS
from tests.contracts.stores import open_conductor_stores, open_ironic_store
from tests.ironic_clock import LONG_S, IronicClock
from tests.running import closing
from tests.stories.cloud import Cloud, a_build, cloud, instance_of
from tests.stories.layouts import ALL_IN_MEMORY, IN_MEMORY_APART, STAGES
from tests.waiting import until

IN_MEMORY = pytest.mark.parametrize(("bus", "books"), [ALL_IN_MEMORY, IN_MEMORY_APART])

METAL = Flavor(name="metal", extra_specs={"resources:CUSTOM_BAREMETAL": "1"})
IMAGE = Image(source="http://images/debian", checksum="0a1b")
CELLS_OF_NODES = CellMap(default="c1")
QUICK = DaemonRules(
    # No daemon that stands still for some seconds loses its lease.
    lease_s=100.0,
    look_s=0.05,
    sweep_s=60,
    doubts_s=0.2,
    report_again_s=0.2,
    beat_s=0.2,
    deploy_read_s=0.3,
    deploy_pauses=Pauses(0.05, 0.3),
    progress_s=0.5,
)
PACE = ConductorPace(poll_s=0.005, look_s=1)
# A deploy takes some tenths of a second.
SHORT = WorkDurations(deploy_s=0.1, tear_down_s=0.1, clean_s=0.2, power_s=0.05, agent_call_s=0.05)
LONG_DEPLOYS = IronicSimSettings(delays=structs.replace(SHORT, deploy_s=LONG_S))
# No request ends by itself: a story says so.
REST = RestLimits(answer_s_max=LONG_S, tries_max=2, pauses=Pauses(0.02, 0.05))


class DeploySetup(Struct):
    cloud: Cloud
    rows: IronicStore
    instances: ConductorStore
    simulation: IronicSimulation
    picture: Picture
    # The HTTP transport to Ironic's API that daemons use which start from now on.
    way: httpx.AsyncBaseTransport
    cells: CellMap
    clock: IronicClock

    def daemon(
        self, name: str, rules: DaemonRules = QUICK, *, killed: bool = False
    ) -> AbstractAsyncContextManager[Sequence[Part]]:
        api = HttpIronicApi("http://ironic", limits=REST, transport=self.way)
        return self.cloud.daemon(self.rows, name, rules, self.cells, api=api, killed=killed)

    # Requests

    async def boot(self, number: int, **fields: object) -> InstanceId:
        build = structs.replace(
            a_build(number, flavor=METAL, deadline_s=None, image=IMAGE, name=f"metal-{number}"), **fields
        )
        await self.cloud.send(build)
        return instance_of(build)

    async def delete(self, instance: InstanceId) -> None:
        await self.cloud.send(DeleteInstance(instance=instance))

    async def gone(self, instance: InstanceId, *nodes: SimulatedNode) -> None:
        """Delete it, and wait until these nodes are free."""
        await self.delete(instance)
        await self.cloud.until_state(instance, "deleted")
        await self.until_free(*nodes)

    def end_work(self) -> None:
        """End Ironic's work that takes `LONG_S`."""
        self.clock.end_work(self.simulation.ironic)

    async def until_active(self, instance: InstanceId) -> InstanceState:
        """Wait for it, and end Ironic's work that takes `LONG_S` again and again."""

        async def told() -> InstanceState | None:
            self.end_work()
            return await self.cloud.instance(instance)

        return await until(told, f"{instance} is active", lambda state: state.state == "active")

    async def until_says(self, instance: InstanceId, reason: str) -> InstanceState:
        """The active instance, when it says this of its node."""
        return await until(
            lambda: self.cloud.instance(instance),
            f"{instance} is active, and says {reason!r}",
            lambda told: (told.state, told.reason) == ("active", reason),
        )

    # State

    @property
    def nodes(self) -> Sequence[SimulatedNode]:
        return [*self.simulation.ironic.nodes.values()]

    def with_instance(self, instance: InstanceId) -> list[SimulatedNode]:
        return [node for node in self.nodes if node.instance_uuid == str(instance)]

    async def is_shared(self) -> bool:
        """True if both daemons own nodes, and each has read all of its own."""
        rows = await self.all_rows()
        return len({row.owner for row in rows}) > 1 and all(row.read_epoch == row.epoch for row in rows)

    async def deploying(self) -> set[str]:
        """The daemons that deploy."""
        rows = [await self.row(node) for node in self.nodes if node.provision_state == "deploying"]
        return {row.owner for row in rows if row.deploy is not None}

    async def until_owned_by(self, owner: str) -> None:
        """All nodes, read and reported in its epoch."""
        await until(
            self.all_rows,
            f"{owner} owns all nodes",
            lambda rows: all(row.owner == owner and row.read_epoch == row.epoch for row in rows),
        )

    async def all_rows(self) -> list[NodeRow]:
        return [await self.row(node) for node in self.nodes]

    async def row(self, node: SimulatedNode) -> NodeRow:
        id_ = ProviderId(UUID(node.uuid))
        return (await self.rows.read((id_,)))[id_]

    async def stocks(self) -> dict[str, InventoryState]:
        """The inventories of this class, by the node's uuid."""
        providers = await self.cloud.providers()
        return {
            name: each.inventories["CUSTOM_BAREMETAL"]
            for name, each in providers.items()
            if "CUSTOM_BAREMETAL" in each.inventories
        }

    async def until_offered(self, *nodes: SimulatedNode) -> None:
        """Wait until placement offers these nodes, and the scheduler's picture has them."""

        async def are_offered() -> bool:
            stocks = await self.stocks()
            ids = {ProviderId(UUID(node.uuid)) for node in nodes}
            return (
                all(_is_free(stocks.get(node.uuid)) for node in nodes)
                and all(map(self.picture.has_provider, ids))
                and not ids & {*self.picture.unregistered()}
            )

        await until(are_offered, f"{len(nodes)} nodes are offered")

    async def until_free(self, *nodes: SimulatedNode) -> None:
        """Wait until these nodes are available, and no consumer holds them; end Ironic's work as `until_active` does."""
        wanted = {node.uuid for node in nodes}

        async def others() -> list[object]:
            self.end_work()
            stocks = await self.stocks()
            return [
                (node, stocks.get(node.uuid), await self.row(node))
                for node in self.nodes
                if node.uuid in wanted
                and not (
                    (node.provision_state, node.instance_uuid, node.vifs) == ("available", None, ())
                    and _is_free(stocks.get(node.uuid))
                )
            ]

        await until(others, f"{len(wanted)} nodes are free again", not_)


def _is_free(stock: InventoryState | None) -> bool:
    return stock is not None and (stock.reserved, stock.used) == (0, 0)


@asynccontextmanager
async def deploy_setup(
    bus: str,
    books: str,
    *nodes: SimulatedNode,
    settings: IronicSimSettings | None = None,
    script: IronicScript | None = None,
    cells: CellMap = CELLS_OF_NODES,
) -> AsyncIterator[DeploySetup]:
    """Everything but daemons: the story starts those. Each cell of nodes has a conductor."""
    picture, clock = Picture(), IronicClock()
    async with (
        cloud(bus, books, scripted=[cell for cell in CELLS if cell not in cells.names]) as setup,
        open_ironic_store(books) as rows,
        setup.placement(),
        setup.scheduler(picture=picture),
        open_conductor_stores(books, cells.names) as instances,
        closing(Link(setup.brokers.at_api("operator"), SETTINGS)) as (operator,),
        AsyncExitStack() as conductors,
    ):
        for cell, rows_of_cell in zip(cells.names, instances, strict=True):
            conducting = setup.conductor(rows_of_cell, cell, name=f"conducting-{cell}", pace=PACE)
            await conductors.enter_async_context(conducting)
        await (await operator.connection()).declare(objects_of(CELLS, create_foreign=True))
        simulation = simulated_ironic(
            setup.brokers.at_api("operator"),
            nodes,
            settings or IronicSimSettings(delays=SHORT),
            script=script,
            clock_s=clock,
            listen=None,
        )
        async with setup.running(simulation.parts):
            way = IronicTransport(simulation.ironic)
            yield DeploySetup(setup, rows, instances[0], simulation, picture, way, cells, clock)


@asynccontextmanager
async def offered(
    bus: str, books: str, *nodes: SimulatedNode, rules: DaemonRules = QUICK, **options: Any
) -> AsyncIterator[tuple[DeploySetup, Sequence[Part]]]:
    """With a daemon, which has offered these nodes."""
    async with deploy_setup(bus, books, *nodes, **options) as there, there.daemon("d1", rules) as parts:
        await there.until_offered(*nodes)
        yield there, parts


@STAGES
async def test_a_build_is_deployed_and_its_delete_undeploys_and_cleans_the_node(bus: str, books: str) -> None:
    nodes = available_nodes(1)
    async with offered(bus, books, *nodes) as (metal, _):
        first = await metal.boot(1, ports=("port-1",), config_drive="http://drives/1")

        active = await metal.cloud.until_state(first, "active")

        (node,) = metal.with_instance(first)
        assert active.host == node.uuid
        assert (node.provision_state, node.vifs) == ("active", ("port-1",))
        assert node.instance_info["image_source"] == IMAGE.source
        assert node.instance_info["display_name"] == "metal-1"
        assert node.instance_info["configdrive"] == "http://drives/1"

        await metal.gone(first, *nodes)
        second = await metal.boot(2)
        assert (await metal.cloud.until_state(second, "active")).host == node.uuid
        assert len(metal.with_instance(second)) == 1


@pytest.mark.hits("a step towards Ironic has had no effect")
@STAGES
async def test_a_node_that_takes_ports_and_attaches_none_is_left_for_the_alternate(
    bus: str, books: str
) -> None:
    """As a node does whose network interface is `noop`."""
    bad = available_nodes(2, name="no-network", network_interface="noop")
    (good,) = available_nodes(1, name="network")
    async with offered(bus, books, *bad, good) as (metal, _):
        active = await metal.cloud.until_state(await metal.boot(1, ports=("port-1",)), "active")

        assert active.host == good.uuid
        assert {each.host for each in active.failures} <= {node.uuid for node in bad}
        assert all("to attach port port-1, and nothing changes" in each.reason for each in active.failures)
        failed = await metal.cloud.until_state(await metal.boot(2, ports=("port-2",)), "error")
        assert {each.host for each in failed.failures} == {node.uuid for node in bad}
        assert all("'noop'" in each.reason for each in failed.failures)
        await metal.until_free(*bad)


class SaysThatItIsGone(httpx.AsyncBaseTransport):
    """An HTTP transport between a daemon and an Ironic that knows no node while `is_on`."""

    def __init__(self, way: httpx.AsyncBaseTransport) -> None:
        self.is_on = False
        self._way = way

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not self.is_on:
            return await self._way.handle_async_request(request)
        if request.url.path.endswith("/nodes"):
            return httpx.Response(200, json={"nodes": []}, request=request)
        fault = json.dumps({"error_message": json.dumps({"faultstring": "Node could not be found."})})
        return httpx.Response(404, text=fault, request=request)


@STAGES
async def test_an_instance_says_that_its_node_is_said_to_be_gone_and_no_more_when_it_is_back(
    bus: str, books: str
) -> None:
    nodes = available_nodes(2)
    settings = structs.replace(QUICK, sweep_s=0.2, belief=Belief(few=100))
    async with deploy_setup(bus, books, *nodes) as metal:
        wrong = metal.way = SaysThatItIsGone(metal.way)
        async with metal.daemon("d1", settings):
            await metal.until_offered(*nodes)
            stays, is_deleted = instances = [await metal.boot(number) for number in (1, 2)]
            for instance in instances:
                await metal.cloud.until_state(instance, "active")
            for _ in range(2):
                wrong.is_on = True
                for instance in instances:
                    await metal.until_says(
                        instance,
                        f"instance {instance} lives here by the books, and Ironic has no such node any more",
                    )
                wrong.is_on = False
                for instance in instances:
                    await metal.until_says(instance, "")

            # Deleted while the node is said to be gone, it is taken off as soon as the node is back, and not told as deleted before.
            wrong.is_on = True
            await metal.delete(is_deleted)
            await metal.cloud.until_state(is_deleted, "deleting")
            (kept,) = metal.with_instance(stays)
            wrong.is_on = False
            await metal.cloud.until_state(is_deleted, "deleted")
            await metal.until_free(*(node for node in nodes if node.uuid != kept.uuid))
            await metal.until_says(stays, "")
            assert metal.with_instance(stays)
            await metal.delete(stays)
            await metal.until_free(*nodes)


@pytest.mark.hits("the %s of instance %s on node %s fails: %s")
@STAGES
async def test_failed_deploys_walk_the_alternates_and_leave_nothing(bus: str, books: str) -> None:
    nodes = available_nodes(3, deploy_interface="direct")
    bad = tuple(node.uuid for node in nodes[:2])
    script = IronicScript(faults=(WorkFails(work="deploy", nodes=bad, reason="no such image"),))
    async with offered(bus, books, *nodes, script=script) as (metal, _):
        active = await metal.cloud.until_state(await metal.boot(1), "active")

        assert active.host == nodes[2].uuid
        assert {each.host for each in active.failures} <= set(bad)
        assert all(each.reason == "deploy failed: no such image" for each in active.failures)
        await metal.until_free(*nodes[:2])

        metal.simulation.ironic.script = IronicScript(faults=(WorkFails(work="deploy"),))
        second = await metal.boot(2)
        failed = await metal.cloud.until_state(second, "error")
        assert {each.host for each in failed.failures} == set(bad)
        await metal.until_free(*nodes[:2])

        # Without an image no deploy begins; the ports are detached, whatever a tenant has called them.
        await metal.cloud.until_state(await metal.boot(3, image=None, ports=("%2e%2e",)), "error")
        await metal.until_free(*nodes[:2])


@IN_MEMORY
async def test_a_build_whose_node_enters_maintenance_goes_to_an_alternate_with_the_reason(
    bus: str, books: str
) -> None:
    nodes = available_nodes(2, deploy_interface="direct")
    slow = IronicSimSettings(delays=structs.replace(SHORT, agent_call_s=LONG_S))
    async with offered(bus, books, *nodes, settings=slow) as (metal, _):
        instance = await metal.boot(1)

        def waiting() -> set[str]:
            return {node.uuid for node in metal.nodes if node.provision_state == "wait call-back"}

        await until(waiting, "it waits for the agent")
        (first,) = metal.with_instance(instance)
        metal.simulation.ironic.set_maintenance(first.uuid, is_on=True, reason="smoke")
        await until(waiting, "the other node waits for the agent", lambda found: found - {first.uuid})
        active = await metal.until_active(instance)

        assert active.host != first.uuid
        (failed,) = active.failures
        assert failed.reason == "the node was put in maintenance while it was deployed: smoke"

        async def is_out_of_maintenance() -> bool:
            try:
                metal.simulation.ironic.set_maintenance(first.uuid, is_on=False)
            except RefusedByIronic:
                # Ironic has the node locked.
                return False
            return True

        await until(is_out_of_maintenance, "it is out of maintenance")
        await metal.until_free(first)
