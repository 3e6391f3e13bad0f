"""Runs a bare-metal load run: starts the workers, waits for the nodes, fires and measures, and audits the result."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from uuid import UUID

from msgspec import Struct

from bus.broker import Broker, Connection
from bus.errors import Unavailable
from bus.memory import MemoryBroker
from bus.message import ProviderId
from bus.process import Part, run_until
from bus.station import Station
from bus.topology import DEAD_QUEUE
from bus.urls import broker_at
from compute_sim.ironic import IronicScript, IronicTransport, SimulatedIronic, simulated_ironic
from compute_sim.ironic.core.script import WorkFails
from compute_sim.simulated.faults import FaultScript
from compute_sim.simulated.hosts import equal_hosts
from ironic_sync.rest_http import HttpIronicApi
from ironic_sync.settings import IronicSettings
from ironic_sync.store import IronicStore
from ironic_sync.store_sql import SqlIronicStore
from moor.bare_metal import BareMetal, BareMetalPlan, cells_of_groups
from moor.cloud import cloud
from moor.cloud_processes import Servers, cloud_in_processes
from moor.load.auditing import SHOWN_MAX, all_hosts, all_providers, until_quiet
from moor.load.cpu import process_cpu_s
from moor.load.measuring import Meter
from moor.load.metal.firing import DeployRun, Deploys, Timings, end_maintenance, fire_changes
from moor.load.metal.results import MetalLoadResult, Phase, latency_of
from moor.load.metal.watching import NodeWatch, hearing_nodes, listen_on
from moor.load.node_auditing import Reported, problems_of
from moor.load.results import Audited
from moor.load.running import (
    DRAIN_S_MAX,
    READY_S_MAX,
    ServersInUse,
    client_on,
    cpu_clocks_of,
    progress_of,
)
from moor.tuning import IRONIC, CloudSettings
from placement_worker.store_sql import SqlPlacementStore

# A simulated deploy and cleaning take only about a tenth of a second, so that Moorage's own part is what is measured.
PACE = 0.02
HOSTS_PER_CELL = 1
PATIENCE_S = 15.0
LOOK_AGAIN_S = 0.2
# The notification that ends a deploy may reach another daemon than the node's owner, which then reads the node after 1 s.
DEFAULTS = CloudSettings(ironic=IronicSettings(deploy_read_s=1.0))

Audit = Callable[[], Awaitable[Sequence[str]]]


class MetalPlan(Struct, frozen=True, kw_only=True):
    changes: int
    deploys: int
    nodes: int
    daemons: int
    cells: int
    failing: float
    in_flight: int
    # State changes per second; 0: as fast as possible.
    rate: float

    @property
    def cell_names(self) -> tuple[str, ...]:
        return tuple(f"c{number}" for number in range(1, self.cells + 1))

    @property
    def metal(self) -> BareMetalPlan:
        faults = (WorkFails(work="deploy", probability=self.failing),) if self.failing else ()
        return BareMetalPlan(
            nodes=self.nodes,
            daemons=self.daemons,
            cells=cells_of_groups(self.cell_names),
            pace=PACE,
            script=IronicScript(seed=1, faults=faults),
        )

    @property
    def deploys_in_flight(self) -> int:
        """At most two thirds of the nodes, so that some are left as alternates."""
        return max(1, min(self.in_flight, self.nodes * 2 // 3))


class RunContext(Struct, frozen=True):
    """The connections and stores that a run uses, embedded or on real servers. `books` audits placement."""

    client: Station
    connection: Connection
    ironic: SimulatedIronic
    rows: IronicStore
    books: Audit


class Measured(Struct, frozen=True):
    changes: Timings
    deploys: Deploys
    meters: tuple[Meter, Meter]
    problems: tuple[str, ...]


async def run_embedded(plan: MetalPlan, database_url: str, settings: CloudSettings) -> MetalLoadResult:
    """Run all workers, the simulated Ironic and the load generator in this process."""
    broker = MemoryBroker().as_user()
    hosts = {cell: equal_hosts(cell, HOSTS_PER_CELL) for cell in plan.cell_names}
    started: list[BareMetal] = []
    cpu_clocks = {"embedded": partial(process_cpu_s, os.getpid())}
    meters = Meter(cpu_clocks, plan.changes), Meter(cpu_clocks, plan.deploys)
    notes = (
        "embedded: the load generator and the simulated Ironic are in the same process, so the total includes them",
    )
    async with (
        cloud(
            broker, database_url, hosts, settings=settings, metal=plan.metal, on_metal=started.append
        ) as placement,
        _run_context(broker, database_url, placement) as context_of,
    ):
        measured = await _measured(plan, context_of(started[0].simulation.ironic), meters)
    return _result(plan, measured, mode="embedded", workers={}, notes=notes)


async def run_on_servers(plan: MetalPlan, servers: Servers, counts: Mapping[str, int]) -> MetalLoadResult:
    """Run each worker as its own process, on these servers; the simulated Ironic runs in this process."""
    await _refuse_existing_nodes(servers.database_url)
    broker = broker_at(servers.bus_url)
    urls = {
        IRONIC.variable("deploy_read_s"): str(DEFAULTS.ironic.deploy_read_s),
        **servers.environment,
    }
    cells = dict.fromkeys(plan.cell_names, HOSTS_PER_CELL)
    metal = plan.metal
    simulation = simulated_ironic(
        broker, metal.simulated_nodes, metal.simulating, script=metal.script, listen=("127.0.0.1", 0)
    )
    async with AsyncExitStack() as stack:
        processes = await stack.enter_async_context(
            cloud_in_processes(
                broker, urls, cells, counts, FaultScript(), metal=metal, ironic_url=simulation.url
            )
        )
        await stack.enter_async_context(_running(simulation.parts))
        cpu_clocks, notes = cpu_clocks_of(processes, servers)
        generator = partial(process_cpu_s, os.getpid())
        meters = Meter(cpu_clocks, plan.changes, generator), Meter(cpu_clocks, plan.deploys, generator)
        placement = SqlPlacementStore(servers.placement_url or servers.database_url)
        stack.push_async_callback(placement.close)
        context_of = await stack.enter_async_context(_run_context(broker, servers.database_url, placement))
        measured = await processes.during(_measured(plan, context_of(simulation.ironic), meters))
    workers = {**counts, "ironic": plan.daemons}
    return _result(plan, measured, mode="real", workers=workers, notes=tuple(notes))


async def _refuse_existing_nodes(database_url: str) -> None:
    store = SqlIronicStore(database_url)
    try:
        count = len(await store.owners()) if await store.has_tables() else 0
    finally:
        await store.close()
    if count:
        raise ServersInUse(
            f"the daemons' tables already have {count} nodes: a load run needs its own servers, a new database and a new "
            "virtual host"
        )


@asynccontextmanager
async def _running(parts: Sequence[Part]) -> AsyncIterator[None]:
    stop = asyncio.Event()
    running = asyncio.create_task(run_until(stop, parts, DRAIN_S_MAX))
    try:
        yield
    finally:
        stop.set()
        await running


@asynccontextmanager
async def _run_context(
    broker: Broker, database_url: str, placement: SqlPlacementStore
) -> AsyncIterator[Callable[[SimulatedIronic], RunContext]]:
    async with AsyncExitStack() as stack:
        connection = await broker.connect()
        stack.push_async_callback(connection.close)
        rows = SqlIronicStore(database_url)
        stack.push_async_callback(rows.close)
        client = await stack.enter_async_context(client_on(broker))
        yield lambda ironic: RunContext(client, connection, ironic, rows, placement.audit)


async def _measured(plan: MetalPlan, context: RunContext, meters: tuple[Meter, Meter]) -> Measured:
    await _until_ready(plan, context)
    async with hearing_nodes(context.client) as feed:
        nodes = frozenset(ProviderId(UUID(uuid)) for uuid in context.ironic.nodes)
        watch = NodeWatch([each async for each in all_providers(context.client)], nodes)
        listening = asyncio.create_task(listen_on(watch, feed))
        firing = asyncio.create_task(_fire(plan, context, watch, meters))
        try:
            done, _ = await asyncio.wait((listening, firing), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            changes, deploys = firing.result()
        finally:
            for task in (listening, firing):
                task.cancel()
            await asyncio.gather(listening, firing, return_exceptions=True)
    return Measured(changes, deploys, meters, tuple(await _audit(plan, context, deploys)))


async def _fire(
    plan: MetalPlan, context: RunContext, watch: NodeWatch, meters: tuple[Meter, Meter]
) -> tuple[Timings, Deploys]:
    of_changes, of_deploys = meters
    with progress_of("firing") as progress:

        def telling(what: str, total: int, meter: Meter) -> Callable[[int], None]:
            bar = progress.add_task(what, total=total)

            def tell(ended: int) -> None:
                meter.progress(ended)
                progress.update(bar, completed=ended)

            return tell

        await until_quiet(context.connection, plan.cell_names)
        of_changes.read(0)
        changes = await fire_changes(
            watch,
            context.ironic,
            plan.changes,
            in_flight=min(plan.in_flight, plan.nodes),
            rate=plan.rate,
            tell=telling("state changes", plan.changes, of_changes),
        )
        await until_quiet(context.connection, plan.cell_names)
        of_changes.read(plan.changes)
        await end_maintenance(watch, context.ironic)
        await until_quiet(context.connection, plan.cell_names)
        of_deploys.read(0)
        firing = DeployRun(watch, context.client, telling("deploys", plan.deploys, of_deploys))
        deploys = await firing.fire(plan.deploys, plan.deploys_in_flight)
        await until_quiet(context.connection, plan.cell_names)
        of_deploys.read(plan.deploys)
    return changes, deploys


async def _audit(plan: MetalPlan, context: RunContext, deploys: Deploys) -> list[str]:
    """List all problems as sentences. Wait up to PATIENCE_S for late updates."""
    by_s = asyncio.get_running_loop().time() + PATIENCE_S
    while True:
        problems = await _problems(plan, context, deploys)
        if not problems or asyncio.get_running_loop().time() > by_s:
            break
        await asyncio.sleep(LOOK_AGAIN_S)
    if len(problems) > SHOWN_MAX:
        return [*problems[:SHOWN_MAX], f"and {len(problems) - SHOWN_MAX} more"]
    return problems


async def _problems(plan: MetalPlan, context: RunContext, deploys: Deploys) -> list[str]:
    api = HttpIronicApi("http://ironic", transport=IronicTransport(context.ironic))
    try:
        ironic = {node.id: node async for page in api.pages() for node in page.nodes}
    finally:
        await api.close()
    owned = await context.rows.owners()
    reported = Reported(
        wanted=plan.deploys,
        ended=len(deploys.states),
        instances={},
        ironic=ironic,
        rows=await context.rows.read([each.id for each in owned]),
        providers={each.id: each async for each in all_providers(context.client)},
        alive=[each.name for each in await context.rows.members() if each.is_alive],
        books=await context.books(),
        dead_letters=await context.connection.depth(DEAD_QUEUE),
    )
    left_over = [
        f"{host.name} has {host.instances} instances, although all were deleted"
        async for host in all_hosts(context.client)
        if host.instances
    ]
    return [*problems_of(reported), *left_over]


async def _until_ready(plan: MetalPlan, context: RunContext) -> None:
    """Wait until schedulers and placement know every node and host."""
    hosts = {host.name for cell in plan.cell_names for host in equal_hosts(cell, HOSTS_PER_CELL)}
    names = hosts | {*context.ironic.nodes}
    known: set[str] = set()
    async with asyncio.timeout(READY_S_MAX):
        while known != names:
            await asyncio.sleep(LOOK_AGAIN_S)
            try:
                up = {host.name async for host in all_hosts(context.client) if host.up}
                providers = [provider async for provider in all_providers(context.client)]
            except Unavailable:
                # The workers that answer are still starting.
                continue
            known = up & {provider.name for provider in providers}
            if others := sorted({provider.name for provider in providers} - names):
                raise ServersInUse(
                    f"placement has {len(others)} providers that do not belong to this run, for example {others[0]}: "
                    "a load run needs its own servers, a new database and a new virtual host"
                )


def _result(
    plan: MetalPlan, measured: Measured, *, mode: str, workers: Mapping[str, int], notes: tuple[str, ...]
) -> MetalLoadResult:
    states = measured.deploys.states
    active = [each for each in states if each.state == "active"]
    of_changes, of_deploys = measured.meters
    return MetalLoadResult(
        mode=mode,
        nodes=plan.nodes,
        daemons=plan.daemons,
        cells=plan.cells,
        failing=plan.failing,
        rate=plan.rate,
        workers=workers,
        changes=_phase(plan.changes, measured.changes, of_changes),
        deploys=_phase(plan.deploys, measured.deploys.fired, of_deploys),
        free_again_ms=latency_of(measured.deploys.free_again_s),
        active=len(active),
        in_error=len(states) - len(active),
        by_alternate=sum(bool(each.failures) for each in active),
        processors=os.cpu_count() or 1,
        notes=notes,
        audit=Audited(passed=not measured.problems, problems=measured.problems),
    )


def _phase(count: int, fired: Timings, meter: Meter) -> Phase:
    seconds = fired.ended_s - fired.began_s
    ours, others = meter.shares(os.cpu_count() or 1)
    return Phase(
        count=count,
        seconds=seconds,
        per_s=count / seconds,
        latency_ms=latency_of(fired.latencies_s),
        cpu_us_each=meter.us_per_boot(),
        generator_us_each=meter.generator_us_per_boot(),
        share_of_machine=ours,
        share_of_others=others,
    )
