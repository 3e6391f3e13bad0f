"""Runs a load run: starts the workers, waits for the hosts, fires and measures the boots, and audits the result."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any

from msgspec import Struct
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bus.auditing.at_rest import Asked
from bus.broker import Connection
from bus.messages.build import InstanceId, InstanceState
from bus.messages.placement import ProviderState
from bus.topology import QueueKind, objects_of
from compute_sim.laboratory.faults import FailsToBuild, FailsToReceive, FaultScript
from moor.asking import during, hearing, providers_of, until_choosable
from moor.clouds.cloud_processes import Servers
from moor.laboratory.at_rest import found_instances, is_in_use, problems_left
from moor.laboratory.load.clocks import Clocks, clocks_of
from moor.laboratory.load.firing import Firing, Run
from moor.laboratory.load.groups import groups_for
from moor.laboratory.load.measuring import Meter
from moor.laboratory.load.metal.nodes import bare_metal_of
from moor.laboratory.load.mix import BUILDING, Mix, instances_of, names_for
from moor.laboratory.load.orders import (
    AFTERWARDS,
    DONE,
    Order,
    OrderRun,
    amounts_of,
    claims_of,
    figures_of,
    flavor_with,
    latencies_of,
    mix_of,
)
from moor.laboratory.load.own_servers import OWN_SERVERS, ServersInUse, refuse_existing_nodes
from moor.laboratory.load.results import (
    Audited,
    Interval,
    LoadResult,
    Phase,
    Publishers,
    StageLatency,
    latency_of,
    lateness_of,
)
from moor.laboratory.load.sampling import EndedOrder, Sampler, intervals_of
from moor.laboratory.load.schedule import Arrivals, due_times_s
from moor.laboratory.load.senders import OwnSender, PublisherProcesses, own_publishers, publisher_processes
from moor.laboratory.load.stages import WORKER_BEATS, WorkerStages, steps_of
from moor.laboratory.temporary_cloud import CloudPlan, TemporaryCloud, temporary_cloud
from moor.options import err
from moor.showing import shortened
from moor.worker_settings import CloudSettings

SPAWN_MS = 50.0
ENDS = ("instance.active.#", "instance.error.#", "instance.deleted.#", "build.rejected")
# How long queues may take to become empty, and in how many polls in a row they must be.
QUIET_S_MAX = 15.0
QUIET_LOOKS = 3
LOOK_EVERY_S = 0.1


class Plan(Struct, frozen=True, kw_only=True):
    """The parts and the size of a load run. `cells` has the number of hosts of each cell; `failing` is the share of spawns and of arrivals that fail.

    With a `mix`, `boots` is how many instances its orders make. With a `rate`, so many orders are due a second, whatever is
    under way. With `publishers`, so many independent ones send them. `nodes` and `daemons` are those of the mix's bare metal.
    """

    boots: int
    moves: int = 0
    mix: Mix = {}
    rate: float = 0
    arrivals: Arrivals = "even"
    publishers: int = 0
    cells: Mapping[str, int]
    host_size: str = ""
    nodes: int = 0
    daemons: int = 1
    failing: float
    in_flight: int
    counts: Mapping[str, int]
    settings: CloudSettings = CloudSettings()

    @property
    def orders(self) -> Sequence[str]:
        """The names of the orders that are measured first."""
        return names_for(self.mix, self.boots) if self.mix else ["boot"] * self.boots

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
            metal=bare_metal_of(self.nodes, self.daemons, self.cells, share) if self.nodes else None,
            faults=FaultScript(seed=1, spawn_ms=SPAWN_MS, faults=faults),
        )


class Instruments(Struct, frozen=True):
    """What measures the boots or the mix, and the moves that come after boots."""

    boots: Meter
    moves: Meter
    sampler: Sampler


class Measured(Struct):
    """What a run did: its boots or its mix, the moves that came after boots, and what was measured of them."""

    boots: OrderRun
    mixed: OrderRun | None
    problems: Sequence[str]
    late_s: Sequence[float]
    stages: Mapping[str, StageLatency]
    notes: tuple[str, ...] = ()


async def run_load(plan: Plan, servers: Servers | None) -> LoadResult:
    if plan.nodes and servers is not None:
        await refuse_existing_nodes(servers.database_url)
    names = plan.orders
    boots_count = instances_of(plan.mix, names) if plan.mix else plan.boots
    async with temporary_cloud(plan.cloud, servers) as cloud, _sender(plan, cloud, servers) as sender:
        pids = sender.pids if isinstance(sender, PublisherProcesses) else ()
        clocks = clocks_of(cloud.workers, servers, pids)
        meter = Meter(clocks.processes, len(names), clocks.generator, clocks.publishers)
        of_mix = Meter(clocks.processes, len(mix_of(plan.moves)), clocks.generator, clocks.publishers)
        sampler = Sampler(clocks)
        clock_to_time_s = time.time() - time.perf_counter()
        work = _measured(plan, cloud, sender, names, Instruments(meter, of_mix, sampler))
        did = await cloud.during(work)
        boots = did.boots
        found = await cloud.during(found_instances(cloud.client, list(boots.instances)))
    states = [each.state for each in boots.booted]
    claims, conflicts = claims_of(row for page in found for row in page.instances)
    tenths = tuple([us * meter.count / boots_count for us in meter.parts_us_per_boot()])
    ours, others = meter.shares(os.cpu_count() or 1)
    generator_us = meter.generator_us_per_boot()
    measured, last = (boots, meter) if plan.mix else (did.mixed, of_mix)
    summary = summary_of(states, did.problems, clocks, servers, _workers(plan))
    return LoadResult(
        **summary | {"notes": (*clocks.notes, *did.notes)},
        boots=boots_count,
        hosts=sum(plan.cells.values()),
        cells=len(plan.cells),
        failing=plan.failing,
        seconds=boots.seconds,
        boots_per_s=boots_count / boots.seconds,
        latency_ms=latency_of(latencies_of(each for each in boots.orders if _builds(plan, each.kind))),
        claims=claims,
        conflicts=conflicts,
        cpu_us_per_boot=meter.us_per_boot(boots_count),
        load_generator_us_per_boot=generator_us and generator_us * meter.count / boots_count,
        cpu_us_per_boot_by_tenth=tenths,
        flatness=tenths[-1] / tenths[1] if len(tenths) > 1 else 1.0,
        share_of_machine=ours,
        share_of_others=others,
        orders=phase_of(last, measured) if measured else None,
        kinds=figures_of(measured.orders, measured.seconds) if measured else {},
        rate=plan.rate,
        arrivals=plan.arrivals if plan.rate else "",
        mix={name: entry.weight for name, entry in plan.mix.items()},
        publishers=_publishers(plan, clocks, meter, boots_count),
        stages=did.stages,
        steps_ms=steps_of(
            boots.booted, {each.id: each for page in found for each in page.details}, clock_to_time_s
        ),
        memory_mb=sampler.memory_mb,
        over_time=intervals_of(sampler.samples, _ended(boots.orders), boots.began_s),
        **(lateness_of(did.late_s) if plan.rate else {}),
    )


def _builds(plan: Plan, name: str) -> bool:
    return not plan.mix or plan.mix[name].kind in BUILDING


def _workers(plan: Plan) -> Mapping[str, int]:
    return {**plan.counts, "ironic": plan.daemons} if plan.nodes else plan.counts


def _publishers(plan: Plan, clocks: Clocks, meter: Meter, boots: int) -> Publishers | None:
    if not plan.publishers:
        return None
    return Publishers(
        count=plan.publishers,
        processes=len(clocks.publishers),
        cpu_us_per_boot=meter.publishers_us(boots) if clocks.publishers else None,
    )


def _ended(orders: Iterable[Order]) -> list[EndedOrder]:
    return [EndedOrder(each.due_s, each.ended_s, each.outcome in DONE) for each in orders]


@asynccontextmanager
async def _sender(
    plan: Plan, cloud: TemporaryCloud, servers: Servers | None
) -> AsyncIterator[OwnSender | PublisherProcesses]:
    """Who sends the orders of the plan."""
    if not plan.publishers:
        yield OwnSender(cloud.client.publisher)
    elif servers is None:
        async with own_publishers(cloud.client.consuming.broker, plan.publishers) as own:
            yield own
    else:
        async with publisher_processes(servers, plan.publishers, plan.rate) as processes:
            yield processes


async def _measured(
    plan: Plan,
    cloud: TemporaryCloud,
    sender: OwnSender | PublisherProcesses,
    names: Sequence[str],
    instruments: Instruments,
) -> Measured:
    """Fire and measure the boots or the mix; after boots, a mix of moves, boots and deletes; then audit."""
    pools = plan.cloud.pools
    flavor = flavor_with(pool.resource for pool in pools)
    hosts = plan.cloud.host_names | ({*cloud.ironic.nodes} if plan.nodes else set())
    providers = await until_ready(cloud, hosts, {pool.name for pool in pools})
    if is_in_use(providers):
        raise ServersInUse(f"some inventory is already in use: {OWN_SERVERS}")
    groups = await groups_for(cloud.client, plan.mix, names)
    due_s = due_times_s(plan.arrivals, plan.rate, len(names)) if plan.rate else ()
    stages = WorkerStages()
    async with hearing(cloud.client, *ENDS, WORKER_BEATS) as feed:
        firing = Firing(sender, feed, stages.hear)

        async def fire() -> Measured:
            what = "orders" if plan.mix else "boots"
            async with measuring(plan.cloud, cloud, instruments.boots, what, instruments.sampler) as tell:
                boots = OrderRun(
                    names,
                    flavor,
                    mix=plan.mix or AFTERWARDS,
                    groups=groups,
                    due_s=due_s,
                    ahead_s=sender.ahead_s if due_s else 0.0,
                )
                await firing.fire(boots, plan.in_flight, tell)
            mixed = None
            if plan.moves:
                async with measuring(
                    plan.cloud, cloud, instruments.moves, "moves, boots and deletes"
                ) as tell:
                    mixed = OrderRun(mix_of(plan.moves), flavor, boots.instances)
                    await firing.fire(mixed, plan.in_flight, tell)
            # The workers' last heartbeats come while the audit goes on.
            told, problems = await asyncio.gather(
                stages.until_told(plan.counts["scheduler"] + plan.counts["conductor"] * len(plan.cells)),
                problems_left(cloud, _asked(mixed or boots)),
            )
            notes = () if told else ("some worker sent no heartbeat after the run: the stages lack its part",)
            return Measured(boots, mixed, problems, boots.late_s, stages.latencies(), notes)

        watches = [sender.watch()] if isinstance(sender, PublisherProcesses) else []
        did = await during(fire(), firing.listen(), *watches)
    if isinstance(sender, PublisherProcesses):
        did.late_s = await sender.finish()
    return did


def _asked(run: OrderRun) -> dict[InstanceId, Asked]:
    return {
        id_: Asked(boot.state.state if boot.state else "", amounts_of(boot.flavor), on_node=boot.on_node)
        for id_, boot in run.instances.items()
    }


async def until_ready(
    cloud: TemporaryCloud, names: Collection[str], pools: Collection[str] = ()
) -> list[ProviderState]:
    """Wait until schedulers can choose all hosts in `names`, and return placement's providers.

    Raise ServersInUse if there are other providers than those of these hosts and `pools`. By then placement has the pools,
    since computes report them before the hosts.
    """
    await until_choosable(cloud.client, lambda hosts: {*names} <= {host.name for host in hosts})
    providers = await providers_of(cloud.client)
    expected = {*names, *pools}
    own = {provider.id for provider in providers if provider.name in expected}
    if others := sorted(provider.name for provider in providers if provider.root not in own):
        raise ServersInUse(
            f"placement has {len(others)} providers that do not belong to this run, for example {others[0]}: {OWN_SERVERS}"
        )
    return providers


@asynccontextmanager
async def measuring(
    plan: CloudPlan, cloud: TemporaryCloud, meter: Meter, what: str, sampler: Sampler | None = None
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
        async with sampler.sampling() if sampler else nullcontext():
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


def phase_of(meter: Meter, run: Run, over_time: tuple[Interval, ...] = ()) -> Phase:
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
        over_time=over_time,
    )
