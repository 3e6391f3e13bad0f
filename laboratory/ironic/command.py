"""`moor run simulated-ironic`: a simulated Ironic alone, as a process; and the one of a whole cloud. `moor` finds both by entry points."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

from bus.broker import Broker
from bus.workers import running
from bus.workers.running import about
from laboratory.computes.faults import load_script
from laboratory.ironic.api import IronicTransport, simulated_ironic
from laboratory.ironic.node import NodeFile, nodes_in_groups
from laboratory.ironic.script import IronicScript
from laboratory.ironic.work import IronicSimSettings, WorkDurations, paced
from moor.clouds.cloud import BareMetalPlan, Simulation
from moor.flags import option
from moor.options import (
    IRONIC_LISTEN,
    BusUrl,
    IronicListenAt,
    Operating,
    broker_of,
    command_settings,
    read_listen,
    run_worker,
    wrong_value,
)

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
    ironic_listen: IronicListenAt = IRONIC_LISTEN,
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
    served = dict.fromkeys((*IronicSimSettings().conductor_groups, *own))
    with wrong_value():
        made = simulated_ironic(
            broker_of(url),
            nodes_in_groups(nodes, own),
            _settings(pace, served),
            script=load_script(script, IronicScript) if script else None,
            listen=read_listen(ironic_listen),
        )
    sys.stderr.write(f"simulated Ironic: {nodes} nodes, API at {made.url}\n")
    who = about("simulated ironic", brokers=(url,))
    run_worker(running.run_worker(who, made.parts, DRAIN_S_MAX, health_at=operating.health_listen))


@contextmanager
def of_plan(broker: Broker, plan: BareMetalPlan) -> Iterator[Simulation]:
    """The simulated Ironic of a whole cloud. `moor` finds it by an entry point."""
    assert plan.script is None or isinstance(plan.script, IronicScript), "a script for this Ironic"
    groups = sorted(plan.cells.groups)
    nodes = nodes_in_groups(plan.nodes, groups)
    simulating = _settings(plan.pace, ("", *groups))
    with closing(NodeFile(plan.file)) if plan.file else nullcontext() as file:
        made = simulated_ironic(broker, nodes, simulating, script=plan.script, listen=plan.listen, file=file)
        yield Simulation(made.ironic, IronicTransport(made.ironic), made.url, made.parts)


def _settings(pace: float, groups: Iterable[str]) -> IronicSimSettings:
    return IronicSimSettings(delays=paced(WorkDurations(), pace), conductor_groups=(*groups,))
