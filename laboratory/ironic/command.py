"""`moor run simulated-ironic`: a simulated Ironic alone, as a process. `moor` finds it by an entry point."""

import sys
from pathlib import Path
from typing import Annotated

from bus.workers import running
from bus.workers.running import about
from kit.health import read_address
from laboratory.computes.faults import load_script
from laboratory.ironic.api import simulated_ironic
from laboratory.ironic.node import nodes_in_groups
from laboratory.ironic.script import IronicScript
from laboratory.ironic.work import IronicSimSettings, WorkDurations, paced
from moor.flags import option
from moor.options import BusUrl, Operating, broker_of, command_settings, run_worker, wrong_value

LISTEN = "127.0.0.1:6385"
IronicListenAt = Annotated[
    str, option(metavar="HOST:PORT", help="The address of the simulated Ironic's REST API.")
]
DRAIN_S_MAX = 5.0


def run_simulated_ironic(
    bus: BusUrl = "",
    *,
    nodes: Annotated[int, option(min=1, help="How many nodes it has at the start.")] = 100,
    groups: Annotated[
        str,
        option(
            metavar="NAME,NAME", help="The conductor groups over which its nodes are spread, with commas."
        ),
    ] = "",
    ironic_listen: IronicListenAt = LISTEN,
    pace: Annotated[
        float,
        option(min=0, help="A factor for the time that work on nodes takes; 0.5: half as long."),
    ] = 1.0,
    script: Annotated[
        Path | None,
        option(metavar="FILE", help="The faults of the simulated Ironic: a TOML or JSON file."),
    ] = None,
    operating: Operating,
) -> None:
    """A simulated Ironic, whose nodes are lost when it ends. Its broker user must be allowed to declare the exchange `ironic`
    and to publish to it.
    """
    operating.begin()
    settings = command_settings(bus=bus)
    url = settings.addresses.ironic_bus_url or settings.bus_url
    own = tuple(name for part in groups.split(",") if (name := part.strip()))
    usual = IronicSimSettings()
    simulating = IronicSimSettings(
        delays=paced(WorkDurations(), pace),
        conductor_groups=tuple(dict.fromkeys((*usual.conductor_groups, *own))),
    )
    with wrong_value():
        made = simulated_ironic(
            broker_of(url),
            nodes_in_groups(nodes, own),
            simulating,
            script=load_script(script, IronicScript) if script else None,
            listen=read_listen(ironic_listen),
        )
    sys.stderr.write(f"simulated Ironic: {nodes} nodes, API at {made.url}\n")
    who = about("simulated ironic", brokers=(url,))
    run_worker(running.run_worker(who, made.parts, DRAIN_S_MAX, health_at=operating.health_listen))


def read_listen(text: str) -> tuple[str, int]:
    """Parse the address of the REST API."""
    found = read_address(text, "--ironic-listen", f"host:port, as {LISTEN}")
    return found.host, found.port
