"""Several Ironics in one cloud: each has its own daemons, which are a ring with a database of their own, and its own cells."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import UUID

import pytest
from msgspec import Struct, structs

from engine.inventories import ProviderId
from ironic_sync.core.offers import CellMap
from ironic_sync.settings import Inbox
from ironic_sync.store_sql import IronicStore
from laboratory.ironic import (
    IronicSimSettings,
    IronicSimulation,
    WorkDurations,
    available_nodes,
    simulated_ironic,
)
from tests.contracts.ironic_stores import open_ironic_store
from tests.stories.layouts import ALL_IN_MEMORY, ON_SQLITE
from tests.stories.metal.test_nodes import QUICK, NodesSetup, nodes_setup
from tests.unit.ironic.deploys import OURS, an_order
from tests.waiting import until

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.parametrize(("bus", "books"), [ALL_IN_MEMORY, ON_SQLITE]),
]

# Sweeps are frequent: a node that its daemon misses would be removed at once, since few are missing.
SWEEPING = structs.replace(QUICK, sweep_s=0.3)
INBOX_OF_SOUTH = Inbox(exchange="ironic-south", queue="ironic.south")


class Region(Struct):
    """An Ironic, its ring's rows, and its nodes."""

    setup: NodesSetup
    simulation: IronicSimulation
    inbox: Inbox
    cell: str

    @property
    def rows(self) -> IronicStore:
        return self.setup.rows

    @property
    def nodes(self) -> list[ProviderId]:
        return [ProviderId(UUID(each.uuid)) for each in self.simulation.ironic.nodes.values()]

    async def until_swept_again(self) -> None:
        """Wait until two more sweeps have ended: the second began after now."""
        (api,) = self.setup.apis
        enough = api.sweeps + 3
        await until(lambda: api.sweeps >= enough, f"the nodes of {self.cell} are swept")


@asynccontextmanager
async def two_ironics(bus: str, books: str) -> AsyncIterator[tuple[Region, Region]]:
    async with AsyncExitStack() as stack:
        setup = await stack.enter_async_context(nodes_setup(bus, books))
        rows = await stack.enter_async_context(open_ironic_store(books))
        of_south = structs.replace(setup, rows=rows, apis=[])
        regions = (
            region_of(setup, "north", "c1", Inbox()),
            region_of(of_south, "south", "c2", INBOX_OF_SOUTH),
        )
        for number, region in enumerate(regions):
            await stack.enter_async_context(setup.cloud.running(region.simulation.parts))
            daemon = region.setup.daemon(
                f"d{number}",
                simulation=region.simulation,
                settings=SWEEPING,
                cells=CellMap(default=region.cell),
                inbox=region.inbox,
                # The rights of the role are to the usual names.
                user="operator",
            )
            await stack.enter_async_context(daemon)
        for region in regions:
            for node in region.nodes:
                await setup.until_reserved(node, 0)
        yield regions


def region_of(setup: NodesSetup, name: str, cell: str, inbox: Inbox) -> Region:
    delays = WorkDurations(deploy_s=0.05)
    simulation = simulated_ironic(
        setup.cloud.brokers.at_api("operator"),
        available_nodes(3, name=name),
        IronicSimSettings(exchange=inbox.exchange, delays=delays),
        listen=None,
    )
    return Region(setup, simulation, inbox, cell)


async def test_the_daemons_of_one_ironic_neither_hear_nor_sweep_the_nodes_of_the_other(
    bus: str, books: str
) -> None:
    async with two_ironics(bus, books) as (north, south):
        for changed, region in ((north.nodes[0], north), (south.nodes[0], south)):
            region.simulation.ironic.set_maintenance(str(changed), is_on=True)
            await region.setup.until_reserved(changed, 1)
        for region in (north, south):
            await region.until_swept_again()

        for region, other in ((north, south), (south, north)):
            rows = await region.rows.read([*region.nodes, *other.nodes])
            assert {*rows} == {*region.nodes}
            assert {(row.cell, row.is_deleted, row.doubts) for row in rows.values()} == {
                (region.cell, False, ())
            }
            for number, node in enumerate(region.nodes):
                stock = await region.setup.stock(node, "CUSTOM_BAREMETAL")
                assert stock is not None
                assert (stock.total, stock.reserved) == (1, int(number == 0))


async def test_an_order_goes_to_the_ironic_of_its_cell(bus: str, books: str) -> None:
    async with two_ironics(bus, books) as (north, south):
        node = south.nodes[1]
        conductor = south.setup.cloud.conductors_in[south.cell]
        await conductor.publisher.send(an_order(cell=south.cell, host=node))
        await until(
            lambda: south.simulation.ironic.nodes[str(node)],
            "the node in the south is active",
            lambda found: (found.provision_state, found.instance_uuid) == ("active", str(OURS)),
        )
        assert {each.instance_uuid for each in north.simulation.ironic.nodes.values()} == {None}
