"""What happens to a node's provider when the node changes its cell or class, disappears, or its provider is not
Ironic's.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from uuid import UUID

import pytest
from msgspec import Struct, structs

from bus.messages.administration import CreateClass, CreateProvider, SetInventories, WriteAnswered
from bus.messages.placement import ClaimAnswered, ClaimResources, ReleaseClaim
from bus.workers.station import Station
from engine.inventories import ConsumerId, ProviderId, ReportedInventory, ResourceAmount, Share
from engine.refusals import Claimed, Released
from ironic_sync.core.offers import CellMap
from ironic_sync.core.ordering import Belief
from ironic_sync.core.rows import NodeRow
from laboratory.ironic import IronicScript, IronicSimulation, available_nodes, simulated_ironic
from laboratory.ironic.script import Loses
from moor.client.bus_client import hosts_of
from tests.contracts.stage import SETTINGS
from tests.ironic_clients.nodes import create, delete
from tests.stories.layouts import ONE_BROKER
from tests.stories.metal.test_nodes import QUICK, NodesSetup, nodes_setup
from tests.waiting import until

pytestmark = [pytest.mark.asyncio, ONE_BROKER]

BY_RACK = CellMap(groups={"rack1": "c1", "rack2": "c2"})
SWEEPS = structs.replace(QUICK, sweep_s=0.3)
CLASS = "CUSTOM_BAREMETAL"


class World(Struct):
    nodes_setup: NodesSetup
    simulation: IronicSimulation
    claims: Station

    @property
    def nodes(self) -> list[ProviderId]:
        return [ProviderId(UUID(each.uuid)) for each in self.simulation.ironic.nodes.values()]

    async def claim(self, node: ProviderId, consumer: ConsumerId) -> object:
        """Placement's verdict."""
        claim = ClaimResources(
            cell="c1",
            consumer=consumer,
            attempt=1,
            issued_at=datetime.now(UTC),
            share=Share(host=node, amounts=(ResourceAmount(provider=node, resource=CLASS, amount=1),)),
        )
        answer = await self.claims.ask(claim)
        assert isinstance(answer, ClaimAnswered)
        return answer.verdict

    async def hold(self, node: ProviderId) -> None:
        """Another consumer claims the node."""
        assert await self.claim(node, ConsumerId(node)) == Claimed()

    async def release(self, node: ProviderId) -> None:
        await self.let_go(ConsumerId(node))

    async def let_go(self, consumer: ConsumerId) -> None:
        release = ReleaseClaim(cell="c1", consumer=consumer, attempt=1, issued_at=datetime.now(UTC))
        answer = await self.claims.ask(release)
        assert isinstance(answer, ClaimAnswered)
        assert isinstance(answer.verdict, Released)

    async def stocks(self, node: ProviderId) -> dict[str, int] | None:
        """The reserved amount of each class; None if there is no provider."""
        found = (await self.nodes_setup.cloud.providers()).get(str(node))
        return None if found is None else {name: each.reserved for name, each in found.inventories.items()}

    async def until_stocks(self, node: ProviderId, stocks: dict[str, int] | None) -> None:
        async def found() -> tuple[dict[str, int] | None]:
            return (await self.stocks(node),)

        await until(found, f"node {node} has {stocks}", lambda each: each == (stocks,))

    async def until_cell(self, node: ProviderId, cell: str) -> None:
        """Wait until placement and the registry have the node in this cell, and it is up."""

        async def found() -> list[object]:
            provider = (await self.nodes_setup.cloud.providers()).get(str(node))
            hosts = await hosts_of(self.nodes_setup.cloud.client, str(node))
            return [provider and provider.cell, *[(each.cell, each.up) for each in hosts]]

        await until(found, f"node {node} is in cell {cell}", lambda each: each == [cell, (cell, True)])

    async def row(self, node: ProviderId) -> NodeRow:
        return (await self.nodes_setup.rows.read([node]))[node]

    async def until_row(
        self, node: ProviderId, holds: Callable[[NodeRow], object] = bool, **fields: object
    ) -> NodeRow:
        """Wait until it has these fields, and holds."""
        rows = await until(
            lambda: self.nodes_setup.rows.read([node]),
            f"row of {node} has {fields}",
            lambda found: (
                found and fields.items() <= structs.asdict(found[node]).items() and holds(found[node])
            ),
        )
        return rows[node]

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


@asynccontextmanager
async def world(bus: str, books: str, count: int) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        setup = await stack.enter_async_context(nodes_setup(bus, books))
        broker = setup.cloud.brokers.at_api("operator")
        nodes = available_nodes(count, conductor_group="rack1")
        simulation = simulated_ironic(broker, nodes, listen=None)
        claims = Station(setup.cloud.brokers.at_api("scheduler"), "claims", settings=SETTINGS, asks=True)
        await stack.enter_async_context(setup.cloud.running((*simulation.parts, claims), claims))
        yield World(setup, simulation, claims)


async def test_a_node_whose_conductor_group_changes_goes_to_the_other_cell_as_soon_as_nothing_holds_it(
    bus: str, books: str
) -> None:
    async with (
        world(bus, books, 2) as metal,
        metal.nodes_setup.daemon("d1", simulation=metal.simulation, cells=BY_RACK),
    ):
        free, held = metal.nodes
        for node in (free, held):
            await metal.until_cell(node, "c1")
            await metal.until_stocks(node, {CLASS: 0})
        await metal.hold(held)

        for node in (free, held):
            metal.change(node, conductor_group="rack2")

        await metal.until_cell(free, "c2")
        await metal.until_stocks(free, {CLASS: 0})
        await metal.until_stocks(held, {CLASS: 1})
        row = await metal.until_row(held, report_note=f"1 of {CLASS} is still held")
        assert (row.cell, row.cell_wanted) == ("c1", "c2")
        assert row.cell_note.endswith("it moves from 'c1' to 'c2'")
        await metal.until_cell(held, "c1")

        await metal.release(held)
        await metal.until_cell(held, "c2")
        await metal.until_stocks(held, {CLASS: 0})


@pytest.mark.parametrize(
    ("resource_class", "held", "then"),
    [("silver", {CLASS: 1, "CUSTOM_SILVER": 1}, {"CUSTOM_SILVER": 0}), (None, {CLASS: 1}, {})],
    ids=["another", "none"],
)
async def test_a_class_changed_while_the_node_is_held_is_offered_once_the_node_is_free(
    bus: str, books: str, resource_class: str | None, held: dict[str, int], then: dict[str, int]
) -> None:
    async with world(bus, books, 1) as metal, metal.nodes_setup.daemon("d1", simulation=metal.simulation):
        (node,) = metal.nodes
        await metal.until_stocks(node, {CLASS: 0})
        await metal.hold(node)

        metal.change(node, resource_class=resource_class)

        await metal.until_stocks(node, held)
        await metal.release(node)
        await metal.until_stocks(node, then)

        # Placement has the report before the daemon learns that.
        await metal.until_row(
            node, lambda row: row.offer is not None and row.offer.kept_class == "", report_note=""
        )


async def test_rows_restored_from_a_backup_get_sequences_above_those_that_placement_knows(
    bus: str, books: str
) -> None:
    async with world(bus, books, 3) as metal:
        epoch = 0
        for _ in range(4):
            async with metal.nodes_setup.daemon("d1", simulation=metal.simulation):
                for node in metal.nodes:
                    await until_reported(metal, node, after_epoch=epoch)
            epoch = max([(await metal.row(node)).epoch for node in metal.nodes])
        rows = [await metal.row(node) for node in metal.nodes]
        assert all(row.epoch >= 4 for row in rows)
        async with metal.nodes_setup.rows.transaction() as transaction:
            await transaction.save(
                [structs.replace(row, epoch=1, seen_epoch=1, read_epoch=1) for row in rows]
            )

        async with metal.nodes_setup.daemon("d1", simulation=metal.simulation):
            for row in rows:
                await until_reported(metal, row.id, after_epoch=row.epoch)
                metal.simulation.ironic.set_maintenance(str(row.id), is_on=True)
                await metal.until_stocks(row.id, {CLASS: 1})


async def until_reported(metal: World, node: ProviderId, after_epoch: int = 0) -> None:
    """Wait until its owner has reported it in its epoch."""
    await metal.until_row(node, lambda row: row.owner and row.read_epoch == row.epoch > after_epoch)


async def test_many_deleted_nodes_are_removed_although_they_are_not_read_one_by_one(
    bus: str, books: str
) -> None:
    believes = structs.replace(SWEEPS, belief=Belief(share=0.99))
    async with (
        world(bus, books, 70) as metal,
        metal.nodes_setup.daemon("d1", simulation=metal.simulation, settings=believes),
    ):
        nodes = metal.nodes
        for node in nodes:
            await metal.until_stocks(node, {CLASS: 0})

        metal.lose(*nodes[:60])

        for node in nodes[:60]:
            await metal.until_stocks(node, None)
        await metal.until_stocks(nodes[60], {CLASS: 0})


async def test_many_nodes_that_vanish_at_once_stay_reserved_and_come_back(bus: str, books: str) -> None:
    hidden: set[ProviderId] = set()
    async with (
        world(bus, books, 10) as metal,
        metal.nodes_setup.daemon("d1", simulation=metal.simulation, settings=SWEEPS, hidden=hidden),
    ):
        nodes = metal.nodes
        for node in nodes:
            await metal.until_stocks(node, {CLASS: 0})

        hidden.update(nodes[:7])
        for node in nodes[:7]:
            await metal.until_stocks(node, {CLASS: 1})
            row = await metal.row(node)
            assert row.missing_since_us > 0
            assert not row.is_deleted
        await metal.until_stocks(nodes[7], {CLASS: 0})

        hidden.clear()
        for node in nodes:
            await metal.until_stocks(node, {CLASS: 0})
            await metal.until_row(node, missing_since_us=0)


async def test_a_foreign_provider_is_left_alone_or_taken_over_as_configured(bus: str, books: str) -> None:
    async with world(bus, books, 2) as metal:
        foreign, own = metal.nodes
        client = metal.nodes_setup.cloud.client
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
            assert isinstance(await client.ask(write), WriteAnswered)
        assert await metal.stocks(foreign) == {CLASS: 0, "CUSTOM_THEIRS": 0}
        async with metal.nodes_setup.daemon("d1", simulation=metal.simulation):
            await metal.until_stocks(own, {CLASS: 0})
            row = await metal.until_row(foreign, is_foreign=True)
            assert row.report_note == "something else wrote its provider, in no cell: it is left alone"
            metal.simulation.ironic.set_maintenance(str(foreign), is_on=True)
            metal.simulation.ironic.set_maintenance(str(own), is_on=True)
            await metal.until_stocks(own, {CLASS: 1})
            assert await metal.stocks(foreign) == {CLASS: 0, "CUSTOM_THEIRS": 0}

        takes = structs.replace(SWEEPS, foreign_providers="take")
        async with metal.nodes_setup.daemon("d1", simulation=metal.simulation, settings=takes):
            await metal.until_stocks(foreign, {CLASS: 1})
            await metal.until_cell(foreign, "c1")
            metal.simulation.ironic.set_maintenance(str(foreign), is_on=False)
            await metal.until_stocks(foreign, {CLASS: 0})
            await metal.hold(foreign)


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
        world(bus, books, 4) as there,
        there.nodes_setup.daemon("d1", simulation=there.simulation, cells=BY_RACK, settings=SWEEPS),
    ):
        free, held, *_ = nodes = there.nodes
        for node in nodes:
            await there.until_stocks(node, {CLASS: 0})
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
