"""Starts the demo's cloud, in this process or on real servers, behind one interface: `DemoCloud`."""

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from bus.broker import Connection
from bus.memory import MemoryBroker
from bus.station import Station
from bus.urls import broker_at
from compute_sim.ironic import IronicScript, IronicTransport
from compute_sim.ironic.core.script import WorkFails
from compute_sim.simulated.faults import FaultScript
from compute_sim.simulated.hosts import equal_hosts
from ironic_sync.rest_http import HttpIronicApi
from ironic_sync.settings import IronicSettings
from ironic_sync.store import IronicStore
from ironic_sync.store_sql import SqlIronicStore
from moor.bare_metal import BareMetal, BareMetalPlan, cells_of_groups
from moor.cloud import cloud
from moor.cloud_processes import Servers, WorkerProcesses, cloud_in_processes
from moor.demo.running import client_on
from moor.options import out
from moor.tuning import IRONIC, SCHEDULER, CloudSettings
from placement_worker.store_sql import SqlPlacementStore
from scheduler_worker.settings import SchedulerSettings

T = TypeVar("T")

CELLS = ("harbour", "island")
HOSTS_PER_CELL = 2
# A deploy and a cleaning take about half a second; one deploy in fifteen fails.
PACE = 0.3
IRONIC_FAULTS = IronicScript(
    seed=11,
    faults=(WorkFails(work="deploy", probability=0.07, reason="the image cannot be written"),),
)
# Short leases: the other daemons take over from a killed one after four seconds, not after ten.
QUICK = IronicSettings(
    lease_s=4.0,
    renew_s=0.5,
    renew_wait_s=2.0,
    lease_margin_s=1.0,
    look_s=0.1,
    doubts_s=0.2,
    report_again_s=0.3,
    beat_s=1.0,
    due_s=0.2,
    deploy_read_s=1.0,
    deploy_retry_s_first=0.2,
    deploy_retry_s_max=2.0,
)
# More alternates than usual: there are few nodes, and the operator takes some of them away.
ALTERNATES_MAX = 8
DEFAULTS = CloudSettings(ironic=QUICK, scheduler=SchedulerSettings(alternates_max=ALTERNATES_MAX))
WORKERS = {"placement": 1, "scheduler": 2, "conductor": 1}


class DemoCloud(Struct, frozen=True):
    """A running cloud. `kill` ends the daemon of this name as `kill -9` does; `audit` lists problems in placement's books."""

    client: Station
    connection: Connection
    api: HttpIronicApi
    rows: IronicStore
    audit: Callable[[], Awaitable[Sequence[str]]]
    kill: Callable[[str], None]
    daemons: tuple[str, ...]
    servers: str


def metal_of(nodes: int, daemons: int) -> BareMetalPlan:
    return BareMetalPlan(
        nodes=nodes, daemons=daemons, cells=cells_of_groups(CELLS), pace=PACE, script=IRONIC_FAULTS
    )


@asynccontextmanager
async def embedded(metal: BareMetalPlan, settings: CloudSettings) -> AsyncIterator[DemoCloud]:
    """Run all workers in this process, and delete the database at the end."""
    broker = MemoryBroker().as_user()
    hosts = {cell: equal_hosts(cell, HOSTS_PER_CELL) for cell in CELLS}
    started: list[BareMetal] = []
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moor-demo-")))
        url = f"sqlite+aiosqlite:///{directory / 'moor.db'}"
        placement = await stack.enter_async_context(
            cloud(broker, url, hosts, settings=settings, metal=metal, on_metal=started.append)
        )
        (nodes,) = started
        by_name = {each.name: each for each in nodes.daemons}
        api = HttpIronicApi("http://ironic", transport=IronicTransport(nodes.simulation.ironic))
        stack.push_async_callback(api.close)
        rows = SqlIronicStore(url)
        stack.push_async_callback(rows.close)
        connection = await broker.connect()
        stack.push_async_callback(connection.close)
        yield DemoCloud(
            client=await stack.enter_async_context(client_on(broker)),
            connection=connection,
            api=api,
            rows=rows,
            audit=placement.audit,
            kill=lambda name: by_name[name].kill(),
            daemons=metal.names,
            servers="a bus in memory and SQLite",
        )


async def run_on_servers(
    metal: BareMetalPlan, servers: Servers, demo: Callable[[DemoCloud], Coroutine[Any, Any, T]]
) -> T:
    """Run `demo` on these servers, each worker as its own process."""
    broker = broker_at(servers.bus_url)
    variables = {
        SCHEDULER.variable("alternates_max"): str(ALTERNATES_MAX),
        **{IRONIC.variable(field): str(getattr(QUICK, field)) for field in QUICK.__struct_fields__},
    }
    cells = dict.fromkeys(CELLS, HOSTS_PER_CELL)
    out.print("[dim]starting a process for each worker …[/dim]")
    async with AsyncExitStack() as stack:
        # A variable that the operator set overrides the demo's value.
        processes: WorkerProcesses = await stack.enter_async_context(
            cloud_in_processes(
                broker, {**variables, **servers.environment}, cells, WORKERS, FaultScript(), metal=metal
            )
        )
        out.print(f"[dim]{', '.join(each.name for each in processes.workers)}[/dim]\n", highlight=False)
        by_name = {each.name: each for each in processes.workers}
        api = HttpIronicApi(processes.ironic_url)
        stack.push_async_callback(api.close)
        rows = SqlIronicStore(servers.database_url)
        stack.push_async_callback(rows.close)
        placement = SqlPlacementStore(servers.placement_url or servers.database_url)
        stack.push_async_callback(placement.close)
        connection = await broker.connect()
        stack.push_async_callback(connection.close)
        running = DemoCloud(
            client=await stack.enter_async_context(client_on(broker)),
            connection=connection,
            api=api,
            rows=rows,
            audit=placement.audit,
            kill=lambda name: by_name[name].kill(),
            daemons=metal.names,
            servers="RabbitMQ and PostgreSQL",
        )
        return await processes.during(demo(running))
