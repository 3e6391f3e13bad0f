"""A whole cloud in one process: every worker of every room, on one broker and one database."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from bus.broker import Broker
from bus.process import Part, run_until
from bus.sql import upgrade
from bus.station import Station
from bus.topology import objects_of
from cell_conductor.settings import ConductorSettings
from cell_conductor.store_sql import SqlConductorStore
from cell_conductor.wiring import conductor_parts
from compute_sim.core.faults import FaultScript
from compute_sim.core.hosts import Host
from compute_sim.settings import ComputeSettings
from compute_sim.wiring import compute_parts
from placement_worker.settings import PlacementSettings
from placement_worker.store_sql import SqlPlacementStore
from placement_worker.wiring import placement_parts
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store_sql import SqlSchedulerStore
from scheduler_worker.wiring import scheduler_parts

# The rooms that have tables.
OWNERS = ("placement_worker", "scheduler_worker", "cell_conductor")
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
) -> AsyncIterator[SqlPlacementStore]:
    """All workers, with the pretended hosts of each cell, for as long as this is open; then all of them drain."""
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
        placement = _station(stack, broker, "placement")
        parts: list[Part] = [*placement_parts((placement,), store, PlacementSettings())]
        parts += scheduler_parts(_station(stack, broker, "scheduler"), api, scheduler or SchedulerSettings())
        for cell, of_cell in hosts.items():
            rows = SqlConductorStore(database_url, cell)
            stack.push_async_callback(rows.close)
            station = _station(stack, broker, f"conductor-{cell}")
            parts += conductor_parts(station, rows, conductor or ConductorSettings(), cell, station.ask_all)
            parts.append(station)
            parts += compute_parts(
                _station(stack, broker, f"compute-{cell}"), of_cell, ComputeSettings(cell=cell), faults
            )
        told = asyncio.Event()
        running = asyncio.create_task(run_until(told, parts, DRAIN_S_MAX))
        try:
            yield store
        finally:
            told.set()
            await running


def _station(stack: AsyncExitStack, broker: Broker, name: str) -> Station:
    station = Station(broker, name, asks=True)
    stack.push_async_callback(station.close)
    return station
