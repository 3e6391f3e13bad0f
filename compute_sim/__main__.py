"""`python -m compute_sim`: the simulated hosts of a cell, on the broker that the environment names."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import structs

from bus.addresses import addresses_for_main, broker_at
from bus.settings import BUS, BusSettings
from bus.workers.running import about, run_main, run_worker, with_flags
from bus.workers.station import Station, process_name
from compute_sim.settings import COMPUTE, ComputeSettings
from compute_sim.wiring import only_compute
from kit.health import HEALTH_VARIABLE
from kit.process import exiting_if_wrong
from laboratory.computes.driver import simulated_parts
from laboratory.computes.faults import FaultScript
from laboratory.computes.hosts import SimulatedHost, equal_hosts, read_host_size
from laboratory.computes.script_file import load_script

HOSTS_COUNT = 100


async def run(
    bus_url: str,
    hosts: Sequence[SimulatedHost],
    settings: ComputeSettings,
    faults: FaultScript,
    *,
    bus: BusSettings | None = None,
    health_at: str = "",
) -> None:
    station = Station(broker_at(bus_url), process_name(f"compute-{settings.cell}"), asks=True, settings=bus)
    try:
        await run_worker(
            about("compute", cell=settings.cell, brokers=(bus_url,)),
            simulated_parts(station, hosts, settings, faults),
            station.settings.drain_ms_max / 1000,
            first=(only_compute(station, settings.cell),),
            tells_by=station,
            health_at=health_at,
        )
    finally:
        await station.close()


def main(environment: Mapping[str, str] = os.environ, arguments: Sequence[str] = ()) -> None:
    """Run the simulated hosts of one cell, with the settings in the environment.

    MOOR_BUS_URL and MOOR_CELL must be set. If MOOR_CELL_BUS_URLS names this cell, the simulator uses that broker
    instead. MOOR_COMPUTE_HOSTS is the number of hosts, MOOR_COMPUTE_HOST_SIZE what differs from their usual size
    (laboratory/hosts.py), MOOR_COMPUTE_FAULTS the path of a fault script. The other
    MOOR_COMPUTE_* and MOOR_BUS_* variables are the settings.
    """
    environment = with_flags(environment, arguments, "compute_sim")
    addresses = addresses_for_main(environment, "MOOR_BUS_URL", "MOOR_CELL")
    cell, script = environment["MOOR_CELL"], environment.get("MOOR_COMPUTE_FAULTS")
    with exiting_if_wrong():
        count = environment.get("MOOR_COMPUTE_HOSTS", str(HOSTS_COUNT))
        if not count.isdecimal():
            raise ValueError(f"MOOR_COMPUTE_HOSTS is {count!r}, must be a whole number, 0 or more")
        settings, bus = COMPUTE.read(environment), BUS.read(environment)
        settings = structs.replace(settings, cell=cell)
        size = read_host_size(environment.get("MOOR_COMPUTE_HOST_SIZE", ""))
        faults = load_script(Path(script), FaultScript) if script else FaultScript()
    health_at = environment.get(HEALTH_VARIABLE, "")
    run_main(
        run(
            addresses.bus_of(cell),
            equal_hosts(cell, int(count), size),
            settings,
            faults,
            bus=bus,
            health_at=health_at,
        )
    )


if __name__ == "__main__":
    main(arguments=sys.argv[1:])
