"""Creates a simulated Ironic with its sender and API. running.py runs it alone, `moor` beside other workers."""

import random
import time
from collections.abc import Callable, Iterable

from msgspec import Struct

from bus.broker import Broker
from bus.process import Part
from compute_sim.laboratory.ironic.api.server import IronicServer
from compute_sim.laboratory.ironic.core.node import SimulatedNode
from compute_sim.laboratory.ironic.core.script import IronicScript
from compute_sim.laboratory.ironic.node_file import NodeFile
from compute_sim.laboratory.ironic.sending import NotificationSender
from compute_sim.laboratory.ironic.settings import IronicSimSettings
from compute_sim.laboratory.ironic.simulated import SimulatedIronic


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
