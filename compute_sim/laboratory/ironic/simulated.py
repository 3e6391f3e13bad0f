"""The simulated Ironic: its nodes, the conductor's work on them, and the operations of its API.

All decisions are in core/. A call changes nodes and publishes notifications without awaiting anything, so no other task
sees a change that is half done.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import os_traits

from bus.parts import Periodic
from compute_sim.laboratory.ironic.announcing import NotificationAnnouncer
from compute_sim.laboratory.ironic.conductor import Conductor
from compute_sim.laboratory.ironic.core import changes, orders
from compute_sim.laboratory.ironic.core.node import SimulatedNode
from compute_sim.laboratory.ironic.core.node_events import NodeWritten
from compute_sim.laboratory.ironic.core.orders import ProvisionOrder
from compute_sim.laboratory.ironic.core.refusals import no_such_node
from compute_sim.laboratory.ironic.core.script import Away, IronicScript, away
from compute_sim.laboratory.ironic.core.work import Step
from compute_sim.laboratory.ironic.node_table import Keep, NodeTable
from compute_sim.laboratory.ironic.notifications import Publish, new_request_id
from compute_sim.laboratory.ironic.seeds import with_start_times
from compute_sim.laboratory.ironic.settings import IronicSimSettings
from compute_sim.laboratory.ironic.timers import Action, ActionTimers

LATEST_MINOR = 115
_STANDARD_TRAITS = frozenset(os_traits.get_traits())
# How many actions run before other tasks of the process get a turn.
_ACTIONS_AT_ONCE = 200
# While nothing is due, it waits to be woken.
_PAUSE_S_MAX = 3600.0
_VALIDATED = (
    "bios",
    "boot",
    "console",
    "deploy",
    "firmware",
    "inspect",
    "management",
    "network",
    "power",
    "raid",
    "rescue",
    "storage",
)


class SimulatedIronic(Periodic):
    """A simulated Ironic. The package's docstring lists its interface."""

    def __init__(
        self,
        nodes: Iterable[SimulatedNode],
        clock_s: Callable[[], float],
        publish: Publish,
        settings: IronicSimSettings | None = None,
        *,
        script: IronicScript | None = None,
        chance: random.Random | None = None,
        keep: Keep | None = None,
    ) -> None:
        super().__init__("work of the simulated Ironic", self._work_off, self._pause_s, is_cut_short=True)
        self.settings = settings or IronicSimSettings()
        self._clock_s = clock_s
        self.chance = chance or random.Random()
        self._timers = ActionTimers()
        self._away: tuple[float, bool] | None = None
        self.table = NodeTable(self.settings.conductor_groups, keep or (lambda _: None))
        self.announcer = NotificationAnnouncer(
            publish, self.settings.host, self._timers, self.chance, clock_s()
        )
        self.conductor = Conductor(
            self.table, self.announcer, self.settings, self.at, new_request_id(self.chance)
        )
        for node in nodes:
            self.table.add(with_start_times(node, clock_s()))
        self.script = script or IronicScript()

    # The clock

    @property
    def next_due_s(self) -> float | None:
        return self._timers.next_due_s

    def advance(self, count_max: int | None = None) -> int:
        """Do the work that is due; returns the number of actions."""
        return self._timers.run_due(self._clock_s(), count_max)

    async def _work_off(self) -> None:
        self.advance(_ACTIONS_AT_ONCE)

    def _pause_s(self) -> float:
        due_s = self.next_due_s
        return _PAUSE_S_MAX if due_s is None else min(max(0.0, due_s - self._clock_s()), _PAUSE_S_MAX)

    # Control by its owner

    def resume_work(self) -> None:
        """Resume work on nodes that was in progress when the process was killed. A real conductor lets such work fail."""
        for node in [*self.table.nodes.values()]:
            self.conductor.resume(node, self._clock_s())

    @property
    def script(self) -> IronicScript:
        return self.announcer.script

    @script.setter
    def script(self, script: IronicScript) -> None:
        self.announcer.script = script
        self.conductor.watch_power(self._clock_s())

    @property
    def published(self) -> int:
        return self.announcer.published

    @property
    def lost(self) -> int:
        return self.announcer.lost

    def go_away(self, for_s: float, *, refuses: bool = False) -> None:
        """For this time the API answers 503, or takes no connections. Conductors continue."""
        self._away = (self._clock_s() + for_s, refuses)

    def come_back(self) -> None:
        self._away = None

    @property
    def refuses_connections(self) -> bool:
        # Asked once: by the next question its time may be over.
        away_now = self.away
        return away_now is not None and away_now.refuses

    @property
    def away(self) -> Away | None:
        """Whether the API is down now, by the fault script or by `go_away`, and how it fails. None if it is up."""
        if self._away is not None and self._clock_s() < self._away[0]:
            return Away(refuses=self._away[1])
        return away(self.script, self.announcer.since_s(self._clock_s()))

    # Nodes

    @property
    def nodes(self) -> Mapping[str, SimulatedNode]:
        """All nodes by uuid, in the order in which they were created."""
        return self.table.nodes

    def node(self, ident: str) -> SimulatedNode | None:
        """The node with this uuid or name, locked if the fault script locks it now; None if there is none."""
        self.advance()
        node = self.table.find(ident)
        return None if node is None else self.conductor.locked(node, self._clock_s())

    def known(self, ident: str) -> SimulatedNode:
        """The node as `node` returns it; raises RequestRefused if there is none."""
        node = self.node(ident)
        if node is None:
            raise no_such_node(ident)
        return node

    def patch(self, ident: str, operations: object, minor: int = LATEST_MINOR) -> SimulatedNode:
        return self.write(
            ident,
            "update",
            lambda node, now_s: changes.patch(node, operations, self.table.in_use, now_s, minor),
        )

    def set_traits(self, ident: str, traits: Sequence[str]) -> SimulatedNode:
        return self.write(ident, "update", lambda node, _: changes.set_traits(node, traits, _STANDARD_TRAITS))

    def set_maintenance(self, ident: str, *, is_on: bool, reason: str | None = None) -> SimulatedNode:
        return self.write(
            ident, "maintenance_set", lambda node, now_s: changes.set_maintenance(node, is_on, reason, now_s)
        )

    def provision(self, ident: str, order: ProvisionOrder | str, minor: int = LATEST_MINOR) -> SimulatedNode:
        asked = ProvisionOrder(target=order) if isinstance(order, str) else order
        return self._ordered(
            ident, lambda node, now_s: orders.order_provision(node, asked, now_s, self.settings, minor)
        )

    def set_power(self, ident: str, target: str) -> SimulatedNode:
        return self._ordered(
            ident, lambda node, now_s: orders.order_power(node, target, now_s, self.settings)
        )

    def set_console(self, ident: str, *, is_on: bool) -> SimulatedNode:
        """Switch the console. Ironic says so by `console_set`, which this simulation does not send."""
        return self._quietly(ident, lambda node: changes.set_console(node, is_on=is_on))

    def attach_vif(self, ident: str, vif: str) -> SimulatedNode:
        return self._quietly(ident, lambda node: changes.attach_vif(node, vif, self.settings.ports_count))

    def detach_vif(self, ident: str, vif: str) -> SimulatedNode:
        return self._quietly(ident, lambda node: changes.detach_vif(node, vif))

    def why_not_deployable(self, ident: str) -> Mapping[str, str]:
        """Validate the node as Ironic does: for each driver interface, why it is invalid, or an empty text."""
        node = self.known(ident)
        reasons = dict.fromkeys(_VALIDATED, "")
        if node.has_agent and not node.instance_info.get("image_source"):
            reasons["deploy"] = f"Node {node.uuid} has no image_source in instance_info."
        if self.conductor.is_silent(node, self._clock_s()):
            reasons["power"] = f"The BMC of node {node.uuid} does not answer."
        return reasons

    # For each operation

    def begin(self) -> tuple[float, str]:
        """Finish everything that was due before a request. Returns the time and a new request id."""
        self.advance()
        return self._clock_s(), new_request_id(self.chance)

    def write(
        self, ident: str, action: str, change: Callable[[SimulatedNode, float], changes.ChangedNode]
    ) -> SimulatedNode:
        """Apply a change to a node, with notifications before and after."""
        now_s, request = self.begin()
        node = self.known(ident)
        written = change(node, now_s)
        return self.announce(written, action, now_s, request, partial(self.table.replace, node))

    def announce(
        self,
        written: changes.ChangedNode,
        action: str,
        at_s: float,
        request: str,
        store: Callable[[SimulatedNode], None],
    ) -> SimulatedNode:
        """Store a change that the API was asked for, with notifications before and after; or announce its refusal, and raise
        it.
        """

        def say(node: SimulatedNode, status: str) -> None:
            self.announcer.say(NodeWritten(node, action, status), at_s, request)

        say(written.start, "start")
        if written.refused is not None:
            say(written.start, "error")
            raise written.refused
        store(written.after)
        say(written.after, "end")
        return written.after

    def _ordered(self, ident: str, order: Callable[[SimulatedNode, float], Step]) -> SimulatedNode:
        """Have the conductor begin to execute an order on a node."""
        now_s, request = self.begin()
        node = self.known(ident)
        step = order(node, now_s)
        self.conductor.go(node, step, now_s, request)
        return step.node

    def _quietly(self, ident: str, change: Callable[[SimulatedNode], SimulatedNode]) -> SimulatedNode:
        """Apply a change to a node without notifications."""
        node = self.known(ident)
        changed = change(node)
        self.table.replace(node, changed)
        return changed

    def at(self, due_s: float, action: Action) -> None:
        self._timers.at(due_s, action)
        self.wake()
