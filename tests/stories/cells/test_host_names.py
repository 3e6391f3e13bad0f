"""A name counts only inside its cell: what the hosts of one cell are called changes nothing in another one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.build import BuildRejected, InstancesFound
from bus.messages.hosts import AskHosts, DeleteHost, HostDeleted, HostSet, HostsFound, HostsReported, SetHost
from bus.messages.moves import MoveInstance
from bus.messages.planning import AskDrain, DrainFound
from engine.flavors import RequestId
from engine.hosts import HostFacts
from tests.contracts.placement_orders import an_id
from tests.contracts.stores import open_conductor_stores
from tests.narrowing import must_be
from tests.stories.cells.test_deleted_hosts import LONG_S, SOON
from tests.stories.cloud import Cloud, a_host, cloud, funnel_of
from tests.stories.layouts import STAGES
from tests.stories.scripted import ScriptedComputes, host_id
from tests.waiting import Clock, until

# A new id, and the name of a host of c2: letter case does not matter.
FALSE = HostFacts(id=host_id("false"), name="H1")


@asynccontextmanager
async def a_namesake(bus: str, books: str, *, comes_first: bool = False) -> AsyncIterator[Cloud]:
    """A cloud in which a compute of c1 reports a host by the name of a host of c2, and its inventory too."""
    async with cloud(bus, books) as setup, setup.scheduling():
        if comes_first:
            await report_falsely(setup)
        await setup.add_hosts("h1", "h2", cell="c2")
        if not comes_first:
            await report_falsely(setup)
        yield setup


async def report_falsely(setup: Cloud) -> None:
    inventory = a_host("h1", "c1")
    provider = structs.replace(inventory.providers[0], id=FALSE.id)
    await setup.stations_in["c1"].ask(structs.replace(inventory, root=FALSE.id, providers=(provider,)))
    await setup.stations_in["c1"].publisher.send(HostsReported(cell="c1", hosts=(FALSE,)))
    await until(
        lambda: setup.client.ask(AskHosts(name="H1")),
        "the false host is known",
        lambda found: isinstance(found, HostsFound) and bool(found.hosts),
    )


async def answered(setup: Cloud, question: Message) -> Message:
    return await setup.client.ask(question)


@STAGES
@pytest.mark.parametrize("comes_first", [False, True])
async def test_a_compute_of_one_cell_stops_no_evacuation_in_another(
    bus: str, books: str, *, comes_first: bool
) -> None:
    async with a_namesake(bus, books, comes_first=comes_first) as setup:
        built = await setup.boot(1, "active", "error", hosts=("c2/h1",))
        assert (built.state, built.cell, built.host) == ("active", "c2", "h1")
        down = must_be(HostSet, await answered(setup, SetHost(host="c2/h1", mode="down")))
        assert (down.host.cell, down.host.also_in) == ("c2", ("c1",))

        order = MoveInstance(request_id=RequestId(an_id("move")), instance=built.id, kind="evacuate")
        moving = must_be(InstancesFound, await answered(setup, order))
        assert [each.state for each in moving.instances] == ["moving"]


@STAGES
async def test_a_name_without_its_cell_is_refused_with_both(bus: str, books: str) -> None:
    async with a_namesake(bus, books) as setup:
        ended = await setup.boot(1, "active", "error", hosts=("h1",))
        planned = await answered(setup, AskDrain(host="h1"))
        drained = await answered(setup, AskDrain(host="c2/h1"))

        both = "hosts of cells c1 and c2 have this name: give one as c1/h1 or c2/h1"
        assert ended.state == "error"
        assert [each.reason for each in funnel_of(ended).nearest] == [both, both]
        assert isinstance(planned, BuildRejected)
        assert (planned.field, planned.reason) == ("host", both)
        assert isinstance(drained, DrainFound)


async def test_a_host_that_was_down_in_its_former_cell_is_built_on_in_its_new_one() -> None:
    """Both cells have their rows in one database."""
    clock, computes = Clock(datetime.now(UTC)), ScriptedComputes()
    async with (
        open_conductor_stores("memory", ("c1", "c2")) as (new, former),
        cloud("memory", "memory", scripted=()) as setup,
        setup.scheduling("h0", clock=clock, bus=SOON),
        setup.conductor(new),
        setup.conductor(former, "c2"),
    ):
        await setup.add_hosts("h1", cell="c2")
        await answered(setup, SetHost(host="h1", mode="down"))
        await until(former.hosts, "its cell knows it")
        await answered(setup, SetHost(host="h0", mode="draining"))
        await until(new.hosts, "the other cell has read modes, too")
        clock.pass_s(LONG_S)
        await setup.ask(DeleteHost(host="h1"), HostDeleted)
        await setup.add_hosts("h1")

        async with setup.running(computes.workers(setup.stations_in["c1"])):
            built = await setup.boot(1, "active", "error", hosts=("h1",))

        assert (built.cell, built.host, built.state) == ("c1", "h1", "active")
