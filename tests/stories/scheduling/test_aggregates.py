"""Aggregates over the bus: an order changes members at placement and metadata at the schedulers, and boots follow them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from itertools import count
from uuid import UUID

import pytest
from msgspec import structs

from bus.broker import Broker
from bus.message import Message
from bus.messages.administration import ProviderWritten, SetAggregates, WriteAnswered
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
from bus.settings import BusSettings
from bus.workers.station import Station
from engine.hosts import NODE, HostFacts
from engine.inventories import AggregateId
from engine.picture.picture import Picture
from tests.stories.cloud import (
    QUICK_PACE,
    SMALL,
    Cloud,
    a_build,
    a_host,
    cloud,
    host_id,
    instance_of,
    wait_until,
)
from tests.stories.layouts import IN_MEMORY, STAGES

pytestmark = pytest.mark.asyncio

NORTH, SOUTH = AggregateId(UUID(int=1)), AggregateId(UUID(int=2))


class MeddlingOnce:
    """Runs an action once, just before a scheduler writes aggregates for the first time."""

    def __init__(self, action: Callable[[], Awaitable[object]]) -> None:
        self._action = action
        self.is_done = False
        # The schedulers that have written aggregates.
        self.writers: set[str] = set()

    def station(self, broker: Broker, name: str, *, settings: BusSettings, asks: bool) -> Station:
        meddling = self

        class MeddlingStation(Station):
            async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
                if any(isinstance(question, SetAggregates) for question in questions):
                    meddling.writers.add(name)
                    await meddling.meddle()
                return await super().ask_all(questions)

        return MeddlingStation(broker, name, settings=settings, asks=asks)

    async def meddle(self) -> None:
        if not self.is_done:
            self.is_done = True
            await self._action()


async def set_aggregate(setup: Cloud, order: SetAggregate) -> AggregateState:
    answer = await setup.client.ask(order)
    assert isinstance(answer, AggregateSet), answer
    return answer.aggregate


async def refusal(setup: Cloud, order: SetAggregate | DeleteAggregate) -> tuple[str, str, str]:
    answer = await setup.client.ask(order)
    assert isinstance(answer, BuildRejected), answer
    return answer.field, answer.value, answer.reason


async def shown(setup: Cloud, name: str, after: str = "", limit: int = 200) -> AggregatesFound:
    answer = await setup.client.ask(AskAggregates(name=name, after=after, limit=limit))
    assert isinstance(answer, AggregatesFound)
    return answer


async def hosts_of(setup: Cloud, name: str) -> tuple[str, ...]:
    (found,) = (await shown(setup, name)).aggregates
    return found.hosts


async def zones(setup: Cloud) -> dict[str, str]:
    answer = await setup.client.ask(AskHosts())
    assert isinstance(answer, HostsFound)
    return {host.name: host.availability_zone for host in answer.hosts}


async def add_nodes(setup: Cloud, *names: str) -> None:
    """Nodes of one daemon, which reports all of them at once."""
    for name in names:
        await setup.report(a_host(name))
    facts = tuple(
        HostFacts(id=host_id(name), name=name, kind=NODE, availability_zone="cellar") for name in names
    )
    await setup.stations_in["c1"].publisher.send(HostsReported(cell="c1", hosts=facts))


@STAGES
async def test_hosts_of_one_daemon_in_two_zones_are_booted_by_zone(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        await add_nodes(setup, "a1", "a2", "a3")
        await setup.until_reported("a1", "a2", "a3")
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
        again = await set_aggregate(setup, north)

        assert again.metadata == {"availability_zone": "north"}
        assert await zones(setup) == {"a1": "north", "a2": "south", "a3": "cellar"}
        for number, (zone, host) in enumerate((("north", "a1"), ("south", "a2"), ("cellar", "a3")), 1):
            build = a_build(number, availability_zone=zone)
            await setup.send(build)
            assert (await setup.until_state(instance_of(build), "active")).host == host
        nowhere = a_build(9, availability_zone="west")
        await setup.send(nowhere)
        state = await setup.until_state(instance_of(nowhere), "error")
        assert state.no_valid_host is not None
        assert [step.step for step in state.no_valid_host.steps] == ["availability zone"]

        # Without its zone the host is in the one that it reports.
        await set_aggregate(setup, SetAggregate(aggregate=NORTH, metadata={"availability_zone": None}))
        assert await zones(setup) == {"a1": "cellar", "a2": "south", "a3": "cellar"}


@STAGES
async def test_nodes_of_one_daemon_follow_the_overrides_of_their_own_aggregates(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        await add_nodes(setup, "a1", "a2")
        await setup.until_reported("a1", "a2")
        for id_, zone, host, more in (
            (NORTH, "north", "a1", {"max_instances_per_host": "1", "ssd": "true"}),
            (SOUTH, "south", "a2", {"filter_tenant_id": "bank", "instance_type": "small"}),
        ):
            metadata: dict[str, str | None] = {"availability_zone": zone, **more}
            await set_aggregate(
                setup, SetAggregate(aggregate=id_, name=zone, metadata=metadata, add_hosts=(host,))
            )
        numbers = count(1)

        async def boots(**fields: object) -> tuple[str, str]:
            """The host; or the last step of the funnel, and its reason."""
            build = a_build(next(numbers), **fields)
            await setup.send(build)
            state = await setup.until_state(instance_of(build), "active", "error")
            if state.no_valid_host is None:
                return state.host, ""
            last = state.no_valid_host.steps[-1]
            return last.step, last.example

        fast = structs.replace(SMALL, extra_specs={"aggregate_instance_extra_specs:ssd": "true"})
        assert await boots(project="shop", flavor=fast) == ("a1", "")
        full = ("instances", "a1: has 1 instances, at most 1")
        assert await boots(project="shop", availability_zone="north") == full
        assert await boots(project="bank") == ("a2", "")
        assert await boots(project="bank") == ("a2", "")
        assert await boots(project="shop", availability_zone="south") == (
            "tenants of aggregates",
            "a2: aggregate south is for bank, the request is of shop",
        )
        large = structs.replace(SMALL, name="large")
        assert await boots(project="bank", availability_zone="south", flavor=large) == (
            "flavors of aggregates",
            "a2: aggregate south is for flavors small, asked large",
        )
        # An override counts from the next request on.
        await set_aggregate(
            setup,
            SetAggregate(aggregate=NORTH, metadata={"max_instances_per_host": "2", "ssd": "false"}),
        )
        assert (await boots(project="shop", flavor=fast))[0] == "metadata of aggregates"
        assert await boots(project="shop") == ("a1", "")
        assert [order.chosen.share.instances_max for order in setup.placed] == [1, 50, 50, 2]


@STAGES
async def test_an_aggregate_lives_from_its_creation_to_its_end(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        await add_nodes(setup, "a1", "a2")
        await setup.until_reported("a1", "a2")
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
        await setup.until_reported("a1", "a2")
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


@IN_MEMORY
async def test_members_that_others_change_meanwhile_are_kept(bus: str, books: str) -> None:
    """Somebody adds an aggregate by Placement's own API, just before the scheduler writes."""
    theirs = AggregateId(UUID(int=7))

    async def interfere() -> None:
        (provider,) = (await setup.providers()).values()
        order = SetAggregates(
            provider=provider.id, generation=provider.generation, aggregates=(*provider.aggregates, theirs)
        )
        answer = await setup.client.ask(order)
        assert isinstance(answer, WriteAnswered)
        assert isinstance(answer.verdict, ProviderWritten)

    meddling = MeddlingOnce(interfere)
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler(station=meddling.station):
        await add_nodes(setup, "a1")
        await setup.until_reported("a1")

        await set_aggregate(setup, SetAggregate(aggregate=NORTH, name="north", add_hosts=("a1",)))

        assert meddling.is_done
        assert (await setup.providers())["a1"].aggregates == (NORTH, theirs)


# One worker on the queue of requests for each scheduler: two orders go to two schedulers.
ONE_BATCH = structs.replace(QUICK_PACE, batches_in_flight=1)
# So long an order may take that comes in the middle of another one. It waits, so this only matters if it does not.
MEANWHILE_S = 0.5


@STAGES
@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(
            SetAggregate(aggregate=NORTH, add_hosts=("a1",)),
            SetAggregate(aggregate=SOUTH, metadata={"availability_zone": "s"}),
            id="a second zone",
        ),
        pytest.param(
            SetAggregate(aggregate=NORTH, metadata={"rack": "r1"}, add_hosts=("a1",)),
            SetAggregate(aggregate=NORTH, metadata={"rack": "r2"}, remove_hosts=("a1",)),
            id="two orders about one aggregate",
        ),
    ],
)
async def test_two_orders_at_two_schedulers_end_as_if_they_had_come_one_after_the_other(
    bus: str, books: str, first: SetAggregate, second: SetAggregate
) -> None:
    waiting: list[asyncio.Task[Message]] = []

    async def another_order() -> None:
        waiting.append(asyncio.create_task(setup.client.ask(second)))
        await asyncio.wait(waiting, timeout=MEANWHILE_S)

    async with cloud(bus, books) as setup, setup.placement(), AsyncExitStack() as stack:
        meddling = MeddlingOnce(another_order)
        meddling.is_done = True
        for name in ("s1", "s2"):
            await stack.enter_async_context(setup.scheduler(name, station=meddling.station, pace=ONE_BATCH))
        await add_nodes(setup, "a1")
        await setup.until_reported("a1")
        await set_aggregate(
            setup, SetAggregate(aggregate=NORTH, name="north", metadata={"availability_zone": "n"})
        )
        await set_aggregate(setup, SetAggregate(aggregate=SOUTH, name="south", add_hosts=("a1",)))
        # From then on, orders go to the two in turn.
        while meddling.writers != {"s1", "s2"}:
            for order in (
                SetAggregate(aggregate=SOUTH, remove_hosts=("a1",)),
                SetAggregate(aggregate=SOUTH, add_hosts=("a1",)),
            ):
                await set_aggregate(setup, order)
        meddling.is_done = False

        answers = [await setup.client.ask(first), *await asyncio.gather(*waiting)]

        assert len(answers) == 2
        found = (await shown(setup, "")).aggregates
        metadata = {each.id: each.metadata for each in found}
        members = (await setup.providers())["a1"].aggregates
        zones = {zone for each in members if (zone := metadata[each].get("availability_zone"))}
        assert len(zones) <= 1
        refused = [each for each in answers if isinstance(each, BuildRejected)]
        if first.aggregate != second.aggregate:
            # Whichever came later.
            (one,) = refused
            assert "a host has one zone" in one.reason
        else:
            assert refused == []
            rack = metadata[NORTH]["rack"]
            assert (rack, NORTH in members) in {("r1", True), ("r2", False)}


@IN_MEMORY
async def test_every_scheduler_learns_of_metadata_by_the_event_and_at_its_start(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement():
        here, there, late = Picture(), Picture(), Picture()
        rare = structs.replace(QUICK_PACE, hosts_poll_s=50.0)
        async with (
            setup.scheduler("s1", picture=here, pace=rare),
            setup.scheduler("s2", picture=there, pace=rare),
        ):
            await add_nodes(setup, "a1")
            await setup.until_reported("a1")
            order = SetAggregate(
                aggregate=NORTH, name="north", metadata={"availability_zone": "n"}, add_hosts=("a1",)
            )
            await set_aggregate(setup, order)
            for picture in (here, there):

                async def has_zone(picture: Picture = picture) -> bool:
                    return picture.zone_of(host_id("a1")) == "n"

                await wait_until(has_zone, "the zone is known")
        async with setup.scheduler("s3", picture=late, pace=rare):
            assert await zones(setup) == {"a1": "n"}
            await set_aggregate(setup, SetAggregate(aggregate=NORTH, remove_hosts=("a1",)))
            assert await setup.client.ask(DeleteAggregate(aggregate=NORTH)) == AggregateDeleted(
                aggregate=NORTH, was_there=True
            )
            assert late.aggregates.all() == []
