"""The one builder of clouds for stories. Every worker is a real one that the story starts, or a cell that follows a script."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID, uuid5

from msgspec import structs

from bus.broker import Broker
from bus.message import Message
from bus.messages.books import DeleteAllocations, Done, WriteAnswered
from bus.messages.build import (
    AskInstances,
    BuildInstance,
    BuildRejected,
    DeleteInstance,
    InstancesFound,
    InstanceState,
)
from bus.messages.cell import PlaceInCell
from bus.messages.hosts import HostsReported
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
from bus.topology import EVENTS
from bus.workers.connections import Station
from bus.workers.sending import Link
from cell_conductor.settings import ConductorPace, ConductorSettings
from cell_conductor.store_sql import ConductorStore
from cell_conductor.wiring import conductor_parts
from compute_sim.settings import ComputePace, ComputeSettings
from compute_sim.wiring import compute_parts
from engine.flavors import Flavor, InstanceId, RequestId, instance_id_of
from engine.hosts import HostFacts, HostSetting
from engine.inventories import (
    ConsumerId,
    ProviderId,
    ProviderState,
    ReportedInventory,
    ReportedProvider,
    ResourceAmount,
    Share,
)
from engine.picture.picture import Picture
from engine.refusals import Claimed, NoValidHost
from ironic_sync.core.offers import CellMap
from ironic_sync.rest import HttpIronicApi
from ironic_sync.settings import DaemonRules, Inbox
from ironic_sync.store_sql import IronicStore
from ironic_sync.wiring import ironic_parts
from keeper.settings import KeeperPace, KeeperSettings
from keeper.store_sql import KeeperStore
from keeper.wiring import keeper_parts
from kit.process import Part
from laboratory.computes.driver import simulated_parts
from laboratory.computes.faults import FailsToBuild, FaultScript
from laboratory.computes.hosts import SimulatedHost
from moor.client.bus_client import hosts_of, pages_of
from placement_worker.settings import FeedPace, PlacementSettings
from placement_worker.store_sql import PlacementStore
from placement_worker.wiring import placement_parts
from scheduler_worker.settings import SchedulerPace, SchedulerSettings
from scheduler_worker.store_sql import HostQuery, SchedulerStore
from scheduler_worker.wiring import scheduler_parts
from tests.asking import state_of, until_state
from tests.contracts.stage import CELLS, SETTINGS, listening
from tests.contracts.stores import open_conductor_store, open_scheduler_store, open_store
from tests.narrowing import must_be, present
from tests.running import once, running
from tests.stories.layouts import Layout, layout
from tests.stories.scripted import NAMES, ScriptedCell, host_id
from tests.varied import varied
from tests.waiting import until

M = TypeVar("M", bound=Message)

SETTLED = FeedPace(lead_again_s=0.02)
# However slow the machine is, a report is not repeated: its copy could be carried out after the next report.
ASKS_ONCE = varied(SETTINGS, ask_again_ms=SETTINGS.answer_timeout_ms)
# Its cells have no heartbeats of conductors, however long a test takes.
QUICK = SchedulerSettings(cell_down_s=1_000.0)
PLACING, CONDUCTING, KEEPING = PlacementSettings(), ConductorSettings(), KeeperSettings()
CELL_PACE = ConductorPace(poll_s=0.02, retry_delay_s_first=0.02, retry_delay_s_max=0.1)
COMPUTING = ComputeSettings(cell="c1", beat_s=0.1, facts_every_s=0.05)
COMPUTE_PACE = ComputePace(again_s=0.05, drain_s=0.1, metrics_every_s=0.05)
# One that ends does not wait for the broker of a cell.
HASTY = structs.replace(SETTINGS, drain_ms_max=100)
KEEPER_PACE = KeeperPace(
    round_s=0.05,
    idle_s=0.05,
    list_s=0.2,
    rest_s=0.1,
    spread_s=0.5,
    died_s=0.1,
    rests_s=(0.0, 0.1),
    balance_s=0.2,
)
QUICK_PACE = SchedulerPace(hosts_poll_s=0.2, deadline_poll_s=0.05, unconfirmed_s=0.05, shape_pause_ms_max=5)
SMALL = Flavor(name="small", vcpus=1, ram_mb=1024, root_gb=1)


_numbers = itertools.count(1)


class Cloud:
    def __init__(self, brokers: Layout, kind: str, books: PlacementStore, rows: SchedulerStore) -> None:
        self.brokers = brokers
        # Which stores the workers of its cells have.
        self._kind = kind
        self.books = books
        self.rows = rows
        # One for each scheduler that runs.
        self.pictures: list[Picture] = []
        # An operator: it may publish everything at API level and in every cell.
        self.client = Station(brokers.at_api("operator"), "client", settings=SETTINGS, asks=True)
        # One station per cell acts as its computes, one as its conductor.
        self.stations_in = {
            cell: Station(brokers.in_cell(cell, "compute"), f"compute-{cell}", settings=ASKS_ONCE, asks=True)
            for cell in CELLS
        }
        self.conductors_in = {
            cell: Station(brokers.in_cell(cell), f"conductor-{cell}", settings=SETTINGS) for cell in CELLS
        }
        self.cells = {cell: ScriptedCell(cell, station) for cell, station in self.conductors_in.items()}

    # Processes

    running = staticmethod(running)

    def station(
        self,
        role: str,
        name: str = "",
        *,
        cell: str = "",
        bus: BusSettings = SETTINGS,
        make: Callable[..., Station] = Station,
    ) -> Station:
        """One that may do what this role may, at the API level or in a cell."""
        broker = self.brokers.in_cell(cell, role) if cell else self.brokers.at_api(role)
        return make(broker, name or role, settings=bus, asks=True)

    def placement(
        self,
        name: str = "placement",
        *,
        settings: PlacementSettings = PLACING,
        pace: FeedPace = SETTLED,
        user: Broker | None = None,
    ) -> AbstractAsyncContextManager[asyncio.Event]:
        station = Station(user or self.brokers.at_api("placement"), name, settings=SETTINGS)
        below = self._stations_below("placement", SETTINGS)
        parts = placement_parts((station,), self.books, settings, cells=below, pace=pace)
        return self.running(parts, station, *below.values())

    @asynccontextmanager
    async def scheduler(
        self,
        name: str = "scheduler",
        *,
        settings: SchedulerSettings = QUICK,
        pace: SchedulerPace = QUICK_PACE,
        bus: BusSettings = SETTINGS,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        station: type[Station] | Callable[..., Station] = Station,
        drain_s_max: float = 10,
        picture: Picture | None = None,
    ) -> AsyncIterator[Sequence[Part]]:
        picture = Picture() if picture is None else picture
        place = self.station("scheduler", name, bus=bus, make=station)
        below = self._stations_below("scheduler", bus, name)
        parts = scheduler_parts(place, self.rows, settings, clock, cells=below, picture=picture, pace=pace)
        self.pictures.append(picture)
        try:
            async with self.running(parts, place, *below.values(), drain_s_max=drain_s_max):
                yield parts
        finally:
            self.pictures.remove(picture)

    @asynccontextmanager
    async def scheduling(
        self, *hosts: str, cell: str = "c1", vcpu: int = 8, **options: Any
    ) -> AsyncIterator[None]:
        """Placement and a scheduler, which know these hosts."""
        async with self.placement(), self.scheduler(**options):
            await self.add_hosts(*hosts, cell=cell, vcpu=vcpu)
            yield

    @asynccontextmanager
    async def conductor(
        self,
        rows: ConductorStore,
        cell: str = "c1",
        *,
        name: str = "conductor",
        settings: ConductorSettings = CONDUCTING,
        pace: ConductorPace = CELL_PACE,
        bus: BusSettings = SETTINGS,
        station: Callable[..., Station] = Station,
        killed: bool = False,
        **clocks: Any,
    ) -> AsyncIterator[Sequence[Part]]:
        place = self.station("conductor", name, cell=cell, bus=bus, make=station)
        parts = conductor_parts(place, rows, settings, cell, place.ask_all, pace=pace, **clocks)
        async with self.running((*parts, place), place, killed=killed):
            yield parts

    @asynccontextmanager
    async def computes(
        self,
        hosts: Sequence[SimulatedHost] = (),
        script: FaultScript | None = None,
        settings: ComputeSettings = COMPUTING,
        *,
        drivers: Sequence[Any] = (),
        pace: ComputePace = COMPUTE_PACE,
        store: Any = None,
        bus: BusSettings = SETTINGS,
    ) -> AsyncIterator[Station]:
        """Of one cell, with these simulated hosts or with the hosts of these drivers."""
        place = self.station("compute", cell=settings.cell, bus=bus)
        if drivers:
            parts = compute_parts(place, drivers, settings, store=store, pace=pace)
        else:
            faults = script or FaultScript(spawn_ms=5)
            parts = simulated_parts(place, hosts, settings, faults, store=store, pace=pace)
        async with self.running(parts, place):
            yield place

    @asynccontextmanager
    async def cell(
        self,
        *hosts: SimulatedHost,
        rows: ConductorStore | None = None,
        script: FaultScript | None = None,
        drivers: Sequence[Any] = (),
        computing: ComputeSettings = COMPUTING,
        pace: ConductorPace = CELL_PACE,
    ) -> AsyncIterator[None]:
        """c1, with a conductor and computes. If a scheduler runs, it knows the hosts."""
        async with (
            nullcontext(rows) if rows is not None else open_conductor_store(self._kind, "c1") as store,
            self.conductor(store, pace=pace),
            self.computes(hosts, script, computing, drivers=drivers),
        ):
            if self.pictures:
                await self.until_reported(*(host.name for host in hosts))
            yield

    @asynccontextmanager
    async def keeper(
        self,
        rows: KeeperStore,
        name: str = "keeper",
        *,
        settings: KeeperSettings = KEEPING,
        pace: KeeperPace = KEEPER_PACE,
        bus: BusSettings = SETTINGS,
        killed: bool = False,
        **clocks: Any,
    ) -> AsyncIterator[Sequence[Part]]:
        place = self.station("keeper", name, bus=bus)
        parts = keeper_parts(place, rows, settings, pace=pace, **clocks)
        async with self.running(parts, place, killed=killed):
            yield parts

    @asynccontextmanager
    async def daemon(
        self,
        rows: IronicStore,
        name: str,
        rules: DaemonRules,
        cells: CellMap,
        *,
        api: HttpIronicApi | None = None,
        inbox: Inbox | None = None,
        user: str = "ironic",
        killed: bool = False,
    ) -> AsyncIterator[Sequence[Part]]:
        """A daemon of Ironic's nodes; `user` reads Ironic's notifications. With `killed` it ends without leaving the ring, and its
        lease ends soon after.
        """
        incarnation = f"{name}-{next(_numbers)}"
        place = self.station("ironic", incarnation)
        below = self._stations_below("ironic", HASTY, incarnation)
        link = Link(self.brokers.at_api(user), SETTINGS)
        parts = ironic_parts(
            place,
            link,
            rows,
            rules,
            name=name,
            incarnation=incarnation,
            cells=cells,
            inbox=inbox,
            api=api,
            in_cells=below,
        )
        async with self.running((*parts, *below.values()), place, *below.values(), killed=killed):
            yield parts
        if killed:
            assert await rows.renew(name, incarnation, 0.0)
        await link.close()
        if api is not None:
            await api.close()

    def _stations_below(self, role: str, settings: BusSettings, name: str = "") -> dict[str, Station]:
        return {
            cell: Station(broker, f"{name or role}-in-{cell}", settings=settings, cells=(cell,))
            for cell, broker in self.brokers.below(role).items()
        }

    def listening(self, *keys: str, exchange: str = EVENTS) -> AbstractAsyncContextManager[list[Message]]:
        """The list of messages with these keys; it grows as they arrive."""
        broker = self.brokers.at_api("operator")
        return listening(broker, *keys, exchange=exchange, name=f"ears-{next(_numbers)}")

    # Messages and questions

    async def add_host(
        self, name: str, cell: str = "c1", *, vcpu: int = 8, traits: tuple[str, ...] = ()
    ) -> None:
        await self.report(a_host(name, cell, vcpu=vcpu, traits=traits))
        facts = HostFacts(id=host_id(name), name=name)
        await self.stations_in[cell].publisher.send(HostsReported(cell=cell, hosts=(facts,)))

    async def add_hosts(
        self, *names: str, cell: str = "c1", vcpu: int = 8, traits: tuple[str, ...] = ()
    ) -> None:
        """They are known when this returns: a scheduler runs."""
        for name in names:
            await self.add_host(name, cell, vcpu=vcpu, traits=traits)
        await self.until_reported(*names)

    async def report(self, report: ReportInventory) -> None:
        answer = must_be(ReportAnswered, await self.stations_in[report.cell].ask(report))
        assert isinstance(answer.verdict, ReportAccepted), answer

    async def give_back(self, consumer: ConsumerId) -> None:
        """It holds nothing any more."""
        assert await self.client.ask(DeleteAllocations(consumer=consumer)) == WriteAnswered(verdict=Done())

    async def hold(self, host: ProviderId, consumer: ConsumerId, amount: ResourceAmount) -> None:
        """Another consumer claims this of a host."""
        claim = ClaimResources(
            cell="c1",
            consumer=consumer,
            attempt=1,
            issued_at=datetime.now(UTC),
            share=Share(host=host, amounts=(amount,)),
        )
        other = Station(self.brokers.at_api("scheduler"), "other", settings=ASKS_ONCE, asks=True)
        async with self.running((other,), other):
            answer = await other.ask(claim)
        assert must_be(ClaimAnswered, answer).verdict == Claimed()

    async def fill(self, name: str, vcpu: int, *, at: str = "", by: str = "") -> None:
        """A consumer claims this many CPUs of a host, or of the provider below it that `at` names."""
        amount = ResourceAmount(provider=host_id(at or name), resource="VCPU", amount=vcpu)
        await self.hold(host_id(name), filler_of(by or name), amount)

    async def disable(self, name: str) -> None:
        """Write the row directly, because no scheduler runs that could be asked."""
        (host,) = await self.rows.hosts(HostQuery(name=name))
        disabled = structs.replace(host, setting=HostSetting(mode="draining"), sequence=host.sequence + 1)
        await once(self.rows.transaction, lambda tx: tx.save_hosts([disabled], datetime.now(UTC)))

    async def until_used(self, **used: int) -> None:
        await until(self.used, f"used {used}", lambda found: found == used)
        await self.until_current()

    async def until_current(self) -> None:
        """Wait until the picture of each scheduler has all that placement has written."""

        async def are_so() -> bool:
            revisions: dict[int, int] = {}
            after: int | None = 0
            while after is not None:
                page = await self.books.revisions_page(after, 10_000)
                revisions.update(zip(page.internals, page.revisions, strict=True))
                after = page.next
            return not any(picture.trees.behind(revisions, ()) for picture in self.pictures)

        await until(are_so, "the schedulers' pictures are current")

    async def until_registered(self, *names: str) -> None:
        """Wait until the registry has these hosts, and the pictures of all schedulers have them and their providers."""
        await until(
            lambda: hosts_of(self.client),
            f"hosts {names} known",
            lambda found: {host.name for host in found if host.up} >= set(names),
        )
        await until(
            lambda: all(_is_up(picture, name) for picture in self.pictures for name in names),
            f"hosts {names} are in the pictures",
        )
        await self.until_current()

    async def until_reported(self, *names: str) -> None:
        """Wait until the registry has these hosts, and placement has their reports."""
        await until(self.providers, f"hosts {names} provided", lambda found: found.keys() >= set(names))
        await self.until_registered(*names)

    async def send(self, *messages: Message) -> None:
        await asyncio.gather(*[self.client.publisher.send(message) for message in messages])

    async def instance(self, instance: InstanceId) -> InstanceState | None:
        return await state_of(self.client, instance)

    async def until_state(self, instance: InstanceId, *states: str) -> InstanceState:
        return await until_state(self.client, instance, *states)

    async def ask(self, question: Message, kind: type[M]) -> M:
        return must_be(kind, await self.client.ask(question))

    async def boot(self, number: int, *states: str, **fields: object) -> InstanceState:
        """An instance that ended in one of these states, by default active. It is sent, not asked: a question that is repeated
        is searched for, and may be claimed, twice.
        """
        build = a_build(number, **fields)
        await self.send(build)
        return await self.until_state(instance_of(build), *(states or ("active",)))

    async def until_each(self, builds: Iterable[BuildInstance], *states: str) -> list[InstanceState]:
        """Of each request the first instance, when it is in one of these states."""
        return [await self.until_state(instance_of(build), *states) for build in builds]

    async def built(self, build: BuildInstance, *states: str) -> list[InstanceState]:
        """The instances of a request that is sent, when each has ended in one of these states, by default active."""
        await self.send(build)
        return await self.until_all(build, *(states or ("active",)))

    async def delete(self, instance: InstanceId) -> None:
        await self.client.ask(DeleteInstance(instance=instance))
        await self.until_state(instance, "deleted")

    async def until_all(self, build: BuildInstance, *states: str) -> list[InstanceState]:
        """All instances of a request, when each is in one of these states."""
        # One question is cheaper than those about all of them.
        await self.until_state(instance_of(build, build.count - 1), *states)

        async def found() -> list[InstanceState]:
            question = AskInstances(request_id=build.request_id, limit=200)
            pages = pages_of(self.client, question, InstancesFound)
            return [state async for page in pages for state in page.instances]

        return await until(
            found,
            f"all in {states}",
            lambda each: len(each) == build.count and all(one.state in states for one in each),
        )

    async def providers(self, limit: int = 200) -> dict[str, ProviderState]:
        """Asked for in pages of this size."""
        found: dict[str, ProviderState] = {}
        after: int | None = 0
        while after is not None:
            page = must_be(SnapshotPage, await self.client.ask(AskSnapshot(after=after, limit=limit)))
            found |= {provider.name: provider for provider in page.providers}
            after = page.next
        return found

    async def used(self) -> dict[str, int]:
        return {name: each.inventories["VCPU"].used for name, each in (await self.providers()).items()}

    @property
    def placed(self) -> list[PlaceInCell]:
        return [order for cell in self.cells.values() for order in cell.placed]


@asynccontextmanager
async def cloud(bus: str, books: str, scripted: Sequence[str] = CELLS) -> AsyncIterator[Cloud]:
    """A client and two cells. The story starts placement, schedulers, and cells without a script."""
    async with layout(bus) as brokers, cloud_on(brokers, books, scripted) as setup:
        yield setup


@asynccontextmanager
async def cloud_on(brokers: Layout, books: str, scripted: Sequence[str] = CELLS) -> AsyncIterator[Cloud]:
    async with AsyncExitStack() as stack:
        placement_store = await stack.enter_async_context(open_store(books))
        scheduler_store = await stack.enter_async_context(open_scheduler_store(books))
        setup = Cloud(brokers, books, placement_store, scheduler_store)
        stations = (setup.client, *setup.stations_in.values(), *setup.conductors_in.values())
        workers = [setup.cells[cell].worker for cell in scripted]
        async with setup.running((*stations, *workers), *stations):
            yield setup
            assert await placement_store.audit() == ()


def _is_up(picture: Picture, name: str) -> bool:
    hosts = [picture.registered(row) for row in picture.rows_named(name.lower())]
    return any(host is not None and host.up for host in hosts)


def failing(*hosts: str) -> FaultScript:
    """Builds fail on these hosts; by default on all."""
    return FaultScript(spawn_ms=5, faults=(FailsToBuild(hosts=hosts or ("*",)),))


def filler_of(name: str) -> ConsumerId:
    return ConsumerId(uuid5(NAMES, f"who fills {name}"))


def a_host(name: str, cell: str = "c1", *, vcpu: int = 8, traits: tuple[str, ...] = ()) -> ReportInventory:
    provider = ReportedProvider(
        id=host_id(name),
        name=name,
        inventories={
            "VCPU": ReportedInventory(total=vcpu),
            "MEMORY_MB": ReportedInventory(total=65536),
            "DISK_GB": ReportedInventory(total=1000),
        },
        traits=traits,
    )
    return ReportInventory(cell=cell, root=host_id(name), providers=(provider,))


def a_build(number: int, **fields: object) -> BuildInstance:
    build = BuildInstance(
        request_id=RequestId(UUID(int=number)), flavor=SMALL, name=f"vm-{number}", deadline_s=60
    )
    return structs.replace(build, **fields)


def instance_of(build: BuildInstance, index: int = 0) -> InstanceId:
    return instance_id_of(present(build.request_id), index)


def funnel_of(state: InstanceState) -> NoValidHost:
    """Why it has no host."""
    return present(state.no_valid_host)


async def until_heard(heard: Sequence[Message], kind: type[M]) -> M:
    """The first message of this type."""
    return await until(
        lambda: next((each for each in heard if isinstance(each, kind)), None), f"{kind.__name__} is heard"
    )


async def until_fed(setup: Cloud, project: str, heard: list[Message]) -> None:
    """Wait until the schedulers know the application: they poll for new ones."""

    async def refused() -> list[Message]:
        await setup.send(a_build(99, project=project, flavor=structs.replace(SMALL, vcpus=-1)))
        return [each for each in heard if isinstance(each, BuildRejected) and each.project == project]

    await until(refused, f"the feed of {project} is said")
