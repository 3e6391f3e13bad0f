"""Runs a load run: starts the workers, waits for the hosts, fires and measures the boots, and audits the result."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

from msgspec import Struct
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bus.broker import Broker
from bus.errors import Failure, Unavailable
from bus.memory import MemoryBroker
from bus.process import run_until
from bus.station import Station, process_name
from bus.urls import broker_at
from compute_sim.simulated.faults import FailsToBuild, FaultScript
from compute_sim.simulated.hosts import equal_hosts
from moor.cloud import cloud
from moor.cloud_processes import Servers, WorkerProcesses, cloud_in_processes
from moor.load.auditing import all_hosts, all_providers, audit, until_quiet
from moor.load.cpu import process_cpu_s, process_tree_cpu_s
from moor.load.firing import FiredBoots, fire, hearing
from moor.load.listeners import NotVisible, listener_of
from moor.load.measuring import Meter
from moor.load.results import Audited, Latency, LoadResult
from moor.options import err
from moor.tuning import CloudSettings
from placement_worker.store_sql import SqlPlacementStore

SPAWN_MS = 50.0
READY_S_MAX = 120.0
DRAIN_S_MAX = 5.0
# How the names of the servers' processes start.
BROKER, DATABASE = ("beam", "erl"), ("postgres", "postmaster")


class Plan(Struct, frozen=True):
    """What to run. `cells` has the number of hosts of each cell; `failing` is the share of spawns that fail."""

    boots: int
    cells: Mapping[str, int]
    failing: float
    in_flight: int

    @property
    def hosts(self) -> int:
        return sum(self.cells.values())

    @property
    def faults(self) -> FaultScript:
        faults = (FailsToBuild(probability=self.failing),) if self.failing else ()
        return FaultScript(seed=1, spawn_ms=SPAWN_MS, faults=faults)


class ServersInUse(Failure):
    """These servers already hold other data, which would distort the figures."""


async def run_embedded(plan: Plan, database_url: str, settings: CloudSettings) -> LoadResult:
    """Run all workers and the load generator in this process."""
    broker = MemoryBroker().as_user()
    hosts = {cell: equal_hosts(cell, count) for cell, count in plan.cells.items()}
    meter = Meter({"embedded": partial(process_cpu_s, os.getpid())}, plan.boots)
    notes = ("embedded: the load generator is in the same process, so the total includes it",)
    async with cloud(broker, database_url, hosts, faults=plan.faults, settings=settings) as store:
        fired, problems = await _measured(plan, broker, meter, store.audit)
    return _result(plan, meter, fired, problems, mode="embedded", workers={}, notes=notes)


async def run_on_servers(plan: Plan, servers: Servers, counts: Mapping[str, int]) -> LoadResult:
    """Run each worker as its own process, on these servers."""
    broker = broker_at(servers.bus_url)
    async with cloud_in_processes(broker, servers.environment, plan.cells, counts, plan.faults) as processes:
        cpu_clocks, notes = cpu_clocks_of(processes, servers)
        meter = Meter(cpu_clocks, plan.boots, partial(process_cpu_s, os.getpid()))
        store = SqlPlacementStore(servers.placement_url or servers.database_url)
        try:
            fired, problems = await processes.during(_measured(plan, broker, meter, store.audit))
        finally:
            await store.close()
    return _result(plan, meter, fired, problems, mode="real", workers=counts, notes=tuple(notes))


def cpu_clocks_of(
    processes: WorkerProcesses, servers: Servers
) -> tuple[dict[str, Callable[[], float]], list[str]]:
    """A CPU clock for each worker and server process; and notes that say which servers cannot be measured, and why."""
    clocks: dict[str, Callable[[], float]] = {
        worker.name: partial(process_cpu_s, worker.pid) for worker in processes.workers
    }
    notes = []
    seen: set[int] = set()
    measured = [("broker", servers.bus_url, BROKER), ("database", servers.database_url, DATABASE)]
    if servers.placement_url:
        measured.append(("placement_database", servers.placement_url, DATABASE))
    for name, url, programs in measured:
        match listener_of(url, programs):
            case NotVisible(why):
                notes.append(f"{name}: {why}, so the total excludes it")
            case pid if pid not in seen:
                seen.add(pid)
                clocks[name] = partial(process_tree_cpu_s, pid)
    return clocks, notes


async def _measured(
    plan: Plan, broker: Broker, meter: Meter, books: Callable[[], Awaitable[Sequence[str]]]
) -> tuple[FiredBoots, list[str]]:
    """Fire and measure the boots, then audit; return the boots and the problems."""
    connection = await broker.connect()
    try:
        async with client_on(broker) as client:
            await _until_ready(client, plan)
            async with hearing(client) as feed:
                await until_quiet(connection, tuple(plan.cells))
                meter.read(0)
                with progress_of("booting") as progress:
                    bar = progress.add_task("boots", total=plan.boots)

                    def tell(ended: int) -> None:
                        meter.progress(ended)
                        progress.update(bar, completed=ended)

                    fired = await fire(client, feed, plan.boots, plan.in_flight, tell)
                # Work that follows a boot (rows, schedulers' pictures) is part of its cost.
                await until_quiet(connection, tuple(plan.cells))
                meter.read(plan.boots)
            return fired, await audit(client, connection, fired.instances, await books())
    finally:
        await connection.close()


@asynccontextmanager
async def client_on(broker: Broker) -> AsyncIterator[Station]:
    client = Station(broker, process_name("load"), asks=True)
    stop = asyncio.Event()
    running = asyncio.create_task(run_until(stop, (client,), DRAIN_S_MAX))
    try:
        yield client
    finally:
        stop.set()
        await running
        await client.close()


async def _until_ready(client: Station, plan: Plan) -> None:
    """Wait until schedulers and placement know every host: schedulers never choose an unknown host."""
    names = {host.name for cell, count in plan.cells.items() for host in equal_hosts(cell, count)}
    known: set[str] = set()
    async with asyncio.timeout(READY_S_MAX):
        while known != names:
            await asyncio.sleep(0.1)
            try:
                up = {host.name async for host in all_hosts(client) if host.up}
                providers = [provider async for provider in all_providers(client)]
            except Unavailable:
                # The workers that answer are still starting.
                continue
            known = up & {provider.name for provider in providers}
            if others := sorted({provider.name for provider in providers} - names):
                raise ServersInUse(
                    f"placement has {len(others)} providers that do not belong to this run, for example {others[0]}: "
                    "a load run needs its own servers, a new database and a new virtual host"
                )
            if any(stock.used for provider in providers for stock in provider.inventories.values()):
                raise ServersInUse(
                    "some inventory is already in use: a load run needs its own servers, a new database and a new virtual host"
                )


def progress_of(what: str) -> Progress:
    return Progress(
        TextColumn(f"[bold]{what}"),
        BarColumn(bar_width=50),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err,
        refresh_per_second=4,
        transient=True,
    )


def _result(
    plan: Plan,
    meter: Meter,
    fired: FiredBoots,
    problems: Sequence[str],
    *,
    mode: str,
    workers: Mapping[str, int],
    notes: tuple[str, ...],
) -> LoadResult:
    states = [boot.state for boot in fired.boots.values() if boot.state is not None]
    active = [state for state in states if state.state == "active"]
    seconds = fired.ended_s - fired.began_s
    tenths = meter.parts_us_per_boot()
    processors = os.cpu_count() or 1
    ours, others = meter.shares(processors)
    return LoadResult(
        mode=mode,
        boots=plan.boots,
        hosts=plan.hosts,
        cells=len(plan.cells),
        failing=plan.failing,
        workers=workers,
        seconds=seconds,
        boots_per_s=plan.boots / seconds,
        latency_ms=_latency(fired.latencies_s),
        cpu_us_per_boot=meter.us_per_boot(),
        load_generator_us_per_boot=meter.generator_us_per_boot(),
        cpu_us_per_boot_by_tenth=tenths,
        flatness=tenths[-1] / tenths[1] if len(tenths) > 1 else 1.0,
        processors=processors,
        share_of_machine=ours,
        share_of_others=others,
        active=len(active),
        in_error=len(states) - len(active),
        by_alternate=sum(bool(state.failures) for state in active),
        notes=notes,
        audit=Audited(passed=not problems, problems=tuple(problems)),
    )


def _latency(sorted_s: Sequence[float]) -> Latency:
    def at(share: float) -> float:
        return sorted_s[min(int(share * len(sorted_s)), len(sorted_s) - 1)] * 1000 if sorted_s else 0.0

    return Latency(p50=at(0.5), p99=at(0.99), max=at(1.0))
