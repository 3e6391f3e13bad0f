"""Creates the parts of a compute of given drivers; laboratory/driver.py gives it those of simulated hosts."""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from bus.workers.station import Station
from compute_sim.drivers import Driver, Reported
from compute_sim.fleet import Elapsed, Fleet, watch_hosts
from compute_sim.handlers import Finisher, GuestWatch, books_handlers, console_handlers, handlers
from compute_sim.reporting import AttemptLister, FleetAnnouncer, TreeReporter
from compute_sim.settings import ComputeSettings
from compute_sim.store import ComputeStore, MemoryComputeStore
from engine.inventories import CellName
from kit.errors import Unavailable
from kit.parts import Once, Supervised
from kit.process import Part
from kit.times import microseconds, now


def only_compute(station: Station, cell: CellName) -> Once:
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
    clock_s: Callable[[], float] | None = None,
    store: ComputeStore | None = None,
    pools: Sequence[Reported] = (),
) -> tuple[Part, ...]:
    """All parts of a compute that controls hosts by these drivers. The station must be able to ask; it is one of the parts,
    and its creator closes it. Only one process may control the hosts of a cell, since it has their instances in memory.
    `clock_s` is the drivers' clock; by default it begins with the process. `pools` are reported beside the hosts.
    """
    clock_s = clock_s or Elapsed()
    fleet = Fleet(drivers, clock_s, pools)
    store = store or MemoryComputeStore(clock_s)

    def next_sequence() -> int:
        return microseconds(clock())

    chance = station.chance
    announcer = FleetAnnouncer(fleet, store, station.publisher, settings, next_sequence, chance=chance)
    reporter = TreeReporter(fleet, station, settings, next_sequence, announcer.touch, chance=chance)
    lister = AttemptLister(fleet, store, station.publisher, settings, chance=chance)
    watching = partial(watch_hosts, fleet, (reporter.touch, announcer.touch, lister.touch))
    return (
        station.worker(f"compute.{settings.cell}.work", handlers(fleet, settings.builds_at_once_max), store),
        station.worker(
            f"compute.{settings.cell}.questions",
            {**books_handlers(fleet, store), **console_handlers(fleet, store, clock)},
            store,
        ),
        Finisher(fleet, store, station.publisher, settings, chance),
        announcer,
        lister,
        GuestWatch(fleet, store, settings, chance),
        Supervised("watch the hosts", watching, chance=chance),
        reporter,
        station,
    )
