"""Runs a load run: starts the workers, waits for the hosts, fires and measures the boots, and audits the result."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from msgspec import Struct
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bus.auditing.at_rest import Asked
from bus.broker import Connection
from bus.errors import Failure
from bus.messages.build import InstanceState
from bus.messages.placement import ProviderState
from bus.topology import QueueKind, objects_of
from compute_sim.laboratory.faults import FailsToBuild, FailsToReceive, FaultScript
from moor.asking import during, hearing, providers_of, until_choosable
from moor.clouds.cloud_processes import Servers, WorkerProcess
from moor.laboratory.at_rest import found_instances, is_in_use, problems_left
from moor.laboratory.load.cpu import process_cpu_s, process_tree_cpu_s
from moor.laboratory.load.firing import Firing, Run
from moor.laboratory.load.listeners import listener_of
from moor.laboratory.load.measuring import Meter
from moor.laboratory.load.orders import (
    OrderRun,
    amounts_of,
    claims_of,
    figures_of,
    flavor_with,
    mix_of,
)
from moor.laboratory.load.results import Audited, LoadResult, Phase, latency_of
from moor.laboratory.temporary_cloud import CloudPlan, TemporaryCloud, temporary_cloud
from moor.options import err
from moor.showing import shortened
from moor.worker_settings import CloudSettings

SPAWN_MS = 50.0
# How the names of the servers' processes start.
BROKER, DATABASE = ("beam", "erl"), ("postgres", "postmaster")
ENDS = ("instance.active.#", "instance.error.#", "instance.deleted.#", "build.rejected")
# How long queues may take to become empty, and in how many polls in a row they must be.
QUIET_S_MAX = 15.0
QUIET_LOOKS = 3
LOOK_EVERY_S = 0.1
OWN_SERVERS = "a load run needs its own servers, a new database and a new virtual host"


class Plan(Struct, frozen=True, kw_only=True):
    """The parts and the size of a load run. `cells` has the number of hosts of each cell; `failing` is the share of spawns and of arrivals that fail."""

    boots: int
    moves: int = 0
    cells: Mapping[str, int]
    host_size: str = ""
    failing: float
    in_flight: int
    counts: Mapping[str, int]
    settings: CloudSettings = CloudSettings()

    @property
    def cloud(self) -> CloudPlan:
        share = self.failing
        faults = (FailsToBuild(probability=share), FailsToReceive(probability=share)) if share else ()
        return CloudPlan(
            role="load",
            cells=self.cells,
            counts=self.counts,
            settings=self.settings,
            host_size=self.host_size,
            faults=FaultScript(seed=1, spawn_ms=SPAWN_MS, faults=faults),
        )


class ServersInUse(Failure):
    """These servers already hold other data, which would distort the figures."""


class Clocks(Struct, frozen=True):
    """The CPU clocks that a load run reads.

    `processes` has those whose time is the cost of a boot, by name. `generator` is the load generator's; None if it runs
    in one of these processes. `notes` say what the total of `processes` includes or excludes.
    """

    processes: Mapping[str, Callable[[], float]]
    generator: Callable[[], float] | None
    notes: tuple[str, ...]


async def run_load(plan: Plan, servers: Servers | None) -> LoadResult:
    async with temporary_cloud(plan.cloud, servers) as cloud:
        clocks = clocks_of(cloud.workers, servers)
        meter = Meter(clocks.processes, plan.boots, clocks.generator)
        of_mix = Meter(clocks.processes, len(mix_of(plan.moves)), clocks.generator)
        boots, mixed, problems = await cloud.during(_measured(plan, cloud, meter, of_mix))
        found = await cloud.during(found_instances(cloud.client, list(boots.instances)))
    states = [boot.state for boot in boots.instances.values() if boot.state is not None]
    claims, conflicts = claims_of(row for page in found for row in page.instances)
    tenths = meter.parts_us_per_boot()
    ours, others = meter.shares(os.cpu_count() or 1)
    return LoadResult(
        **summary_of(states, problems, clocks, servers, plan.counts),
        boots=plan.boots,
        hosts=sum(plan.cells.values()),
        cells=len(plan.cells),
        failing=plan.failing,
        seconds=boots.seconds,
        boots_per_s=plan.boots / boots.seconds,
        latency_ms=latency_of(boots.latencies_s),
        claims=claims,
        conflicts=conflicts,
        cpu_us_per_boot=meter.us_per_boot(),
        load_generator_us_per_boot=meter.generator_us_per_boot(),
        cpu_us_per_boot_by_tenth=tenths,
        flatness=tenths[-1] / tenths[1] if len(tenths) > 1 else 1.0,
        share_of_machine=ours,
        share_of_others=others,
        orders=phase_of(of_mix, mixed) if mixed else None,
        kinds=figures_of(mixed.orders, mixed.seconds) if mixed else {},
    )


def clocks_of(workers: Sequence[WorkerProcess], servers: Servers | None) -> Clocks:
    """A CPU clock for each worker and server process; and notes that say which servers cannot be measured, and why."""
    own = partial(process_cpu_s, os.getpid())
    if servers is None:
        return Clocks(
            {"embedded": own},
            None,
            ("embedded: all is in one process, so the total includes the load generator",),
        )
    clocks: dict[str, Callable[[], float]] = {
        worker.name: partial(process_cpu_s, worker.pid) for worker in workers
    }
    notes = []
    seen: set[int] = set()
    measured = [("broker", servers.bus_url, BROKER), ("database", servers.database_url, DATABASE)]
    if servers.placement_url:
        measured.append(("placement_database", servers.placement_url, DATABASE))
    for name, url, programs in measured:
        match listener_of(url, programs):
            case str(why):
                notes.append(f"{name}: {why}, so the total excludes it")
            case pid if pid not in seen:
                seen.add(pid)
                clocks[name] = partial(process_tree_cpu_s, pid)
    return Clocks(clocks, own, tuple(notes))


async def _measured(
    plan: Plan, cloud: TemporaryCloud, meter: Meter, of_mix: Meter
) -> tuple[OrderRun, OrderRun | None, Sequence[str]]:
    """Fire and measure the boots, then a mix of moves, boots and deletes, then audit.

    Returns both runs and the problems that the audit found. A plan without moves has no second run.
    """
    pools = plan.cloud.pools
    flavor = flavor_with(pool.resource for pool in pools)
    providers = await until_ready(cloud, plan.cloud.host_names, {pool.name for pool in pools})
    if is_in_use(providers):
        raise ServersInUse(f"some inventory is already in use: {OWN_SERVERS}")
    async with hearing(cloud.client, *ENDS) as feed:
        firing = Firing(cloud.client, feed)

        async def fire() -> tuple[OrderRun, OrderRun | None]:
            async with measuring(plan.cloud, cloud, meter, "boots") as tell:
                boots = OrderRun(["boot"] * plan.boots, flavor)
                await firing.fire(boots, plan.in_flight, tell)
            if not plan.moves:
                return boots, None
            async with measuring(plan.cloud, cloud, of_mix, "moves, boots and deletes") as tell:
                mixed = OrderRun(mix_of(plan.moves), flavor, boots.instances)
                await firing.fire(mixed, plan.in_flight, tell)
            return boots, mixed

        boots, mixed = await during(fire(), firing.listen())
    instances = mixed.instances if mixed else boots.instances
    asked = {
        id_: Asked(boot.state.state if boot.state else "", amounts_of(boot.flavor))
        for id_, boot in instances.items()
    }
    return boots, mixed, await problems_left(cloud, asked)


async def until_ready(
    cloud: TemporaryCloud, names: Collection[str], pools: Collection[str] = ()
) -> list[ProviderState]:
    """Wait until schedulers can choose all hosts in `names`, and return placement's providers.

    Raise ServersInUse if there are other providers than these hosts and `pools`. By then placement has the pools, since
    computes report them before the hosts.
    """
    await until_choosable(cloud.client, lambda hosts: {*names} <= {host.name for host in hosts})
    providers = await providers_of(cloud.client)
    if others := sorted({provider.name for provider in providers} - {*names, *pools}):
        raise ServersInUse(
            f"placement has {len(others)} providers that do not belong to this run, for example {others[0]}: {OWN_SERVERS}"
        )
    return providers


@asynccontextmanager
async def measuring(
    plan: CloudPlan, cloud: TemporaryCloud, meter: Meter, what: str
) -> AsyncIterator[Callable[[int], None]]:
    """Measure the CPU time of the work in this context, and show its progress in a terminal.

    Yields a function that the caller calls with the number of orders that have ended. The measurement begins and ends when
    all queues are empty, since work that follows a boot (rows, schedulers' pictures) is part of its cost.
    """
    columns = (TextColumn("[bold]{task.description}"), BarColumn(bar_width=50), MofNCompleteColumn())
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=err,
        refresh_per_second=4,
        transient=True,
        # Without a terminal nobody sees it, and drawing it would count as a cost of the boots.
        disable=not err.is_terminal,
    ) as progress:
        bar = progress.add_task(what, total=meter.count)

        def tell(ended: int) -> None:
            meter.progress(ended)
            progress.update(bar, completed=ended)

        await _until_quiet(cloud.connection, tuple(plan.cells))
        meter.read(0)
        yield tell
        await _until_quiet(cloud.connection, tuple(plan.cells))
        meter.read(meter.count)


async def _until_quiet(connection: Connection, cells: Sequence[str]) -> None:
    """Wait until all queues of orders and questions have been empty in several polls in a row."""
    work = [
        queue.name
        for queue in objects_of(cells).queues
        if queue.kind in (QueueKind.WORK, QueueKind.QUESTIONS)
    ]
    quiet = 0
    async with asyncio.timeout(QUIET_S_MAX):
        while quiet < QUIET_LOOKS:
            quiet = 0 if any([await connection.depth(queue) for queue in work]) else quiet + 1
            await asyncio.sleep(LOOK_EVERY_S)


def summary_of(
    states: Sequence[InstanceState],
    problems: Sequence[str],
    clocks: Clocks,
    servers: Servers | None,
    workers: Mapping[str, int],
) -> dict[str, Any]:
    """The fields by name that the results of all load runs share: how it ran, how instances ended, and the audit."""
    active = [each for each in states if each.state == "active"]
    return {
        "mode": "real" if servers else "embedded",
        "workers": workers if servers else {},
        "active": len(active),
        "in_error": len(states) - len(active),
        "by_alternate": sum(bool(each.failures) for each in active),
        "processors": os.cpu_count() or 1,
        "notes": clocks.notes,
        "audit": Audited(passed=not problems, problems=tuple(shortened(problems))),
    }


def phase_of(meter: Meter, run: Run) -> Phase:
    ours, others = meter.shares(os.cpu_count() or 1)
    return Phase(
        count=meter.count,
        seconds=run.seconds,
        per_s=meter.count / run.seconds,
        latency_ms=latency_of(run.latencies_s),
        cpu_us_each=meter.us_per_boot(),
        generator_us_each=meter.generator_us_per_boot(),
        share_of_machine=ours,
        share_of_others=others,
    )
