"""A simulated Ironic: its state machine, its notifications and the part of its REST API that Moorage uses.

The operations that only other clients of Ironic use, such as creating nodes and allocating them, are in tests/ironic_clients.

The answers and notifications that Moorage reads are as those of Ironic 39: tests/conformance/ironic.py compares both. The interface:

    SimulatedIronic(nodes, clock_s, publish, settings, script=..., chance=...)
        nodes      The nodes at the start: `available_nodes(count)` creates equal ones, `nodes_in_groups(count, groups)`
                   distributes them over conductor groups. A test may also make each by `SimulatedNode(...)`.
        clock_s    The time, in seconds since 1970: `time.time`, or a clock that a test moves.
        publish    Called as publish(routing_key, properties, body) for every notification. It must not block.
        settings   IronicSimSettings: delays, host names.
        script     IronicScript (script.py): which faults happen, when, on which nodes. `ironic.script = ...` replaces it.
      .advance()          Do all work that is due by the clock. A test moves its clock and calls this.
      .run(), .stop()     Do the work in real time: SimulatedIronic is a part of a process.
      .next_due_s         When the next work is due; None if there is none.
      .nodes, .node(name or uuid)
                          All nodes as they are now, or one of them; None if there is none.
      .patch, .set_maintenance, .provision, .set_power, .attach_vif ...
                          The operations of the API, without HTTP. Each returns Ironic's answer or raises `RequestRefused`.
      .begin, .write, .announce, .at, .go, .forget
                          Operations are made of these; tests/ironic_clients makes further ones: create, delete, set_traits.
      .resume_work()      After a start with the nodes of a killed process: its unfinished work continues.
      .copy(), .restore(copy)
                          The nodes as a backup, and back to it without a word.
      .go_away(for_s, refuses=...), .come_back()
                          The API answers 503, or takes no connections.
      .published          How many notifications were published.

    ironic_app(ironic)         The REST API as an ASGI application.
    IronicTransport(ironic)    An httpx transport to the API inside this process. It refuses connections while Ironic is away.
    IronicServer(ironic)       The REST API on a loopback port, as a part of a process: `.url`, `.run()`, `.stop()`.
    NotificationSender(broker) A part of a process. Its `.publish` puts notifications on the exchange `ironic` of a broker of
                               bus/broker.py. Like Ironic's own sender it loses those that it cannot send.
    NodeFile(path)             Stores nodes in a file that survives `kill -9`.
    simulated_ironic(broker, nodes, settings, ..., file=...)
                               Creates all of these: `.ironic`, `.url`, `.parts`.

`moor run simulated-ironic` runs one alone (command.py).
"""

from laboratory.ironic.api import (
    IronicServer,
    IronicSimulation,
    IronicTransport,
    ironic_app,
    simulated_ironic,
)
from laboratory.ironic.node import NodeFile, RequestRefused, SimulatedNode, available_nodes, nodes_in_groups
from laboratory.ironic.notifications import NotificationSender
from laboratory.ironic.script import IronicScript
from laboratory.ironic.simulated import SimulatedIronic
from laboratory.ironic.work import IronicSimSettings, WorkDurations, paced

__all__ = [
    "IronicScript",
    "IronicServer",
    "IronicSimSettings",
    "IronicSimulation",
    "IronicTransport",
    "NodeFile",
    "NotificationSender",
    "RequestRefused",
    "SimulatedIronic",
    "SimulatedNode",
    "WorkDurations",
    "available_nodes",
    "ironic_app",
    "nodes_in_groups",
    "paced",
    "simulated_ironic",
]
