"""Builds the real parts of each simulated process, over the faulty broker and stores."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import EntryPoint
from uuid import UUID

from msgspec import structs

from bus.broker import Broker
from bus.settings import BusSettings
from bus.workers.connections import Station
from bus.workers.sending import Link
from cell_conductor.settings import ConductorPace, ConductorSettings
from cell_conductor.store_sql import ConductorStore
from cell_conductor.wiring import conductor_parts
from compute_sim.core.hosts import pools_of, read_pools
from compute_sim.settings import ComputePace, ComputeSettings
from compute_sim.wiring import compute_parts
from engine.inventories import ConsumerId
from engine.picture.picture import Picture
from ironic_sync.core.offers import CellMap
from ironic_sync.membership import Membership
from ironic_sync.settings import DaemonRules
from ironic_sync.store_sql import IronicStore
from ironic_sync.wiring import ironic_parts
from keeper.settings import KeeperPace, KeeperSettings
from keeper.store_sql import KeeperStore
from keeper.wiring import keeper_parts
from kit.parts import Pauses
from kit.process import Part, run_until
from laboratory.computes.driver import SimulatedPool
from placement_worker.settings import FeedPace, PlacementSettings
from placement_worker.store_sql import PlacementStore
from placement_worker.wiring import placement_parts
from scheduler_worker import settings as third_party
from scheduler_worker.settings import SchedulerPace, SchedulerSettings
from scheduler_worker.store_sql import SchedulerStore
from scheduler_worker.wiring import scheduler_parts
from tests.planted.replacing import replaced
from tests.simulation.faulty_database import FaultyDatabase, KeeperDatabase
from tests.simulation.ironic import FaultyIronicApi, IronicWorld
from tests.simulation.keeping import DrawnHooks
from tests.simulation.nodes_checker import NodesChecker
from tests.simulation.plan import CELLS, GROUPS_OF_NODES, Plan
from tests.simulation.process import EPOCH, SimProcess
from tests.simulation.stored_books import InspectableStore
from tests.simulation.watched_driver import WatchedComputeStore, WatchedDriver
from tests.sqlite_memory import Tables
from tests.stores_in_memory import MemoryIronicStore
from tests.varied import varied

# Short timeouts, but no busy polling: a seed simulates two minutes.
BUS = varied(
    BusSettings(),
    SWEEP_S=4.0,
    RETRY_DELAY_MS_MAX=2_000,
    ask_again_ms=600,
    answer_timeout_ms=4_000,
    CONNECT_DELAY_MS_MAX=500,
    NEWER_DELAY_MS=100,
    host_down_s=14.0,
)
PLACEMENT = PlacementSettings(
    horizon_s=16,
    log_kept_s=60,
)
FEED_PACE = FeedPace(poll_s=1.0, rest_s_max=0.04, lead_again_s=1.0, entries_max=5)
SCHEDULER_PACE = SchedulerPace(
    hosts_poll_s=3.0,
    deadline_poll_s=2.0,
    unconfirmed_s=2.0,
    snapshot_page=5,
    verify_every_s=30.0,
    # What waits for longer than placement's horizon is claimed as of so long ago.
    host_row_wait_s=8.0,
    wake_lease_s=4.0,
)
# Longer than the time between the heartbeats of conductors, which are seldom.
SCHEDULER = SchedulerSettings(cell_down_s=1_200.0)
CONDUCTOR = ConductorSettings(
    attempt_timeout_s=5.0,
    destroy_timeout_s=5.0,
    # Longer than a daemon takes to give up a step that has no effect.
    deploy_timeout_s=25.0,
    undeploy_timeout_s=6.0,
    kept_after_end_s=25.0,
)
# Heartbeats seldom: other seeds stay as they were drawn before there were heartbeats of conductors.
PACE = ConductorPace(remind_every_s=5.0, retry_delay_s_max=4.0, poll_s=1.5, beat_s=600.0)
BEAT_S, FACTS_S = 3.0, 1.0
# A lease ends while schedulers are away, while its keeper stands still, and while it hears nothing.
KEEPER_PACE = KeeperPace(
    round_s=0.6, idle_s=1.0, lease_s=2.0, list_s=3.0, rest_s=1.0, spread_s=1.5, room_s=9, claimed_s=9
)
IRONIC = DaemonRules(
    lease_s=4.0,
    look_s=0.4,
    balance_s=6.0,
    page=10,
    sweep_s=8.0,
    doubts_s=1.0,
    changes_s=3.0,
    report_again_s=2.0,
    deploy_read_s=1.0,
    progress_s=2.0,
    deploy_pauses=Pauses(0.3, 2.0),
    beat_s=2.0,
)


@contextmanager
def installed_plugins() -> Iterator[None]:
    """The package with the example of a filter and a weigher is installed: its entry points are found."""
    example = "tests.example_plugin.rack_power"
    filters = (EntryPoint("rack_power", f"{example}:EnoughPower", third_party.FILTERS_GROUP),)
    weighers = (EntryPoint("rack_power", f"{example}:SparePower", third_party.WEIGHERS_GROUP),)

    by_group = {third_party.FILTERS_GROUP: filters, third_party.WEIGHERS_GROUP: weighers}
    with replaced(third_party, "entry_points", lambda _real: lambda group: by_group[group]):
        yield


def station_name(process: SimProcess) -> str:
    """The name of a process on the bus, which its queues have."""
    return process.full_name.replace(".", "-")


class Rows:
    """The rows of all simulated databases: they outlive every process."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.books = InspectableStore()
        self.requests = Tables("scheduler_worker")
        self.cells = {cell: Tables("cell_conductor") for cell in CELLS}
        self.keeping = Tables("keeper")
        self.nodes = MemoryIronicStore(lambda: EPOCH + timedelta(seconds=loop.time()))


class Workers:
    """Builds the parts of a process by its name."""

    def __init__(
        self,
        plan: Plan,
        rows: Rows,
        nodes: NodesChecker,
        ironic: IronicWorld | None,
    ) -> None:
        self._plan = plan
        self._nodes = nodes
        self._ironic = ironic
        self._rows = rows
        # The picture of each scheduler's latest incarnation; compared with the books at the end.
        self.pictures: dict[str, Picture] = {}

    async def run(self, process: SimProcess, broker: Broker) -> None:
        await run_until(process.told_to_stop, self._parts(process, broker), drain_s_max=10)

    def _parts(self, process: SimProcess, broker: Broker) -> tuple[Part, ...]:
        station = Station(
            broker,
            station_name(process),
            settings=BUS,
            asks=True,
            clock=process.clock,
            chance=process.chance,
        )
        role, _, rest = process.name.partition("-")
        cell = rest.partition("-")[0]
        match role:
            case "placement":
                store = PlacementStore(FaultyDatabase(self._rows.books.tables, process))
                return placement_parts(
                    (station,), store, PLACEMENT, process.clock, pace=FEED_PACE, prune_every_s=3.0
                )
            case "scheduler":
                rows = SchedulerStore(FaultyDatabase(self._rows.requests, process))
                picture = self.pictures[process.name] = Picture()
                settings = structs.replace(
                    SCHEDULER,
                    instances_per_host_max=self._plan.instances_max,
                    image_cache_weight_multiplier=float(any(boot.image for boot in self._plan.boots)),
                    **self._plan.settings,
                )
                return scheduler_parts(
                    station,
                    rows,
                    settings,
                    process.clock,
                    process.chance,
                    picture=picture,
                    pace=SCHEDULER_PACE,
                )
            case "conductor":
                own = ConductorStore(
                    FaultyDatabase(self._rows.cells[cell], process), cell, clock=process.clock
                )
                parts = conductor_parts(
                    station,
                    own,
                    structs.replace(CONDUCTOR, **self._plan.conducting),
                    cell,
                    station.ask_all,
                    clock=process.clock,
                    draw=lambda: ConsumerId(UUID(int=process.chance.getrandbits(128), version=4)),
                    pace=structs.replace(PACE, **self._plan.pace),
                )
                return (*parts, station)
            case "compute":
                pools = read_pools(self._plan.pools, cell)
                return compute_parts(
                    station,
                    [
                        WatchedDriver(
                            host,
                            self._plan.script,
                            pools_of(pools, host.name),
                            process.cloud,
                        )
                        for host in self._plan.hosts[cell]
                    ],
                    ComputeSettings(
                        cell=cell,
                        beat_s=BEAT_S,
                        facts_every_s=FACTS_S,
                        pools=self._plan.pools,
                        builds_at_once_max=self._plan.builds_at_once_max,
                    ),
                    process.clock,
                    pools=[*map(SimulatedPool, pools)],
                    pace=ComputePace(over_kept_s=600),
                    store=WatchedComputeStore(process),
                )
            case "keeper":
                ledger = KeeperStore(KeeperDatabase(self._rows.keeping, process))
                id_ = UUID(int=process.chance.getrandbits(128))
                return keeper_parts(
                    *(station, ledger, KeeperSettings()),
                    clock=process.clock,
                    id_=id_,
                    pace=KEEPER_PACE,
                    hooks=DrawnHooks(self._plan.fences),
                )
            case "ironic":
                return self._parts_of_daemon(process, broker, station)
            case _:
                raise ValueError(f"no worker is called {process.name!r}")

    def _parts_of_daemon(self, process: SimProcess, broker: Broker, station: Station) -> tuple[Part, ...]:
        assert self._ironic is not None, "a plan with daemons has nodes"
        loop = asyncio.get_running_loop()
        parts = ironic_parts(
            station,
            Link(broker, BUS, chance=process.chance),
            IronicStore(FaultyDatabase(self._rows.nodes.tables, process)),
            structs.replace(IRONIC, **self._plan.syncing),
            name=process.name,
            incarnation=process.full_name,
            cells=CellMap(groups=GROUPS_OF_NODES),
            api=FaultyIronicApi(self._ironic, process, self._plan.instance_ids),
            clock_us=lambda: int(process.clock().timestamp() * 1e6),
            clock_s=loop.time,
        )
        self._nodes.memberships[process] = next(each for each in parts if isinstance(each, Membership))
        return parts
