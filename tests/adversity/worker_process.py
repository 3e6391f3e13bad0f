"""One worker of a cloud under test: `python -m tests.adversity.worker_process KIND [CELL]`.

The parts are the real ones, wired as their own `__main__` wires them, but with short timeouts. Each kind imports only
its own room, since a test starts many of these at once.
"""

# ruff: noqa: PLC0415 - a compute without SQL begins in a fifth of the time
import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack

from bus.addresses import broker_at
from bus.settings import BusSettings
from bus.workers.connections import Station, process_name
from kit.logs import begin_to_log
from kit.process import Part, run_until, stopped_by_signals
from tests.varied import varied

BUS = varied(
    BusSettings(),
    SWEEP_S=2,
    RETRY_DELAY_MS_MAX=2_000,
    CONNECT_DELAY_MS_MAX=500,
    host_down_s=float(os.environ.get("HOST_DOWN_S", "60")),
    ask_again_ms=1_000,
    answer_timeout_ms=10_000,
)


async def parts_of(kind: str, cell: str, stack: AsyncExitStack) -> tuple[Part, ...]:
    database = os.environ.get("MOOR_DB_URL", "")
    name = process_name(f"{kind}-{cell}" if cell else kind)
    station = Station(broker_at(os.environ["MOOR_BUS_URL"]), name, settings=BUS, asks=kind != "placement")
    stack.push_async_callback(station.close)
    match kind:
        case "placement":
            return _placement(station, database, stack)
        case "scheduler":
            return _scheduler(station, database, stack)
        case "conductor":
            return _conductor(station, database, cell, stack)
        case "compute":
            return await _compute(station, database, cell, stack)
        case "ironic":
            return _ironic(station, database, cell, stack)
        case "keeper":
            return _keeper(station, database, stack)
        case _:
            kinds = "placement, scheduler, conductor, compute, ironic or keeper"
            raise ValueError(f"kind is {kind!r}: {kinds}")


def _placement(station: Station, database: str, stack: AsyncExitStack) -> tuple[Part, ...]:
    from placement_worker.settings import PlacementSettings
    from placement_worker.store_sql import PlacementStore
    from placement_worker.wiring import placement_parts

    books = PlacementStore(database)
    stack.push_async_callback(books.close)
    return placement_parts((station,), books, PlacementSettings())


def _scheduler(station: Station, database: str, stack: AsyncExitStack) -> tuple[Part, ...]:
    from scheduler_worker.settings import SchedulerPace, SchedulerSettings
    from scheduler_worker.store_sql import SchedulerStore
    from scheduler_worker.wiring import scheduler_parts

    rows = SchedulerStore(database)
    stack.push_async_callback(rows.close)
    settings = SchedulerSettings(
        instances_per_host_max=int(os.environ.get("INSTANCES_PER_HOST_MAX", "50")),
        io_ops_weight_multiplier=float(os.environ.get("IO_OPS_WEIGHT", "-1")),
    )
    return scheduler_parts(station, rows, settings, pace=SchedulerPace(unconfirmed_s=2, deadline_poll_s=1))


def _conductor(station: Station, database: str, cell: str, stack: AsyncExitStack) -> tuple[Part, ...]:
    from cell_conductor.settings import ConductorPace, ConductorSettings
    from cell_conductor.store_sql import ConductorStore
    from cell_conductor.wiring import conductor_parts

    # Longer than a broker takes to restart on a busy machine: otherwise hosts would count as silent.
    settings = ConductorSettings(attempt_timeout_s=20, destroy_timeout_s=20)
    pace = ConductorPace(remind_every_s=2, poll_s=0.1)
    instances = ConductorStore(database, cell)
    stack.push_async_callback(instances.close)
    return (*conductor_parts(station, instances, settings, cell, station.ask_all, pace=pace), station)


async def _compute(station: Station, database: str, cell: str, stack: AsyncExitStack) -> tuple[Part, ...]:
    from compute_sim.settings import ComputeSettings
    from laboratory.computes.driver import simulated_parts
    from laboratory.computes.faults import FailsToBuild, FailsToReceive, FaultScript
    from laboratory.computes.hosts import HostSize, equal_hosts

    size = HostSize(vcpus=int(os.environ.get("VCPUS_PER_HOST", "16")))
    count, place = int(os.environ.get("HOSTS_PER_CELL", "2")), os.environ.get("PLACE", "")
    hosts = equal_hosts(cell, count, size, place)
    if folder := os.environ.get("LOSABLE_FOLDER"):
        from compute_sim.wiring import compute_parts
        from tests.adversity.losable_hosts import drivers_of

        return compute_parts(station, drivers_of(hosts, folder), ComputeSettings(cell=cell, beat_s=1))
    failing = FailsToBuild(probability=float(os.environ.get("SPAWNS_FAILING", "0")))
    lost = FailsToReceive(probability=float(os.environ.get("MOVES_FAILING", "0")))
    faults = FaultScript(seed=3, spawn_ms=float(os.environ.get("SPAWN_MS", "50")), faults=(failing, lost))
    settings = ComputeSettings(cell=cell, beat_s=1)
    if not os.environ.get("COMPUTES_KEEP"):
        return simulated_parts(station, hosts, settings, faults)

    from compute_sim.store_sql import kept_attempts

    kept = await stack.enter_async_context(kept_attempts(database, cell))
    return simulated_parts(station, hosts, settings, faults, store=kept)


def _keeper(station: Station, database: str, stack: AsyncExitStack) -> tuple[Part, ...]:
    from keeper.settings import KeeperPace, KeeperSettings
    from keeper.store_sql import KeeperStore
    from keeper.wiring import keeper_parts

    rows = KeeperStore(database)
    stack.push_async_callback(rows.close)
    pace = KeeperPace(round_s=0.1, idle_s=0.3, lease_s=float(os.environ.get("KEEPER_LEASE_S", "3")))
    settings = KeeperSettings(hooks_folder=os.environ.get("HOOKS_FOLDER", ""))
    return keeper_parts(station, rows, settings, pace=pace)


def _ironic(station: Station, database: str, name: str, stack: AsyncExitStack) -> tuple[Part, ...]:
    import secrets

    from bus.workers.sending import Link
    from ironic_sync.core.offers import CellMap
    from ironic_sync.rest import HttpIronicApi
    from ironic_sync.settings import DaemonRules
    from ironic_sync.store_sql import IronicStore
    from ironic_sync.wiring import ironic_parts
    from kit.parts import Pauses
    from kit.rest import RestLimits

    rules = DaemonRules(
        lease_s=6.0,
        look_s=0.5,
        sweep_s=5.0,
        doubts_s=1.0,
        report_again_s=1.0,
        beat_s=1.0,
        deploy_read_s=1.0,
        deploy_pauses=Pauses(0.2, 1.0),
        progress_s=2.0,
    )
    rows = IronicStore(database)
    stack.push_async_callback(rows.close)
    link = Link(broker_at(os.environ["MOOR_BUS_URL"]), BUS)
    stack.push_async_callback(link.close)
    api = HttpIronicApi(os.environ["IRONIC_URL"], limits=RestLimits(tries_max=3, answer_s_max=5))
    stack.push_async_callback(api.close)
    return ironic_parts(
        station,
        link,
        rows,
        rules,
        name=name,
        incarnation=secrets.token_hex(8),
        cells=CellMap(default="c1"),
        api=api,
    )


async def main(arguments: Sequence[str]) -> None:
    async with AsyncExitStack() as stack:
        with stopped_by_signals() as told:
            await run_until(told, await parts_of(arguments[0], "".join(arguments[1:]), stack), drain_s_max=20)


if __name__ == "__main__":
    begin_to_log(os.environ, level="ERROR")
    asyncio.run(main(sys.argv[1:]))
