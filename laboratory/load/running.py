"""Runs a load run: starts the workers, waits for the hosts, fires and measures the orders, and audits the result."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from msgspec import Struct
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bus.topology import QueueKind, objects_of
from compute_sim.core.hosts import read_pools
from engine.flavors import InstanceId
from engine.inventories import ProviderId, ProviderState
from ironic_sync.store_sql import IronicStore
from kit.errors import Failure
from kit.process import during
from laboratory.at_rest import Asked, found_instances, is_in_use, problems_left
from laboratory.computes.faults import FailsToBuild, FailsToReceive, FaultScript
from laboratory.computes.hosts import equal_hosts
from laboratory.ironic import IronicScript
from laboratory.ironic.script import WorkFails
from laboratory.load.firing import Arrivals, Firing, Run, Sender, due_times_s, independent_publishers
from laboratory.load.measuring import Clocks, Meter, clocks_of, steps_of
from laboratory.load.orders import (
    AFTERWARDS,
    BUILDING,
    ChangeRun,
    Mix,
    OrderRun,
    claims_of,
    figures_of,
    flavor_with,
    groups_for,
    heard_of_nodes,
    mix_of,
    names_for,
)
from laboratory.load.results import LATE_MS_MAX, Audited, LoadResult, latency_of
from moor.client.bus_client import hearing
from moor.clouds.cloud import BareMetalPlan, CloudPlan, cells_of_groups
from moor.clouds.temporary_cloud import Servers, TemporaryCloud, temporary_cloud
from moor.options import err
from moor.showing import amounts_of, shortened

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
    """The cloud and the size of a load run. `failing` is the share of spawns and of arrivals that fail, or of deploys.

    With a `mix`, `boots` is how many instances its orders make. With a `rate`, so many orders are due a second, whatever is
    under way. With `publishers`, so many independent ones send them. The `changes` of the states of nodes come first.
    """

    cloud: CloudPlan
    boots: int
    moves: int
    mix: Mix
    changes: int
    rate: float
    arrivals: Arrivals
    publishers: int
    failing: float
    in_flight: int

    @property
    def nodes(self) -> int:
        return self.cloud.metal.nodes if self.cloud.metal else 0

    @property
    def orders(self) -> Sequence[str]:
        """The names of the orders that are measured first."""
        return names_for(self.mix, self.boots) if self.mix else ["boot"] * self.boots

    def due_s(self, count: int) -> Sequence[float]:
        """When so many orders are due; empty without a rate."""
        return due_times_s(self.arrivals, self.rate, count) if self.rate else ()


def cloud_for_load(
    cells: Mapping[str, int], failing: float, *, nodes: int, daemons: int, **others: Any
) -> CloudPlan:
    """A cloud of these hosts and nodes, of which a share fails; `others` are fields of the plan."""
    faults = (FailsToBuild(probability=failing), FailsToReceive(probability=failing)) if failing else ()
    deploys_fail = (WorkFails(work="deploy", probability=failing),) if failing else ()
    metal = BareMetalPlan(
        nodes=nodes,
        daemons=daemons,
        cells=cells_of_groups(cells),
        pace=PACE,
        script=IronicScript(seed=1, faults=deploys_fail),
    )
    return CloudPlan(
        cells=cells,
        metal=metal if nodes else None,
        faults=FaultScript(seed=1, spawn_ms=SPAWN_MS, faults=faults),
        **others,
    )


async def run_load(plan: Plan, servers: Servers | None) -> LoadResult:
    if plan.nodes and servers is not None:
        await _refuse_existing_nodes(servers.database_url)
    async with temporary_cloud(plan.cloud, servers, role="load") as cloud, _sender(plan, cloud) as sender:
        load = _Load(plan, servers, cloud, sender)
        return await cloud.during(load.measured())


async def _refuse_existing_nodes(database_url: str) -> None:
    store = IronicStore(database_url)
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
        meters = [Meter(self._clocks, each) for each in (plan.changes, len(names), len(mix_of(plan.moves)))]
        of_changes, meter, of_moves = meters
        clock_to_time_s = time.time() - time.perf_counter()
        pools = [
            pool for cell in plan.cloud.cells for pool in read_pools(plan.cloud.settings.compute.pools, cell)
        ]
        flavor = flavor_with(pool.resource for pool in pools)
        providers = await self._until_ready(*(pool.name for pool in pools))
        if is_in_use(providers):
            raise ServersInUse(f"some inventory is already in use: {OWN_SERVERS}")
        groups = await groups_for(cloud.client, plan.mix, names)
        # A rate on bare metal is that of the changes.
        due_s = () if plan.changes else plan.due_s(len(names))
        boots = OrderRun(names, flavor, mix=plan.mix or AFTERWARDS, groups=groups, due_s=due_s)

        async def fire(firing: Firing) -> tuple[ChangeRun | None, OrderRun | None]:
            changes = await self._change(firing, of_changes, providers) if plan.changes else None
            await self._fire(firing, boots, meter, "orders" if plan.mix else "boots")
            if not plan.moves:
                return changes, None
            mixed = OrderRun(mix_of(plan.moves), flavor, boots.instances)
            await self._fire(firing, mixed, of_moves, "moves, boots and deletes")
            return changes, mixed

        async with hearing(cloud.client, *ENDS, *(("providers.changed",) if plan.changes else ())) as feed:
            firing = Firing(self._sender, feed)
            changes, mixed = await during(fire(firing), firing.listen())
        problems = await problems_left(cloud, _asked(mixed or boots))
        found = await found_instances(cloud.client, list(boots.instances))
        count = sum(plan.mix[name].instances for name in names) if plan.mix else plan.boots
        claims, conflicts = claims_of(row for page in found for row in page.instances)
        tenths = meter.parts_us(count)
        last, of_last = (boots, meter) if plan.mix else (mixed, of_moves)
        built = [each.built for each in boots.instances.values() if each.built is not None]
        active = [each for each in built if each.state == "active"]
        late_ms = latency_of((changes or boots).late_s) if plan.rate else None
        building = [each for each in boots.orders if not plan.mix or plan.mix[each.kind].kind in BUILDING]
        return LoadResult(
            boots=meter.phase(boots, count, building),
            mode="real" if self._servers else "embedded",
            cells=len(plan.cloud.cells),
            hosts=sum(plan.cloud.cells.values()),
            nodes=plan.nodes,
            failing=plan.failing,
            workers={**plan.cloud.workers, **({"ironic": len(cloud.daemons)} if plan.nodes else {})}
            if self._servers
            else {},
            active=len(active),
            in_error=len(built) - len(active),
            by_alternate=sum(bool(each.failures) for each in active),
            processors=os.cpu_count() or 1,
            notes=self._clocks.notes,
            audit=Audited(passed=not problems, problems=tuple(shortened(problems))),
            rate=plan.rate,
            arrivals=plan.arrivals if plan.rate else "",
            late_ms=late_ms,
            is_late=late_ms is not None and late_ms.p99 > LATE_MS_MAX,
            claims=claims,
            conflicts=conflicts,
            cpu_us_per_boot_by_tenth=tenths,
            flatness=tenths[-1] / tenths[1] if len(tenths) > 1 else 1.0,
            changes=of_changes.phase(changes) if changes else None,
            orders=of_last.phase(last) if last else None,
            kinds=figures_of(last.orders, last.seconds) if last else {},
            mix={name: entry.weight for name, entry in plan.mix.items()},
            publishers=plan.publishers,
            steps_ms=steps_of(
                boots.instances.values(),
                {each.id: each for page in found for each in page.details},
                clock_to_time_s,
            ),
            memory_mb=meter.memory_mb,
        )

    async def _change(self, firing: Firing, meter: Meter, providers: Sequence[ProviderState]) -> ChangeRun:
        """Change the states of nodes, and leave all of them free."""
        plan, ironic = self._plan, self._cloud.simulated.ironic
        nodes = sorted(ProviderId(UUID(uuid)) for uuid in ironic.nodes)
        known = dict.fromkeys(nodes, (-1, False))
        heard_of_nodes(known, providers)
        changes = ChangeRun(ironic, nodes, known, plan.changes, plan.due_s(plan.changes))
        await self._fire(firing, changes, meter, "state changes", min(plan.in_flight, plan.nodes))
        # Nodes with an odd number of changes are still in maintenance.
        left = [node for node, (_, is_reserved) in known.items() if is_reserved]
        await firing.fire(ChangeRun(ironic, left, known, len(left)), plan.nodes)
        return changes

    async def _fire(self, firing: Firing, run: Run, meter: Meter, what: str, in_flight: int = 0) -> None:
        """Fire and measure these orders, and show the progress in a terminal.

        The measurement begins and ends when all queues are empty, since work that follows a boot (rows, schedulers' pictures) is part of
        its cost.
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
            async with meter.reading():
                await firing.fire(run, in_flight or self._plan.in_flight, tell)
                await self._until_quiet()

    async def _until_ready(self, *pools: str) -> list[ProviderState]:
        """Wait until schedulers can choose all hosts and nodes, and return placement's providers.

        Raise ServersInUse if there are other providers than those of these hosts and `pools`. By then placement has the pools,
        since computes report them before the hosts.
        """
        simulation = self._cloud.simulation
        providers = await self._cloud.until_ready()
        hosts = (host.name for each in self._plan.cloud.cells.items() for host in equal_hosts(*each))
        names = {*hosts, *(simulation.ironic.nodes if simulation else ()), *pools}
        own = {provider.id for provider in providers if provider.name in names}
        if others := sorted(provider.name for provider in providers if provider.root not in own):
            raise ServersInUse(
                f"placement has {len(others)} providers that do not belong to this run, for example {others[0]}: {OWN_SERVERS}"
            )
        return providers

    async def _until_quiet(self) -> None:
        """Wait until all queues of orders and questions have been empty in several polls in a row."""
        work = [
            queue.name
            for queue in objects_of(tuple(self._plan.cloud.cells)).queues
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
