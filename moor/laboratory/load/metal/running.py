"""Runs a bare-metal load run: starts the workers, waits for the nodes, fires and measures, and audits the result."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from msgspec import Struct

from bus.auditing.at_rest import Asked
from bus.message import ProviderId
from moor.asking import during, hearing, providers_of
from moor.clouds.bare_metal import BareMetalPlan
from moor.clouds.cloud_processes import Servers
from moor.laboratory.at_rest import problems_left
from moor.laboratory.load.clocks import clocks_of
from moor.laboratory.load.firing import Firing, Run
from moor.laboratory.load.measuring import Meter
from moor.laboratory.load.metal.firing import FLAVOR, ChangeRun, DeployRun
from moor.laboratory.load.metal.nodes import DEFAULTS, bare_metal_of
from moor.laboratory.load.metal.results import MetalLoadResult
from moor.laboratory.load.metal.watching import NodeStocks
from moor.laboratory.load.orders import amounts_of
from moor.laboratory.load.own_servers import refuse_existing_nodes
from moor.laboratory.load.results import Phase, latency_of, lateness_of
from moor.laboratory.load.running import (
    measuring,
    phase_of,
    summary_of,
    until_ready,
)
from moor.laboratory.load.sampling import EndedOrder, Sampler, intervals_of
from moor.laboratory.load.schedule import Arrivals, due_times_s
from moor.laboratory.load.senders import OwnSender
from moor.laboratory.temporary_cloud import CloudPlan, TemporaryCloud, cell_names, temporary_cloud
from moor.worker_settings import CloudSettings
from scheduler_worker.core.instances.rows import instance_id_of

HOSTS_PER_CELL = 1
KEYS = ("instance.active.#", "instance.error.#", "instance.deleted.#", "build.rejected", "providers.changed")


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
    arrivals: Arrivals = "even"
    counts: Mapping[str, int]
    settings: CloudSettings = DEFAULTS

    @property
    def metal(self) -> BareMetalPlan:
        return bare_metal_of(self.nodes, self.daemons, cell_names(self.cells), self.failing)

    @property
    def cloud(self) -> CloudPlan:
        return CloudPlan(
            role="load",
            cells=dict.fromkeys(cell_names(self.cells), HOSTS_PER_CELL),
            counts=self.counts,
            settings=self.settings,
            metal=self.metal,
        )


class PartInstruments(NamedTuple):
    """What measures one part of the run."""

    meter: Meter
    sampler: Sampler

    def phase(self, run: Run, ended: Sequence[EndedOrder]) -> Phase:
        return phase_of(self.meter, run, intervals_of(self.sampler.samples, ended, run.began_s))


async def run_load(plan: MetalPlan, servers: Servers | None) -> MetalLoadResult:
    if servers is not None:
        await refuse_existing_nodes(servers.database_url)
    async with temporary_cloud(plan.cloud, servers) as cloud:
        clocks = clocks_of(cloud.workers, servers)
        of_changes = PartInstruments(Meter(clocks.processes, plan.changes, clocks.generator), Sampler(clocks))
        of_deploys = PartInstruments(Meter(clocks.processes, plan.deploys, clocks.generator), Sampler(clocks))
        changes, deploys = await cloud.during(_fired(plan, cloud, of_changes, of_deploys))
        amounts = amounts_of(FLAVOR)
        asked = {
            instance_id_of(request, 0): Asked("deleted" if deploy.state else "", amounts, on_node=True)
            for request, deploy in deploys.boots.items()
        }
        problems = await cloud.during(problems_left(cloud, asked))
    return MetalLoadResult(
        **summary_of(deploys.states, problems, clocks, servers, {**plan.counts, "ironic": plan.daemons}),
        nodes=plan.nodes,
        daemons=plan.daemons,
        cells=plan.cells,
        failing=plan.failing,
        rate=plan.rate,
        arrivals=plan.arrivals if plan.rate else "",
        **(lateness_of(changes.late_s) if plan.rate else {}),
        changes=of_changes.phase(changes, changes.changed),
        deploys=of_deploys.phase(deploys, deploys.booted),
        free_again_ms=latency_of(deploys.free_again_s),
    )


async def _fired(
    plan: MetalPlan, cloud: TemporaryCloud, of_changes: PartInstruments, of_deploys: PartInstruments
) -> tuple[ChangeRun, DeployRun]:
    await until_ready(cloud, plan.cloud.host_names | {*cloud.ironic.nodes})
    async with hearing(cloud.client, *KEYS) as feed:
        nodes = sorted(ProviderId(UUID(uuid)) for uuid in cloud.ironic.nodes)
        stocks = NodeStocks(nodes, await providers_of(cloud.client))
        firing = Firing(OwnSender(cloud.client.publisher), feed)

        async def fire() -> tuple[ChangeRun, DeployRun]:
            due_s = due_times_s(plan.arrivals, plan.rate, plan.changes) if plan.rate else ()
            async with measuring(
                plan.cloud, cloud, of_changes.meter, "state changes", of_changes.sampler
            ) as tell:
                changes = ChangeRun(stocks, cloud.ironic, nodes, plan.changes, due_s=due_s)
                await firing.fire(changes, min(plan.in_flight, plan.nodes), tell)
            # Nodes with an odd number of state changes are still in maintenance.
            left = [node for node in nodes if stocks.by_node[node].reserved]
            await firing.fire(ChangeRun(stocks, cloud.ironic, left, len(left)), plan.nodes, lambda _: None)
            async with measuring(plan.cloud, cloud, of_deploys.meter, "deploys", of_deploys.sampler) as tell:
                deploys = DeployRun(stocks, plan.deploys)
                # Some nodes are left as alternates.
                await firing.fire(deploys, max(1, min(plan.in_flight, plan.nodes * 2 // 3)), tell)
            return changes, deploys

        return await during(fire(), firing.listen())
