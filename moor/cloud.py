"""A whole cloud in one process: every worker of every room, on one broker and one database."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from bus.broker import Broker
from bus.process import Part, run_until
from bus.settings import BusSettings
from bus.sql import upgrade
from bus.station import Station
from bus.topology import objects_of, user_of
from cell_conductor.settings import ConductorSettings
from cell_conductor.store_sql import SqlConductorStore
from cell_conductor.wiring import conductor_parts
from compute_sim.core.faults import FaultScript
from compute_sim.core.hosts import Host
from compute_sim.fleet import Elapsed
from compute_sim.settings import ComputeSettings
from compute_sim.store_sql import open_compute_store
from compute_sim.wiring import compute_parts
from placement_worker.settings import PlacementSettings
from placement_worker.store_sql import SqlPlacementStore
from placement_worker.wiring import placement_parts
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store_sql import SqlSchedulerStore
from scheduler_worker.wiring import scheduler_parts

# The rooms that have tables.
OWNERS = ("placement_worker", "scheduler_worker", "cell_conductor", "compute_sim")
DRAIN_S_MAX = 10.0


@asynccontextmanager
async def cloud(
    broker: Broker,
    database_url: str,
    hosts: Mapping[str, Sequence[Host]],
    *,
    faults: FaultScript | None = None,
    scheduler: SchedulerSettings | None = None,
    conductor: ConductorSettings | None = None,
    bus: BusSettings | None = None,
    hosts_are_kept: bool = False,
    beside: Callable[[SqlPlacementStore], Part] | None = None,
    watched: Callable[[Sequence[object]], Part] | None = None,
    ended: asyncio.Event | None = None,
    as_user: Callable[[str], Broker] | None = None,
) -> AsyncIterator[SqlPlacementStore]:
    """All workers, with the pretended hosts of each cell, for as long as this is open; then all of them drain.

    With `as_user`, the broker has users, and each worker comes as its own.
    With `hosts_are_kept`, what is on the hosts is in the database too, and still there for the next cloud on it. `beside`
    makes one part more, which works on placement's books; `watched` makes one that watches all others. `ended` is set when the workers end by themselves, which they do only by failing; leaving raises what it was.
    """
    connection = await broker.connect()
    await connection.declare(objects_of(hosts))
    await connection.close()
    for owner in OWNERS:
        await upgrade(database_url, owner)
    async with AsyncExitStack() as stack:
        store = SqlPlacementStore(database_url)
        stack.push_async_callback(store.close)
        api = SqlSchedulerStore(database_url)
        stack.push_async_callback(api.close)

        def station(role: str, cell: str = "") -> Station:
            way_in = as_user(user_of(role, cell)) if as_user else broker
            there = Station(
                way_in, f"{role}-{cell}" if cell else role, settings=bus, asks=role != "placement"
            )
            stack.push_async_callback(there.close)
            return there

        placement = station("placement")
        parts: list[Part] = [*placement_parts((placement,), store, PlacementSettings())]
        parts += scheduler_parts(station("scheduler"), api, scheduler or SchedulerSettings())
        for cell, of_cell in hosts.items():
            rows = SqlConductorStore(database_url, cell)
            stack.push_async_callback(rows.close)
            place = station("conductor", cell)
            parts += conductor_parts(place, rows, conductor or ConductorSettings(), cell, place.ask_all)
            parts.append(place)
            clock_s, kept = Elapsed(), None
            if hosts_are_kept:
                kept = await open_compute_store(database_url, cell, clock_s)
                stack.push_async_callback(kept.close)
            parts += compute_parts(
                station("compute", cell),
                of_cell,
                ComputeSettings(cell=cell),
                faults,
                clock_s=clock_s,
                store=kept,
            )
        if beside is not None:
            parts.append(beside(store))
        if watched is not None:
            parts.append(watched((*parts, placement)))
        told = asyncio.Event()
        running = asyncio.create_task(run_until(told, parts, DRAIN_S_MAX))
        if ended is not None:
            running.add_done_callback(lambda _: ended.set())
        try:
            yield store
        finally:
            told.set()
            await running
