"""`python -m compute_sim.ironic`: a simulated Ironic alone, on the broker that the environment names."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bus.broker import Broker
from bus.health_server import VARIABLE
from bus.process import is_ready
from bus.running import about, run_main, run_worker, with_flags
from bus.urls import broker_at
from compute_sim.ironic.core.script import IronicScript
from compute_sim.ironic.scripts import load_ironic_script
from compute_sim.ironic.seeds import available_nodes
from compute_sim.ironic.wiring import simulated_ironic

NODES_COUNT = 100
LISTEN = "127.0.0.1:6385"
DRAIN_S_MAX = 5.0
PORT_MAX = 65_535


async def run(
    broker: Broker,
    bus_url: str,
    *,
    nodes_count: int,
    listen: tuple[str, int],
    script: IronicScript,
    health_at: str,
) -> None:
    simulation = simulated_ironic(broker, available_nodes(nodes_count), script=script, listen=listen)
    sys.stderr.write(f"simulated Ironic: {nodes_count} nodes, API at {simulation.url}\n")
    await run_worker(
        about("simulated ironic", brokers=(bus_url,)), simulation.parts, DRAIN_S_MAX, health_at=health_at
    )


def main(environment: Mapping[str, str] = os.environ, arguments: Sequence[str] = ()) -> int:
    """MOOR_IRONIC_BUS_URL must be set. MOOR_IRONIC_SIM_NODES says how many nodes there are, MOOR_IRONIC_SIM_LISTEN where
    the REST API is, MOOR_IRONIC_SIM_SCRIPT names a script of what goes wrong.
    """
    environment = with_flags(environment, arguments, "compute_sim.ironic")
    if not is_ready(environment, "MOOR_IRONIC_BUS_URL"):
        return 2
    count = environment.get("MOOR_IRONIC_SIM_NODES", str(NODES_COUNT))
    if not count.isdecimal():
        sys.stderr.write(f"MOOR_IRONIC_SIM_NODES is {count!r}, must be a number\n")
        return 2
    text = environment.get("MOOR_IRONIC_SIM_LISTEN", LISTEN)
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > PORT_MAX:
        sys.stderr.write(f"MOOR_IRONIC_SIM_LISTEN is {text!r}: write host:port, as {LISTEN}\n")
        return 2
    bus_url, named = environment["MOOR_IRONIC_BUS_URL"], environment.get("MOOR_IRONIC_SIM_SCRIPT")
    try:
        broker = broker_at(bus_url)
        script = load_ironic_script(Path(named)) if named else IronicScript()
    except ValueError as wrong:
        sys.stderr.write(f"{wrong}\n")
        return 2
    return run_main(
        run(
            broker,
            bus_url,
            nodes_count=int(count),
            listen=(host, int(port)),
            script=script,
            health_at=environment.get(VARIABLE, ""),
        )
    )


if __name__ == "__main__":
    sys.exit(main(arguments=sys.argv[1:]))
