"""Each cell has a broker of its own: which work stops when one broker is down, and which continues."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from operator import not_

import pytest
from msgspec import structs

from bus.messages.build import BuildInstance, InstanceActive
from bus.messages.hosts import HostsReported
from bus.topology import Site, objects_of, user_of
from bus.workers.connections import Station
from cell_conductor.store_sql import ConductorStore
from engine.hosts import HostFacts
from kit.process import Part
from scheduler_worker.store_sql import HostQuery
from tests.contracts.stage import SETTINGS, dead_letters
from tests.contracts.stores import open_conductor_store
from tests.stories.cloud import QUICK, Cloud, a_build, a_host, cloud, instance_of
from tests.stories.layouts import BACKENDS_APART
from tests.stories.scripted import FAIL_FIRST, ScriptedComputes, host_id
from tests.varied import varied
from tests.waiting import until

# Few orders may be under way to one cell, and the sweep comes soon.
SOON = varied(SETTINGS, SWEEP_S=0.05, drain_ms_max=100)
NARROW = structs.replace(QUICK, under_way_max=3)


def narrow_scheduler(setup: Cloud, name: str = "scheduler") -> AbstractAsyncContextManager[Sequence[Part]]:
    return setup.scheduler(name, settings=NARROW, bus=SOON)


async def two_hosts(setup: Cloud) -> None:
    await setup.add_hosts("h1", vcpu=50)
    await setup.add_hosts("h2", cell="c2", vcpu=50)


def builds_on(host: str, first: int, count: int = 20) -> list[BuildInstance]:
    return [a_build(number, hosts=(host,)) for number in range(first, first + count)]


async def until_all_is_said(setup: Cloud) -> None:
    await until(
        lambda: setup.rows.unconfirmed(datetime.now(UTC), None, 100),
        "nothing is left to say on any row",
        not_,
    )


@BACKENDS_APART
async def test_a_cell_whose_broker_is_down_delays_no_other_and_gets_its_orders_afterwards(
    bus: str, books: str
) -> None:
    async with (
        cloud(bus, books) as setup,
        setup.placement(),
        narrow_scheduler(setup),
        setup.listening("instance.active.*") as heard,
    ):
        await two_hosts(setup)
        await setup.brokers.cells["c1"].unplug()
        there, elsewhere = builds_on("h1", 1), builds_on("h2", 101)

        await setup.client.ask_all([each for pair in zip(there, elsewhere, strict=True) for each in pair])
        await setup.until_each(elsewhere, "active")
        await setup.until_each(there, "placed")
        assert setup.cells["c1"].placed == []

        await setup.brokers.cells["c1"].plug_in()
        await setup.until_each(there, "active")

        assert len(setup.placed) == 40
        assert await setup.used() == {"h1": 20, "h2": 20}
        await until_all_is_said(setup)
        # A listener at API level receives the events of all cells, on whatever broker.
        wanted = {instance_of(build) for build in (*there, *elsewhere)}
        await until(
            lambda: {word.instance.id for word in heard if isinstance(word, InstanceActive)} == wanted
        )


@pytest.mark.hits("%d orders stay on their rows, to be sent again: %s")
@BACKENDS_APART
async def test_an_order_that_a_cells_broker_does_not_take_stays_on_its_row_until_it_does(
    bus: str, books: str
) -> None:
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        setup.placement(),
        narrow_scheduler(setup),
    ):
        await two_hosts(setup)
        there = setup.brokers.cells["c1"]
        await there.delete_queue("conductor.c1.work")
        (lost,) = builds_on("h1", 1, 1)
        await setup.built(lost, "placed")
        # Each batch clears what was confirmed before.
        for build in builds_on("h2", 101, 3):
            await setup.built(build)
        assert await setup.rows.unconfirmed(datetime.now(UTC), None, 100)

        await there.declare(objects_of(("c1",), (Site.CELL,)))
        c1 = setup.cells["c1"]
        async with setup.running((c1.worker,)):
            await setup.until_state(instance_of(lost), "active")
            await until_all_is_said(setup)


@pytest.mark.hits("a message is refused, and becomes a dead letter")
@BACKENDS_APART
async def test_on_its_own_broker_a_cell_publishes_in_its_own_name_only(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        await two_hosts(setup)
        # A user that may publish any type, and at API level for any cell.
        there = setup.brokers.cells["c1"].broker(user_of("operator"))
        operator = Station(there, "operator", settings=SETTINGS, asks=True)
        async with setup.running((operator,), operator):
            await operator.publisher.send(a_host("h3", "c2"))
            (letter,) = await dead_letters(there, 1)
            assert letter.reason == "cell 'c2' cannot be named on this broker, which serves c1"
            stranger = HostFacts(id=host_id("h3"), name="h3")
            await operator.publisher.send(HostsReported(cell="c2", hosts=(stranger,)))
            await setup.stations_in["c1"].publisher.send(HostsReported(cell="c1", hosts=(stranger,)))
            await setup.until_registered("h1", "h2", "h3")

            (known,) = await setup.rows.hosts(HostQuery(name="h3"))
            assert known.cell == "c1"


@asynccontextmanager
async def conducting(setup: Cloud, store: ConductorStore, computes: ScriptedComputes) -> AsyncIterator[None]:
    """A real conductor and scripted computes of c1, each as the cell's own user."""
    station = setup.station("compute", "computes", cell="c1")
    async with setup.conductor(store), setup.running((station, *computes.workers(station)), station):
        yield


@BACKENDS_APART
async def test_a_build_goes_on_to_its_alternate_while_the_api_level_has_no_broker(
    bus: str, books: str
) -> None:
    computes = ScriptedComputes(h1=FAIL_FIRST, h2=FAIL_FIRST)
    computes.gate.clear()
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        open_conductor_store(books, "c1") as rows,
        conducting(setup, rows, computes),
        setup.placement(),
        AsyncExitStack() as later,
    ):
        for name in ("h1", "h2"):
            await setup.add_host(name, "c1")
        # Both hosts are in the scheduler's picture from the start: one to choose, one as the alternate.
        await later.enter_async_context(setup.scheduler())
        await setup.until_registered("h1", "h2")
        build = a_build(1)
        await setup.send(build)
        await until(lambda: bool(computes.spawns), "it is ordered")
        first = await setup.until_state(instance_of(build), "placed")

        await setup.brokers.api.unplug()
        computes.gate.set()
        await until(
            lambda: rows.read((instance_of(build),)),
            "active in its cell",
            lambda found: [row.state for row in found] == ["active"],
        )
        await setup.brokers.api.plug_in()
        state = await setup.until_state(instance_of(build), "active")

        assert state.attempt == 2
        assert {first.host, state.host} == {"h1", "h2"}
        assert [failure.host for failure in state.failures] == [first.host]
        await setup.until_used(**{first.host: 0, state.host: 1})
