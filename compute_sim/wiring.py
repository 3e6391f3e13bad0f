"""The parts of a compute simulator, put together; __main__.py runs them alone, `moor` beside others."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from bus.process import Part
from bus.station import Station
from compute_sim.announcing import Announcer
from compute_sim.background import Background
from compute_sim.core.faults import FaultScript
from compute_sim.core.hosts import Host
from compute_sim.finishing import Finisher
from compute_sim.fleet import Elapsed, Fleet
from compute_sim.handlers import handlers
from compute_sim.playing import Player
from compute_sim.reporting import TreeReporter
from compute_sim.settings import ComputeSettings
from compute_sim.store_memory import MemoryComputeStore


def now() -> datetime:
    return datetime.now(UTC)


def compute_parts(
    station: Station,
    hosts: Sequence[Host],
    settings: ComputeSettings,
    faults: FaultScript | None = None,
    clock: Callable[[], datetime] = now,
) -> tuple[Part, ...]:
    """All that pretends to be these hosts. The station must be one that asks; it is among the parts, and closed by who
    made it. Only one process may pretend the hosts of a cell: it has their instances in its memory.
    """
    clock_s = Elapsed()
    fleet = Fleet(hosts, faults or FaultScript(), clock_s)
    store = MemoryComputeStore(clock_s)
    reporter = TreeReporter(fleet, station, settings, lambda: int(clock().timestamp() * 1e6))
    announcer = Announcer(fleet, store, station.publisher, settings)
    return (
        station.worker(f"compute.{settings.cell}.work", handlers(fleet), store),
        Finisher(fleet, store, station.publisher, settings),
        Background(announcer.announce),
        Background(announcer.beat),
        Background(Player(fleet, (reporter.touch, announcer.touch)).run),
        Background(reporter.run),
        station,
    )
