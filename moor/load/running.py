"""A load run from its beginning to its end: workers up, hosts known, boots fired and measured, everybody asked."""

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
from compute_sim.core.faults import FailsToBuild, FaultScript
from compute_sim.drivers import alike
from moor.cloud import cloud
from moor.cloud_apart import Crew, Servers, cloud_apart
from moor.load.auditing import all_hosts, all_providers, audit, until_quiet
from moor.load.cpu import family_spent_s, process_spent_s
from moor.load.firing import Fired, fire, hearing
from moor.load.listeners import Unseen, listener_of
from moor.load.measuring import Meter
from moor.load.results import Audited, Latency, LoadResult
from moor.options import err
from moor.tuning import CloudSettings
from placement_worker.store_sql import SqlPlacementStore

SPAWN_MS = 50.0
READY_S_MAX = 120.0
DRAIN_S_MAX = 5.0
# Which process of a server's is the one to be found, by its name.
BROKER, DATABASE = ("beam", "erl"), ("postgres", "postmaster")


class Plan(Struct, frozen=True):
    """`cells` says how many hosts each has."""

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


class Occupied(Failure):
    """There is something on these servers already, and the figures would be about that, too."""


async def run_embedded(plan: Plan, database_url: str, settings: CloudSettings) -> LoadResult:
    """All in this process, the load generator too."""
    broker = MemoryBroker(alone=True).as_user()
    hosts = {cell: alike(cell, count) for cell, count in plan.cells.items()}
    meter = Meter({"embedded": partial(process_spent_s, os.getpid())}, plan.boots)
    notes = ("embedded: the load generator is in the same process, and so in the total",)
    async with cloud(broker, database_url, hosts, faults=plan.faults, settings=settings) as store:
        fired, problems = await _measured(plan, broker, meter, store.audit)
    return _result(plan, meter, fired, problems, mode="embedded", workers={}, notes=notes)


async def run_apart(plan: Plan, servers: Servers, counts: Mapping[str, int]) -> LoadResult:
    """Each worker in a process of its own, on these servers."""
    broker = broker_at(servers.bus_url)
    async with cloud_apart(broker, servers.environment, plan.cells, counts, plan.faults) as crew:
        spenders, notes = spenders_of(crew, servers)
        meter = Meter(spenders, plan.boots, partial(process_spent_s, os.getpid()))
        store = SqlPlacementStore(servers.placement_url or servers.database_url)
        try:
            fired, problems = await crew.during(_measured(plan, broker, meter, store.audit))
        finally:
            await store.close()
    return _result(plan, meter, fired, problems, mode="real", workers=counts, notes=tuple(notes))


def spenders_of(crew: Crew, servers: Servers) -> tuple[dict[str, Callable[[], float]], list[str]]:
    """What each worker and each server has spent; and of the servers that cannot be seen, why not."""
    spenders: dict[str, Callable[[], float]] = {
        worker.name: partial(process_spent_s, worker.pid) for worker in crew.workers
    }
    notes = []
    seen: set[int] = set()
    spending = [("broker", servers.bus_url, BROKER), ("database", servers.database_url, DATABASE)]
    if servers.placement_url:
        spending.append(("placement_database", servers.placement_url, DATABASE))
    for name, url, programs in spending:
        match listener_of(url, programs):
            case Unseen(why):
                notes.append(f"{name}: {why}, and so not in the total")
            case pid if pid not in seen:
                seen.add(pid)
                spenders[name] = partial(family_spent_s, pid)
    return spenders, notes


async def _measured(
    plan: Plan, broker: Broker, meter: Meter, books: Callable[[], Awaitable[Sequence[str]]]
) -> tuple[Fired, list[str]]:
    """Fire, measure, and ask everybody; what is wrong afterwards."""
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
                # What follows a boot, in rows and in pictures, is part of its price.
                await until_quiet(connection, tuple(plan.cells))
                meter.read(plan.boots)
            return fired, await audit(client, connection, fired.instances, await books())
    finally:
        await connection.close()


@asynccontextmanager
async def client_on(broker: Broker) -> AsyncIterator[Station]:
    client = Station(broker, process_name("load"), asks=True)
    told = asyncio.Event()
    running = asyncio.create_task(run_until(told, (client,), DRAIN_S_MAX))
    try:
        yield client
    finally:
        told.set()
        await running
        await client.close()


async def _until_ready(client: Station, plan: Plan) -> None:
    """Until every host is known to schedulers and to placement; a host that nobody has heard of is not chosen."""
    names = {host.name for cell, count in plan.cells.items() for host in alike(cell, count)}
    known: set[str] = set()
    async with asyncio.timeout(READY_S_MAX):
        while known != names:
            await asyncio.sleep(0.1)
            try:
                up = {host.name async for host in all_hosts(client) if host.up}
                providers = [provider async for provider in all_providers(client)]
            except Unavailable:
                # Nobody is there to answer yet.
                continue
            known = up & {provider.name for provider in providers}
            if others := sorted({provider.name for provider in providers} - names):
                raise Occupied(
                    f"placement has {len(others)} providers that are not of this run, {others[0]} for one: "
                    "a load run wants servers of its own, a new database and a new virtual host"
                )
            if any(stock.used for provider in providers for stock in provider.inventories.values()):
                raise Occupied(
                    "something is in use already: a load run wants servers of its own, a new database and a new virtual host"
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
    fired: Fired,
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
