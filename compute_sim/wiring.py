"""Creates the parts of a compute simulator. __main__.py runs them alone, `moor` beside other workers."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from bus.parts import Supervised
from bus.process import Part
from bus.station import Station
from compute_sim.announcing import Announcer
from compute_sim.core.faults import FaultScript
from compute_sim.core.hosts import Host
from compute_sim.fault_player import FaultPlayer
from compute_sim.finishing import Finisher
from compute_sim.fleet import Elapsed, Fleet
from compute_sim.handlers import handlers
from compute_sim.reporting import TreeReporter
from compute_sim.settings import ComputeSettings
from compute_sim.store import ComputeStore
from compute_sim.store_memory import MemoryComputeStore


def now() -> datetime:
    return datetime.now(UTC)


def compute_parts(
    station: Station,
    hosts: Sequence[Host],
    settings: ComputeSettings,
    faults: FaultScript | None = None,
    clock: Callable[[], datetime] = now,
    *,
    clock_s: Callable[[], float] | None = None,
    store: ComputeStore | None = None,
) -> tuple[Part, ...]:
    """All parts that simulate these hosts. The station must be able to ask; it is one of the parts, and its creator
    closes it. Only one process may simulate the hosts of a cell, since it has their instances in memory. `clock_s` is
    the clock of the fault script; by default it begins with the process.
    """
    clock_s = clock_s or Elapsed()
    fleet = Fleet(hosts, faults or FaultScript(), clock_s)
    store = store or MemoryComputeStore(clock_s)

    def next_sequence() -> int:
        return int(clock().timestamp() * 1e6)

    chance = station.chance
    reporter = TreeReporter(fleet, station, settings, next_sequence, chance)
    announcer = Announcer(fleet, store, station.publisher, settings, next_sequence, chance=chance)
    return (
        station.worker(f"compute.{settings.cell}.work", handlers(fleet), store),
        Finisher(fleet, store, station.publisher, settings, chance),
        announcer,
        Supervised(
            "play the fault script", FaultPlayer(fleet, (reporter.touch, announcer.touch)).run, chance=chance
        ),
        reporter,
        station,
    )
