"""A simulated Ironic: its state machine, its notifications and the part of its REST API that bare-metal clients use.

Its messages are byte-compatible with messages captured from Ironic 39 (tests/data/ironic_captures). The interface:

    SimulatedIronic(nodes, clock_s, publish, settings, script=..., chance=...)
        nodes      the nodes at the start: `available_nodes(count)` creates equal ones, `nodes_in_groups(count, groups)`
                   distributes them over conductor groups; or `Node(...)` by hand
        clock_s    the time, in seconds since 1970: `time.time`, or a clock that a test moves
        publish    called as publish(routing_key, properties, body) for every notification; it must not block
        settings   IronicSimSettings: delays, automated cleaning, host names, users of the API
        script     IronicScript: which faults happen, when, on which nodes (core/script.py); `ironic.script = ...` replaces it
      .advance()          do all work that is due by the clock; a test moves its clock and calls this
      .run(), .stop()     do that in real time: SimulatedIronic is a part of a process
      .next_due_s         when the next work is due, None if there is none
      .node(name or uuid) the node as it is now, or None; .nodes: all of them
      .create, .patch, .set_maintenance, .set_traits, .provision, .set_power, .delete, .attach_vif, .allocate ...
                          the operations of the API, without HTTP; each returns Ironic's answer or raises `Refused`
      .change_power_out_of_band(uuid, power)
                          an event of the hardware itself; a script says which BMCs are silent
      .resume_work()      after a start with the nodes of a killed process: its unfinished work continues
      .go_away(for_s, refuses=...), .come_back()
                          the API answers 503, or takes no connections
      .published, .lost   how many notifications were published, and how many the script lost

    ironic_app(ironic)         the REST API as an ASGI application
    IronicTransport(ironic)    an httpx transport to it inside this process; refuses connections while Ironic is away
    IronicServer(ironic)       the REST API on a loopback port, as a part of a process: `.url`, `.run()`, `.stop()`
    NotificationSender(broker) a part of a process whose `.publish` puts notifications on the exchange `ironic` of a
                               broker of bus/broker.py; like Ironic's own sender it loses what it cannot send
    NodeFile(path)             stores nodes in a file that survives `kill -9`
    simulated_ironic(broker, nodes, settings, ..., file=...)
                               creates all of these: `.ironic`, `.url`, `.parts`

`python -m compute_sim.ironic` runs one alone: MOOR_IRONIC_BUS_URL, MOOR_IRONIC_SIM_NODES, MOOR_IRONIC_SIM_GROUPS,
MOOR_IRONIC_SIM_LISTEN, MOOR_IRONIC_SIM_PACE, MOOR_IRONIC_SIM_SCRIPT.

    core/states.py        the table of states and verbs
    core/node.py          a node with all its fields
    core/node_events.py   a node before and after an event, and the notification of it
    core/work.py          the conductor's jobs on a node, and how each ends
    core/changes.py       creating, patching and deleting: what is allowed
    core/json_patch.py    JSON Patch on a node's fields
    core/orders.py        provision and power orders: what is allowed, and how they begin
    core/allocations.py   Ironic's own allocation API
    core/payloads.py      the fields of each notification
    core/script.py        the faults of a script
    notifications.py      notifications as bytes
    announcing.py         publishes them, or loses and delays them as the script says
    node_file.py          the file of nodes
    node_table.py         the current nodes and allocations
    conductor.py          jobs that end when they are due, and the power sync
    allocating.py         finds nodes for allocations
    simulated.py          SimulatedIronic
    api/                  the REST API
"""

from compute_sim.ironic.api.app import ironic_app
from compute_sim.ironic.api.server import IronicServer
from compute_sim.ironic.api.transport import IronicTransport
from compute_sim.ironic.core.node import Node
from compute_sim.ironic.core.refusals import Refused
from compute_sim.ironic.core.script import IronicScript
from compute_sim.ironic.node_file import NodeFile
from compute_sim.ironic.seeds import available_nodes, nodes_in_groups
from compute_sim.ironic.sending import NotificationSender
from compute_sim.ironic.settings import Delays, IronicSimSettings, paced
from compute_sim.ironic.simulated import SimulatedIronic
from compute_sim.ironic.wiring import IronicSimulation, simulated_ironic

__all__ = [
    "Delays",
    "IronicScript",
    "IronicServer",
    "IronicSimSettings",
    "IronicSimulation",
    "IronicTransport",
    "Node",
    "NodeFile",
    "NotificationSender",
    "Refused",
    "SimulatedIronic",
    "available_nodes",
    "ironic_app",
    "nodes_in_groups",
    "paced",
    "simulated_ironic",
]
