"""Creates the parts of a compute of given drivers, finds a driver by its name, and runs a compute of its hosts."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import datetime
from functools import partial
from importlib.metadata import entry_points

from bus.addresses import broker_at
from bus.settings import BusSettings
from bus.workers.connections import Station, process_name
from bus.workers.consuming import Subscription
from bus.workers.running import about, run_worker
from bus.workers.set_aside import FailedRows
from bus.workers.worker import Worker
from compute_sim.drivers import Driver, Reported
from compute_sim.guests import books_handlers, console_handlers
from compute_sim.handlers import (
    ComputeStore,
    Elapsed,
    Finisher,
    Fleet,
    handlers,
    watch_hosts,
)
from compute_sim.reporting import AttemptLister, FleetAnnouncer, TreeReporter
from compute_sim.settings import USUAL_PACE, ComputePace, ComputeSettings
from engine.inventories import CellName
from kit.clock import microseconds, now
from kit.errors import Unavailable
from kit.parts import Once, Supervised
from kit.process import Part

# A kind of hypervisor is an entry point of this group: a function that reads variables (MOOR_*) and returns `OpensHosts`.
DRIVERS = "moorage.drivers"
# Opens the hosts of a cell, given the compute's station and settings, and yields the parts of their compute. What it waits for meanwhile
# it tells to `waits`.
OpensHosts = Callable[..., AbstractAsyncContextManager[Sequence[Part]]]


def driver_named(name: str, environment: Mapping[str, str]) -> OpensHosts:
    """The driver of this name, with its settings in the environment. Raises ValueError for one that is wrong or unknown."""
    found = {each.name: each for each in entry_points(group=DRIVERS)}
    if name not in found:
        raise ValueError(f"the driver is {name!r}, must be one of {', '.join(sorted(found))}")
    opens: OpensHosts = found[name].load()(environment)
    return opens


async def run(
    bus_url: str,
    settings: ComputeSettings,
    opens: OpensHosts,
    *,
    bus: BusSettings | None = None,
    health_at: str = "",
) -> None:
    """Run a compute process of the hosts that a driver opens."""
    station = Station(broker_at(bus_url), process_name(f"compute-{settings.cell}"), asks=True, settings=bus)
    parts: list[Part] = []
    async with AsyncExitStack() as opened:
        opened.push_async_callback(station.close)

        async def open_hosts() -> None:
            parts.extend(
                await opened.enter_async_context(opens(station, settings, waits=opening.status.failed))
            )

        opening = Once("open the hosts", open_hosts)
        await run_worker(
            about("compute", cell=settings.cell, brokers=(bus_url,)),
            parts,
            station.settings.drain_ms_max / 1000,
            first=(_only_compute(station, settings.cell), opening),
            stations=(station,),
            tells_by=station,
            health_at=health_at,
        )


def _only_compute(station: Station, cell: CellName) -> Once:
    """Must succeed before a compute begins: no other process takes the orders to the hosts of its cell. When a process is killed, its
    broker notices at once.
    """
    queue = f"compute.{cell}.work"

    async def look() -> None:
        async with station.consuming.opened() as connection:
            if await connection.consumers(queue):
                raise Unavailable(
                    f"another process takes {queue}: one compute has all hosts of cell {cell!r}, so this one begins when the other ends"
                )

    return Once("be the only compute of the cell", look)


def compute_parts(
    station: Station,
    drivers: Sequence[Driver],
    settings: ComputeSettings,
    clock: Callable[[], datetime] = now,
    *,
    store: ComputeStore | None = None,
    pools: Sequence[Reported] = (),
    pace: ComputePace | None = None,
) -> tuple[Part, ...]:
    """All parts of a compute that controls hosts by these drivers. The station must be able to ask; it is one of the parts,
    and its creator closes it. Only one process may control the hosts of a cell, since it has their instances in memory.
    The drivers' clock is that of the store; by default it begins with the process, and the instances end with it. `pools` are
    reported beside the hosts.
    """
    store, pace = store or ComputeStore(Elapsed()), pace or USUAL_PACE
    fleet = Fleet(drivers, store.clock_s, pools)

    def next_sequence() -> int:
        return microseconds(clock())

    chance = station.chance

    announcer = FleetAnnouncer(
        fleet,
        store,
        station.publisher,
        settings,
        next_sequence,
        returned=lambda hosts: reporter.report_whole(hosts),  # noqa: PLW0108 - it is made below
        # A host that schedulers have not heard for `host_down_s` may be deleted; its heartbeats came some time after they left.
        gone_after_s=station.settings.host_down_s / 2,
        pace=pace,
        chance=chance,
    )
    reporter = TreeReporter(
        fleet, station, settings, next_sequence, announcer.touch, pace=pace, chance=chance
    )
    lister = AttemptLister(fleet, store, station.publisher, settings, chance=chance)
    failed = FailedRows(station, f"compute.{settings.cell}.work")
    watching = partial(watch_hosts, fleet, (reporter.touch, announcer.touch, lister.touch))
    return (
        Worker(
            station,
            Subscription(
                f"compute.{settings.cell}.work",
                {**handlers(fleet, settings.builds_at_once_max), **failed.handlers},
                store,
            ),
        ),
        Worker(
            station,
            Subscription(
                f"compute.{settings.cell}.questions",
                {**books_handlers(fleet, store), **console_handlers(fleet, store, clock)},
                store,
            ),
        ),
        Finisher(
            fleet, store, station.publisher, settings.builds_at_once_max, failed, pace=pace, chance=chance
        ),
        announcer,
        lister,
        Supervised("watch the hosts", watching, chance=chance),
        reporter,
        station,
    )
