"""The simulated Ironic: its nodes, the operations of its API, and the conductor's work on them.

work.py decides what a conductor may do, and what follows from it. A call changes nodes and publishes notifications without
awaiting anything, so no other task sees a change that is half done.
"""

import heapq
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import structs

from kit.parts import Periodic
from laboratory.ironic import work
from laboratory.ironic.node import (
    BAD_REQUEST,
    CONFLICT,
    NO_NETWORK,
    NOT_FOUND,
    Keep,
    NodeTable,
    Operation,
    RequestRefused,
    Rule,
    Said,
    SimulatedNode,
    check,
    first_refusal,
    operations_of,
    patched,
    second,
    with_fields,
)
from laboratory.ironic.notifications import PROPERTIES, Payload, Publish, new_uuid, payload_of, written
from laboratory.ironic.script import (
    Away,
    BmcSilent,
    IronicScript,
    NodeLocked,
    Subject,
    away,
    happening,
    publishings,
    why_work_fails,
)
from laboratory.ironic.work import POWER_FAILURE, STATES, IronicOrder, IronicSimSettings, Job, Step

Action = Callable[[float], None]
# When a request began, and its id.
Begun = tuple[float, str]
# How many actions run before other tasks of the process get a turn.
_ACTIONS_AT_ONCE = 200
# While nothing is due, it waits to be woken.
_PAUSE_S_MAX = 3600.0
_VALIDATED = (
    *("bios", "boot", "console", "deploy", "firmware", "inspect"),
    *("management", "network", "power", "raid", "rescue", "storage"),
)
# Work that needs the node's BMC to answer.
_NEEDS_BMC = frozenset({"verify", "power", work.BOOT})
_PATCHED = frozenset(
    {
        *("conductor_group", "deploy_interface", "extra", "instance_info"),
        *("instance_uuid", "lessee", "maintenance", "name", "network_interface", "owner", "properties"),
        *("protected", "resource_class", "retired", "shard"),
    }
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
        # The actions to do, and when; the number keeps the order of those at the same time.
        self._due: list[tuple[float, int, Action]] = []
        self._number = 0
        self._away: tuple[float, bool] | None = None
        self.table = NodeTable(keep or (lambda _: None))
        self.published = 0
        self.lost = 0
        self._publish = publish
        self._script = script or IronicScript()
        self._started_s = clock_s()
        # How often the script was asked about each object.
        self._counts: dict[str, int] = {}
        self._last_us = 0
        # The request id of the conductor's own work.
        self.periodic = self._new_request()
        # The current job of each node, and the request that caused it.
        self._jobs: dict[str, tuple[Job, str]] = {}
        self._is_sync_due = False
        at = second(clock_s())
        for node in nodes:
            self.table.add(
                structs.replace(
                    node,
                    created_at=node.created_at or at,
                    provision_updated_at=node.provision_updated_at
                    or (None if node.provision_state == work.ENROLL else at),
                    bmc_power=node.bmc_power or node.power_state,
                )
            )
        self._watch_power(clock_s())

    # The clock

    @property
    def next_due_s(self) -> float | None:
        return self._due[0][0] if self._due else None

    def advance(self, count_max: int | None = None) -> int:
        """Do the work that is due, and what it makes due by now; returns the number of actions."""
        count, now_s = 0, self._clock_s()
        while self._due and self._due[0][0] <= now_s and (count_max is None or count < count_max):
            due_s, _, action = heapq.heappop(self._due)
            # With its due time, however late it runs.
            action(due_s)
            count += 1
        return count

    def at(self, due_s: float, action: Action) -> None:
        self._number += 1
        heapq.heappush(self._due, (due_s, self._number, action))
        self.wake()

    async def _work_off(self) -> None:
        self.advance(_ACTIONS_AT_ONCE)

    def _pause_s(self) -> float:
        due_s = self.next_due_s
        return _PAUSE_S_MAX if due_s is None else min(max(0.0, due_s - self._clock_s()), _PAUSE_S_MAX)

    # Control by its owner

    def resume_work(self) -> None:
        """Resume work on nodes that was in progress when the process was killed. A real conductor lets such work fail."""
        at_s = self._clock_s()
        for node in [*self.nodes.values()]:
            self.go(node, work.resumed(node, at_s, self.settings), at_s, self.periodic)

    def copy(self) -> Sequence[SimulatedNode]:
        """A backup of the nodes, for `restore`."""
        return tuple(self.nodes.values())

    def restore(self, copy: Iterable[SimulatedNode]) -> None:
        """Put the nodes back to an older copy, as an operator restores Ironic's database. Nothing is announced, and no work goes on."""
        for node in self.copy():
            self.forget(node)
            self.table.remove(node)
        for node in copy:
            self.table.add(node)

    @property
    def script(self) -> IronicScript:
        return self._script

    @script.setter
    def script(self, script: IronicScript) -> None:
        self._script = script
        self._watch_power(self._clock_s())

    def go_away(self, for_s: float, *, refuses: bool = False) -> None:
        """For this time the API answers 503, or takes no connections. Conductors continue."""
        self._away = (self._clock_s() + for_s, refuses)

    def come_back(self) -> None:
        self._away = None

    @property
    def away(self) -> Away | None:
        """Whether the API is down now, by the fault script or by `go_away`, and how it fails. None if it is up."""
        if self._away is not None and self._clock_s() < self._away[0]:
            return Away(refuses=self._away[1])
        return away(self.script, self._since_s(self._clock_s()))

    @property
    def refuses_connections(self) -> bool:
        # Asked once: by the next question its time may be over.
        away_now = self.away
        return away_now is not None and away_now.refuses

    # Nodes

    @property
    def nodes(self) -> Mapping[str, SimulatedNode]:
        """All nodes by uuid, in the order in which they were created."""
        return self.table.nodes

    def node(self, ident: str) -> SimulatedNode | None:
        """The node with this uuid or name, locked if the fault script locks it now; None if there is none."""
        self.advance()
        node, now_s = self.table.find(ident), self._clock_s()
        # The script decides again each second whether the node is locked.
        if node is None or node.reservation or not self._happens(NodeLocked, node, now_s):
            return node
        return structs.replace(node, reservation=self.settings.host)

    def known(self, ident: str) -> SimulatedNode:
        """The node as `node` returns it; raises RequestRefused if there is none."""
        node = self.node(ident)
        if node is None:
            raise RequestRefused(NOT_FOUND, f"Node {ident} does not exist.")
        return node

    def patch(self, ident: str, document: object) -> SimulatedNode:
        operations = operations_of(document)

        def change(node: SimulatedNode) -> SimulatedNode:
            fields: dict[str, Any] = {}
            for operation in operations:
                field, *inside = operation.keys
                if field not in _PATCHED:
                    raise RequestRefused(BAD_REQUEST, f"Cannot patch {operation.path}.")
                fields[field] = patched(fields.get(field, getattr(node, field)), inside, operation)
            # In maintenance an instance may be removed from a node that changes its state.
            is_release = node.maintenance and operations == (Operation("remove", "/instance_uuid"),)
            new = with_fields(node, fields)
            groups = self.settings.conductor_groups
            check(
                (
                    STATES[node.provision_state].work
                    # In these states only the lock refuses a change.
                    and node.provision_state not in (work.VERIFYING, work.INSPECTING)
                    and not is_release,
                    CONFLICT,
                    f"Node {node.uuid} can not be updated while it is {node.provision_state!r}.",
                ),
                (
                    new.conductor_group not in groups,
                    BAD_REQUEST,
                    f"No conductor serves conductor group {new.conductor_group!r}, only {groups}.",
                ),
            )
            if not new.maintenance:
                new = structs.replace(new, maintenance_reason=None, fault=None)
            return new if new.instance_uuid else structs.replace(new, allocation_uuid=None)

        def refused(node: SimulatedNode, new: SimulatedNode) -> Iterable[Rule]:
            instance, name = new.instance_uuid, new.name
            if instance and instance != node.instance_uuid:
                other = self.table.instances.get(instance)
                taken = f"instance {node.instance_uuid}" if node.instance_uuid else f"node {other}"
                text = f"Node {node.uuid} and instance {instance}: associated with {taken} already."
                yield node.instance_uuid or other, CONFLICT, text
            if name and name != node.name:
                yield name in self.table.names, CONFLICT, f"There is a node with name {name} already."
            retires = new.retired and not node.retired and node.provision_state == work.AVAILABLE
            yield retires, CONFLICT, f"Node {node.uuid} is available: it can not be retired."

        return self.write(ident, "update", change, refused)

    def set_maintenance(self, ident: str, *, is_on: bool, reason: str | None = None) -> SimulatedNode:
        def change(node: SimulatedNode) -> SimulatedNode:
            why, fault = (reason, node.fault) if is_on else (None, None)
            return structs.replace(node, maintenance=is_on, maintenance_reason=why, fault=fault)

        return self.write(ident, "maintenance_set", change)

    def provision(self, ident: str, order: IronicOrder | str) -> SimulatedNode:
        asked = IronicOrder(target=order) if isinstance(order, str) else order
        return self._ordered(
            ident, lambda node, now_s: work.order_provision(node, asked, now_s, self.settings)
        )

    def set_power(self, ident: str, target: str) -> SimulatedNode:
        return self._ordered(ident, lambda node, now_s: work.order_power(node, target, now_s, self.settings))

    def set_console(self, ident: str, *, is_on: bool) -> SimulatedNode:
        # This refusal is not announced.
        check(self.known(ident).lock)
        return self.write(ident, "console_set", lambda node: structs.replace(node, console_enabled=is_on))

    def attach_vif(self, ident: str, vif: str) -> SimulatedNode:
        node, count = self.known(ident), self.settings.ports_count
        check(
            node.lock,
            (vif in node.vifs, CONFLICT, f"VIF {vif} is attached to node {node.uuid} already."),
            (
                len(node.vifs) >= count,
                BAD_REQUEST,
                f"Node {node.uuid} has no free port for VIF {vif}: it has {count}.",
            ),
        )
        return self._with_vifs(node, (*node.vifs, vif))

    def detach_vif(self, ident: str, vif: str) -> SimulatedNode:
        node = self.known(ident)
        has_none = node.network_interface != NO_NETWORK and vif not in node.vifs
        check(node.lock, (has_none, BAD_REQUEST, f"VIF {vif} is not attached to node {node.uuid}."))
        return self._with_vifs(node, tuple(each for each in node.vifs if each != vif))

    def _with_vifs(self, node: SimulatedNode, vifs: tuple[str, ...]) -> SimulatedNode:
        """No notification tells of ports."""
        if node.network_interface == NO_NETWORK:
            return node
        changed = structs.replace(node, vifs=vifs)
        self.table.replace(node, changed)
        return changed

    def why_not_deployable(self, ident: str) -> Mapping[str, str]:
        """Validate the node as Ironic does: for each driver interface, why it is invalid, or an empty text."""
        node = self.known(ident)
        is_silent = self._happens(BmcSilent, node, self._clock_s())
        power = f"The BMC of node {node.uuid} does not answer." if is_silent else ""
        return {**dict.fromkeys(_VALIDATED, ""), "deploy": node.why_no_image, "power": power}

    # The operations are made with these methods, also by tests/ironic_clients.

    def begin(self) -> Begun:
        """Finish everything that was due before a request."""
        self.advance()
        return self._clock_s(), self._new_request()

    def _new_request(self) -> str:
        return f"req-{new_uuid(self.chance)}"

    def write(
        self,
        ident: str,
        action: str,
        change: Callable[[SimulatedNode], SimulatedNode],
        refused: Callable[[SimulatedNode, SimulatedNode], Iterable[Rule]] = lambda *_: (),
    ) -> SimulatedNode:
        """Change a node, and announce it before and after. What `change` refuses is not announced; what `refused` says, or a lock,
        is, as an error.
        """
        begun = self.begin()
        node = self.known(ident)
        new = change(node)
        if new != node:
            new = structs.replace(new, updated_at=second(begun[0]))
        rules = (node.lock, *refused(node, new))
        return self.announce(new, action, rules, partial(self.table.replace, node), begun)

    def announce(
        self,
        new: SimulatedNode,
        action: str,
        rules: Iterable[Rule],
        store: Callable[[SimulatedNode], None],
        begun: Begun,
    ) -> SimulatedNode:
        """Store a change that the API was asked for, and announce it before and after; or announce its refusal, and raise it."""
        self._say(Said(new, action, "start"), begun)
        if error := first_refusal(rules):
            self._say(Said(new, action, "error"), begun)
            raise error
        store(new)
        self._say(Said(new, action, "end"), begun)
        return new

    def _say(self, said: Said, begun: Begun) -> None:
        self.publish(payload_of(said), begun)

    def publish(self, payload: Payload, begun: Begun) -> None:
        """Publish a notification: once, or twice, late or never if the script of faults says so."""
        at_s, request = begun
        # No two notifications have the same time, since consumers order the notifications of a node by it.
        self._last_us = max(int(at_s * 1e6), self._last_us + 1)
        key, body = written(payload, self._last_us, self.settings.host, request, self.chance)
        times: tuple[float, ...] = (0.0,)
        if self.script.faults:
            about = self._about(payload.data["name"], payload.data["uuid"], at_s)
            times = publishings(self.script, payload.event_type, about)
        self.lost += not times
        for late_s in times:
            if late_s:
                self.at(at_s + late_s, lambda _: self._send(key, body))
            else:
                self._send(key, body)

    def _send(self, key: str, body: bytes) -> None:
        self.published += 1
        self._publish(key, PROPERTIES, body)

    def _about(self, name: str | None, uuid: str, at_s: float) -> Subject:
        count = self._counts[uuid] = self._counts.get(uuid, 0) + 1
        return Subject(name, uuid, self._since_s(at_s), count)

    def _since_s(self, at_s: float) -> float:
        """The seconds since the fault script began."""
        return max(0.0, at_s - self._started_s)

    def _ordered(self, ident: str, order: Callable[[SimulatedNode, float], Step]) -> SimulatedNode:
        """Have the conductor begin to execute an order on a node."""
        now_s, request = self.begin()
        node = self.known(ident)
        step = order(node, now_s)
        self.go(node, step, now_s, request)
        return step.node

    # The conductor: the jobs of nodes, and the power sync

    def go(self, node: SimulatedNode, step: Step | None, at_s: float, request: str) -> None:
        """Store the node, publish its notification, and schedule its next job in place of a former one."""
        if step is None:
            return
        self.table.replace(node, step.node)
        if step.said is not None:
            self._say(step.said, (at_s, request))
        self.forget(node)
        if step.job is not None:
            self._jobs[node.uuid] = planned = (step.job, request)
            self.at(step.job.due_s, partial(self._finish, node.uuid, planned))

    def forget(self, node: SimulatedNode) -> None:
        self._jobs.pop(node.uuid, None)

    def _finish(self, uuid: str, planned: tuple[Job, str], at_s: float) -> None:
        if self._jobs.get(uuid) is not planned:
            return
        node, (job, request) = self.nodes[uuid], planned
        failure = ""
        if job.work in _NEEDS_BMC and self._happens(BmcSilent, node, at_s):
            failure = f"Failed to get power state for node {uuid}: the BMC did not answer."
        elif self.script.faults:
            failure = why_work_fails(self.script, job.work, self._about(node.name, uuid, at_s))
        self.go(node, work.finish(node, job, failure, at_s, self.settings), at_s, request)

    def _happens(self, fault: type[NodeLocked | BmcSilent], node: SimulatedNode, at_s: float) -> bool:
        """Whether the script says so of this node in this second."""
        since_s = self._since_s(at_s)
        about = Subject(node.name, node.uuid, since_s, int(since_s))
        return any(happening(self.script, fault, about))

    def _watch_power(self, at_s: float) -> None:
        """Schedule the next power sync if it may find a change: a fault makes BMCs silent, or a node has a power failure."""
        if not self._is_sync_due and self._suspects():
            self._is_sync_due = True
            self.at(at_s + self.settings.delays.power_sync_s, self._sync_power)

    def _suspects(self) -> Sequence[SimulatedNode]:
        some_fall_silent = any(isinstance(fault, BmcSilent) for fault in self.script.faults)
        return [each for each in self.nodes.values() if some_fall_silent or each.fault == POWER_FAILURE]

    def _sync_power(self, at_s: float) -> None:
        self._is_sync_due = False
        for node in self._suspects():
            is_silent = self._happens(BmcSilent, node, at_s)
            # The node's job, if it waits for an agent, goes on.
            if said := work.power_synced(node, at_s, is_silent=is_silent):
                self.table.replace(node, said.node)
                self._say(said, (at_s, self.periodic))
        self._watch_power(at_s)
