"""From Ironic's notifications and its REST API to the bare-metal nodes that placement and the scheduler know; what happens to a node's
provider when the node changes its cell or class, disappears, or its provider is not Ironic's; and several Ironics in one cloud.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from uuid import UUID

import pytest
from msgspec import Struct, structs

from bus.broker import Connection
from bus.message import Parcel
from bus.messages.books import CreateClass, CreateProvider, SetInventories, WriteAnswered
from bus.topology import IRONIC, Exchange, Objects, objects_of
from bus.workers.sending import Link
from engine.hosts import NODE
from engine.inventories import ConsumerId, ProviderId, ReportedInventory, ResourceAmount
from ironic_sync.core.node import Node
from ironic_sync.core.offers import CellMap
from ironic_sync.core.ordering import Belief
from ironic_sync.core.rows import NodeRow
from ironic_sync.rest import HttpIronicApi, NodesRead
from ironic_sync.settings import DaemonRules, Inbox, IronicSettings
from ironic_sync.store_sql import IronicStore
from kit.process import Part
from laboratory.ironic import (
    IronicScript,
    IronicSimSettings,
    IronicSimulation,
    IronicTransport,
    WorkDurations,
    available_nodes,
    simulated_ironic,
)
from laboratory.ironic.script import Loses
from moor.client.bus_client import hosts_of
from tests.contracts.stage import CELLS, SETTINGS
from tests.contracts.stores import open_ironic_store
from tests.ironic_clients.nodes import create, delete
from tests.running import closing
from tests.stories.cloud import Cloud, cloud
from tests.stories.layouts import ALL_IN_MEMORY, ON_SQLITE, ONE_BROKER
from tests.unit.ironic.captured import bodies_of, body_of, data_of, notification_in
from tests.unit.ironic.deploys import OURS, an_order
from tests.waiting import until

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
CLASS = "CUSTOM_BAREMETAL"


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
    """An Ironic, the rows of its ring, and its nodes in a cloud. It publishes to `inbox`."""

    cloud: Cloud
    rows: IronicStore
    connection: Connection
    simulation: IronicSimulation
    inbox: Inbox = USUAL_INBOX
    # The clients of Ironic's API that the daemons have.
    apis: list[HidesNodes] = []

    def daemon(
        self,
        name: str,
        *,
        settings: DaemonRules = QUICK,
        cells: CellMap = CELLS_OF_NODES,
        hidden: AbstractSet[ProviderId] = frozenset(),
        inbox: Inbox | None = None,
        user: str = "ironic",
    ) -> AbstractAsyncContextManager[Sequence[Part]]:
        """A daemon. It uses Ironic's API if that has nodes; its user cannot see the `hidden` nodes."""
        api = None
        if self.nodes:
            api = HidesNodes("http://ironic", hidden, IronicTransport(self.simulation.ironic))
            self.apis.append(api)
        inbox = inbox or self.inbox
        return self.cloud.daemon(self.rows, name, settings, cells, api=api, inbox=inbox, user=user)

    @property
    def nodes(self) -> list[ProviderId]:
        return [ProviderId(UUID(each.uuid)) for each in self.simulation.ironic.nodes.values()]

    # What others do

    async def said(
        self, *bodies: bytes, exchange: str = IRONIC, topic: str = "ironic_versioned_notifications"
    ) -> None:
        """Publish these bodies as Ironic does."""
        for body in bodies:
            await self.cloud.client.publisher.offer(Parcel(exchange, f"{topic}.info", body))

    async def hold(self, node: ProviderId) -> None:
        """Another consumer claims the node."""
        one = ResourceAmount(provider=node, resource=CLASS, amount=1)
        await self.cloud.hold(node, ConsumerId(node), one)

    async def release(self, node: ProviderId) -> None:
        await self.cloud.give_back(ConsumerId(node))

    def change(self, node: ProviderId, **fields: object) -> None:
        """Change the node as an operator of Ironic does."""
        operations = [{"op": "replace", "path": f"/{name}", "value": value} for name, value in fields.items()]
        self.simulation.ironic.patch(str(node), operations)

    async def make_available(self, node: ProviderId) -> None:
        """A node that was just enrolled."""
        ironic = self.simulation.ironic
        for verb, state in (("manage", "manageable"), ("provide", "available")):
            ironic.provision(str(node), verb)
            await until(lambda state=state: ironic.nodes[str(node)].provision_state == state, state)  # type: ignore[misc]

    def lose(self, *nodes: ProviderId) -> None:
        """Delete nodes in Ironic; no notification arrives."""
        ironic = self.simulation.ironic
        ironic.script = IronicScript(faults=(Loses(event_types=("*",)),))
        for node in nodes:
            ironic.set_maintenance(str(node), is_on=True)
            delete(ironic, str(node))
        ironic.script = IronicScript()

    # State

    async def stocks(self, node: ProviderId) -> dict[str, int] | None:
        """The reserved amount of each class; None if there is no provider."""
        found = (await self.cloud.providers()).get(str(node))
        return None if found is None else {name: each.reserved for name, each in found.inventories.items()}

    async def until_stocks(self, node: ProviderId, stocks: dict[str, int] | None) -> None:
        async def found() -> tuple[dict[str, int] | None]:
            return (await self.stocks(node),)

        await until(found, f"node {node} has {stocks}", lambda each: each == (stocks,))

    async def until_offered(self, *nodes: ProviderId) -> None:
        """Wait until nothing of these nodes, or of all, is reserved."""
        for node in nodes or self.nodes:
            await self.until_stocks(node, {CLASS: 0})

    async def until_cell(self, node: ProviderId, cell: str) -> None:
        """Wait until placement and the registry have the node in this cell, and it is up."""

        async def found() -> list[object]:
            provider = (await self.cloud.providers()).get(str(node))
            hosts = await hosts_of(self.cloud.client, str(node))
            return [provider and provider.cell, *[(each.cell, each.up) for each in hosts]]

        await until(found, f"node {node} is in cell {cell}", lambda each: each == [cell, (cell, True)])

    async def row(self, node: ProviderId) -> NodeRow:
        return (await self.rows.read([node]))[node]

    async def until_row(
        self, node: ProviderId, holds: Callable[[NodeRow], object] = bool, **fields: object
    ) -> NodeRow:
        """Wait until it has these fields, and holds."""
        rows = await until(
            lambda: self.rows.read([node]),
            f"row of {node} has {fields}",
            lambda found: (
                found and fields.items() <= structs.asdict(found[node]).items() and holds(found[node])
            ),
        )
        return rows[node]

    async def until_reported(self, node: ProviderId, after_epoch: int = 0) -> None:
        """Wait until its owner has reported it in its epoch."""
        await self.until_row(node, lambda row: row.owner and row.read_epoch == row.epoch > after_epoch)


@asynccontextmanager
async def nodes_setup(bus: str, books: str, count: int = 0) -> AsyncIterator[NodesSetup]:
    """With a simulated Ironic that has so many nodes, in one conductor group."""
    async with (
        cloud(bus, books) as setup,
        open_ironic_store(books) as rows,
        setup.placement(),
        setup.scheduler(),
        closing(Link(setup.brokers.at_api("operator"), SETTINGS)) as (operator,),
    ):
        connection = await operator.connection()
        await connection.declare(objects_of(CELLS, create_foreign=True))
        nodes = available_nodes(count, conductor_group="rack1")
        simulation = simulated_ironic(setup.brokers.at_api("operator"), nodes, listen=None)
        async with setup.running(simulation.parts):
            yield NodesSetup(setup, rows, connection, simulation)


def node_in(body: bytes) -> ProviderId:
    return ProviderId(UUID(data_of(notification_in(body))["uuid"]))


@ONE_BROKER
@pytest.mark.parametrize("dressed", [True, False], ids=["enveloped", "plain"])
async def test_a_notification_alone_moves_a_node_in_and_out_of_placement(
    bus: str, books: str, *, dressed: bool
) -> None:
    bodies = bodies_of("09_maintenance_by_patch")
    if not dressed:
        bodies = [body_of(notification_in(body)) for body in bodies]
    node = node_in(bodies_of("09_maintenance_by_patch")[0])
    async with nodes_setup(bus, books) as setup, setup.daemon("d1"):
        await setup.said(*bodies[:2])
        await setup.until_stocks(node, {CLASS: 1})
        await setup.said(*bodies[2:])
        await setup.until_stocks(node, {CLASS: 0})

        await until(
            lambda: hosts_of(setup.cloud.client, str(node)),
            f"node {node} is a host",
            lambda found: [(each.up, each.kind, each.cell) for each in found] == [(True, NODE, "c1")],
        )


@ONE_BROKER
async def test_exchange_topics_and_queue_are_those_of_the_settings(bus: str, books: str) -> None:
    names = IronicSettings(exchange="metal", topics=("for_all", "for_us"), queue="ironic.south")
    bodies = bodies_of("09_maintenance_by_patch")
    node = node_in(bodies[0])
    async with nodes_setup(bus, books) as setup:
        # The rights of the role are to the usual names (`moor broker declare` gives those to other names).
        daemon = setup.daemon("d1", inbox=names.inbox, user="operator")
        await setup.connection.declare(Objects((Exchange("metal", durable=False),)))
        async with daemon:

            async def said() -> dict[str, int] | None:
                # What is published before the queue is bound is lost.
                await setup.said(*bodies[:2], exchange="metal", topic="for_us")
                return await setup.stocks(node)

            await until(said, "notifications of one topic are heard", lambda found: found == {CLASS: 1})
            await setup.said(*bodies[2:], exchange="metal", topic="for_all")
            await setup.until_stocks(node, {CLASS: 0})


@ONE_BROKER
async def test_all_nodes_are_read_at_the_start_and_changes_heard_from_then_on(bus: str, books: str) -> None:
    async with nodes_setup(bus, books, 20) as setup, setup.daemon("d1"):
        await setup.until_offered()

        nodes = setup.nodes
        for is_on in (True, False):
            setup.simulation.ironic.set_maintenance(str(nodes[3]), is_on=is_on)
            await setup.until_stocks(nodes[3], {CLASS: int(is_on)})
        setup.simulation.ironic.set_maintenance(str(nodes[4]), is_on=True)
        delete(setup.simulation.ironic, str(nodes[4]))
        await setup.until_stocks(nodes[4], None)


@ONE_BROKER
async def test_all_changes_of_which_no_notification_comes_are_noticed_also_while_ironic_has_no_exchange(
    bus: str, books: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ironic_sync.events.BIND_S", 0.1)
    soon = structs.replace(QUICK, changes_s=0.2)
    async with nodes_setup(bus, books, 3) as setup, setup.daemon("d1", settings=soon, inbox=Inbox()):
        await setup.until_offered()
        await setup.cloud.brokers.api.delete_exchange(IRONIC)
        await until(lambda: "exists: it does not yet" in caplog.text, "the daemon misses the exchange")
        first, second, gone = setup.nodes
        setup.simulation.ironic.script = IronicScript(faults=(Loses(event_types=("*",)),))
        setup.simulation.ironic.set_maintenance(str(first), is_on=True)
        setup.simulation.ironic.set_maintenance(str(second), is_on=True)
        await setup.until_stocks(first, {CLASS: 1})
        setup.lose(gone)

        await setup.connection.declare(Objects((Exchange(IRONIC, durable=False),)))
        await setup.until_stocks(gone, None)


@ONE_BROKER
async def test_an_unreadable_notification_is_dead_lettered_and_its_neighbours_are_applied(
    bus: str, books: str
) -> None:
    bodies = bodies_of("08_maintenance_on_off_available")
    node = node_in(bodies[0])
    async with nodes_setup(bus, books) as setup, setup.daemon("d1"):
        await setup.said(b"\xff no json", *bodies, b"{}")
        await setup.until_stocks(node, {"CUSTOM_BAREMETAL_GOLD": 0})
        await until(lambda: setup.connection.depth("dead"), "two dead letters", lambda found: found == 2)


# Nodes that change, disappear, or whose provider is not Ironic's

BY_RACK = CellMap(groups={"rack1": "c1", "rack2": "c2"})
SWEEPS = structs.replace(QUICK, sweep_s=0.3)


@ONE_BROKER
async def test_a_node_whose_conductor_group_changes_goes_to_the_other_cell_as_soon_as_nothing_holds_it(
    bus: str, books: str
) -> None:
    async with (
        nodes_setup(bus, books, 2) as metal,
        metal.daemon("d1", cells=BY_RACK),
    ):
        free, held = metal.nodes
        await metal.until_offered()
        await metal.hold(held)

        for node in (free, held):
            await metal.until_cell(node, "c1")
            metal.change(node, conductor_group="rack2")

        await metal.until_cell(free, "c2")
        await metal.until_offered(free)
        await metal.until_stocks(held, {CLASS: 1})
        row = await metal.until_row(held, report_note=f"1 of {CLASS} is still held")
        assert (row.cell, row.cell_wanted) == ("c1", "c2")
        assert row.cell_note.endswith("it moves from 'c1' to 'c2'")
        await metal.until_cell(held, "c1")

        await metal.release(held)
        await metal.until_cell(held, "c2")
        await metal.until_offered(held)


@ONE_BROKER
@pytest.mark.parametrize(
    ("resource_class", "held", "then"),
    [("silver", {CLASS: 1, "CUSTOM_SILVER": 1}, {"CUSTOM_SILVER": 0}), (None, {CLASS: 1}, {})],
    ids=["another", "none"],
)
async def test_a_class_changed_while_the_node_is_held_is_offered_once_the_node_is_free(
    bus: str, books: str, resource_class: str | None, held: dict[str, int], then: dict[str, int]
) -> None:
    async with nodes_setup(bus, books, 1) as metal, metal.daemon("d1"):
        (node,) = metal.nodes
        await metal.until_offered()
        await metal.hold(node)

        metal.change(node, resource_class=resource_class)

        await metal.until_stocks(node, held)
        await metal.release(node)
        await metal.until_stocks(node, then)

        # Placement has the report before the daemon learns that.
        await metal.until_row(
            node, lambda row: row.offer is not None and row.offer.kept_class == "", report_note=""
        )


@pytest.mark.hits(
    "daemon %r raised the epochs of %d of %d nodes above those that placement knows: were its rows restored from a backup?"
)
@ONE_BROKER
async def test_rows_restored_from_a_backup_get_sequences_above_those_that_placement_knows(
    bus: str, books: str
) -> None:
    async with nodes_setup(bus, books, 3) as metal:
        epoch = 0
        for _ in range(4):
            async with metal.daemon("d1"):
                for node in metal.nodes:
                    await metal.until_reported(node, after_epoch=epoch)
            epoch = max([(await metal.row(node)).epoch for node in metal.nodes])
        rows = [await metal.row(node) for node in metal.nodes]
        assert all(row.epoch >= 4 for row in rows)
        async with metal.rows.transaction() as transaction:
            await transaction.save(
                [structs.replace(row, epoch=1, seen_epoch=1, read_epoch=1) for row in rows]
            )

        async with metal.daemon("d1"):
            for row in rows:
                await metal.until_reported(row.id, after_epoch=row.epoch)
                metal.simulation.ironic.set_maintenance(str(row.id), is_on=True)
                await metal.until_stocks(row.id, {CLASS: 1})


@pytest.mark.hits("too many nodes are to be read alone: all are listed")
@ONE_BROKER
async def test_many_deleted_nodes_are_removed_although_they_are_not_read_one_by_one(
    bus: str, books: str
) -> None:
    believes = structs.replace(SWEEPS, belief=Belief(share=0.99))
    async with (
        nodes_setup(bus, books, 70) as metal,
        metal.daemon("d1", settings=believes),
    ):
        await metal.until_offered()
        *lost, stays = metal.nodes[:61]

        metal.lose(*lost)

        for node in lost:
            await metal.until_stocks(node, None)
        await metal.until_offered(stays)


@pytest.mark.hits("nodes that Ironic lacks are held: too many are missing, or they were missing before")
@ONE_BROKER
async def test_many_nodes_that_vanish_at_once_stay_reserved_and_come_back(bus: str, books: str) -> None:
    hidden: set[ProviderId] = set()
    async with (
        nodes_setup(bus, books, 10) as metal,
        metal.daemon("d1", settings=SWEEPS, hidden=hidden),
    ):
        await metal.until_offered()

        hidden.update(metal.nodes[:7])
        for node in hidden:
            await metal.until_stocks(node, {CLASS: 1})
            row = await metal.row(node)
            assert row.missing_since_us > 0
            assert not row.is_deleted
        await metal.until_offered(metal.nodes[7])

        hidden.clear()
        await metal.until_offered()
        for node in metal.nodes:
            await metal.until_row(node, missing_since_us=0)


@pytest.mark.hits("report of node %s: %s")
@ONE_BROKER
async def test_a_foreign_provider_is_left_alone_or_taken_over_as_configured(bus: str, books: str) -> None:
    async with nodes_setup(bus, books, 2) as metal:
        foreign, own = metal.nodes
        theirs = {
            CLASS: ReportedInventory(total=1, reserved=0, max_unit=1),
            "CUSTOM_THEIRS": ReportedInventory(total=3),
        }
        for write in (
            CreateProvider(id=foreign, name=str(foreign)),
            CreateClass(name=CLASS),
            CreateClass(name="CUSTOM_THEIRS"),
            SetInventories(provider=foreign, generation=None, inventories=theirs),
        ):
            assert isinstance(await metal.cloud.client.ask(write), WriteAnswered)
        assert await metal.stocks(foreign) == {CLASS: 0, "CUSTOM_THEIRS": 0}
        async with metal.daemon("d1"):
            await metal.until_offered(own)
            left = "something else wrote its provider, in no cell: it is left alone"
            assert (await metal.until_row(foreign, is_foreign=True)).report_note == left
            metal.simulation.ironic.set_maintenance(str(foreign), is_on=True)
            metal.simulation.ironic.set_maintenance(str(own), is_on=True)
            await metal.until_stocks(own, {CLASS: 1})
            assert await metal.stocks(foreign) == {CLASS: 0, "CUSTOM_THEIRS": 0}

        takes = structs.replace(SWEEPS, foreign_providers="take")
        async with metal.daemon("d1", settings=takes):
            await metal.until_stocks(foreign, {CLASS: 1})
            await metal.until_cell(foreign, "c1")
            metal.simulation.ironic.set_maintenance(str(foreign), is_on=False)
            await metal.until_offered(foreign)
            await metal.hold(foreign)


@ONE_BROKER
@pytest.mark.parametrize(
    ("group", "resource_class", "cell", "is_told"),
    [
        ("rack1", "baremetal", "c1", True),
        ("rack1", "silver", "c1", True),
        ("rack2", "baremetal", "c2", True),
        ("rack2", "silver", "c2", False),
    ],
    ids=["as it was", "another class", "another cell", "both, and not told"],
)
async def test_a_node_that_is_deleted_and_enrolled_again_under_its_id_is_offered_as_what_it_is(
    group: str, resource_class: str, cell: str, *, is_told: bool, bus: str, books: str
) -> None:
    """Once when placement has let go of it, and once while somebody still holds it."""
    async with (
        nodes_setup(bus, books, 4) as there,
        there.daemon("d1", cells=BY_RACK, settings=SWEEPS),
    ):
        free, held, *_ = there.nodes
        await there.until_offered()
        await there.hold(held)
        for node in (free, held):
            there.simulation.ironic.set_maintenance(str(node), is_on=True)
            delete(there.simulation.ironic, str(node))
        await there.until_stocks(free, None)
        await there.until_stocks(held, {CLASS: 1})

        new = {"driver": "fake-hardware", "resource_class": resource_class, "conductor_group": group}
        if not is_told:
            there.simulation.ironic.script = IronicScript(faults=(Loses(event_types=("*",)),))
        for node in (free, held):
            create(there.simulation.ironic, {"uuid": str(node), **new})
            await there.make_available(node)

        named = f"CUSTOM_{resource_class.upper()}"
        await there.until_stocks(free, {named: 0})
        await there.until_cell(free, cell)
        row = await there.until_row(held, is_deleted=False)
        is_as_it_was = (group, resource_class) == ("rack1", "baremetal")
        await until(
            lambda: there.stocks(held),
            "its former class is there while it is held",
            lambda stocks: stocks.get(CLASS) == (0 if is_as_it_was else 1),
        )
        await there.release(held)
        await there.until_stocks(held, {named: 0})
        await there.until_cell(held, cell)
        assert (await there.row(held)).epoch == row.epoch


# Several Ironics in one cloud: each has its own daemons, which are a ring with a database of their own, and its own cells

SEVERAL = pytest.mark.parametrize(("bus", "books"), [ALL_IN_MEMORY, ON_SQLITE])
INBOX_OF_SOUTH = Inbox(exchange="ironic-south", queue="ironic.south")


@asynccontextmanager
async def two_ironics(bus: str, books: str) -> AsyncIterator[tuple[NodesSetup, NodesSetup]]:
    async with AsyncExitStack() as stack:
        setup = await stack.enter_async_context(nodes_setup(bus, books))
        rows = await stack.enter_async_context(open_ironic_store(books))
        regions = []
        for name, cell, rows_of_it, inbox in (
            ("north", "c1", setup.rows, Inbox()),
            ("south", "c2", rows, INBOX_OF_SOUTH),
        ):
            simulation = simulated_ironic(
                setup.cloud.brokers.at_api("operator"),
                available_nodes(3, name=name),
                IronicSimSettings(exchange=inbox.exchange, delays=WorkDurations(deploy_s=0.05)),
                listen=None,
            )
            await stack.enter_async_context(setup.cloud.running(simulation.parts))
            region = structs.replace(setup, rows=rows_of_it, simulation=simulation, inbox=inbox, apis=[])
            # Sweeps are frequent: a node that its daemon misses would be removed at once, since few are missing. The rights of
            # the role are to the usual names.
            daemon = region.daemon(name, settings=SWEEPS, cells=CellMap(default=cell), user="operator")
            await stack.enter_async_context(daemon)
            regions.append(region)
        north, south = regions
        for region in regions:
            await region.until_offered()
        yield north, south


async def until_swept_again(region: NodesSetup) -> None:
    """Wait until two more sweeps have ended: the second began after now."""
    (api,) = region.apis
    enough = api.sweeps + 3
    await until(lambda: api.sweeps >= enough, f"the nodes of {region.inbox.exchange} are swept")


@SEVERAL
async def test_the_daemons_of_one_ironic_neither_hear_nor_sweep_the_nodes_of_the_other(
    bus: str, books: str
) -> None:
    async with two_ironics(bus, books) as (north, south):
        for changed, region in ((north.nodes[0], north), (south.nodes[0], south)):
            region.simulation.ironic.set_maintenance(str(changed), is_on=True)
            await region.until_stocks(changed, {CLASS: 1})
        for region in (north, south):
            await until_swept_again(region)

        for cell, region, other in (("c1", north, south), ("c2", south, north)):
            rows = await region.rows.read([*region.nodes, *other.nodes])
            assert {*rows} == {*region.nodes}
            assert {(row.cell, row.is_deleted, row.doubts) for row in rows.values()} == {(cell, False, ())}
            for number, node in enumerate(region.nodes):
                assert await region.stocks(node) == {CLASS: int(number == 0)}


@SEVERAL
async def test_an_order_goes_to_the_ironic_of_its_cell(bus: str, books: str) -> None:
    async with two_ironics(bus, books) as (north, south):
        node = south.nodes[1]
        await south.cloud.conductors_in["c2"].publisher.send(an_order(cell="c2", host=node))
        await until(
            lambda: south.simulation.ironic.nodes[str(node)],
            "the node in the south is active",
            lambda found: (found.provision_state, found.instance_uuid) == ("active", str(OURS)),
        )
        assert {each.instance_uuid for each in north.simulation.ironic.nodes.values()} == {None}
