"""A whole cloud in one process: every worker of every room, on one broker and one database; and bare metal, if that is wanted."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

from msgspec import Struct, structs

from bus.broker import Broker
from bus.topology import Limits, objects_of, user_of
from bus.workers.running import WorkerBeats, release
from bus.workers.sending import Link
from bus.workers.station import Station
from cell_conductor.store_sql import SqlConductorStore
from cell_conductor.wiring import conductor_parts
from compute_sim.handlers import Elapsed
from compute_sim.settings import ComputeSettings
from compute_sim.store_sql import open_compute_store
from engine.flavors import Flavor
from ironic_sync.core.offers import CellMap, class_of
from ironic_sync.rest import HttpIronicApi
from ironic_sync.settings import DaemonRules, IronicSettings
from ironic_sync.store_sql import SqlIronicStore
from ironic_sync.wiring import ironic_parts
from kit.database_settings import DatabaseSettings
from kit.health import About, BadAddressError, Health
from kit.process import Part, run_until
from kit.sql import upgrade
from laboratory.computes.driver import simulated_parts
from laboratory.computes.faults import FaultScript
from laboratory.computes.hosts import SimulatedHost
from laboratory.ironic import (
    IronicScript,
    IronicSimSettings,
    IronicSimulation,
    IronicTransport,
    NodeFile,
    SimulatedNode,
    WorkDurations,
    nodes_in_groups,
    paced,
    simulated_ironic,
)
from moor.asking import running
from moor.clouds.db_command import IRONIC, OTHERS, PLACEMENT
from moor.worker_settings import CloudSettings
from placement_worker.store_sql import SqlPlacementStore
from placement_worker.wiring import placement_parts
from scheduler_worker.store_sql import SqlSchedulerStore
from scheduler_worker.wiring import scheduler_parts

# The bare metal of a cloud in one process: a simulated Ironic, and the daemons that manage its nodes.

RESOURCE_CLASS = "baremetal"
DRAIN_S_MAX = 10.0


class IronicPortTaken(Exception):  # noqa: N818 - named for what happened
    """The simulated Ironic cannot listen at the address that was given."""


class BareMetalPlan(Struct, frozen=True, kw_only=True):
    """How many simulated nodes and daemons to run, and how.

    All work on a node takes `pace` times as long as usual; `script` lists the faults. Without `listen` the simulated
    Ironic serves no port; without `file` its nodes are not saved.
    """

    nodes: int
    daemons: int = 1
    cells: CellMap
    pace: float = 1.0
    script: IronicScript = IronicScript()
    listen: tuple[str, int] | None = None
    file: Path | None = None

    @property
    def groups(self) -> tuple[str, ...]:
        """The conductor groups over which the nodes are spread."""
        return tuple(sorted(self.cells.groups))

    @property
    def simulated_nodes(self) -> tuple[SimulatedNode, ...]:
        return nodes_in_groups(self.nodes, self.groups, resource_class=RESOURCE_CLASS)

    @property
    def simulating(self) -> IronicSimSettings:
        return IronicSimSettings(
            delays=paced(WorkDurations(), self.pace), conductor_groups=("", *self.groups)
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"ironic-{number}" for number in range(1, self.daemons + 1))


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


class BareMetal(Struct, frozen=True):
    """The simulated Ironic and its daemons; the caller runs `parts`."""

    simulation: IronicSimulation
    daemons: tuple[Daemon, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        return (*self.simulation.parts, *self.daemons)


@asynccontextmanager
async def bare_metal(
    metal: BareMetalPlan,
    broker: Broker,
    database_url: str,
    station: Callable[[str], Station],
    *,
    settings: IronicSettings,
    database: DatabaseSettings,
) -> AsyncIterator[BareMetal]:
    """Build the simulated Ironic and the daemons, on a database that has their tables.

    `station` makes the connection to the bus of the daemon with a name.
    """
    async with AsyncExitStack() as stack:
        file = None if metal.file is None else stack.enter_context(closing(NodeFile(metal.file)))
        try:
            simulation = simulated_ironic(
                broker,
                metal.simulated_nodes,
                metal.simulating,
                script=metal.script,
                listen=metal.listen,
                file=file,
            )
        except BadAddressError as taken:
            raise IronicPortTaken(str(taken)) from None
        if file is not None:
            await _end_leases(database_url, database)
        daemons = []
        for name in metal.names:
            store = SqlIronicStore(database_url, settings=database)
            stack.push_async_callback(store.close)
            place = station(name)
            link = Link(place.consuming.broker, place.settings, name="connection to Ironic")
            stack.push_async_callback(link.close)
            api = HttpIronicApi("http://ironic", transport=IronicTransport(simulation.ironic))
            stack.push_async_callback(api.close)
            parts = ironic_parts(
                place,
                link,
                store,
                DaemonRules.of(settings),
                name=name,
                incarnation=secrets.token_hex(8),
                cells=metal.cells,
                api=api,
            )
            daemons.append(Daemon(name, parts))
        yield BareMetal(simulation, tuple(daemons))


async def _end_leases(database_url: str, settings: DatabaseSettings) -> None:
    """Drop the leases of a previous `moor up`, which may have been killed. All daemons on this database run in this process."""
    store = SqlIronicStore(database_url, settings=settings)
    try:
        for member in await store.members():
            await store.leave(member.name, member.incarnation)
    finally:
        await store.close()


# Makes the parts of a cell's compute, as long as its context is open.
ComputeParts = Callable[[Station, ComputeSettings], AbstractAsyncContextManager[Sequence[Part]]]


@asynccontextmanager
async def cloud(
    broker: Broker,
    database_url: str,
    hosts: Mapping[str, Sequence[SimulatedHost]],
    *,
    placement_url: str = "",
    faults: FaultScript | None = None,
    settings: CloudSettings | None = None,
    keeps_hosts: bool = False,
    api_part: Callable[[SqlPlacementStore], Part] | None = None,
    more_parts: Sequence[Part] = (),
    health_part: Callable[[Sequence[object]], Part] | None = None,
    ended: asyncio.Event | None = None,
    as_user: Callable[[str], Broker] | None = None,
    metal: BareMetalPlan | None = None,
    on_metal: Callable[[BareMetal], None] | None = None,
    computes: Mapping[str, ComputeParts] | None = None,
) -> AsyncIterator[SqlPlacementStore]:
    """Run all workers, with the simulated hosts of each cell, while this context is open; then drain them.

    `as_user`: each worker connects as its own broker user.
    `placement_url`: the database of placement's tables.
    `keeps_hosts`: the instances on simulated hosts are stored in the database, for the next cloud on it.
    `api_part` makes one more part, which works on placement's store: its HTTP API.
    `more_parts` run beside the workers.
    `health_part` makes one that reports the health of all parts.
    `ended` is set when the workers end before this context does. They only do so by failing; the exit raises the failure.
    `computes` make the parts of a cell's compute, in place of simulated hosts.
    `metal`: there are bare-metal nodes too; `on_metal` receives them before they start.
    """
    settings = settings or CloudSettings()

    await prepare(broker, hosts, database_url, placement_url, settings.database, has_nodes=metal is not None)
    async with AsyncExitStack() as stack:
        store = SqlPlacementStore(placement_url or database_url, settings=settings.database)
        stack.push_async_callback(store.close)
        api = SqlSchedulerStore(database_url, settings=settings.database)
        stack.push_async_callback(api.close)

        def station(role: str, cell: str = "", name: str = "") -> Station:
            made = Station(
                as_user(user_of(role, cell)) if as_user else broker,
                name or (f"{role}-{cell}" if cell else role),
                settings=settings.bus,
                asks=role != "placement",
            )
            stack.push_async_callback(made.close)
            return made

        parts: list[Part] = []

        def run(role: str, at: Station, of_worker: Iterable[Part], cell: str = "") -> None:
            """Run these parts of a worker, which tells by this station that it lives."""
            made = (*of_worker,)
            parts.extend((*made, WorkerBeats(Health(About(role, release(), cell), (*made, at)), at)))

        placement, scheduler = station("placement"), station("scheduler")
        run("placement", placement, placement_parts((placement,), store, settings.placement))
        run("scheduler", scheduler, scheduler_parts(scheduler, api, settings.scheduler))

        for cell, of_cell in hosts.items():
            rows = SqlConductorStore(database_url, cell, settings=settings.database)
            stack.push_async_callback(rows.close)
            place = station("conductor", cell)
            conductor = conductor_parts(place, rows, settings.conductor, cell, place.ask_all)
            run("conductor", place, (*conductor, place), cell)
            clock_s, kept = Elapsed(), None
            if keeps_hosts:
                kept = await open_compute_store(database_url, cell, clock_s, settings.database)
                stack.push_async_callback(kept.close)
            hosts_at = station("compute", cell)
            of_hosts = structs.replace(settings.compute, cell=cell)
            made = (computes or {}).get(cell)
            compute = (
                simulated_parts(hosts_at, of_cell, of_hosts, faults, clock_s=clock_s, store=kept)
                if made is None
                else await stack.enter_async_context(made(hosts_at, of_hosts))
            )
            run("compute", hosts_at, compute, cell)
        if metal is not None:
            nodes = await stack.enter_async_context(
                bare_metal(
                    metal,
                    broker,
                    database_url,
                    lambda name: station("ironic", name=name),
                    settings=settings.ironic,
                    database=settings.database,
                )
            )
            parts += nodes.parts
            if on_metal is not None:
                on_metal(nodes)
        if api_part is not None:
            parts.append(api_part(store))
        parts += more_parts
        if health_part is not None:
            parts.append(health_part((*parts, placement)))
        async with running(parts, DRAIN_S_MAX) as task:
            if ended is not None:
                task.add_done_callback(lambda _: ended.set())
            yield store


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
