"""A cloud for one run of the demo or the load: in this process, or on real servers with a process for each worker."""

import os
import tempfile
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from bus.addresses import broker_at
from bus.broker import Broker, Connection
from bus.memory import MemoryBroker
from bus.workers.station import Station
from compute_sim.core.hosts import Pool, read_pools
from ironic_sync.core.node import Node
from ironic_sync.rest import HttpIronicApi
from ironic_sync.store_sql import SqlIronicStore
from laboratory.cloud_processes import Servers, WorkerProcess, cloud_in_processes
from laboratory.computes.faults import FaultScript
from laboratory.computes.hosts import equal_hosts, read_host_size
from laboratory.ironic import IronicTransport, SimulatedIronic, simulated_ironic
from moor.asking import during, running, station_on
from moor.clouds.cloud import BareMetal, BareMetalPlan, ComputeParts, Daemon, cloud
from moor.worker_settings import CloudSettings, environment_of

T = TypeVar("T")
Daemons = Mapping[str, Daemon | WorkerProcess]
# What runs of a cloud: its simulated Ironic, the daemons of bare metal by their names, and the processes of workers.
Started = tuple[SimulatedIronic | None, Daemons, Sequence[WorkerProcess]]


def cell_names(count: int) -> list[str]:
    return [f"c{number}" for number in range(1, count + 1)]


def spread(hosts: int, cells: Sequence[str]) -> dict[str, int]:
    """Spread the hosts evenly over the cells; the first cells get the remainder."""
    return {cell: hosts // len(cells) + (n < hosts % len(cells)) for n, cell in enumerate(cells)}


class CloudPlan(Struct, frozen=True, kw_only=True):
    """The parts of a cloud for a demo or a load run.

    `role` names the run's own client on the bus. `cells` has the number of hosts of each cell, `counts` the number of
    workers of each kind, and `host_size` what differs from the usual size of a host. `computes` make the parts of a cell's compute, in place
    of simulated hosts. `folder` has the database of an embedded run; without it, a temporary one.
    """

    role: str
    cells: Mapping[str, int]
    counts: Mapping[str, int] = {}
    settings: CloudSettings
    host_size: str = ""
    faults: FaultScript = FaultScript()
    metal: BareMetalPlan | None = None
    computes: Mapping[str, ComputeParts] = {}
    folder: Path | None = None

    @property
    def host_names(self) -> frozenset[str]:
        return frozenset(host.name for cell, count in self.cells.items() for host in equal_hosts(cell, count))

    @property
    def pools(self) -> tuple[Pool, ...]:
        return tuple([pool for cell in self.cells for pool in read_pools(self.settings.compute.pools, cell)])


class TemporaryCloud(Struct, frozen=True, kw_only=True):
    """A running cloud, with the connections by which a demo or a load run uses it and reads its state.

    `daemons` are those of bare metal, by name. `workers` is empty if the whole cloud runs in this process.
    """

    broker: Broker
    client: Station
    connection: Connection
    rows: SqlIronicStore
    daemons: Daemons
    workers: Sequence[WorkerProcess]
    simulated_ironic: SimulatedIronic | None

    @property
    def ironic(self) -> SimulatedIronic:
        assert self.simulated_ironic is not None, "the plan has bare-metal nodes"
        return self.simulated_ironic

    async def nodes(self) -> list[Node]:
        """All nodes, as Ironic's REST API shows them."""
        api = HttpIronicApi("http://ironic", transport=IronicTransport(self.ironic))
        try:
            return [node async for page in api.pages() for node in page.nodes]
        finally:
            await api.close()

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`; raise `WorkerEnded` as soon as a worker process ends."""
        return await during(work, *(worker.ended() for worker in self.workers))


@asynccontextmanager
async def temporary_cloud(plan: CloudPlan, servers: Servers | None) -> AsyncIterator[TemporaryCloud]:
    """Run the cloud on these servers; without them, in this process on a bus in memory and a database that is deleted."""
    async with AsyncExitStack() as stack:
        if servers is None:
            broker: Broker = MemoryBroker().as_user()
            folder = plan.folder or Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix=f"moor-{plan.role}-"))
            )
            url = f"sqlite+aiosqlite:///{folder / 'moor.db'}"
            ironic, daemons, workers = await _embedded(plan, broker, url, stack)
        else:
            broker, url = broker_at(servers.bus_url), servers.database_url
            ironic, daemons, workers = await _in_processes(plan, broker, servers, stack)
        rows = SqlIronicStore(url)
        stack.push_async_callback(rows.close)
        connection = await broker.connect()
        stack.push_async_callback(connection.close)
        client, _ = await stack.enter_async_context(station_on(broker, plan.role))
        yield TemporaryCloud(
            broker=broker,
            client=client,
            connection=connection,
            rows=rows,
            daemons=daemons,
            workers=workers,
            simulated_ironic=ironic,
        )


async def _embedded(plan: CloudPlan, broker: Broker, url: str, stack: AsyncExitStack) -> Started:
    size = read_host_size(plan.host_size)
    hosts = {cell: equal_hosts(cell, count, size) for cell, count in plan.cells.items()}
    of_metal: list[BareMetal] = []
    await stack.enter_async_context(
        cloud(
            broker,
            url,
            hosts,
            faults=plan.faults,
            settings=plan.settings,
            metal=plan.metal,
            on_metal=of_metal.append,
            computes=plan.computes,
        )
    )
    daemons = {daemon.name: daemon for metal in of_metal for daemon in metal.daemons}
    return next((metal.simulation.ironic for metal in of_metal), None), daemons, ()


async def _in_processes(plan: CloudPlan, broker: Broker, servers: Servers, stack: AsyncExitStack) -> Started:
    """Run the cloud on real servers, each worker as its own process.

    The simulated Ironic runs in this process, so that its CPU time does not count as that of a worker.
    """
    urls = {
        **environment_of(plan.settings, os.environ),
        **servers.environment,
        "MOOR_COMPUTE_HOST_SIZE": plan.host_size,
    }
    metal = plan.metal
    simulation = None
    if metal is not None:
        simulation = simulated_ironic(
            broker, metal.simulated_nodes, metal.simulating, script=metal.script, listen=("127.0.0.1", 0)
        )
    ironic_url = simulation.url if simulation else ""
    workers = await stack.enter_async_context(
        cloud_in_processes(
            broker, urls, plan.cells, plan.counts, plan.faults, metal=metal, ironic_url=ironic_url
        )
    )
    if simulation:
        await stack.enter_async_context(running(simulation.parts))
    daemons = {worker.name: worker for worker in workers if metal and worker.name in metal.names}
    return simulation.ironic if simulation else None, daemons, workers
