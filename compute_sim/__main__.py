"""`python -m compute_sim`: the compute of a cell, on the broker that the environment names."""

import os
import sys
from collections.abc import Mapping, Sequence

from msgspec import structs

from bus.addresses import addresses_for_main
from bus.settings import BUS
from bus.workers.running import run_main, with_flags
from compute_sim.settings import COMPUTE
from compute_sim.wiring import driver_named, run
from kit.health import HEALTH_VARIABLE
from kit.process import exiting_if_wrong


def main(environment: Mapping[str, str] = os.environ, arguments: Sequence[str] = ()) -> None:
    """Run the compute of one cell, with the settings in the environment.

    MOOR_BUS_URL and MOOR_CELL must be set. If MOOR_CELL_BUS_URLS names this cell, the compute uses that broker instead.
    MOOR_COMPUTE_DRIVER names the driver of its hosts, `simulated` by default, which reads variables of its own. The other
    MOOR_COMPUTE_* and MOOR_BUS_* variables are the settings.
    """
    environment = with_flags(environment, arguments, "compute_sim")
    addresses = addresses_for_main(environment, "MOOR_BUS_URL", "MOOR_CELL")
    cell = environment["MOOR_CELL"]
    with exiting_if_wrong():
        settings, bus = COMPUTE.read(environment), BUS.read(environment)
        settings = structs.replace(settings, cell=cell)
        opens = driver_named(environment.get("MOOR_COMPUTE_DRIVER", "simulated"), environment)
    run_main(
        run(addresses.bus_of(cell), settings, opens, bus=bus, health_at=environment.get(HEALTH_VARIABLE, ""))
    )


if __name__ == "__main__":
    main(arguments=sys.argv[1:])
