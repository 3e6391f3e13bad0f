"""`python -m compute_sim.laboratory.ironic`: runs a simulated Ironic alone, on the broker that the environment names."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from bus.broker import Broker
from bus.operating.health_server import VARIABLE
from bus.operating.listen_address import read_address
from bus.operating.running import about, run_main, run_worker, with_flags
from bus.process import exiting_if_wrong, make_ready
from bus.urls import broker_at
from compute_sim.laboratory.ironic.core.script import IronicScript
from compute_sim.laboratory.ironic.seeds import nodes_in_groups
from compute_sim.laboratory.ironic.settings import IronicSimSettings, WorkDurations, paced
from compute_sim.laboratory.ironic.wiring import simulated_ironic
from compute_sim.laboratory.script_file import load_script

NODES_COUNT = 100
LISTEN = "127.0.0.1:6385"
DRAIN_S_MAX = 5.0
INFINITY = float("inf")


class Options(Struct, frozen=True, kw_only=True):
    """The options set in the environment. The nodes are distributed over the conductor groups in `groups`."""

    nodes_count: int
    groups: tuple[str, ...]
    listen: tuple[str, int]
    pace: float
    script: IronicScript

    @property
    def settings(self) -> IronicSimSettings:
        usual = IronicSimSettings()
        groups = tuple(dict.fromkeys((*usual.conductor_groups, *self.groups)))
        return IronicSimSettings(delays=paced(WorkDurations(), self.pace), conductor_groups=groups)


async def run(broker: Broker, bus_url: str, options: Options, *, health_at: str) -> None:
    nodes = nodes_in_groups(options.nodes_count, options.groups)
    simulation = simulated_ironic(
        broker, nodes, options.settings, script=options.script, listen=options.listen
    )
    sys.stderr.write(f"simulated Ironic: {options.nodes_count} nodes, API at {simulation.url}\n")
    await run_worker(
        about("simulated ironic", brokers=(bus_url,)), simulation.parts, DRAIN_S_MAX, health_at=health_at
    )


def main(environment: Mapping[str, str] = os.environ, arguments: Sequence[str] = ()) -> None:
    """Run a simulated Ironic, with the settings in the environment.

    MOOR_IRONIC_BUS_URL must be set. MOOR_IRONIC_SIM_NODES is the number of nodes, MOOR_IRONIC_SIM_GROUPS their
    conductor groups, MOOR_IRONIC_SIM_LISTEN the address of the REST API. MOOR_IRONIC_SIM_PACE multiplies the duration
    of all work. MOOR_IRONIC_SIM_SCRIPT is the path of a fault script.
    """
    environment = with_flags(environment, arguments, "compute_sim.laboratory.ironic")
    with exiting_if_wrong():
        make_ready(environment, "MOOR_IRONIC_BUS_URL")
        bus_url = environment["MOOR_IRONIC_BUS_URL"]
        broker = broker_at(bus_url)
        options = _options(environment)
    run_main(run(broker, bus_url, options, health_at=environment.get(VARIABLE, "")))


def read_listen(text: str, variable: str = "MOOR_IRONIC_SIM_LISTEN") -> tuple[str, int]:
    """Parse the address of the REST API. `variable` is the setting that an error names."""
    return read_address(text, variable, f"host:port, as {LISTEN}")


def _options(environment: Mapping[str, str]) -> Options:
    named = environment.get("MOOR_IRONIC_SIM_SCRIPT")
    groups = environment.get("MOOR_IRONIC_SIM_GROUPS", "")
    return Options(
        nodes_count=int(_number(environment, "MOOR_IRONIC_SIM_NODES", NODES_COUNT)),
        groups=tuple(name for part in groups.split(",") if (name := part.strip())),
        listen=read_listen(environment.get("MOOR_IRONIC_SIM_LISTEN", LISTEN)),
        pace=_number(environment, "MOOR_IRONIC_SIM_PACE", 1.0),
        script=load_script(Path(named), IronicScript) if named else IronicScript(),
    )


def _number(environment: Mapping[str, str], variable: str, usual: float) -> float:
    text = environment.get(variable, "")
    try:
        found = float(text) if text else usual
    except ValueError:
        found = -1
    if not 0 <= found < INFINITY:
        raise ValueError(f"{variable} is {text!r}, must be a number, 0 or more")
    return found


if __name__ == "__main__":
    main(arguments=sys.argv[1:])
