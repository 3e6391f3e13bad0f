"""A cloud for one run of the demo or the load: in this process, or on real servers with a process for each worker."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from msgspec import Struct

from bus.addresses import ADDRESSES, broker_at, limits_at
from bus.broker import Broker, Connection
from bus.memory import MemoryBroker
from bus.workers.station import Station
from compute_sim.core.hosts import Pool, read_pools
from ironic_sync.core.node import Node
from ironic_sync.rest import HttpIronicApi
from ironic_sync.store_sql import SqlIronicStore
from kit.errors import Failure
from kit.settings import without_password
from laboratory.computes.faults import FaultScript
from laboratory.computes.hosts import equal_hosts, read_host_size
from laboratory.ironic import IronicTransport, SimulatedIronic, simulated_ironic
from moor.asking import during, running, station_on
from moor.clouds.cloud import BareMetal, BareMetalPlan, ComputeParts, Daemon, cloud, prepare
from moor.options import broker_of, flag_of, found, tell, wrong_value
from moor.settings import GENERAL
from moor.worker_settings import CloudSettings, environment_of

END_S_MAX = 30.0
KILL_S_MAX = 5.0
LINES_SHOWN = 15


T = TypeVar("T")


class Servers(Struct, frozen=True):
    bus_url: str
    database_url: str
    placement_url: str = ""

    @property
    def environment(self) -> dict[str, str]:
        return {
            "MOOR_BUS_URL": self.bus_url,
            "MOOR_DB_URL": self.database_url,
            # Empty counts as not set: variables of the operator's shell, for other servers, must not leak in.
            "MOOR_PLACEMENT_DB_URL": self.placement_url,
            **dict.fromkeys(("MOOR_IRONIC_DB_URL", "MOOR_IRONIC_BUS_URL", "MOOR_IRONIC_SHARDS"), ""),
            "MOOR_LOG_LEVEL": "WARNING",
        }


def servers_at(bus: str, db: str, placement_db: str) -> Servers | None:
    """The servers that the flags of a demo or load run name; None if the run is in one process, without servers."""
    if bool(bus) != bool(db):
        raise click.BadParameter(
            "only one of --bus and --db is given: a real broker needs a real database; give both or neither"
        )
    if placement_db and not db:
        raise click.BadParameter(
            f"--placement-db is {without_password(placement_db)!r} without --db: then everything is in one SQLite file; give both or neither"
        )
    if not bus:
        stated = found().stated(GENERAL)
        if named := [
            f"{field} ({stated[field].where})" for field in ("bus_url", "db_url") if field in stated
        ]:
            # These may be the servers of a cloud that works.
            tell(
                f"not used: {' and '.join(named)}; without --bus and --db all runs in this process", "yellow"
            )
        return None
    with wrong_value():
        urls = {
            field: ADDRESSES.stated(field, url, flag_of(field.removesuffix("_url"))).value
            for field, url in (("bus_url", bus), ("db_url", db), ("placement_db_url", placement_db))
            if url
        }
    # Refuses a memory bus, which exists in one process only.
    broker_of(bus)
    return Servers(urls["bus_url"], urls["db_url"], urls.get("placement_db_url", ""))


class WorkerSpec(Struct, frozen=True):
    """A worker to start: its name, the package that is run with `python -m`, and its environment variables."""

    name: str
    package: str
    environment: Mapping[str, str]


class WorkerEnded(Failure):
    """A worker ended although nobody stopped it; the message has the last lines of its log."""


class WorkerProcess:
    def __init__(self, spec: WorkerSpec, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = spec.name
        self._process = process
        self._log = log
        self._is_killed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ended(self) -> None:
        """Wait until the process ends, and raise `WorkerEnded`. After `kill`, never return."""
        code = await self._process.wait()
        if self._is_killed:
            await asyncio.get_running_loop().create_future()
        last_lines = "\n".join(self._log.read_text(errors="replace").splitlines()[-LINES_SHOWN:])
        raise WorkerEnded(f"worker {self.name} ended with code {code}:\n{last_lines}")

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    def kill(self) -> None:
        """Kill the process on purpose: `ended` does not raise for it."""
        self._is_killed = True
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def wait(self) -> None:
        await self._process.wait()


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


def worker_specs(cells: Mapping[str, int], counts: Mapping[str, int], script: Path) -> list[WorkerSpec]:
    """The worker processes to start. `counts` says how many of each kind (conductors: in each cell), `cells` how many simulated
    hosts each cell has.
    """
    specs = [
        WorkerSpec(f"{kind}-{number}", f"{kind}_worker", {})
        for kind in ("placement", "scheduler")
        for number in range(1, counts[kind] + 1)
    ]
    for cell, hosts in cells.items():
        here = {"MOOR_CELL": cell}
        specs += [
            WorkerSpec(f"conductor-{cell}-{number}", "cell_conductor", here)
            for number in range(1, counts["conductor"] + 1)
        ]
        simulated = {"MOOR_COMPUTE_HOSTS": str(hosts), "LABORATORY_FAULTS": str(script)}
        specs.append(WorkerSpec(f"compute-{cell}", "compute_sim", here | simulated))
    return specs


def daemon_specs(metal: BareMetalPlan, ironic_url: str) -> list[WorkerSpec]:
    here = {
        "MOOR_IRONIC_URL": ironic_url,
        "MOOR_IRONIC_CELL": metal.cells.default,
        "MOOR_IRONIC_GROUPS": ",".join(f"{group}={cell}" for group, cell in metal.cells.groups.items()),
    }
    return [WorkerSpec(name, "ironic_sync", {**here, "MOOR_IRONIC_NAME": name}) for name in metal.names]


@contextmanager
def _cancelled_by_sigterm() -> Iterator[None]:
    """Let SIGTERM cancel this task, so that its cleanup ends the workers."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "called in a task"
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


@asynccontextmanager
async def cloud_in_processes(
    broker: Broker,
    urls: Mapping[str, str],
    cells: Mapping[str, int],
    counts: Mapping[str, int],
    faults: FaultScript,
    *,
    metal: BareMetalPlan | None = None,
    ironic_url: str = "",
) -> AsyncIterator[Sequence[WorkerProcess]]:
    """Run all workers while this context is open; with `metal`, also its daemons, for the Ironic at `ironic_url`.

    `urls` go into the workers' environment, so that no password shows in a list of processes.
    """
    databases = urls["MOOR_DB_URL"], urls["MOOR_PLACEMENT_DB_URL"]
    limits = limits_at(urls["MOOR_BUS_URL"])
    await prepare(broker, cells, *databases, has_nodes=metal is not None, limits=limits)
    async with AsyncExitStack() as stack:
        stack.enter_context(_cancelled_by_sigterm())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moor-workers-")))
        script = directory / "faults.json"
        script.write_bytes(msgspec.json.encode(faults))
        workers: list[WorkerProcess] = []
        stack.push_async_callback(_end, workers)
        specs = worker_specs(cells, counts, script)
        if metal is not None:
            specs += daemon_specs(metal, ironic_url)
        for spec in specs:
            worker = await _start(spec, urls, directory / f"{spec.name}.log")
            workers.append(worker)
        yield workers


async def _start(spec: WorkerSpec, urls: Mapping[str, str], log: Path) -> WorkerProcess:
    with log.open("wb") as written:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", spec.package),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            env={**os.environ, **urls, **spec.environment},
            # The terminal sends Ctrl-C only to this process, which then ends the workers itself.
            start_new_session=True,
        )
    return WorkerProcess(spec, process, log)


async def _end(workers: Iterable[WorkerProcess]) -> None:
    """Tell all workers to drain, and kill those that are still alive after END_S_MAX."""
    for number, patience_s in ((signal.SIGTERM, END_S_MAX), (signal.SIGKILL, KILL_S_MAX)):
        left = [worker for worker in workers if worker.is_alive]
        if not left:
            return
        for worker in left:
            worker.send_signal(number)
        await asyncio.wait([asyncio.create_task(worker.wait()) for worker in left], timeout=patience_s)
