"""Aggregates over the bus: an order changes members at placement and metadata at the schedulers, and boots follow them."""

from uuid import UUID

from bus.messages.build import BuildRejected
from bus.messages.hosts import (
    AggregateDeleted,
    AggregateSet,
    AggregatesFound,
    AggregateState,
    AskAggregates,
    AskHosts,
    DeleteAggregate,
    HostsFound,
    HostsReported,
    SetAggregate,
)
from engine.hosts import NODE, HostFacts
from engine.inventories import AggregateId
from tests.stories.cloud import Cloud, a_host, cloud, funnel_of
from tests.stories.layouts import IN_MEMORY, STAGES
from tests.stories.scripted import host_id

NORTH, SOUTH = AggregateId(UUID(int=1)), AggregateId(UUID(int=2))


async def set_aggregate(setup: Cloud, order: SetAggregate) -> AggregateState:
    return (await setup.ask(order, AggregateSet)).aggregate


async def refusal(setup: Cloud, order: SetAggregate | DeleteAggregate) -> tuple[str, str, str]:
    answer = await setup.ask(order, BuildRejected)
    return answer.field, answer.value, answer.reason


async def shown(setup: Cloud, name: str, after: str = "", limit: int = 200) -> AggregatesFound:
    return await setup.ask(AskAggregates(name=name, after=after, limit=limit), AggregatesFound)


async def hosts_of(setup: Cloud, name: str) -> tuple[str, ...]:
    (found,) = (await shown(setup, name)).aggregates
    return found.hosts


async def zones(setup: Cloud) -> dict[str, str]:
    return {host.name: host.availability_zone for host in (await setup.ask(AskHosts(), HostsFound)).hosts}


async def add_nodes(setup: Cloud, *names: str) -> None:
    """Nodes of one daemon, which reports all of them at once."""
    for name in names:
        await setup.report(a_host(name))
    facts = tuple(
        HostFacts(id=host_id(name), name=name, kind=NODE, availability_zone="cellar") for name in names
    )
    await setup.stations_in["c1"].publisher.send(HostsReported(cell="c1", hosts=facts))
    await setup.until_reported(*names)


@STAGES
async def test_hosts_of_one_daemon_in_two_zones_are_booted_by_zone(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        await add_nodes(setup, "a1", "a2", "a3")
        north = SetAggregate(
            aggregate=NORTH, name="north", metadata={"availability_zone": "north"}, add_hosts=("a1",)
        )
        south = SetAggregate(
            aggregate=SOUTH,
            name="south",
            metadata={"availability_zone": "south"},
            # A single node is named by its id as well.
            add_hosts=(str(host_id("a2")),),
        )

        assert (await set_aggregate(setup, north)).hosts_count == 1
        assert (await set_aggregate(setup, south)).hosts_count == 1

        assert (await set_aggregate(setup, north)).metadata == {"availability_zone": "north"}
        assert await zones(setup) == {"a1": "north", "a2": "south", "a3": "cellar"}
        for number, (zone, host) in enumerate((("north", "a1"), ("south", "a2"), ("cellar", "a3")), 1):
            assert (await setup.boot(number, availability_zone=zone)).host == host
        state = await setup.boot(9, "error", availability_zone="west")
        assert [step.step for step in funnel_of(state).steps] == ["availability zone"]

        # Without its zone the host is in the one that it reports.
        await set_aggregate(setup, SetAggregate(aggregate=NORTH, metadata={"availability_zone": None}))
        assert await zones(setup) == {"a1": "cellar", "a2": "south", "a3": "cellar"}


@STAGES
async def test_an_aggregate_lives_from_its_creation_to_its_end(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        await add_nodes(setup, "a1", "a2")
        await set_aggregate(
            setup, SetAggregate(aggregate=NORTH, name="north", metadata={"rack": "r1", "row": "7"})
        )
        await set_aggregate(setup, SetAggregate(aggregate=SOUTH, name="south", add_hosts=("a1", "a2")))

        changed = SetAggregate(aggregate=NORTH, metadata={"rack": "r2", "row": None}, add_hosts=("a2", "a1"))
        assert (await set_aggregate(setup, changed)).metadata == {"rack": "r2"}
        assert await hosts_of(setup, "north") == ("a1", "a2")
        assert await hosts_of(setup, str(NORTH)) == ("a1", "a2")
        first = await shown(setup, "north", limit=1)
        assert (first.aggregates[0].hosts, first.next) == (("a1",), "a1")
        assert (await shown(setup, "north", after="a1")).aggregates[0].hosts == ("a2",)
        listed = await shown(setup, "")
        assert [(each.name, each.hosts_count, each.hosts) for each in listed.aggregates] == [
            ("north", 2, ()),
            ("south", 2, ()),
        ]
        assert (await setup.providers())["a1"].aggregates == (NORTH, SOUTH)

        assert await refusal(setup, DeleteAggregate(aggregate=NORTH)) == (
            "aggregate",
            str(NORTH),
            "it has a1, a2: remove its hosts first",
        )
        await set_aggregate(setup, SetAggregate(aggregate=NORTH, remove_hosts=("a1", "a2")))
        gone = await setup.client.ask(DeleteAggregate(aggregate=NORTH))
        assert gone == AggregateDeleted(aggregate=NORTH, was_there=True)
        again = await setup.client.ask(DeleteAggregate(aggregate=NORTH))
        assert again == AggregateDeleted(aggregate=NORTH, was_there=False)
        assert (await shown(setup, "north")).aggregates == ()
        assert await hosts_of(setup, "south") == ("a1", "a2")


@IN_MEMORY
async def test_what_cannot_be_done_is_refused_with_its_field_and_value(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        await add_nodes(setup, "a1", "a2")
        await set_aggregate(
            setup,
            SetAggregate(
                aggregate=NORTH, name="north", metadata={"availability_zone": "n"}, add_hosts=("a1",)
            ),
        )
        await set_aggregate(setup, SetAggregate(aggregate=SOUTH, name="south", add_hosts=("a1",)))
        new = AggregateId(UUID(int=3))
        for order, field, value, reason in (
            (SetAggregate(aggregate=new), "name", "", "a new one needs a name"),
            (SetAggregate(aggregate=new, name="north"), "name", "north", f"aggregate {NORTH} has this name"),
            (
                SetAggregate(aggregate=NORTH, name="west"),
                "name",
                "west",
                "is called 'north', and keeps its name",
            ),
            (
                SetAggregate(aggregate=NORTH, add_hosts=("a9",)),
                "add_hosts",
                "a9",
                "no host of this name is known",
            ),
            (
                SetAggregate(aggregate=NORTH, remove_hosts=("a9",)),
                "remove_hosts",
                "a9",
                "no host of this name",
            ),
            (
                SetAggregate(aggregate=NORTH, add_hosts=("a1",), remove_hosts=("a1",)),
                "remove_hosts",
                "a1",
                "the order adds it, too",
            ),
            (
                SetAggregate(aggregate=SOUTH, metadata={"availability_zone": "s"}),
                "metadata.availability_zone",
                "s",
                "its host a1 is in zone 'n' by aggregate 'north', and a host has one zone",
            ),
            (
                SetAggregate(
                    aggregate=new, name="new", metadata={"availability_zone": "s"}, add_hosts=("a2", "a1")
                ),
                "add_hosts",
                "a1",
                "is in zone 'n' by aggregate 'north', and a host has one zone: this aggregate's is 's'",
            ),
            (
                SetAggregate(aggregate=NORTH, metadata={"max_instances_per_host": "many"}),
                "metadata.max_instances_per_host",
                "many",
                "a limit is a whole number from 1 to 1000000",
            ),
        ):
            said = await refusal(setup, order)
            assert said[:2] == (field, value)
            assert reason in said[2]
        # Nothing was done by halves.
        assert [each.name for each in (await shown(setup, "")).aggregates] == ["north", "south"]
        assert await hosts_of(setup, "north") == ("a1",)
        # Two aggregates may name one zone for a host.
        await set_aggregate(setup, SetAggregate(aggregate=SOUTH, metadata={"availability_zone": "n"}))
