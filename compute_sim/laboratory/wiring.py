"""Creates the parts of a compute of simulated hosts. `python -m compute_sim` runs them alone, `moor` beside other workers."""

from collections.abc import Callable, Sequence
from datetime import datetime

from bus.clock import now
from bus.process import Part
from bus.workers.station import Station
from compute_sim.core.networks import read_networks
from compute_sim.core.pools import pools_of, read_pools
from compute_sim.laboratory.driver import SimulatedDriver
from compute_sim.laboratory.faults import FaultScript
from compute_sim.laboratory.hosts import SimulatedHost
from compute_sim.laboratory.pools import SimulatedPool
from compute_sim.settings import ComputeSettings
from compute_sim.store import ComputeStore
from compute_sim.wiring import compute_parts


def simulated_parts(
    station: Station,
    hosts: Sequence[SimulatedHost],
    settings: ComputeSettings,
    faults: FaultScript | None = None,
    clock: Callable[[], datetime] = now,
    *,
    clock_s: Callable[[], float] | None = None,
    store: ComputeStore | None = None,
) -> tuple[Part, ...]:
    """A compute of simulated hosts, and of the pools and networks that the settings name."""
    pools = read_pools(settings.pools, settings.cell)
    networks = read_networks(settings.networks)
    drivers = [SimulatedDriver(host, faults, pools_of(pools, host.name), networks) for host in hosts]
    return compute_parts(
        station, drivers, settings, clock, clock_s=clock_s, store=store, pools=[*map(SimulatedPool, pools)]
    )
