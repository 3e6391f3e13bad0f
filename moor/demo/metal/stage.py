"""What the demo plays on: the same for a cloud in this process and for one on real servers."""

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
from compute_sim.core.faults import FaultScript
from compute_sim.drivers import alike
from compute_sim.ironic import IronicScript, IronicTransport
from compute_sim.ironic.core.script import WorkFails
from ironic_sync.rest_http import HttpIronicApi
from ironic_sync.settings import IronicSettings
from ironic_sync.store import IronicStore
from ironic_sync.store_sql import SqlIronicStore
from moor.bare_metal import BareMetal, Metal, cells_of_groups
from moor.cloud import cloud
from moor.cloud_apart import Crew, Servers, cloud_apart
from moor.demo.playing import client_on
from moor.options import out
from moor.tuning import IRONIC, SCHEDULER, CloudSettings
from placement_worker.store_sql import SqlPlacementStore
from scheduler_worker.settings import SchedulerSettings

T = TypeVar("T")

CELLS = ("harbour", "island")
HOSTS_PER_CELL = 2
# A deploy and a cleaning take about half a second; one deploy in fifteen fails.
PACE = 0.3
MISFORTUNES = IronicScript(
    seed=11,
    faults=(WorkFails(work="deploy", probability=0.07, reason="the image cannot be written"),),
)
# A daemon that is killed is missed after four seconds, not after ten.
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
# Nodes are few, and an operator takes them away: a build has more of them to go to.
ALTERNATES_MAX = 8
DEFAULTS = CloudSettings(ironic=QUICK, scheduler=SchedulerSettings(alternates_max=ALTERNATES_MAX))
WORKERS = {"placement": 1, "scheduler": 2, "conductor": 1}


class Stage(Struct, frozen=True):
    """`kill` ends a daemon of this name as `kill -9` does; `during` runs while no worker has ended by itself."""

    client: Station
    connection: Connection
    api: HttpIronicApi
    rows: IronicStore
    audit: Callable[[], Awaitable[Sequence[str]]]
    kill: Callable[[str], None]
    daemons: tuple[str, ...]
    servers: str


def metal_of(nodes: int, daemons: int) -> Metal:
    return Metal(nodes=nodes, daemons=daemons, cells=cells_of_groups(CELLS), pace=PACE, script=MISFORTUNES)


@asynccontextmanager
async def embedded(metal: Metal, settings: CloudSettings) -> AsyncIterator[Stage]:
    """All in this process; what it leaves is thrown away."""
    broker = MemoryBroker(alone=True).as_user()
    hosts = {cell: alike(cell, HOSTS_PER_CELL) for cell in CELLS}
    told: list[BareMetal] = []
    async with AsyncExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moor-demo-")))
        url = f"sqlite+aiosqlite:///{place / 'moor.db'}"
        books = await stack.enter_async_context(
            cloud(broker, url, hosts, settings=settings, metal=metal, on_metal=told.append)
        )
        (there,) = told
        by_name = {each.name: each for each in there.daemons}
        api = HttpIronicApi("http://ironic", transport=IronicTransport(there.simulation.ironic))
        stack.push_async_callback(api.close)
        rows = SqlIronicStore(url)
        stack.push_async_callback(rows.close)
        connection = await broker.connect()
        stack.push_async_callback(connection.close)
        yield Stage(
            client=await stack.enter_async_context(client_on(broker)),
            connection=connection,
            api=api,
            rows=rows,
            audit=books.audit,
            kill=lambda name: by_name[name].kill(),
            daemons=metal.names,
            servers="a bus in memory and SQLite",
        )


async def play_apart(metal: Metal, servers: Servers, play: Callable[[Stage], Coroutine[Any, Any, T]]) -> T:
    """Each worker in a process of its own, on these servers."""
    broker = broker_at(servers.bus_url)
    variables = {
        SCHEDULER.variable("alternates_max"): str(ALTERNATES_MAX),
        **{IRONIC.variable(field): str(getattr(QUICK, field)) for field in QUICK.__struct_fields__},
    }
    cells = dict.fromkeys(CELLS, HOSTS_PER_CELL)
    out.print("[dim]starting a process for each worker …[/dim]")
    async with AsyncExitStack() as stack:
        # What is stated of each of them by its own variable goes before this.
        crew: Crew = await stack.enter_async_context(
            cloud_apart(
                broker, {**variables, **servers.environment}, cells, WORKERS, FaultScript(), metal=metal
            )
        )
        out.print(f"[dim]{', '.join(each.name for each in crew.workers)}[/dim]\n", highlight=False)
        by_name = {each.name: each for each in crew.workers}
        api = HttpIronicApi(crew.ironic_url)
        stack.push_async_callback(api.close)
        rows = SqlIronicStore(servers.database_url)
        stack.push_async_callback(rows.close)
        books = SqlPlacementStore(servers.placement_url or servers.database_url)
        stack.push_async_callback(books.close)
        connection = await broker.connect()
        stack.push_async_callback(connection.close)
        stage = Stage(
            client=await stack.enter_async_context(client_on(broker)),
            connection=connection,
            api=api,
            rows=rows,
            audit=books.audit,
            kill=lambda name: by_name[name].kill(),
            daemons=metal.names,
            servers="RabbitMQ and PostgreSQL",
        )
        return await crew.during(play(stage))
