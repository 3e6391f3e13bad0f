"""A cell's conductor with a real placement worker and scripted computes, over every pair of broker and store."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid5

import pytest
from msgspec import structs

from bus.broker import LINES, Broker, Parcel
from bus.codec import CODEC
from bus.configuration.settings import BusSettings
from bus.message import ConsumerId, Message, ProviderId
from bus.messages.build import (
    Flavor,
    InstanceActive,
    InstanceDeleted,
    InstanceFailed,
    InstanceId,
    InstanceState,
    RequestId,
)
from bus.messages.cell import (
    Choice,
    DestroyInstance,
    InstanceDestroyed,
    InstanceSpawned,
    PlaceInCell,
    RemoveFromCell,
    SpawnFailed,
    SpawnInstance,
)
from bus.messages.host_modes import CheckHost, HeldAttempt, HostHolds
from bus.messages.placement import (
    AskSnapshot,
    ClaimAnswered,
    Claimed,
    ClaimResources,
    ReportAccepted,
    ReportAnswered,
    ReportedInventory,
    ReportedProvider,
    ReportInventory,
    ResourceAmount,
    ShapeSeen,
    Share,
    SnapshotPage,
)
from bus.messages.tree_fingerprint import tree_fingerprint
from bus.process import Part, run_until
from bus.topology import EVENTS, Grant
from bus.workers.handling import Received, Said, Tell
from bus.workers.link import Link
from bus.workers.listening import listen
from bus.workers.station import Station
from cell_conductor.core.instance import Instance
from cell_conductor.settings import ConductorSettings
from cell_conductor.store import ConductorStore
from cell_conductor.wiring import conductor_parts
from placement_worker.settings import PlacementSettings
from placement_worker.store import PlacementStore
from placement_worker.wiring import placement_parts
from tests.contracts.broker_under_test import BrokerUnderTest
from tests.contracts.conductor_stores import open_conductor_stores
from tests.contracts.memory_under_test import MemoryUnderTest
from tests.contracts.stage import PATIENCE_S, SETTINGS, dead_letters, declared, line, send, until
from tests.contracts.stores import open_store

pytestmark = pytest.mark.asyncio

NAMES = UUID("6c0b1f9c-58a5-4f4c-9f62-8c1d2d1f5a02")
BUILD, FAIL, SILENT = "build", "fail", "silent"
# A conductor that gives its questions to placement a short timeout, so that a test sees one expire.
IMPATIENT = BusSettings(
    retry_delay_ms_first=2,
    retry_delay_ms_max=20,
    connect_delay_ms_first=5,
    connect_delay_ms_max=100,
    ask_again_ms=50,
    answer_timeout_ms=150,
)
CONDUCTING = ConductorSettings(
    attempt_timeout_s=60, poll_ms=5, look_s=1, retry_delay_s_first=1, retry_delay_s_max=4
)
STAGES = pytest.mark.parametrize(
    ("bus", "books"),
    [
        ("memory", "memory"),
        ("memory", "sqlite"),
        pytest.param("rabbitmq", "postgresql", marks=[pytest.mark.rabbitmq, pytest.mark.postgresql]),
    ],
)


class Clock:
    """The conductor's clock: a test moves it."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class Computes:
    """All hosts of the cell: each follows its script, and their orders are remembered."""

    def __init__(self) -> None:
        self.script: dict[str, str] = {}
        self.spawns: list[SpawnInstance] = []
        self.destroys: list[DestroyInstance] = []
        # The attempts that the hosts have, and list when they are asked.
        self.held: set[tuple[ProviderId, HeldAttempt]] = set()

    async def on_spawn(self, orders: Sequence[Received[SpawnInstance]], _: None) -> Sequence[Said]:
        self.spawns += [each.message for each in orders]
        self.held |= {
            (each.message.host, HeldAttempt(instance=each.message.instance, attempt=each.message.attempt))
            for each in orders
        }
        return [Tell(word, each) for each in orders if (word := self._spawned(each.message)) is not None]

    async def on_check(self, orders: Sequence[Received[CheckHost]], _: None) -> Sequence[Said]:
        return [Tell(self._holds(each.message), each) for each in orders]

    def _holds(self, order: CheckHost) -> HostHolds:
        held = sorted(
            (each for host, each in self.held if host == order.host), key=lambda each: each.instance
        )
        return HostHolds(cell=order.cell, host=order.host, number=order.number, attempts=tuple(held))

    async def on_destroy(self, orders: Sequence[Received[DestroyInstance]], _: None) -> Sequence[Said]:
        self.destroys += [each.message for each in orders]
        self.held -= {
            (each.message.host, HeldAttempt(instance=each.message.instance, attempt=each.message.attempt))
            for each in orders
        }
        return [
            Tell(destroyed(each.message), each) for each in orders if self._does(each.message.host) != SILENT
        ]

    def _spawned(self, order: SpawnInstance) -> Message | None:
        match self._does(order.host):
            case "build":
                return spawned(order)
            case "fail":
                return SpawnFailed(
                    cell=order.cell,
                    instance=order.instance,
                    attempt=order.attempt,
                    host=order.host,
                    reason="no image",
                )
            case _:
                return None

    def _does(self, host: ProviderId) -> str:
        by_id = {provider(name): what for name, what in self.script.items()}
        return by_id.get(host, BUILD)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield


class CellSetup:
    def __init__(
        self,
        under_test: BrokerUnderTest,
        broker: Broker,
        stations: dict[str, Station],
        books: PlacementStore,
        stores: tuple[ConductorStore, ...],
    ) -> None:
        self.under_test = under_test
        self.broker = broker
        self.client = stations["client"]
        self.stations = stations
        self.books = books
        self.store = stores[0]
        # Another process on the same rows.
        self.store_of_heir = stores[1]
        self.clock = Clock()
        self.computes = Computes()
        self.heard: list[InstanceState] = []
        self.placement_told = asyncio.Event()
        self.placement: asyncio.Task[None]

    async def say(self, *messages: Message) -> None:
        await asyncio.gather(*(self.client.publisher.send(each) for each in messages))

    async def hosts(self, **script: str) -> None:
        """Hosts with room for four instances each."""
        self.computes.script |= script
        for name in script:
            await self.report(name, vcpu=4)

    async def report(self, name: str, *, vcpu: int, traits: tuple[str, ...] = ()) -> None:
        inventories = {"VCPU": ReportedInventory(total=vcpu)}
        reported = ReportedProvider(id=provider(name), name=name, inventories=inventories, traits=traits)
        answer = await self.client.ask(ReportInventory(cell="c1", root=provider(name), providers=(reported,)))
        assert isinstance(answer, ReportAnswered)
        assert isinstance(answer.verdict, ReportAccepted)

    async def seen(self, name: str) -> Choice:
        """The host as a scheduler sees it now."""
        page = await self.client.ask(AskSnapshot())
        assert isinstance(page, SnapshotPage)
        tree = [each for each in page.providers if each.root == provider(name)]
        seen = ShapeSeen(root=provider(name), shape=tree[0].shape)
        plain = choice(name)
        share = structs.replace(plain.share, shapes=(seen,))
        return structs.replace(plain, share=share, fingerprint=tree_fingerprint(tree))

    async def claim(self, order: PlaceInCell) -> PlaceInCell:
        """Claim the instance's share, as a scheduler does before it hands over to the cell."""
        answer = await self.client.ask(
            ClaimResources(
                cell="c1",
                consumer=order.instance,
                attempt=order.attempt,
                issued_at=order.issued_at,
                share=order.chosen.share,
            )
        )
        assert isinstance(answer, ClaimAnswered)
        assert answer.verdict == Claimed()
        return order

    async def place(self, order: PlaceInCell) -> None:
        await self.say(await self.claim(order))

    async def used(self) -> dict[str, int]:
        page = await self.client.ask(AskSnapshot())
        assert isinstance(page, SnapshotPage)
        return {each.name: each.inventories["VCPU"].used for each in page.providers}

    async def until_used(self, **used: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await self.used() != used:
                await asyncio.sleep(0.005)

    async def until_row(self, order: PlaceInCell, condition: Callable[[Instance], bool]) -> Instance:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for row in await self.store.read([order.instance]):
                    if condition(row):
                        return row
                await asyncio.sleep(0.005)

    async def told(self, order: PlaceInCell) -> InstanceState:
        """The first event that ends this instance."""
        await until(lambda: any(each.id == order.instance for each in self.heard))
        return next(each for each in self.heard if each.id == order.instance)

    async def told_deleted(self, order: PlaceInCell) -> InstanceState:
        def found() -> list[InstanceState]:
            return [each for each in self.heard if each.id == order.instance and each.state == "deleted"]

        await until(lambda: bool(found()))
        return found()[0]

    def ends(self, order: PlaceInCell) -> list[str]:
        """All events that end an instance; repeated ones count once."""
        by_sequence = {each.sequence: each.state for each in self.heard if each.id == order.instance}
        return [by_sequence[each] for each in sorted(by_sequence)]


def provider(name: str) -> ProviderId:
    return ProviderId(uuid5(NAMES, name))


def choice(name: str, vcpu: int = 1) -> Choice:
    root = provider(name)
    amounts = (ResourceAmount(provider=root, resource="VCPU", amount=vcpu),)
    return Choice(name=name, share=Share(host=root, amounts=amounts))


def order_for(
    number: int, chosen: str, *alternates: str, vcpu: int = 1, ends_in_s: int = 3600
) -> PlaceInCell:
    now = datetime.now(UTC)
    return PlaceInCell(
        cell="c1",
        instance=InstanceId(ConsumerId(UUID(int=number))),
        request_id=RequestId(UUID(int=1000 + number)),
        sequence=2,
        attempt=1,
        issued_at=now,
        ends_by=now + timedelta(seconds=ends_in_s),
        flavor=Flavor(vcpus=vcpu, ram_mb=64),
        chosen=choice(chosen, vcpu),
        alternates=tuple(choice(each, vcpu) for each in alternates),
        name=f"instance-{number}",
    )


def removal(order: PlaceInCell) -> RemoveFromCell:
    return RemoveFromCell(
        cell="c1", instance=order.instance, request_id=order.request_id, sequence=3, issued_at=order.issued_at
    )


def spawned(order: SpawnInstance) -> InstanceSpawned:
    return InstanceSpawned(cell=order.cell, instance=order.instance, attempt=order.attempt, host=order.host)


def destroyed(order: DestroyInstance) -> InstanceDestroyed:
    return InstanceDestroyed(cell=order.cell, instance=order.instance, attempt=order.attempt, host=order.host)


@asynccontextmanager
async def cell_setup(
    bus: str, books: str, *, conducted: bool = True, conductor: BusSettings = SETTINGS
) -> AsyncIterator[CellSetup]:
    async with AsyncExitStack() as stack:
        under_test = await under_test_of(bus)
        stack.push_async_callback(under_test.close)
        broker = await declared(under_test)
        clock = Clock()
        placement_books = await stack.enter_async_context(open_store(books))
        stores = await stack.enter_async_context(open_conductor_stores(books, ("c1", "c1"), clock))
        stations = {
            name: Station(broker, name, settings=conductor if name == "conductor" else SETTINGS, asks=True)
            for name in ("client", "placement", "conductor", "compute")
        }
        setup = CellSetup(under_test, broker, stations, placement_books, stores)
        setup.clock = clock
        for station in stations.values():
            stack.push_async_callback(station.close)
        await stack.enter_async_context(running(stations["client"]))
        placement = placement_parts(
            (stations["placement"],), placement_books, PlacementSettings(feed_lead_again_ms=20)
        )
        setup.placement = await stack.enter_async_context(running(*placement, told=setup.placement_told))
        compute = stations["compute"].worker(
            "compute.c1.work",
            {
                SpawnInstance: setup.computes.on_spawn,
                DestroyInstance: setup.computes.on_destroy,
                CheckHost: setup.computes.on_check,
            },
            setup.computes,
        )
        await stack.enter_async_context(running(compute))
        await stack.enter_async_context(record_ends(setup))
        if conducted:
            await stack.enter_async_context(conducting(setup, stations["conductor"], stores[0]))
        yield setup
        assert await placement_books.audit() == ()


@asynccontextmanager
async def conducting(setup: CellSetup, station: Station, store: ConductorStore) -> AsyncIterator[None]:
    parts = conductor_parts(station, store, CONDUCTING, "c1", station.ask_all, clock=setup.clock)
    async with running(*parts, station):
        yield


@asynccontextmanager
async def running(*parts: Part, told: asyncio.Event | None = None) -> AsyncIterator[asyncio.Task[None]]:
    told = told or asyncio.Event()
    task = asyncio.create_task(run_until(told, parts, drain_s_max=10))
    try:
        yield task
    finally:
        told.set()
        await task


@asynccontextmanager
async def record_ends(setup: CellSetup) -> AsyncIterator[None]:
    """Record the events that end instances."""
    link = Link(setup.broker, SETTINGS)
    feed = listen(link, [Grant(EVENTS, ("instance.*.c1",))], process="ears", settings=SETTINGS, codec=CODEC)
    await anext(feed)

    async def hear() -> None:
        async for batch in feed:
            for each in batch:
                if isinstance(each.message, InstanceActive | InstanceFailed | InstanceDeleted):
                    setup.heard.append(each.message.instance)

    hearing = asyncio.create_task(hear())
    try:
        yield
    finally:
        hearing.cancel()
        await asyncio.wait((hearing,))
        await link.close()


async def under_test_of(bus: str) -> BrokerUnderTest:
    if bus == "memory":
        return MemoryUnderTest()
    from tests.contracts.rabbitmq_under_test import RabbitMQUnderTest  # noqa: PLC0415 - only who asks for it

    return await RabbitMQUnderTest.start()


@STAGES
async def test_an_instance_that_is_placed_becomes_active(bus: str, books: str) -> None:
    async with cell_setup(bus, books) as setup:
        await setup.hosts(h1=BUILD)
        order = order_for(1, "h1")

        await setup.place(order)

        end = await setup.told(order)
        assert (end.state, end.host, end.attempt, end.cell) == ("active", "h1", 1, "c1")
        assert await setup.used() == {"h1": 1}


@STAGES
async def test_a_host_that_fails_leads_to_the_alternate(bus: str, books: str) -> None:
    async with cell_setup(bus, books) as setup:
        await setup.hosts(h1=FAIL, h2=BUILD)
        order = order_for(1, "h1", "h2")

        await setup.place(order)

        end = await setup.told(order)
        assert (end.state, end.host, end.attempt) == ("active", "h2", 2)
        assert [(each.attempt, each.host, each.reason) for each in end.failures] == [(1, "h1", "no image")]
        assert await setup.used() == {"h1": 0, "h2": 1}


@STAGES
async def test_an_alternate_that_only_grew_since_it_was_chosen_is_taken_and_one_with_another_trait_is_not(
    bus: str, books: str
) -> None:
    async with cell_setup(bus, books) as setup:
        await setup.hosts(h1=FAIL, h2=BUILD, h3=BUILD)
        order = order_for(1, "h1")
        order = structs.replace(order, alternates=tuple([await setup.seen(name) for name in ("h2", "h3")]))
        await setup.report("h2", vcpu=4, traits=("COMPUTE_NODE",))
        await setup.report("h3", vcpu=8)

        await setup.place(order)
        told = await setup.told(order)

        assert (told.state, told.host) == ("active", "h3")
        reasons = [(each.host, each.reason.split(":")[0]) for each in told.failures]
        assert reasons[1:] == [("h2", "the host has changed since it was chosen")]
        await setup.until_used(h1=0, h2=0, h3=1)


@STAGES
async def test_without_a_remaining_alternate_every_reason_is_reported_and_nothing_is_held(
    bus: str, books: str
) -> None:
    async with cell_setup(bus, books) as setup:
        await setup.hosts(h1=FAIL, h2=BUILD, h3=FAIL)
        # Nothing else fits on the second.
        await setup.claim(order_for(9, "h2", vcpu=4))
        order = order_for(1, "h1", "h2", "h3")

        await setup.place(order)

        end = await setup.told(order)
        assert end.state == "error"
        assert [(each.attempt, each.host) for each in end.failures] == [(1, "h1"), (2, "h2"), (2, "h3")]
        assert end.failures[1].reason == f"does not fit: VCPU of {provider('h2')} asked 1, free 0"
        await setup.until_used(h1=0, h2=4, h3=0)


@STAGES
async def test_the_share_of_a_silent_host_is_held_until_it_has_destroyed(bus: str, books: str) -> None:
    async with cell_setup(bus, books) as setup:
        await setup.hosts(h1=SILENT, h2=BUILD)
        order = order_for(1, "h1", "h2")
        await setup.place(order)
        await until(lambda: len(setup.computes.spawns) == 1)

        setup.clock.pass_s(61)

        end = await setup.told(order)
        assert (end.state, end.host, end.attempt) == ("active", "h2", 2)
        assert end.failures[0].reason == "no message from the host within 60 s"
        await until(lambda: len(setup.computes.destroys) == 1)
        assert await setup.used() == {"h1": 1, "h2": 1}
        # The host was only slow: its instance must be destroyed, and that order was sent before.
        await setup.say(spawned(setup.computes.spawns[0]))
        await until(lambda: len(setup.computes.destroys) == 2)
        assert await setup.used() == {"h1": 1, "h2": 1}

        await setup.say(destroyed(setup.computes.destroys[0]), destroyed(setup.computes.destroys[1]))

        await setup.until_used(h1=0, h2=1)
        assert setup.ends(order) == ["active"]
        assert {(each.attempt, each.host) for each in setup.computes.destroys} == {(1, provider("h1"))}


@STAGES
async def test_a_silent_host_without_alternates_keeps_the_share_and_the_request_ends(
    bus: str, books: str
) -> None:
    async with cell_setup(bus, books) as setup:
        await setup.hosts(h1=SILENT)
        order = order_for(1, "h1", ends_in_s=30)
        await setup.place(order)
        await until(lambda: len(setup.computes.spawns) == 1)

        # The test's clock was stopped before the order was created; on a busy machine that may be seconds earlier.
        setup.clock.pass_s(50)

        end = await setup.told(order)
        assert (end.state, end.reason) == ("error", "the time of the request is up")
        assert await setup.used() == {"h1": 1}
        await until(lambda: len(setup.computes.destroys) == 1)
        await setup.say(destroyed(setup.computes.destroys[0]))
        await setup.until_used(h1=0)
        assert setup.ends(order) == ["error"]


@STAGES
async def test_due_rows_are_handled_although_the_clock_was_set_back(bus: str, books: str) -> None:
    async with cell_setup(bus, books) as setup:
        before, after = order_for(1, "h1"), order_for(2, "h1")
        setup.clock.pass_s(3600)
        await another_leaves_due(setup, before)
        await setup.until_row(before, lambda row: row.state_ends_at is None)

        setup.clock.pass_s(-3600)
        await another_leaves_due(setup, after)

        await setup.until_row(after, lambda row: row.state_ends_at is None)


async def another_leaves_due(setup: CellSetup, order: PlaceInCell) -> None:
    """A row of another process that has nothing to publish."""
    now = setup.clock()
    row = Instance(
        id=order.instance, request_id=order.request_id, state="active", changed_at=now, state_ends_at=now
    )
    async with setup.store_of_heir.transaction() as tx:
        await tx.save([row], [], [])


@STAGES
async def test_an_instance_removed_before_it_is_placed_is_never_built(bus: str, books: str) -> None:
    async with cell_setup(bus, books) as setup:
        await setup.hosts(h1=BUILD)
        order = await setup.claim(order_for(1, "h1"))
        await setup.say(removal(order))
        await setup.until_row(order, lambda row: row.state == "deleting")

        await setup.say(order)

        assert (await setup.told(order)).state == "deleted"
        await setup.until_used(h1=0)
        assert setup.computes.spawns == []


@STAGES
async def test_an_instance_removed_during_its_build_is_destroyed_first(bus: str, books: str) -> None:
    async with cell_setup(bus, books) as setup:
        await setup.hosts(h1=SILENT)
        order = order_for(1, "h1")
        await setup.place(order)
        await until(lambda: len(setup.computes.spawns) == 1)

        await setup.say(removal(order))

        await until(lambda: len(setup.computes.destroys) == 1)
        assert await setup.used() == {"h1": 1}
        assert setup.heard == []
        await setup.say(destroyed(setup.computes.destroys[0]))
        await setup.told(order)
        await setup.until_used(h1=0)
        assert setup.ends(order) == ["deleted"]


@STAGES
async def test_an_active_instance_is_removed(bus: str, books: str) -> None:
    async with cell_setup(bus, books) as setup:
        await setup.hosts(h1=BUILD)
        order = order_for(1, "h1")
        await setup.place(order)
        await setup.told(order)

        await setup.say(removal(order), removal(order))

        await setup.told_deleted(order)
        await setup.until_used(h1=0)
        await setup.say(removal(order))
        assert setup.ends(order) == ["active", "deleted"]


@STAGES
async def test_every_message_sent_three_times_takes_effect_once(bus: str, books: str) -> None:
    async with cell_setup(bus, books) as setup:
        await setup.hosts(h1=FAIL, h2=BUILD)
        orders = [order_for(number, "h1", "h2") for number in range(1, 4)]
        for order in orders:
            await setup.claim(order)

        await setup.say(*orders, *orders, *orders)

        for order in orders:
            end = await setup.told(order)
            assert (end.state, end.host, end.attempt) == ("active", "h2", 2)
        await setup.say(*(spawned(each) for each in setup.computes.spawns if each.attempt == 2), *orders)
        assert await setup.used() == {"h1": 0, "h2": 3}
        assert [setup.ends(order) for order in orders] == [["active"]] * 3
        rows = await setup.store.read([order.instance for order in orders])
        assert [(row.state, row.attempt, len(row.failures)) for row in rows] == [("active", 2, 1)] * 3


@STAGES
async def test_while_placement_is_away_swaps_wait_and_other_work_goes_on(bus: str, books: str) -> None:
    async with cell_setup(bus, books, conductor=IMPATIENT) as setup:
        await setup.hosts(h1=FAIL, h2=BUILD)
        waiting, other = order_for(1, "h1", "h2", ends_in_s=100_000), order_for(2, "h2")
        await setup.claim(other)
        await setup.claim(waiting)
        setup.placement_told.set()
        await asyncio.wait((setup.placement,))

        await setup.say(waiting)
        await setup.until_row(waiting, lambda row: row.state == "swapping" and row.tries > 0)
        await setup.say(other)
        assert (await setup.told(other)).state == "active"
        row = await setup.until_row(
            waiting,
            lambda row: row.tries == 1 and row.due_at == setup.clock.now + timedelta(seconds=1),
        )
        assert row.attempt == 1

        again = Station(setup.broker, "placement-again", settings=SETTINGS)
        parts = placement_parts((again,), setup.books, PlacementSettings(feed_lead_again_ms=20))
        async with running(*parts):
            # While it is built, no time passes: it would be too late.
            async with asyncio.timeout(PATIENCE_S):
                while [row.state for row in await setup.store.read([waiting.instance])] == ["swapping"]:
                    setup.clock.pass_s(1)
                    await asyncio.sleep(0.01)
            assert (await setup.told(waiting)).host == "h2"
            assert await setup.used() == {"h1": 0, "h2": 2}
        await again.close()


@STAGES
async def test_messages_of_a_conductor_that_dies_between_commit_and_publish_are_sent_by_another(
    bus: str, books: str
) -> None:
    async with cell_setup(bus, books, conducted=False) as setup:
        await setup.hosts(h1=BUILD)
        orders = [await setup.claim(order_for(number, "h1")) for number in range(1, 4)]
        await setup.say(*orders)
        await setup.under_test.set_alarm(on=True)  # committed, but the broker takes nothing
        mortal = setup.stations["conductor"]
        parts = conductor_parts(mortal, setup.store, CONDUCTING, "c1", mortal.ask_all, clock=setup.clock)
        dying = [asyncio.create_task(part.run()) for part in parts]
        for order in orders:
            await setup.until_row(order, lambda row: bool(row.outbox))
        for task in dying:
            task.cancel()
        await asyncio.wait(dying)
        await mortal.consuming.close()
        await setup.under_test.set_alarm(on=False)

        heir = Station(setup.broker, "heir", settings=SETTINGS, asks=True)
        async with conducting(setup, heir, setup.store_of_heir):
            for order in orders:
                assert (await setup.told(order)).state == "active"
        await heir.close()

        assert await setup.used() == {"h1": 3}
        assert {(each.instance, each.attempt) for each in setup.computes.spawns} == {
            (order.instance, 1) for order in orders
        }


@STAGES
async def test_rows_whose_conductor_died_are_taken_over_by_another_when_their_time_is_up(
    bus: str, books: str
) -> None:
    """One waited for placement's answer to a swap, one for a host: both times were in the memory of the dead one."""
    async with cell_setup(bus, books, conducted=False) as setup:
        await setup.hosts(h1=FAIL, h2=BUILD, h3=SILENT)
        swapping = await setup.claim(order_for(1, "h1", "h2", ends_in_s=100_000))
        silent = await setup.claim(order_for(2, "h3", "h2", ends_in_s=100_000))
        asked = asyncio.Event()

        async def never(_: Sequence[Message]) -> Sequence[Message]:
            asked.set()
            await asyncio.Event().wait()
            return ()

        mortal = setup.stations["conductor"]
        parts = conductor_parts(mortal, setup.store, CONDUCTING, "c1", never, clock=setup.clock)
        dying = [asyncio.create_task(part.run()) for part in parts]
        await setup.say(swapping, silent)
        await asked.wait()
        # Its order has left: another conductor need not send it again.
        await until(lambda: silent.instance in {each.instance for each in setup.computes.spawns})
        for task in dying:
            task.cancel()
        await asyncio.wait(dying)
        await mortal.consuming.close()

        heir = Station(setup.broker, "heir", settings=SETTINGS, asks=True)
        async with conducting(setup, heir, setup.store_of_heir):
            setup.clock.pass_s(61)
            for order in (swapping, silent):
                state = await setup.told(order)
                assert (state.state, state.host, state.attempt) == ("active", "h2", 2)
        await heir.close()

        built = {
            (each.instance, each.attempt) for each in setup.computes.spawns if each.host == provider("h2")
        }
        assert built == {(swapping.instance, 2), (silent.instance, 2)}
        assert [setup.ends(order) for order in (swapping, silent)] == [["active"], ["active"]]


@STAGES
async def test_two_conductors_of_one_cell_do_everything_once_between_them(bus: str, books: str) -> None:
    """They take turns at the queue: the answer about an order of one may come to the other."""
    async with cell_setup(bus, books) as setup:
        other = Station(setup.broker, "other", settings=SETTINGS, asks=True)
        async with conducting(setup, other, setup.store_of_heir):
            await setup.hosts(**{f"bad{number}": FAIL for number in range(4)}, good=BUILD)
            await setup.report("good", vcpu=16)
            orders = [
                await setup.claim(order_for(number, f"bad{number % 4}", "good")) for number in range(1, 13)
            ]
            # One by one, so that they do not share a parcel.
            for order in orders:
                await setup.say(order)
            for order in orders:
                state = await setup.told(order)
                assert (state.state, state.host, state.attempt) == ("active", "good", 2)
            for order in orders[:6]:
                await setup.say(removal(order), removal(order))
            for order in orders[:6]:
                await setup.told_deleted(order)
            await setup.until_used(bad0=0, bad1=0, bad2=0, bad3=0, good=6)
        await other.close()

        # A message that was sent again is about the same attempt.
        tried = {(each.instance, each.attempt, each.host) for each in setup.computes.spawns}
        assert len(tried) == 24
        assert [setup.ends(order) for order in orders] == [["active", "deleted"]] * 6 + [["active"]] * 6


async def test_a_message_about_another_cell_is_dead_lettered_and_its_neighbours_are_not() -> None:
    async with cell_setup("memory", "memory") as setup:
        await setup.hosts(h1=BUILD)
        order = await setup.claim(order_for(1, "h1"))
        stray = structs.replace(order_for(2, "h1"), cell="c2")
        both = b"\n".join((line(stray), line(order)))

        await send(setup.broker, Parcel("moor.cell.c1", "place.c1", both, content_type=LINES, mandatory=True))

        assert (await setup.told(order)).state == "active"
        (letter,) = await dead_letters(setup.broker, 1)
        assert letter.reason == (
            "'place' counts only under the key 'place.c2' of 'moor.cell.c2', and this one came under 'place.c1' of "
            "'moor.cell.c1'"
        )
        assert await setup.store.read([stray.instance]) == ()
