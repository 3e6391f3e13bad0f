"""The bare metal of a cloud in one process: a simulated Ironic, and the daemons that manage its nodes."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

from msgspec import Struct

from bus.broker import Broker
from bus.workers.sending import Link
from bus.workers.station import Station
from engine.flavors import Flavor
from ironic_sync.core.offers import CellMap, class_of
from ironic_sync.rest import HttpIronicApi
from ironic_sync.settings import IronicSettings
from ironic_sync.store_sql import SqlIronicStore
from ironic_sync.wiring import ironic_parts
from kit.database_settings import DatabaseSettings
from kit.health import BadAddressError
from kit.process import Part, run_until
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
                settings,
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
