"""The simulated Ironic: its nodes, the conductor's work on them, and the operations of its API.

What is allowed, and what follows from it, is decided in changes.py and work.py. A call changes nodes and publishes notifications without awaiting anything, so no other task
sees a change that is half done.
"""

import os
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import msgspec
from msgspec import Struct, structs

from kit.errors import NOT_JSON
from kit.parts import Periodic
from laboratory.ironic import changes, states, work
from laboratory.ironic.changes import ValuesInUse
from laboratory.ironic.node import NodeWritten, SimulatedNode, no_such_node, second
from laboratory.ironic.notifications import (
    Action,
    ActionTimers,
    NotificationAnnouncer,
    Publish,
    new_request_id,
)
from laboratory.ironic.script import (
    Away,
    BmcSilent,
    IronicScript,
    NodeLocked,
    Subject,
    away,
    happening,
    why_work_fails,
)
from laboratory.ironic.work import POWER_FAILURE, IronicSimSettings, Job, ProvisionOrder, Step

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
# Jobs that need the node's BMC to answer.
_NEEDS_BMC = frozenset({"verify", "power"})
_NAMESPACE = UUID("3f1c8a52-6d0e-4f5b-9c77-0a4be2d1c6ee")


def available_nodes(
    count: int,
    *,
    resource_class: str | None = "baremetal",
    name: str = "node",
    **fields: Any,
) -> tuple[SimulatedNode, ...]:
    """Equal nodes, available and powered off: `node-00000` and so on, each with a uuid derived from its name."""
    made = []
    for number in range(count):
        own = f"{name}-{number:05}"
        values = {
            "provision_state": states.AVAILABLE,
            "power_state": states.POWER_OFF,
            # With this interface a deploy leaves the node powered on, as real ones do; `fake`, the default, does not.
            "deploy_interface": "ramdisk",
            # Ports can be attached. The default, `noop`, takes them and attaches none.
            "network_interface": "flat",
            "properties": {"cpus": 8, "memory_mb": 65536, "local_gb": 480, "cpu_arch": "x86_64"},
            **fields,
        }
        made.append(
            SimulatedNode(uuid=str(uuid5(_NAMESPACE, own)), name=own, resource_class=resource_class, **values)
        )
    return tuple(made)


def nodes_in_groups(count: int, groups: Sequence[str], **fields: Any) -> tuple[SimulatedNode, ...]:
    """Available nodes, distributed in turn over these conductor groups; all in the default group if there are none."""
    return tuple(
        structs.replace(node, conductor_group=groups[number % len(groups)]) if groups else node
        for number, node in enumerate(available_nodes(count, **fields))
    )


def with_start_times(node: SimulatedNode, at_s: float) -> SimulatedNode:
    """A node at the start of the simulation: missing times are filled in, and the power that its BMC reports."""
    at = second(at_s)
    provisioned_at = None if node.provision_state == states.ENROLL else at
    return structs.replace(
        node,
        created_at=node.created_at or at,
        provision_updated_at=node.provision_updated_at or provisioned_at,
        bmc_power=node.bmc_power or node.power_state,
    )


class NodeChange(Struct, frozen=True, array_like=True):
    """A changed node; None if it was deleted. The file of nodes has a line for each change."""

    uuid: str
    node: SimulatedNode | None = None


# Called for each change.
Keep = Callable[[NodeChange], None]


class NodeTable:
    """The present nodes of the simulated Ironic; a new table has none. `keep` stores each change of them."""

    def __init__(self, conductor_groups: Collection[str], keep: Keep) -> None:
        # In the order in which they were created.
        self.nodes: dict[str, SimulatedNode] = {}
        self._conductor_groups = conductor_groups
        self._keep = keep
        self._names: dict[str, str] = {}
        self._instances: dict[str, str] = {}

    def find(self, ident: str) -> SimulatedNode | None:
        return self.nodes.get(self._names.get(ident, ident))

    @property
    def in_use(self) -> ValuesInUse:
        return ValuesInUse(self._names.keys(), self._instances.keys(), self._conductor_groups)

    def add(self, node: SimulatedNode) -> None:
        if node.uuid in self.nodes:
            raise ValueError(f"two nodes have the uuid {node.uuid}")
        self.nodes[node.uuid] = node
        self._index(node)
        self._keep(NodeChange(node.uuid, node))

    def replace(self, old: SimulatedNode, new: SimulatedNode) -> None:
        if old.name != new.name or old.instance_uuid != new.instance_uuid:
            self._unindex(old)
            self._index(new)
        self.nodes[new.uuid] = new
        self._keep(NodeChange(new.uuid, new))

    def remove(self, node: SimulatedNode) -> None:
        self._unindex(node)
        del self.nodes[node.uuid]
        self._keep(NodeChange(node.uuid))

    def _index(self, node: SimulatedNode) -> None:
        if node.name is not None:
            self._names[node.name] = node.uuid
        if node.instance_uuid is not None:
            self._instances[node.instance_uuid] = node.uuid

    def _unindex(self, node: SimulatedNode) -> None:
        if node.name is not None:
            self._names.pop(node.name, None)
        if node.instance_uuid is not None:
            self._instances.pop(node.instance_uuid, None)


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
        # The request id of the conductor's own work.
        self.periodic = new_request_id(self.chance)
        # The current job of each node, and the request that caused it.
        self._jobs: dict[str, tuple[Job, str]] = {}
        self._is_sync_due = False
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
            at_s = self._clock_s()
            self.go(node, work.resumed(node, at_s, self.settings), at_s, self.periodic)

    @property
    def script(self) -> IronicScript:
        return self.announcer.script

    @script.setter
    def script(self, script: IronicScript) -> None:
        self.announcer.script = script
        self._watch_power(self._clock_s())

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
        return None if node is None else self._locked(node, self._clock_s())

    def known(self, ident: str) -> SimulatedNode:
        """The node as `node` returns it; raises RequestRefused if there is none."""
        node = self.node(ident)
        if node is None:
            raise no_such_node(ident)
        return node

    def patch(self, ident: str, operations: object) -> SimulatedNode:
        return self.write(
            ident,
            "update",
            lambda node, now_s: changes.patch(node, operations, self.table.in_use, now_s),
        )

    def set_traits(self, ident: str, traits: Sequence[str]) -> SimulatedNode:
        return self.write(ident, "update", lambda node, _: changes.set_traits(node, traits))

    def set_maintenance(self, ident: str, *, is_on: bool, reason: str | None = None) -> SimulatedNode:
        return self.write(
            ident, "maintenance_set", lambda node, now_s: changes.set_maintenance(node, is_on, reason, now_s)
        )

    def provision(self, ident: str, order: ProvisionOrder | str) -> SimulatedNode:
        asked = ProvisionOrder(target=order) if isinstance(order, str) else order
        return self._ordered(
            ident, lambda node, now_s: work.order_provision(node, asked, now_s, self.settings)
        )

    def set_power(self, ident: str, target: str) -> SimulatedNode:
        return self._ordered(ident, lambda node, now_s: work.order_power(node, target, now_s, self.settings))

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
        if self._is_silent(node, self._clock_s()):
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
        self.go(node, step, now_s, request)
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

    # The conductor: the jobs of nodes, and the power sync

    def go(self, node: SimulatedNode, step: Step | None, at_s: float, request: str) -> None:
        """Store the node, publish its notifications, and schedule its next job in place of a former one."""
        if step is None:
            return
        self._jobs.pop(node.uuid, None)
        self.table.replace(node, step.node)
        for said in step.said:
            self.announcer.say(said, at_s, request)
        if step.job is not None:
            self._jobs[node.uuid] = planned = (step.job, request)
            self.at(step.job.due_s, partial(self._finish, node.uuid, planned))

    def forget(self, node: SimulatedNode) -> None:
        self._jobs.pop(node.uuid, None)

    def _locked(self, node: SimulatedNode, at_s: float) -> SimulatedNode:
        """The node as clients see it: locked, if the fault script locks it now."""
        script = self.announcer.script
        if not script.faults or node.reservation:
            return node
        since_s = self.announcer.since_s(at_s)
        # The script decides again each second whether the node is locked.
        if any(happening(script, NodeLocked, Subject(node.name, node.uuid, since_s, int(since_s)))):
            return structs.replace(node, reservation=self.settings.host)
        return node

    def _is_silent(self, node: SimulatedNode, at_s: float) -> bool:
        about = Subject(node.name, node.uuid, self.announcer.since_s(at_s), 0)
        return any(happening(self.announcer.script, BmcSilent, about))

    def _watch_power(self, at_s: float) -> None:
        """Schedule the next power sync if it may find a change.

        That is the case if a fault makes BMCs silent, or if a node has a power failure.
        """
        if self._is_sync_due or not self._suspects():
            return
        self._is_sync_due = True
        self.at(at_s + self.settings.delays.power_sync_s, self._sync_power)

    def _suspects(self) -> Sequence[str]:
        if any(isinstance(fault, BmcSilent) for fault in self.announcer.script.faults):
            return [*self.table.nodes]
        return [uuid for uuid, node in self.table.nodes.items() if node.fault == POWER_FAILURE]

    def _sync_power(self, at_s: float) -> None:
        self._is_sync_due = False
        for uuid in self._suspects():
            node = self.table.nodes[uuid]
            step = work.power_synced(node, self._is_silent(node, at_s), at_s)
            if step is not None:
                self.table.replace(node, step.node)
                for said in step.said:
                    self.announcer.say(said, at_s, self.periodic)
        self._watch_power(at_s)

    def _finish(self, uuid: str, planned: tuple[Job, str], at_s: float) -> None:
        node = self.table.nodes.get(uuid)
        if node is None or self._jobs.get(uuid) is not planned:
            return
        job, request = planned
        if job.name in ("clean timeout", "deploy timeout"):
            request = self.periodic
        step = work.finish(node, job, partial(self._why_fails, node, at_s), at_s, self.settings)
        self.go(node, step, at_s, request)

    def _why_fails(self, node: SimulatedNode, at_s: float, kind: str) -> str:
        if kind in _NEEDS_BMC and self._is_silent(node, at_s):
            return f"Failed to get power state for node {node.uuid}: the BMC did not answer."
        script = self.announcer.script
        return (
            why_work_fails(script, kind, self.announcer.about(node.name, node.uuid, at_s))
            if script.faults
            else ""
        )


# The file is written again when it has more lines than this per node, and in total.
LINES_PER_NODE_MAX = 8
LINES_LEAST = 1000


class NodeFile:
    """The file in which a simulated Ironic keeps its nodes, so that they survive a kill of its process. Only one process may use it at a time.

    Each change is one line: the uuid, and the node, or null if it was deleted. A line is passed to the kernel before the change
    is announced. So `kill -9` loses no change. Only the last line can be cut off, and is then ignored.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # The last change of each node that is not deleted, in the order in which they were first stored.
        self._last: dict[str, NodeChange] = {}
        for line in _read(path):
            self._take(line)
        self._lines = 0
        self._descriptor = -1
        self._begin()

    def load(self) -> tuple[SimulatedNode, ...]:
        return tuple(each.node for each in self._last.values() if each.node is not None)

    def keep(self, change: NodeChange) -> None:
        self._append(_text(change))
        self._take(change)
        self._lines += 1
        if self._lines > max(LINES_LEAST, LINES_PER_NODE_MAX * len(self._last)):
            self._begin()

    def close(self) -> None:
        os.close(self._descriptor)

    def _begin(self) -> None:
        """Replace the file by a new one, with one line for each node."""
        new = self._path.with_suffix(".new")
        # Nodes have the config drives of their instances.
        new.touch(mode=0o600)
        new.write_bytes(b"".join(map(_text, self._last.values())))
        new.replace(self._path)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self._lines = len(self._last)

    def _append(self, line: bytes) -> None:
        """Write the whole line or, on a full disk, nothing: the rest of a line would make the whole file unreadable."""
        size = os.fstat(self._descriptor).st_size
        with suppress(OSError):
            if os.write(self._descriptor, line) == len(line):
                return
        os.ftruncate(self._descriptor, size)
        raise OSError(f"{self._path} cannot be written: is the disk full?")

    def _take(self, change: NodeChange) -> None:
        if change.node is None:
            self._last.pop(change.uuid, None)
        else:
            self._last[change.uuid] = change


def _read(path: Path) -> list[NodeChange]:
    lines: list[NodeChange] = []
    decoder = msgspec.json.Decoder(NodeChange)
    with suppress(FileNotFoundError):
        for text in path.read_bytes().split(b"\n")[:-1]:
            try:
                lines.append(decoder.decode(text))
            except NOT_JSON as problem:
                raise ValueError(f"{path} is not the file of a simulated Ironic's nodes: {problem}") from None
    return lines


def _text(change: NodeChange) -> bytes:
    return msgspec.json.encode(change) + b"\n"
