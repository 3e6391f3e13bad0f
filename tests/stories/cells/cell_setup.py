"""A conductor of one cell with placement, computes and a clock that are held by the test."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid5

from msgspec import structs

from bus.broker import Broker
from bus.codec import CODEC
from bus.message import Message
from bus.messages.build import InstanceActive, InstanceDeleted, InstanceFailed, InstanceState
from bus.messages.cell import (
    DestroyInstance,
    InstanceDestroyed,
    InstanceSpawned,
    PlaceInCell,
    RemoveFromCell,
    SpawnFailed,
    SpawnInstance,
)
from bus.messages.hosts import CheckHost, HeldAttempt, HostHolds
from bus.messages.placement import (
    AskSnapshot,
    ClaimAnswered,
    ClaimResources,
    ReportAccepted,
    ReportAnswered,
    ReportInventory,
    SnapshotPage,
)
from bus.settings import BusSettings
from bus.topology import EVENTS, Grant
from bus.workers.handling import Received, Said, Tell
from bus.workers.sending import Link
from bus.workers.station import Station, listen
from cell_conductor.core.rows import Instance
from cell_conductor.settings import ConductorPace, ConductorSettings
from cell_conductor.store import ConductorStore
from cell_conductor.wiring import conductor_parts
from engine.flavors import Flavor, InstanceId, RequestId
from engine.inventories import (
    Choice,
    ConsumerId,
    ProviderId,
    ReportedInventory,
    ReportedProvider,
    ResourceAmount,
    ShapeSeen,
    Share,
    tree_fingerprint,
)
from engine.refusals import Claimed
from kit.process import Part, run_until
from placement_worker.settings import FeedPace, PlacementSettings
from placement_worker.store import PlacementStore
from placement_worker.wiring import placement_parts
from tests.contracts.broker_under_test import BrokerUnderTest
from tests.contracts.conductor_stores import open_conductor_stores
from tests.contracts.memory_under_test import MemoryUnderTest
from tests.contracts.stage import PATIENCE_S, SETTINGS, declared
from tests.contracts.stores import open_store
from tests.waiting import Clock, until

NAMES = UUID("6c0b1f9c-58a5-4f4c-9f62-8c1d2d1f5a02")

BUILD, FAIL, SILENT = "build", "fail", "silent"


CONDUCTING = ConductorSettings(attempt_timeout_s=60)
PACE = ConductorPace(poll_s=0.005, look_s=1, retry_delay_s_first=1, retry_delay_s_max=4, remind_every_s=300)


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
        self.clock = Clock(datetime.now(UTC))
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
        clock = Clock(datetime.now(UTC))
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
            (stations["placement"],), placement_books, PlacementSettings(), pace=FeedPace(lead_again_s=0.02)
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
    parts = conductor_parts(station, store, CONDUCTING, "c1", station.ask_all, clock=setup.clock, pace=PACE)
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
