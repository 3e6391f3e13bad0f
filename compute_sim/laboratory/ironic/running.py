"""Runs a simulated Ironic alone, as a process of its own: `moor run simulated-ironic`."""

import sys

from msgspec import Struct

from bus.broker import Broker
from bus.operating.listen_address import read_address
from bus.operating.running import about, run_worker
from compute_sim.laboratory.ironic.core.script import IronicScript
from compute_sim.laboratory.ironic.seeds import nodes_in_groups
from compute_sim.laboratory.ironic.settings import IronicSimSettings, WorkDurations, paced
from compute_sim.laboratory.ironic.wiring import simulated_ironic

NODES_COUNT = 100
LISTEN = "127.0.0.1:6385"
DRAIN_S_MAX = 5.0


class Options(Struct, frozen=True, kw_only=True):
    """The nodes that the process simulates, distributed over the conductor groups in `groups`, and how they behave."""

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


def read_listen(text: str, variable: str = "MOOR_IRONIC_SIM_LISTEN") -> tuple[str, int]:
    """Parse the address of the REST API. `variable` is the setting that an error names."""
    found = read_address(text, variable, f"host:port, as {LISTEN}")
    return found.host, found.port
