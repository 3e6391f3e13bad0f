"""Creates a simulated Ironic with its sender and API; `moor` runs it beside other workers, `moor run simulated-ironic` alone, as a process."""

import random
import sys
import time
from collections.abc import Callable, Iterable

from msgspec import Struct

from bus.broker import Broker
from bus.workers.running import about, run_worker
from kit.health import read_address
from kit.process import Part
from laboratory.ironic.api import IronicServer
from laboratory.ironic.node import SimulatedNode
from laboratory.ironic.notifications import NotificationSender
from laboratory.ironic.script import IronicScript
from laboratory.ironic.simulated import NodeFile, SimulatedIronic, nodes_in_groups
from laboratory.ironic.work import IronicSimSettings, WorkDurations, paced

NODES_COUNT = 100
LISTEN = "127.0.0.1:6385"
DRAIN_S_MAX = 5.0


class IronicSimulation(Struct, frozen=True):
    """A simulated Ironic, and the parts that its process has to run.

    `url` is the address of the REST API; empty if it is not served.
    """

    ironic: SimulatedIronic
    sender: NotificationSender
    url: str
    parts: tuple[Part, ...]


def simulated_ironic(
    broker: Broker,
    nodes: Iterable[SimulatedNode],
    settings: IronicSimSettings | None = None,
    *,
    script: IronicScript | None = None,
    clock_s: Callable[[], float] = time.time,
    chance: random.Random | None = None,
    listen: tuple[str, int] | None = ("127.0.0.1", 0),
    file: NodeFile | None = None,
) -> IronicSimulation:
    """Create the parts; the caller runs them. The port is bound when this returns. Without `listen` there is no port,
    and `IronicTransport(simulation.ironic)` reaches the API inside this process.

    With a `file`, its nodes are restored and all changes are stored in it; its creator closes it.

    The broker's user must have the right to declare Ironic's exchange, and to publish to it.
    """
    settings = settings or IronicSimSettings()
    sender = NotificationSender(broker, settings)
    kept = file.load() if file is not None else ()
    known = {node.uuid for node in kept}
    ironic = SimulatedIronic(
        (*kept, *(node for node in nodes if node.uuid not in known)),
        clock_s,
        sender.publish,
        settings,
        script=script,
        chance=chance,
        keep=file.keep if file is not None else None,
    )
    if kept:
        ironic.resume_work()
    if listen is None:
        return IronicSimulation(ironic, sender, "", (ironic, sender))
    server = IronicServer(ironic, *listen)
    return IronicSimulation(ironic, sender, server.url, (ironic, sender, server))


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
