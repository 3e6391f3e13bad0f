"""A whole cloud in one process: every worker of every room, on one broker and one database."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from msgspec import structs

from bus.broker import Broker
from bus.topology import Limits, objects_of, user_of
from bus.workers.running import WorkerBeats, release
from bus.workers.station import Station
from cell_conductor.store_sql import SqlConductorStore
from cell_conductor.wiring import conductor_parts
from compute_sim.fleet import Elapsed
from compute_sim.settings import ComputeSettings
from compute_sim.store_sql import open_compute_store
from kit.health import About, Health
from kit.process import Part
from kit.sql import DatabaseSettings, upgrade
from laboratory.computes.driver import simulated_parts
from laboratory.computes.faults import FaultScript
from laboratory.computes.hosts import SimulatedHost
from moor.asking import running
from moor.clouds.bare_metal import BareMetal, BareMetalPlan, bare_metal
from moor.clouds.database_roles import IRONIC, OTHERS, PLACEMENT
from moor.worker_settings import CloudSettings
from placement_worker.store_sql import SqlPlacementStore
from placement_worker.wiring import placement_parts
from scheduler_worker.store_sql import SqlSchedulerStore
from scheduler_worker.wiring import scheduler_parts

DRAIN_S_MAX = 10.0
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
