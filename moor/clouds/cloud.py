"""The parts of a cloud (`CloudPlan`), and the cloud in one process: every worker of every room, on one broker and one database;
and bare metal, if that is wanted. temporary_cloud.py runs a plan on servers, with a process for each worker.

Simulated hosts and a simulated Ironic are found by entry points.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
from httpx import AsyncBaseTransport
from msgspec import Struct, structs

from bus.broker import Broker
from bus.topology import Limits, objects_of, user_of
from bus.workers.connections import Station
from bus.workers.heartbeats import WorkerBeats
from bus.workers.running import release
from bus.workers.sending import Link
from cell_conductor.store_sql import ConductorStore
from cell_conductor.wiring import conductor_parts
from compute_sim.wiring import OpensHosts, driver_named
from engine.flavors import Flavor
from ironic_sync.core.offers import CellMap, class_of
from ironic_sync.rest import HttpIronicApi
from ironic_sync.settings import DaemonRules
from ironic_sync.store_sql import IronicStore
from ironic_sync.wiring import ironic_parts
from keeper.store_sql import KeeperStore
from keeper.wiring import keeper_parts
from kit.database_settings import DatabaseSettings
from kit.health import About, Health
from kit.process import Part, run_until, running
from kit.sql import upgrade
from moor.clouds.db_command import IRONIC, OTHERS, PLACEMENT
from moor.worker_settings import CloudSettings, environment_of
from placement_worker.store_sql import PlacementStore
from placement_worker.wiring import placement_parts
from scheduler_worker.store_sql import SchedulerStore
from scheduler_worker.wiring import scheduler_parts

C = TypeVar(
    "C",
    PlacementStore,
    SchedulerStore,
    ConductorStore,
    IronicStore,
    KeeperStore,
    Link,
    HttpIronicApi,
    Station,
)

RESOURCE_CLASS = "baremetal"
DRAIN_S_MAX = 10.0
# What simulates an Ironic is the entry point `simulated` of this group: a function with a broker and a `BareMetalPlan`, which opens a
# `Simulation`.
IRONICS = "moorage.ironics"
ONE_OF_EACH: Mapping[str, int] = MappingProxyType({"placement": 1, "scheduler": 1, "conductor": 1})


class Simulation(Struct, frozen=True):
    """A simulated Ironic in this process, whose `parts` have to be run. Its `url` is empty if no port is served."""

    ironic: Any
    transport: AsyncBaseTransport
    url: str
    parts: tuple[Part, ...]


class BareMetalPlan(Struct, frozen=True, kw_only=True):
    """How many simulated nodes and daemons to run, and how.

    All work on a node takes `pace` times as long as usual; `script` lists the faults, as what simulates reads them. Without `listen`
    the simulated Ironic serves no port; without `file` its nodes are not saved.
    """

    nodes: int
    daemons: int = 1
    cells: CellMap
    pace: float = 1.0
    script: Struct | None = None
    listen: tuple[str, int] | None = None
    file: Path | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"ironic-{number}" for number in range(1, self.daemons + 1))

    def simulated(self, broker: Broker) -> AbstractContextManager[Simulation]:
        """The simulated Ironic, with its nodes spread over the conductor groups."""
        (found,) = entry_points(group=IRONICS, name="simulated")
        opened: AbstractContextManager[Simulation] = found.load()(broker, self)
        return opened


class CloudPlan(Struct, frozen=True, kw_only=True):
    """The parts of a cloud.

    `cells` has the number of simulated hosts of each cell, `host_size` what differs from their usual size, and `host_place` where they are; `faults` is their fault
    script, or its path. `workers`: how many of each kind, conductors in each cell, if each is a process of its own; in one process
    there is one of each. There `computes` open the hosts of a cell in place of simulated ones, and with `keeps_hosts` the instances
    on simulated hosts are stored in the database, for the next cloud on it.
    """

    cells: Mapping[str, int]
    host_size: str = ""
    host_place: str = ""
    faults: Struct | Path | None = None
    metal: BareMetalPlan | None = None
    settings: CloudSettings = CloudSettings()
    workers: Mapping[str, int] = ONE_OF_EACH
    computes: Mapping[str, OpensHosts] = {}
    keeps_hosts: bool = False

    def variables_of(self, cell: str) -> Mapping[str, str]:
        """The variables of a process that simulates the hosts of this cell."""
        return {"MOOR_CELL": cell} | simulated_hosts(
            self.cells[cell], self.host_size, self.host_place, self.faults
        )

    def opens(self, cell: str, database_url: str) -> OpensHosts:
        """What opens the hosts of this cell in this process. Raises ValueError for a wrong `host_size`, `host_place` or fault script."""
        kept = environment_of(CloudSettings(database=self.settings.database), {})
        kept["MOOR_DB_URL"] = database_url if self.keeps_hosts else ""
        return self.computes.get(cell) or driver_named("simulated", {**self.variables_of(cell), **kept})


def simulated_hosts(count: int, size: str, place: str, faults: Struct | Path | None) -> dict[str, str]:
    """The variables of the driver `simulated`."""
    script = msgspec.json.encode(faults).decode() if isinstance(faults, Struct) else str(faults or "")
    return {
        "MOOR_COMPUTE_HOSTS": str(count),
        "MOOR_COMPUTE_HOST_SIZE": size,
        "MOOR_COMPUTE_PLACE": place,
        "LABORATORY_FAULTS": script,
    }


def cells_of_groups(cells: Iterable[str], stated: CellMap | None = None) -> CellMap:
    """A map with a conductor group named after each cell; entries of `stated` override it."""
    names = tuple(cells)
    stated = stated or CellMap()
    groups = {**{name: name for name in names}, **stated.groups}
    return CellMap(groups=groups, shards=stated.shards, default=stated.default or names[0])


def flavor_of_nodes(name: str = "metal") -> Flavor:
    """A flavor for one simulated node. Its sizes describe the image only: placement is asked for the node's class alone."""
    asked = {"resources:VCPU": "0", "resources:MEMORY_MB": "0", "resources:DISK_GB": "0"}
    return Flavor(
        name=name,
        vcpus=8,
        ram_mb=65536,
        root_gb=480,
        extra_specs={**asked, f"resources:{class_of(RESOURCE_CLASS)}": "1"},
    )


# A flavor for hypervisors, for requests that accept both: `--flavor metal --else small`.
SMALL = Flavor(name="small", vcpus=2, ram_mb=4096, root_gb=10)


class Daemon:
    """One daemon of the ring, run as a part of this process. `kill` ends it as `kill -9` would: its lease expires."""

    def __init__(self, name: str, parts: tuple[Part, ...]) -> None:
        self.name = name
        self.parts = parts
        self.is_killed = False
        self._stop = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def run(self) -> None:
        running = self._running = asyncio.create_task(run_until(self._stop, self.parts, DRAIN_S_MAX))
        try:
            await asyncio.wait((running,))
        finally:
            running.cancel()
            await asyncio.wait((running,))
        if not self.is_killed:
            running.result()
        # When a part returns, the process ends; the end of one daemon must not do that.
        await self._stop.wait()

    async def stop(self) -> None:
        self._stop.set()

    def kill(self) -> None:
        self.is_killed = True
        if self._running is not None:
            self._running.cancel()


class RunningCloud:
    """The workers of a plan in this process: their parts, placement's store, and of bare metal the simulated Ironic and its daemons.

    `stack` closes what they opened. Each worker connects as the broker user that `as_user` gives.
    """

    placement_at: Station
    # Ends before the context of the cloud does only when a worker fails.
    task: asyncio.Task[None]

    def __init__(
        self,
        plan: CloudPlan,
        broker: Broker,
        *,
        database_url: str,
        placement_url: str,
        as_user: Callable[[str], Broker] | None,
        stack: AsyncExitStack,
    ) -> None:
        self.plan = plan
        self.parts: list[Part] = []
        self.simulation: Simulation | None = None
        self.daemons: dict[str, Daemon] = {}
        self._broker, self._database_url = broker, database_url
        self._as_user, self._stack = as_user, stack
        database = plan.settings.database
        self.placement = self._closed_later(PlacementStore(placement_url, settings=database))

    async def make_workers(self) -> None:
        settings = self.plan.settings
        self.placement_at = at = self._station("placement")
        self._add("placement", at, placement_parts((at,), self.placement, settings.placement))
        at = self._station("scheduler")
        rows = self._closed_later(SchedulerStore(self._database_url, settings=settings.database))
        self._add("scheduler", at, scheduler_parts(at, rows, settings.scheduler))
        at = self._station("keeper")
        campaigns = self._closed_later(KeeperStore(self._database_url, settings=settings.database))
        self._add("keeper", at, keeper_parts(at, campaigns, settings.keeper))
        for cell in self.plan.cells:
            await self._make_cell(cell)
        if self.plan.metal is not None:
            await self._make_metal(self.plan.metal)

    async def _make_cell(self, cell: str) -> None:
        plan, settings = self.plan, self.plan.settings
        rows = self._closed_later(ConductorStore(self._database_url, cell, settings=settings.database))
        at = self._station("conductor", cell)
        conductor = conductor_parts(at, rows, settings.conductor, cell, at.ask_all)
        self._add("conductor", at, (*conductor, at), cell)
        at = self._station("compute", cell)
        of_hosts = plan.opens(cell, self._database_url)(at, structs.replace(settings.compute, cell=cell))
        self._add("compute", at, await self._stack.enter_async_context(of_hosts), cell)

    async def _make_metal(self, metal: BareMetalPlan) -> None:
        settings, database = self.plan.settings, self.plan.settings.database
        self.simulation = self._stack.enter_context(metal.simulated(self._broker))
        if metal.file is not None:
            await _end_leases(self._database_url, database)
        for name in metal.names:
            store = self._closed_later(IronicStore(self._database_url, settings=database))
            at = self._station("ironic", name=name)
            link = self._closed_later(Link(at.consuming.broker, at.settings, name="connection to Ironic"))
            api = self._closed_later(HttpIronicApi("http://ironic", transport=self.simulation.transport))
            parts = ironic_parts(
                at,
                link,
                store,
                DaemonRules.of(settings.ironic),
                name=name,
                incarnation=secrets.token_hex(8),
                cells=metal.cells,
                api=api,
            )
            self.daemons[name] = Daemon(name, parts)
        self.parts += (*self.simulation.parts, *self.daemons.values())

    def _station(self, role: str, cell: str = "", name: str = "") -> Station:
        made = Station(
            self._as_user(user_of(role, cell)) if self._as_user else self._broker,
            name or (f"{role}-{cell}" if cell else role),
            settings=self.plan.settings.bus,
            asks=role != "placement",
        )
        return self._closed_later(made)

    def _closed_later(self, made: C) -> C:
        """The end of the cloud closes it."""
        self._stack.push_async_callback(made.close)
        return made

    def _add(self, role: str, at: Station, of_worker: Iterable[Part], cell: str = "") -> None:
        """Add these parts of a worker, which tells by this station that it lives."""
        parts = (*of_worker,)
        self.parts += (*parts, WorkerBeats(Health(About(role, release(), cell), (*parts, at)), at))


async def _end_leases(database_url: str, settings: DatabaseSettings) -> None:
    """Drop the leases of a previous `moor up`, which may have been killed. All daemons on this database run in this process."""
    store = IronicStore(database_url, settings=settings)
    try:
        for member in await store.members():
            await store.leave(member.name, member.incarnation)
    finally:
        await store.close()


@asynccontextmanager
async def cloud(
    plan: CloudPlan,
    broker: Broker,
    database_url: str,
    *,
    placement_url: str = "",
    as_user: Callable[[str], Broker] | None = None,
    beside: Callable[[RunningCloud], Iterable[Part]] = lambda _: (),
) -> AsyncIterator[RunningCloud]:
    """Run all workers in this process while this context is open; then drain them. The exit raises the failure of a worker.

    `placement_url`: the database of placement's tables. `beside` makes parts that run beside the workers.
    """
    has_nodes = plan.metal is not None
    await prepare(
        broker, plan.cells, database_url, placement_url, plan.settings.database, has_nodes=has_nodes
    )
    async with AsyncExitStack() as stack:
        made = RunningCloud(
            plan,
            broker,
            database_url=database_url,
            placement_url=placement_url or database_url,
            as_user=as_user,
            stack=stack,
        )
        await made.make_workers()
        made.parts += beside(made)
        async with running(made.parts, DRAIN_S_MAX) as made.task:
            yield made


async def prepare(
    broker: Broker,
    cells: Iterable[str],
    database_url: str,
    placement_url: str = "",
    settings: DatabaseSettings | None = None,
    *,
    has_nodes: bool,
    limits: Limits | None = None,
) -> None:
    """Declare the exchanges and queues of these cells, and upgrade the tables of all rooms.

    Ironic's exchange is declared, and the tables of bare metal are upgraded, only with `has_nodes`.
    """
    connection = await broker.connect()
    try:
        await connection.declare(objects_of(cells, create_foreign=has_nodes, limits=limits))
    finally:
        await connection.close()
    await upgrade(placement_url or database_url, PLACEMENT, settings)
    for owner in (*OTHERS, *((IRONIC,) if has_nodes else ())):
        await upgrade(database_url, owner, settings)
