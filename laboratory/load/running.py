"""Runs a load run: starts the workers, waits for the hosts, fires and measures the orders, and audits the result."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

from msgspec import Struct
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bus.topology import QueueKind, objects_of
from engine.flavors import InstanceId
from engine.inventories import ProviderId, ProviderState
from ironic_sync.store_sql import SqlIronicStore
from kit.errors import Failure
from laboratory.at_rest import Asked, found_instances, is_in_use, problems_left
from laboratory.computes.faults import FailsToBuild, FailsToReceive, FaultScript
from laboratory.ironic import IronicScript
from laboratory.ironic.script import WorkFails
from laboratory.load.firing import Arrivals, Firing, Run, Sender, due_times_s, independent_publishers
from laboratory.load.measuring import (
    Clocks,
    Meter,
    clocks_of,
    intervals_of,
    steps_of,
)
from laboratory.load.orders import (
    AFTERWARDS,
    BUILDING,
    ChangeRun,
    Mix,
    OrderRun,
    ReservedNodes,
    amounts_of,
    claims_of,
    figures_of,
    flavor_with,
    groups_for,
    instances_of,
    latencies_of,
    mix_of,
    names_for,
)
from laboratory.load.results import (
    Audited,
    LoadResult,
    Phase,
    is_late,
    latency_of,
)
from laboratory.temporary_cloud import CloudPlan, Servers, TemporaryCloud, temporary_cloud
from moor.asking import during, hearing, providers_of, until_choosable
from moor.clouds.cloud import BareMetalPlan, cells_of_groups
from moor.options import err
from moor.showing import shortened
from moor.worker_settings import CloudSettings

SPAWN_MS = 50.0
# A simulated deploy and cleaning take only about a tenth of a second, so that Moorage's own part is what is measured.
PACE = 0.02
ENDS = ("instance.active.#", "instance.error.#", "instance.deleted.#", "build.rejected")
# How long queues may take to become empty, and in how many polls in a row they must be.
QUIET_S_MAX = 15.0
QUIET_LOOKS = 3
LOOK_EVERY_S = 0.1
OWN_SERVERS = "a load run needs its own servers, a new database and a new virtual host"


class ServersInUse(Failure):
    """These servers already hold other data, which would distort the figures."""


class Plan(Struct, frozen=True, kw_only=True):
    """The parts and the size of a load run. `cells` has the number of hosts of each cell; `failing` is the share of spawns and of arrivals that fail,
    or of deploys.

    With a `mix`, `boots` is how many instances its orders make. With a `rate`, so many orders are due a second, whatever is
    under way. With `publishers`, so many independent ones send them. `nodes` and `daemons` are those of bare metal: of the mix, and of
    the state changes, which come first.
    """

    boots: int = 0
    moves: int = 0
    mix: Mix = {}
    changes: int = 0
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
        deploys_fail = (WorkFails(work="deploy", probability=share),) if share else ()
        metal = BareMetalPlan(
            nodes=self.nodes,
            daemons=self.daemons,
            cells=cells_of_groups(self.cells),
            pace=PACE,
            script=IronicScript(seed=1, faults=deploys_fail),
        )
        return CloudPlan(
            role="load",
            cells=self.cells,
            counts=self.counts,
            settings=self.settings,
            host_size=self.host_size,
            metal=metal if self.nodes else None,
            faults=FaultScript(seed=1, spawn_ms=SPAWN_MS, faults=faults),
        )

    def due_s(self, count: int) -> Sequence[float]:
        """When so many orders are due; empty without a rate."""
        return due_times_s(self.arrivals, self.rate, count) if self.rate else ()


async def run_load(plan: Plan, servers: Servers | None) -> LoadResult:
    if plan.nodes and servers is not None:
        await _refuse_existing_nodes(servers.database_url)
    async with temporary_cloud(plan.cloud, servers) as cloud, _sender(plan, cloud) as sender:
        load = _Load(plan, servers, cloud, sender)
        return await cloud.during(load.measured())


async def _refuse_existing_nodes(database_url: str) -> None:
    store = SqlIronicStore(database_url)
    try:
        count = len(await store.owners()) if await store.has_tables() else 0
    finally:
        await store.close()
    if count:
        raise ServersInUse(f"the daemons' tables already have {count} nodes: {OWN_SERVERS}")


@asynccontextmanager
async def _sender(plan: Plan, cloud: TemporaryCloud) -> AsyncIterator[Sender]:
    """Sends the orders of the plan."""
    if not plan.publishers:
        yield Sender(cloud.client.publisher)
        return
    async with independent_publishers(cloud.broker, plan.publishers) as sender:
        yield sender


class _Load:
    """One load run on a cloud that has just been started."""

    def __init__(
        self,
        plan: Plan,
        servers: Servers | None,
        cloud: TemporaryCloud,
        sender: Sender,
    ) -> None:
        self._plan, self._servers, self._cloud, self._sender = plan, servers, cloud, sender
        self._clocks: Clocks = clocks_of(cloud.workers, servers)

    async def measured(self) -> LoadResult:
        """Fire and measure the state changes of nodes, if there are any; the boots or the mix; and after boots, a mix of moves, boots and
        deletes. Then audit.
        """
        plan, cloud = self._plan, self._cloud
        names = plan.orders
        of_changes = Meter(self._clocks, plan.changes)
        meter, of_moves = Meter(self._clocks, len(names)), Meter(self._clocks, len(mix_of(plan.moves)))
        clock_to_time_s = time.time() - time.perf_counter()
        pools = plan.cloud.pools
        flavor = flavor_with(pool.resource for pool in pools)
        providers = await self._until_ready(*(pool.name for pool in pools))
        if is_in_use(providers):
            raise ServersInUse(f"some inventory is already in use: {OWN_SERVERS}")
        groups = await groups_for(cloud.client, plan.mix, names)
        # A rate on bare metal is that of the changes.
        due_s = () if plan.changes else plan.due_s(len(names))

        async def fire(firing: Firing) -> tuple[ChangeRun | None, OrderRun, OrderRun | None]:
            changes = await self._change(firing, of_changes, providers) if plan.changes else None
            async with self._measuring(meter, "orders" if plan.mix else "boots") as tell:
                boots = OrderRun(
                    names,
                    flavor,
                    mix=plan.mix or AFTERWARDS,
                    groups=groups,
                    due_s=due_s,
                )
                await firing.fire(boots, plan.in_flight, tell)
            mixed = None
            if plan.moves:
                async with self._measuring(of_moves, "moves, boots and deletes") as tell:
                    mixed = OrderRun(mix_of(plan.moves), flavor, boots.instances)
                    await firing.fire(mixed, plan.in_flight, tell)
            return changes, boots, mixed

        async with hearing(cloud.client, *ENDS, *(("providers.changed",) if plan.changes else ())) as feed:
            firing = Firing(self._sender, feed)
            changes, boots, mixed = await during(fire(firing), firing.listen())
        problems = await problems_left(cloud, _asked(mixed or boots))
        found = await found_instances(cloud.client, list(boots.instances))
        count = instances_of(plan.mix, names) if plan.mix else plan.boots
        claims, conflicts = claims_of(row for page in found for row in page.instances)
        tenths = meter.parts_us(count)
        ours, others = meter.shares(os.cpu_count() or 1)
        measured, last = (boots, meter) if plan.mix else (mixed, of_moves)
        states = [each.state for each in boots.booted]
        active = [each for each in states if each.state == "active"]
        late_ms = latency_of((changes or boots).late_s) if plan.rate else None
        return LoadResult(
            mode="real" if self._servers else "embedded",
            cells=len(plan.cells),
            hosts=sum(plan.cells.values()),
            nodes=plan.nodes,
            failing=plan.failing,
            workers={**plan.counts, **({"ironic": plan.daemons} if plan.nodes else {})}
            if self._servers
            else {},
            active=len(active),
            in_error=len(states) - len(active),
            by_alternate=sum(bool(each.failures) for each in active),
            processors=os.cpu_count() or 1,
            notes=self._clocks.notes,
            audit=Audited(passed=not problems, problems=tuple(shortened(problems))),
            rate=plan.rate,
            arrivals=plan.arrivals if plan.rate else "",
            late_ms=late_ms,
            is_late=late_ms is not None and is_late(late_ms),
            boots=count,
            seconds=boots.seconds,
            boots_per_s=count / boots.seconds,
            latency_ms=latency_of(
                latencies_of(
                    each for each in boots.orders if not plan.mix or plan.mix[each.kind].kind in BUILDING
                )
            ),
            claims=claims,
            conflicts=conflicts,
            cpu_us_per_boot=meter.us_each(count),
            load_generator_us_per_boot=meter.generator_us(count),
            cpu_us_per_boot_by_tenth=tenths,
            flatness=tenths[-1] / tenths[1] if len(tenths) > 1 else 1.0,
            share_of_machine=ours,
            share_of_others=others,
            changes=_phase_of(of_changes, changes) if changes else None,
            orders=_phase_of(last, measured) if measured else None,
            kinds=figures_of(measured.orders, measured.seconds) if measured else {},
            mix={name: entry.weight for name, entry in plan.mix.items()},
            publishers=plan.publishers,
            steps_ms=steps_of(
                boots.booted, {each.id: each for page in found for each in page.details}, clock_to_time_s
            ),
            memory_mb=meter.memory_mb,
            over_time=intervals_of(meter.samples, boots.ends, boots.began_s),
        )

    async def _change(self, firing: Firing, meter: Meter, providers: Sequence[ProviderState]) -> ChangeRun:
        """Change the states of nodes, and leave all of them free."""
        plan, ironic = self._plan, self._cloud.ironic
        nodes = sorted(ProviderId(UUID(uuid)) for uuid in ironic.nodes)
        known = ReservedNodes(nodes, providers)
        due_s = plan.due_s(plan.changes)
        async with self._measuring(meter, "state changes") as tell:
            changes = ChangeRun(known, ironic, nodes, plan.changes, due_s=due_s)
            await firing.fire(changes, min(plan.in_flight, plan.nodes), tell)
        # Nodes with an odd number of changes are still in maintenance.
        left = [node for node in nodes if known.is_reserved[node]]
        await firing.fire(ChangeRun(known, ironic, left, len(left)), plan.nodes)
        return changes

    async def _until_ready(self, *pools: str) -> list[ProviderState]:
        """Wait until schedulers can choose all hosts and nodes, and return placement's providers.

        Raise ServersInUse if there are other providers than those of these hosts and `pools`. By then placement has the pools,
        since computes report them before the hosts.
        """
        client, ironic = self._cloud.client, self._cloud.simulated_ironic
        names = {*self._plan.cloud.host_names, *(ironic.nodes if ironic else ())}
        await until_choosable(client, lambda hosts: names <= {host.name for host in hosts})
        providers = await providers_of(client)
        own = {provider.id for provider in providers if provider.name in {*names, *pools}}
        if others := sorted(provider.name for provider in providers if provider.root not in own):
            raise ServersInUse(
                f"placement has {len(others)} providers that do not belong to this run, for example {others[0]}: {OWN_SERVERS}"
            )
        return providers

    @asynccontextmanager
    async def _measuring(self, meter: Meter, what: str) -> AsyncIterator[Callable[[int], None]]:
        """Measure the work in this context, and show its progress in a terminal.

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

            await self._until_quiet()
            meter.read(0)
            async with meter.sampling():
                yield tell
                await self._until_quiet()
            meter.read(meter.count)

    async def _until_quiet(self) -> None:
        """Wait until all queues of orders and questions have been empty in several polls in a row."""
        work = [
            queue.name
            for queue in objects_of(tuple(self._plan.cells)).queues
            if queue.kind in (QueueKind.WORK, QueueKind.QUESTIONS)
        ]
        depth, quiet = self._cloud.connection.depth, 0
        async with asyncio.timeout(QUIET_S_MAX):
            while quiet < QUIET_LOOKS:
                quiet = 0 if any([await depth(queue) for queue in work]) else quiet + 1
                await asyncio.sleep(LOOK_EVERY_S)


def _asked(run: OrderRun) -> dict[InstanceId, Asked]:
    return {
        id_: Asked(boot.state.state if boot.state else "", amounts_of(boot.flavor), on_node=boot.on_node)
        for id_, boot in run.instances.items()
    }


def _phase_of(meter: Meter, run: Run) -> Phase:
    ours, others = meter.shares(os.cpu_count() or 1)
    return Phase(
        count=meter.count,
        seconds=run.seconds,
        per_s=meter.count / run.seconds,
        latency_ms=latency_of(run.latencies_s),
        cpu_us_each=meter.us_each(),
        generator_us_each=meter.generator_us(),
        share_of_machine=ours,
        share_of_others=others,
        over_time=intervals_of(meter.samples, run.ends, run.began_s),
    )
