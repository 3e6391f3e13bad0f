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
from msgspec import Struct, structs

from bus.addresses import ADDRESSES, broker_at, limits_at
from bus.broker import Broker, Connection
from bus.memory import MemoryBroker
from bus.workers.connections import Station
from engine.inventories import ProviderState
from ironic_sync.core.node import Node
from ironic_sync.rest import HttpIronicApi
from ironic_sync.store_sql import IronicStore
from kit.errors import Failure
from kit.process import during, running
from kit.settings import without_password
from moor.client.bus_client import providers_of, station_on, until_choosable
from moor.clouds.cloud import CloudPlan, Daemon, Simulation, cloud, prepare
from moor.options import broker_of, flag_of, found, tell, wrong_value
from moor.settings import GENERAL
from moor.worker_settings import environment_of

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


def cell_names(count: int) -> list[str]:
    return [f"c{number}" for number in range(1, count + 1)]


def spread(hosts: int, cells: Sequence[str]) -> dict[str, int]:
    """Spread the hosts evenly over the cells; the first cells get the remainder."""
    return {cell: hosts // len(cells) + (n < hosts % len(cells)) for n, cell in enumerate(cells)}


class WorkerEnded(Failure):
    """A worker ended although nobody stopped it; the message has the last lines of its log."""


class WorkerProcess:
    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.process = process
        self._log = log
        self._is_killed = False

    async def ended(self) -> None:
        """Wait until the process ends, and raise `WorkerEnded`. After `kill`, never return."""
        code = await self.process.wait()
        if self._is_killed:
            await asyncio.get_running_loop().create_future()
        last_lines = "\n".join(self._log.read_text(errors="replace").splitlines()[-LINES_SHOWN:])
        raise WorkerEnded(f"worker {self.name} ended with code {code}:\n{last_lines}")

    def kill(self) -> None:
        """Kill the process on purpose: `ended` does not raise for it."""
        self._is_killed = True
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)


class TemporaryCloud(Struct, kw_only=True):
    """A running cloud, with the connections by which a demo or a load run uses it and reads its state.

    `daemons` are those of bare metal, by name. `workers` is empty if the whole cloud runs in this process.
    """

    plan: CloudPlan
    broker: Broker
    client: Station
    connection: Connection
    rows: IronicStore
    daemons: Mapping[str, Daemon | WorkerProcess]
    workers: Sequence[WorkerProcess]
    simulation: Simulation | None

    @property
    def simulated(self) -> Simulation:
        assert self.simulation is not None, "the plan has bare-metal nodes"
        return self.simulation

    async def nodes(self) -> list[Node]:
        """All nodes, as Ironic's REST API shows them."""
        api = HttpIronicApi("http://ironic", transport=self.simulated.transport)
        try:
            return [node async for page in api.pages() for node in page.nodes]
        finally:
            await api.close()

    async def until_ready(self, *others: str) -> list[ProviderState]:
        """Wait until schedulers can choose all hosts and nodes of the plan, and these others. Returns placement's providers."""
        nodes = len(self.simulation.ironic.nodes) if self.simulation else 0
        wanted = sum(self.plan.cells.values()) + nodes + len(others)
        await until_choosable(self.client, lambda found: len(found) >= wanted)
        return await providers_of(self.client)

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`; raise `WorkerEnded` as soon as a worker process ends."""
        return await during(work, *(worker.ended() for worker in self.workers))


@asynccontextmanager
async def temporary_cloud(
    plan: CloudPlan, servers: Servers | None = None, *, role: str, folder: Path | None = None
) -> AsyncIterator[TemporaryCloud]:
    """Run the cloud on these servers; without them, in this process on a bus in memory and a database that is deleted.

    `role` names the run's own client on the bus. `folder` has the database of a run in this process; by default a temporary one.
    """
    async with AsyncExitStack() as stack:
        daemons: Mapping[str, Daemon | WorkerProcess]
        workers: Sequence[WorkerProcess] = ()
        if servers is None:
            broker: Broker = MemoryBroker().as_user()
            here = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"moor-{role}-")))
            url = f"sqlite+aiosqlite:///{here / 'moor.db'}"
            embedded = await stack.enter_async_context(cloud(plan, broker, url))
            simulation, daemons = embedded.simulation, embedded.daemons
        else:
            broker, url = broker_at(servers.bus_url), servers.database_url
            simulation = None
            if plan.metal is not None:
                # In this process, so that its CPU time does not count as that of a worker.
                listening = structs.replace(plan.metal, listen=("127.0.0.1", 0))
                simulation = stack.enter_context(listening.simulated(broker))
            workers = await stack.enter_async_context(
                _processes(plan, broker, servers, simulation.url if simulation else "")
            )
            if simulation is not None:
                await stack.enter_async_context(running(simulation.parts))
            names = plan.metal.names if plan.metal is not None else ()
            daemons = {worker.name: worker for worker in workers if worker.name in names}
        rows = IronicStore(url)
        stack.push_async_callback(rows.close)
        connection = await broker.connect()
        stack.push_async_callback(connection.close)
        client, _ = await stack.enter_async_context(station_on(broker, role))
        yield TemporaryCloud(
            plan=plan,
            broker=broker,
            client=client,
            connection=connection,
            rows=rows,
            daemons=daemons,
            workers=workers,
            simulation=simulation,
        )


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
async def _processes(
    plan: CloudPlan, broker: Broker, servers: Servers, ironic_url: str
) -> AsyncIterator[Sequence[WorkerProcess]]:
    """Run each worker as a process while this context is open; the daemons of bare metal for the Ironic at `ironic_url`.

    The addresses go into the workers' environment, so that no password shows in a list of processes.
    """
    await prepare(
        broker,
        plan.cells,
        servers.database_url,
        servers.placement_url,
        has_nodes=plan.metal is not None,
        limits=limits_at(servers.bus_url),
    )
    shared = {**os.environ, **environment_of(plan.settings, os.environ), **servers.environment}
    async with AsyncExitStack() as stack:
        stack.enter_context(_cancelled_by_sigterm())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moor-workers-")))
        workers: list[WorkerProcess] = []
        stack.push_async_callback(_end, workers)
        for name, package, of_worker in _environments(plan, ironic_url):
            log = directory / f"{name}.log"
            workers.append(await _start(name, package, {**shared, **of_worker}, log))
        yield workers


def _environments(plan: CloudPlan, ironic_url: str) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    """The name of each worker, the package that is run with `python -m`, and the variables of its own."""
    for kind in ("placement", "scheduler"):
        for number in range(1, plan.workers[kind] + 1):
            yield f"{kind}-{number}", f"{kind}_worker", {}
    for cell in plan.cells:
        here = {"MOOR_CELL": cell}
        for number in range(1, plan.workers["conductor"] + 1):
            yield f"conductor-{cell}-{number}", "cell_conductor", here
        # Its guests end with it: without a database they are in memory.
        in_memory = dict.fromkeys(("MOOR_DB_URL", "MOOR_CELL_DB_URLS"), "")
        yield f"compute-{cell}", "compute_sim", {**plan.variables_of(cell), **in_memory}
    if plan.metal is not None:
        cells = plan.metal.cells
        for name in plan.metal.names:
            of_daemon = {
                "MOOR_IRONIC_NAME": name,
                "MOOR_IRONIC_URL": ironic_url,
                "MOOR_IRONIC_CELL": cells.default,
                "MOOR_IRONIC_GROUPS": ",".join(f"{group}={cell}" for group, cell in cells.groups.items()),
            }
            yield name, "ironic_sync", of_daemon


async def _start(name: str, package: str, environment: Mapping[str, str], log: Path) -> WorkerProcess:
    with log.open("wb") as written:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", package),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            env=environment,
            # The terminal sends Ctrl-C only to this process, which then ends the workers itself.
            start_new_session=True,
        )
    return WorkerProcess(name, process, log)


async def _end(workers: Iterable[WorkerProcess]) -> None:
    """Tell all workers to drain, and kill those that are still alive after END_S_MAX."""
    for number, patience_s in ((signal.SIGTERM, END_S_MAX), (signal.SIGKILL, KILL_S_MAX)):
        left = [worker for worker in workers if worker.process.returncode is None]
        if not left:
            return
        for worker in left:
            worker.send_signal(number)
        await asyncio.wait([asyncio.create_task(each.process.wait()) for each in left], timeout=patience_s)
