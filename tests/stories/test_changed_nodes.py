"""What becomes of a node's provider when the node changes its cell or class, is lost, or is kept by something else."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from uuid import UUID

import pytest
from msgspec import Struct, structs

from bus.message import ConsumerId, ProviderId
from bus.messages.administration import CreateClass, CreateProvider, SetInventories, WriteAnswered
from bus.messages.hosts import AskHosts, HostsFound
from bus.messages.placement import (
    ClaimAnswered,
    Claimed,
    ClaimResources,
    ReleaseClaim,
    Released,
    ReportedInventory,
    ResourceAmount,
    Share,
)
from bus.station import Station
from compute_sim.ironic import IronicScript, IronicSimulation, available_nodes, simulated_ironic
from compute_sim.ironic.core.script import Loses
from ironic_sync.core.cells import CellMap
from ironic_sync.core.rows import NodeRow
from tests.contracts.stage import SETTINGS
from tests.stories.cloud import until_so
from tests.stories.test_nodes import QUICK, Scene, scene

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.parametrize(
        ("bus", "books"),
        [
            ("memory", "memory"),
            ("memory", "sqlite"),
            pytest.param("rabbitmq", "postgresql", marks=[pytest.mark.rabbitmq, pytest.mark.postgresql]),
        ],
    ),
]

BY_RACK = CellMap(groups={"rack1": "c1", "rack2": "c2"})
SWEEPS = structs.replace(QUICK, sweep_s=0.3)
CLASS = "CUSTOM_BAREMETAL"


class World(Struct):
    here: Scene
    simulation: IronicSimulation
    claims: Station

    @property
    def nodes(self) -> list[ProviderId]:
        return [ProviderId(UUID(each.uuid)) for each in self.simulation.ironic.nodes.values()]

    async def claim(self, node: ProviderId, consumer: ConsumerId) -> object:
        """What placement says to it."""
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
        """Somebody claims it."""
        assert await self.claim(node, ConsumerId(node)) == Claimed()

    async def release(self, node: ProviderId) -> None:
        await self.let_go(ConsumerId(node))

    async def let_go(self, consumer: ConsumerId) -> None:
        release = ReleaseClaim(cell="c1", consumer=consumer, attempt=1, issued_at=datetime.now(UTC))
        answer = await self.claims.ask(release)
        assert isinstance(answer, ClaimAnswered)
        assert isinstance(answer.verdict, Released)

    async def stocks(self, node: ProviderId) -> dict[str, int] | None:
        """What is reserved of each class; None if there is no provider."""
        found = (await self.here.here.providers()).get(str(node))
        return None if found is None else {name: each.reserved for name, each in found.inventories.items()}

    async def until_stocks(self, node: ProviderId, stocks: dict[str, int] | None) -> None:
        async def is_so() -> bool:
            return await self.stocks(node) == stocks

        await until_so(is_so, f"node {node} has {stocks}", repr(await self.stocks(node)))

    async def until_cell(self, node: ProviderId, cell: str) -> None:
        """Placement and the registry have it there, and it is up."""

        async def is_so() -> bool:
            found = (await self.here.here.providers()).get(str(node))
            hosts = await self.here.here.client.ask(AskHosts(name=str(node)))
            assert isinstance(hosts, HostsFound)
            in_registry = [(each.cell, each.up) for each in hosts.hosts]
            return found is not None and found.cell == cell and in_registry == [(cell, True)]

        await until_so(is_so, f"node {node} is in cell {cell}")

    async def row(self, node: ProviderId) -> NodeRow:
        return (await self.here.rows.read([node]))[node]

    async def until_row(self, node: ProviderId, **fields: object) -> NodeRow:
        async def is_so() -> bool:
            row = (await self.here.rows.read([node])).get(node)
            return row is not None and all(getattr(row, name) == value for name, value in fields.items())

        await until_so(is_so, f"row of {node} has {fields}")
        return await self.row(node)

    def change(self, node: ProviderId, **fields: object) -> None:
        """As an operator of Ironic does."""
        operations = [{"op": "replace", "path": f"/{name}", "value": value} for name, value in fields.items()]
        self.simulation.ironic.patch(str(node), operations)

    def lose(self, *nodes: ProviderId) -> None:
        """Ironic deletes them, and no word of it arrives."""
        ironic = self.simulation.ironic
        ironic.script = IronicScript(faults=(Loses(event_types=("*",)),))
        for node in nodes:
            ironic.set_maintenance(str(node), is_on=True)
            ironic.delete(str(node))
        ironic.script = IronicScript()


@asynccontextmanager
async def world(bus: str, books: str, count: int) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(scene(bus, books))
        broker = here.here.brokers.at_api("operator")
        nodes = available_nodes(count, conductor_group="rack1")
        simulation = simulated_ironic(broker, nodes, listen=None)
        claims = Station(here.here.brokers.at_api("scheduler"), "claims", settings=SETTINGS, asks=True)
        await stack.enter_async_context(here.here.running((*simulation.parts, claims), claims))
        yield World(here, simulation, claims)


async def test_a_node_whose_conductor_group_changes_goes_to_the_other_cell_as_soon_as_nothing_holds_it(
    bus: str, books: str
) -> None:
    async with (
        world(bus, books, 2) as there,
        there.here.daemon("d1", simulation=there.simulation, cells=BY_RACK),
    ):
        free, held = there.nodes
        for node in (free, held):
            await there.until_cell(node, "c1")
            await there.until_stocks(node, {CLASS: 0})
        await there.hold(held)

        for node in (free, held):
            there.change(node, conductor_group="rack2")

        await there.until_cell(free, "c2")
        await there.until_stocks(free, {CLASS: 0})
        await there.until_stocks(held, {CLASS: 1})
        row = await there.until_row(held, report_note=f"1 of {CLASS} is still held")
        assert (row.cell, row.cell_wanted) == ("c1", "c2")
        assert row.cell_note.endswith("it moves from 'c1' to 'c2'")
        await there.until_cell(held, "c1")

        await there.release(held)
        await there.until_cell(held, "c2")
        await there.until_stocks(held, {CLASS: 0})


@pytest.mark.parametrize(
    ("resource_class", "held", "then"),
    [("silver", {CLASS: 1, "CUSTOM_SILVER": 1}, {"CUSTOM_SILVER": 0}), (None, {CLASS: 1}, {})],
    ids=["another", "none"],
)
async def test_a_class_that_changes_while_it_is_held_is_offered_by_itself_once_it_is_free(
    bus: str, books: str, resource_class: str | None, held: dict[str, int], then: dict[str, int]
) -> None:
    async with world(bus, books, 1) as there, there.here.daemon("d1", simulation=there.simulation):
        (node,) = there.nodes
        await there.until_stocks(node, {CLASS: 0})
        await there.hold(node)

        there.change(node, resource_class=resource_class)

        await there.until_stocks(node, held)
        await there.release(node)
        await there.until_stocks(node, then)

        async def is_noted() -> bool:
            """Placement has it before the daemon knows that."""
            row = await there.until_row(node, report_note="")
            return row.offer is not None and row.offer.kept_class == ""

        await until_so(is_noted, "no class is kept any more")


async def test_a_node_that_is_deleted_while_it_is_held_stays_reserved_until_nothing_holds_it(
    bus: str, books: str
) -> None:
    async with world(bus, books, 1) as there, there.here.daemon("d1", simulation=there.simulation):
        (node,) = there.nodes
        await there.until_stocks(node, {CLASS: 0})
        await there.hold(node)

        there.simulation.ironic.set_maintenance(str(node), is_on=True)
        there.simulation.ironic.delete(str(node))

        await there.until_row(node, is_deleted=True, report_note=f"1 of {CLASS} is still held")
        await there.until_stocks(node, {CLASS: 1})
        await there.release(node)
        await there.until_stocks(node, None)


async def test_rows_of_a_backup_are_raised_above_what_placement_knows(bus: str, books: str) -> None:
    async with world(bus, books, 3) as there:
        epoch = 0
        for _ in range(4):
            async with there.here.daemon("d1", simulation=there.simulation):
                for node in there.nodes:
                    await until_reported(there, node, after_epoch=epoch)
            epoch = max([(await there.row(node)).epoch for node in there.nodes])
        rows = [await there.row(node) for node in there.nodes]
        assert all(row.epoch >= 4 for row in rows)
        async with there.here.rows.transaction() as transaction:
            await transaction.save(
                [structs.replace(row, epoch=1, seen_epoch=1, read_epoch=1) for row in rows]
            )

        async with there.here.daemon("d1", simulation=there.simulation):
            for row in rows:
                await until_reported(there, row.id, after_epoch=row.epoch)
                there.simulation.ironic.set_maintenance(str(row.id), is_on=True)
                await there.until_stocks(row.id, {CLASS: 1})


async def until_reported(there: World, node: ProviderId, after_epoch: int = 0) -> None:
    """By its owner, in its epoch."""

    async def is_so() -> bool:
        row = (await there.here.rows.read([node])).get(node)
        return row is not None and bool(row.owner) and row.read_epoch == row.epoch > after_epoch

    await until_so(is_so, f"node {node} is reported in the epoch of its owner")


async def test_nodes_that_ironic_deleted_without_a_word_are_missed_by_the_sweep(bus: str, books: str) -> None:
    async with (
        world(bus, books, 8) as there,
        there.here.daemon("d1", simulation=there.simulation, settings=SWEEPS),
    ):
        lost, *left = there.nodes
        for node in (lost, *left):
            await there.until_stocks(node, {CLASS: 0})

        there.lose(lost)

        await there.until_stocks(lost, None)
        for node in left:
            await there.until_stocks(node, {CLASS: 0})


async def test_more_nodes_than_are_read_one_by_one_are_removed_when_so_many_are_deleted(
    bus: str, books: str
) -> None:
    believes = structs.replace(SWEEPS, missing_share=0.99)
    async with (
        world(bus, books, 70) as there,
        there.here.daemon("d1", simulation=there.simulation, settings=believes),
    ):
        nodes = there.nodes
        for node in nodes:
            await there.until_stocks(node, {CLASS: 0})

        there.lose(*nodes[:60])

        for node in nodes[:60]:
            await there.until_stocks(node, None)
        await there.until_stocks(nodes[60], {CLASS: 0})


async def test_many_nodes_that_vanish_at_once_are_held_and_come_back(bus: str, books: str) -> None:
    hidden: set[ProviderId] = set()
    async with (
        world(bus, books, 10) as there,
        there.here.daemon("d1", simulation=there.simulation, settings=SWEEPS, hidden=hidden),
    ):
        nodes = there.nodes
        for node in nodes:
            await there.until_stocks(node, {CLASS: 0})

        hidden.update(nodes[:7])
        for node in nodes[:7]:
            await there.until_stocks(node, {CLASS: 1})
            row = await there.row(node)
            assert row.missing_since_us > 0
            assert not row.is_deleted
        await there.until_stocks(nodes[7], {CLASS: 0})

        hidden.clear()
        for node in nodes:
            await there.until_stocks(node, {CLASS: 0})
            await there.until_row(node, missing_since_us=0)


async def test_many_nodes_that_stay_missing_are_believed_to_be_gone(bus: str, books: str) -> None:
    hidden: set[ProviderId] = set()
    soon = structs.replace(SWEEPS, missing_believed_s=1.0)
    async with (
        world(bus, books, 10) as there,
        there.here.daemon("d1", simulation=there.simulation, settings=soon, hidden=hidden),
    ):
        nodes = there.nodes
        for node in nodes:
            await there.until_stocks(node, {CLASS: 0})

        hidden.update(nodes[:7])
        for node in nodes[:7]:
            await there.until_stocks(node, None)
        await there.until_stocks(nodes[7], {CLASS: 0})


async def test_nodes_that_a_new_owner_cannot_see_are_held(bus: str, books: str) -> None:
    async with world(bus, books, 10) as there:
        nodes = there.nodes
        async with there.here.daemon("d1", simulation=there.simulation):
            for node in nodes:
                await there.until_stocks(node, {CLASS: 0})
        # Few enough to be read one by one.
        async with there.here.daemon("d2", simulation=there.simulation, hidden=frozenset(nodes)):
            for node in nodes:
                await there.until_stocks(node, {CLASS: 1})
                assert (await there.row(node)).missing_since_us > 0


async def test_a_provider_that_something_else_wrote_is_left_alone_or_taken_as_is_set(
    bus: str, books: str
) -> None:
    async with world(bus, books, 2) as there:
        foreign, own = there.nodes
        client = there.here.here.client
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
        assert await there.stocks(foreign) == {CLASS: 0, "CUSTOM_THEIRS": 0}
        async with there.here.daemon("d1", simulation=there.simulation):
            await there.until_stocks(own, {CLASS: 0})
            row = await there.until_row(foreign, is_foreign=True)
            assert row.report_note == "something else wrote its provider, in no cell: it is left alone"
            there.simulation.ironic.set_maintenance(str(foreign), is_on=True)
            there.simulation.ironic.set_maintenance(str(own), is_on=True)
            await there.until_stocks(own, {CLASS: 1})
            assert await there.stocks(foreign) == {CLASS: 0, "CUSTOM_THEIRS": 0}

        takes = structs.replace(SWEEPS, foreign_providers="take")
        async with there.here.daemon("d1", simulation=there.simulation, settings=takes):
            await there.until_stocks(foreign, {CLASS: 1})
            await there.until_cell(foreign, "c1")
            there.simulation.ironic.set_maintenance(str(foreign), is_on=False)
            await there.until_stocks(foreign, {CLASS: 0})
            await there.hold(foreign)


async def test_the_row_of_a_deleted_node_is_pruned_after_a_time(bus: str, books: str) -> None:
    prunes = structs.replace(SWEEPS, deleted_kept_s=0.5)
    async with (
        world(bus, books, 2) as there,
        there.here.daemon("d1", simulation=there.simulation, settings=prunes),
    ):
        gone, left = there.nodes
        await there.until_stocks(gone, {CLASS: 0})
        there.simulation.ironic.set_maintenance(str(gone), is_on=True)
        there.simulation.ironic.delete(str(gone))

        async def is_pruned() -> bool:
            return [*await there.here.rows.read([gone, left])] == [left]

        await until_so(is_pruned, f"the row of {gone} is pruned")
        assert await there.stocks(gone) is None

        # It comes back under the same id: placement remembers its numbers.
        there.simulation.ironic.create(
            {"uuid": str(gone), "driver": "fake-hardware", "resource_class": "baremetal"}
        )
        await there.until_stocks(gone, {CLASS: 1})


async def test_a_node_whose_leaving_is_committed_is_not_claimed_before_it_is_back(
    bus: str, books: str
) -> None:
    claimed_while_away: list[ConsumerId] = []
    verdicts: Counter[str] = Counter()
    is_away = asyncio.Event()

    async with world(bus, books, 1) as there, there.here.daemon("d1", simulation=there.simulation):
        (node,) = there.nodes
        await there.until_stocks(node, {CLASS: 0})

        async def claim_again_and_again() -> None:
            for number in itertools.count(1):
                was_away = is_away.is_set()
                verdict = await there.claim(node, consumer := ConsumerId(UUID(int=number)))
                verdicts[type(verdict).__name__] += 1
                if isinstance(verdict, Claimed):
                    claimed_while_away.extend([consumer] if was_away else [])
                    await there.let_go(consumer)

        claiming = asyncio.create_task(claim_again_and_again())
        for _ in range(8):
            there.simulation.ironic.set_maintenance(str(node), is_on=True)
            await there.until_stocks(node, {CLASS: 1})
            is_away.set()
            refused = verdicts["DoesNotFit"]

            async def is_refused(more_than: int = refused + 2) -> bool:
                return verdicts["DoesNotFit"] > more_than or bool(claimed_while_away)

            await until_so(is_refused, "claims are refused", verdicts)
            is_away.clear()
            claimed = verdicts["Claimed"]
            there.simulation.ironic.set_maintenance(str(node), is_on=False)

            async def is_claimed(more_than: int = claimed) -> bool:
                return verdicts["Claimed"] > more_than

            await until_so(is_claimed, "the node is claimed again", verdicts)
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)

    assert claimed_while_away == []
