"""The simulated Ironic: its nodes, the conductor's work on them, and what its API may ask of it.

All that is decided stands in core/. Here are the nodes as they are, the time, and chance. Nothing here awaits anything, so
that each call sees the nodes as they are between two notifications.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID, uuid5

import os_traits
from msgspec import structs

from compute_sim.ironic.announcing import Announcer
from compute_sim.ironic.core import allocations, changes, orders, states, work
from compute_sim.ironic.core.allocations import Allocation, AllocationWritten
from compute_sim.ironic.core.json_patch import flaw_of, keys_of, patched
from compute_sim.ironic.core.moves import MaintenanceSet, NodeWritten
from compute_sim.ironic.core.node import Node, second
from compute_sim.ironic.core.orders import ProvisionOrder
from compute_sim.ironic.core.refusals import BAD_REQUEST, CONFLICT, NOT_FOUND, Refused, no_such_node
from compute_sim.ironic.core.script import (
    About,
    Away,
    BmcSilent,
    IronicScript,
    away,
    is_bmc_silent,
    is_locked,
    why_work_fails,
)
from compute_sim.ironic.core.work import POWER_FAILURE, Going, Job, Rules
from compute_sim.ironic.notifications import Publish, new_request_id, new_uuid
from compute_sim.ironic.settings import IronicSimSettings
from compute_sim.ironic.timers import Timers

LATEST_MINOR = 115
_NAMESPACE = UUID("3f1c8a52-6d0e-4f5b-9c77-0a4be2d1c6ee")
_STANDARD_TRAITS = frozenset(os_traits.get_traits())
# Work that needs the node's BMC to answer.
_NEEDS_BMC = frozenset({"verify", "power"})
# How many actions run before other tasks of the process have their turn.
_ACTIONS_AT_ONCE = 200


def available_nodes(
    count: int,
    *,
    resource_class: str | None = "baremetal",
    name: str = "node",
    **fields: Any,
) -> tuple[Node, ...]:
    """Nodes that are alike, available and off: `node-00000` and so on, each with a uuid that follows from its name."""
    made = []
    for number in range(count):
        own = f"{name}-{number:05}"
        values = {
            "provision_state": states.AVAILABLE,
            "power_state": states.POWER_OFF,
            "properties": {"cpus": 8, "memory_mb": 65536, "local_gb": 480, "cpu_arch": "x86_64"},
            **fields,
        }
        made.append(Node(uuid=str(uuid5(_NAMESPACE, own)), name=own, resource_class=resource_class, **values))
    return tuple(made)


class SimulatedIronic:
    """See the package's docstring for what it offers."""

    def __init__(
        self,
        nodes: Iterable[Node],
        clock_s: Callable[[], float],
        publish: Publish,
        settings: IronicSimSettings | None = None,
        *,
        script: IronicScript | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.settings = settings or IronicSimSettings()
        self.allocations: dict[str, Allocation] = {}
        self._clock_s = clock_s
        self._chance = chance or random.Random()
        self._started_s = clock_s()
        self._rules = Rules(self.settings.delays, self.settings.cleans, self.settings.host)
        self._nodes: dict[str, Node] = {}
        self._names: dict[str, str] = {}
        self._instances: dict[str, str] = {}
        # The job of a node that is under way, and the request that it is due to.
        self._jobs: dict[str, tuple[Job, str]] = {}
        self._counts: dict[str, int] = {}
        self._silenced: set[str] = set()
        self._is_sync_due = False
        # What the conductor does by itself has one request id, for as long as it runs.
        self._periodic = self._new_request()
        self._away: tuple[float, bool] | None = None
        self._timers = Timers()
        self._announcer = Announcer(publish, self.settings.host, self._timers, self._about, self._chance)
        self._wake = asyncio.Event()
        self._is_stopped = False
        for node in nodes:
            self._add(self._founded(node))
        self.script = script or IronicScript()

    # The clock

    @property
    def next_due_s(self) -> float | None:
        return self._timers.next_due_s

    def advance(self, count_max: int | None = None) -> int:
        """Do the work that is due by the clock; returns how many pieces there were."""
        return self._timers.run_due(self._clock_s(), count_max)

    async def run(self) -> None:
        while not self._is_stopped:
            self._wake.clear()
            if self.advance(_ACTIONS_AT_ONCE) >= _ACTIONS_AT_ONCE:
                await asyncio.sleep(0)
                continue
            due_s = self.next_due_s
            pause_s = None if due_s is None else max(0.0, due_s - self._clock_s())
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    async def stop(self) -> None:
        self._is_stopped = True
        self._wake.set()

    # What it is told by whoever runs it

    @property
    def script(self) -> IronicScript:
        return self._announcer.script

    @script.setter
    def script(self, script: IronicScript) -> None:
        self._announcer.script = script
        self._watch_power()

    @property
    def published(self) -> int:
        return self._announcer.published

    @property
    def lost(self) -> int:
        return self._announcer.lost

    def silence_bmc(self, ident: str) -> None:
        """From the next power sync on the node is in maintenance."""
        self._silenced.add(self._known(ident).uuid)
        self._watch_power()

    def wake_bmc(self, ident: str) -> None:
        self._silenced.discard(self._known(ident).uuid)
        self._watch_power()

    def change_power_out_of_band(self, ident: str, power: str) -> None:
        """Somebody presses the button: the conductor sets the power back to what it has noted."""
        node = self._known(ident)
        if power not in (states.POWER_ON, states.POWER_OFF):
            raise ValueError(f"power is {power!r}, must be {states.POWER_ON!r} or {states.POWER_OFF!r}")
        now_s = self._clock_s()
        went = None if power == node.power_state else orders.keep_power(node, now_s, self._rules)
        if went is not None:
            self._go(node, went, now_s, self._periodic)

    def go_away(self, for_s: float, *, refuses: bool = False) -> None:
        """The API answers 503 for this time, or takes no connections. Conductors go on working."""
        self._away = (self._clock_s() + for_s, refuses)

    def come_back(self) -> None:
        self._away = None

    @property
    def is_away(self) -> bool:
        return self._why_away() is not None

    @property
    def refuses_connections(self) -> bool:
        fault = self._why_away()
        return fault is not None and fault.refuses

    def _why_away(self) -> Away | None:
        if self._away is not None and self._clock_s() < self._away[0]:
            return Away(refuses=self._away[1])
        return away(self.script, self._since_s(self._clock_s()))

    # Nodes

    @property
    def nodes(self) -> Mapping[str, Node]:
        """By uuid, in the order in which they were created."""
        return self._nodes

    def node(self, ident: str) -> Node | None:
        """With the lock that the script holds, if it does."""
        self.advance()
        node = self._find(ident)
        return None if node is None else self._locked(node, self._clock_s())

    def create(self, fields: Mapping[str, Any], minor: int = LATEST_MINOR) -> Refused | Node:
        now_s, request = self._begin()
        uuid = new_uuid(self._chance)
        written = changes.create(fields, self._others(), now_s, minor, uuid=uuid)
        if isinstance(written, Refused):
            return written
        self._announcer.say(NodeWritten(written.start, "create", "start"), now_s, request)
        if written.refused is not None:
            self._announcer.say(NodeWritten(written.start, "create", "error"), now_s, request)
            return written.refused
        self._add(written.after)
        self._announcer.say(NodeWritten(written.after, "create", "end"), now_s, request)
        return written.after

    def patch(self, ident: str, operations: object, minor: int = LATEST_MINOR) -> Refused | Node:
        return self._written(
            ident,
            "update",
            lambda node, now_s: changes.patch(node, operations, self._others(), now_s, minor),
        )

    def set_traits(self, ident: str, traits: Sequence[str], *, replaces: bool = True) -> Refused | Node:
        return self._written(
            ident,
            "update",
            lambda node, _: changes.set_traits(node, traits, _STANDARD_TRAITS, replaces=replaces),
        )

    def remove_traits(self, ident: str, trait: str | None = None) -> Refused | Node:
        return self._written(ident, "update", lambda node, _: changes.remove_traits(node, trait))

    def delete(self, ident: str) -> Refused | Node:
        gone = self._written(ident, "delete", lambda node, _: changes.delete(node))
        if isinstance(gone, Node):
            self._remove(gone)
        return gone

    def set_maintenance(self, ident: str, *, is_on: bool, reason: str | None = None) -> Refused | Node:
        return self._written(
            ident, "maintenance_set", lambda node, now_s: changes.set_maintenance(node, is_on, reason, now_s)
        )

    def provision(self, ident: str, order: ProvisionOrder | str, minor: int = LATEST_MINOR) -> Refused | Node:
        asked = ProvisionOrder(target=order) if isinstance(order, str) else order
        return self._ordered(
            ident, lambda node, now_s: orders.order_provision(node, asked, now_s, self._rules, minor)
        )

    def set_power(self, ident: str, target: str) -> Refused | Node:
        return self._ordered(ident, lambda node, now_s: orders.order_power(node, target, now_s, self._rules))

    def attach_vif(self, ident: str, vif: str) -> Refused | Node:
        return self._quietly(ident, lambda node: changes.attach_vif(node, vif, self.settings.ports_count))

    def detach_vif(self, ident: str, vif: str) -> Refused | Node:
        return self._quietly(ident, lambda node: changes.detach_vif(node, vif))

    def why_not_deployable(self, ident: str) -> Refused | Mapping[str, str]:
        """By interface why it does not validate; empty where it does."""
        self.advance()
        node = self._find(ident)
        if node is None:
            return no_such_node(ident)
        reasons = dict.fromkeys(_VALIDATED, "")
        if node.has_agent and not node.instance_info.get("image_source"):
            reasons["deploy"] = f"Node {node.uuid} has no image_source in instance_info."
        if node.uuid in self._silenced:
            reasons["power"] = f"The BMC of node {node.uuid} does not answer."
        return reasons

    # Allocations

    def allocate(self, allocation: Allocation) -> Refused | Allocation:
        now_s, request = self._begin()
        if allocation.uuid in self.allocations:
            return Refused(CONFLICT, f"There is an allocation with UUID {allocation.uuid} already.")
        if allocation.name is not None and self.allocation(allocation.name) is not None:
            return Refused(CONFLICT, f"There is an allocation with name {allocation.name} already.")
        self._announcer.say(AllocationWritten(allocation, "create", "start"), now_s, request)
        created = structs.replace(allocation, state=allocations.ALLOCATING, created_at=second(now_s))
        self.allocations[created.uuid] = created
        self._announcer.say(AllocationWritten(created, "create", "end"), now_s, request)
        self._at(now_s + self.settings.delays.allocation_s, partial(self._pick, created.uuid))
        return created

    def allocation(self, ident: str) -> Allocation | None:
        self.advance()
        found = self.allocations.get(ident)
        return found or next((each for each in self.allocations.values() if each.name == ident), None)

    def patch_allocation(self, ident: str, operations: object) -> Refused | Allocation:
        now_s, request = self._begin()
        allocation = self.allocation(ident)
        if allocation is None:
            return _no_such_allocation(ident)
        changed = _patched_allocation(allocation, operations)
        if isinstance(changed, Refused):
            return changed
        start = structs.replace(changed, node_uuid=None)
        self._announcer.say(AllocationWritten(start, "update", "start"), now_s, request)
        self.allocations[allocation.uuid] = structs.replace(changed, updated_at=second(now_s))
        end = structs.replace(start, updated_at=second(now_s))
        self._announcer.say(AllocationWritten(end, "update", "end"), now_s, request)
        return self.allocations[allocation.uuid]

    def deallocate(self, ident: str) -> Refused | None:
        now_s, request = self._begin()
        allocation = self.allocation(ident)
        if allocation is None:
            return _no_such_allocation(ident)
        self._announcer.say(AllocationWritten(allocation, "delete", "start"), now_s, request)
        node = self._nodes.get(allocation.node_uuid or "")
        refused = None if node is None else allocations.why_kept(allocation, node)
        if refused is not None:
            self._announcer.say(AllocationWritten(allocation, "delete", "error"), now_s, request)
            return refused
        del self.allocations[allocation.uuid]
        if node is not None:
            free = structs.replace(node, instance_uuid=None, allocation_uuid=None, updated_at=second(now_s))
            self._replace(node, free)
        self._announcer.say(AllocationWritten(allocation, "delete", "end"), now_s, request)
        return None

    def _pick(self, uuid: str, at_s: float) -> None:
        allocation = self.allocations.get(uuid)
        if allocation is None:
            return
        self.allocations[uuid], node = allocations.allocate(allocation, self._nodes.values(), at_s)
        if node is not None:
            self._replace(self._nodes[node.uuid], node)

    # Inside

    def _begin(self) -> tuple[float, str]:
        """All that was due before a request is done before it."""
        self.advance()
        return self._clock_s(), self._new_request()

    def _new_request(self) -> str:
        return new_request_id(self._chance)

    def _since_s(self, at_s: float) -> float:
        return max(0.0, at_s - self._started_s)

    def _find(self, ident: str) -> Node | None:
        return self._nodes.get(self._names.get(ident, ident))

    def _known(self, ident: str) -> Node:
        self.advance()
        node = self._find(ident)
        if node is None:
            raise ValueError(f"there is no node {ident!r}")
        return node

    def _others(self) -> changes.Others:
        return changes.Others(
            self._nodes.keys(), self._names.keys(), self._instances.keys(), self.settings.conductor_groups
        )

    def _about(self, uuid: str, at_s: float) -> About:
        count = self._counts[uuid] = self._counts.get(uuid, 0) + 1
        node = self._nodes.get(uuid)
        return About(None if node is None else node.name, uuid, self._since_s(at_s), count)

    def _locked(self, node: Node, now_s: float) -> Node:
        """With the lock that the script holds, if it does."""
        if not self.script.faults or node.reservation:
            return node
        since_s = self._since_s(now_s)
        # Whether it is locked is drawn anew each second.
        if is_locked(self.script, About(node.name, node.uuid, since_s, int(since_s))):
            return structs.replace(node, reservation=self.settings.host)
        return node

    def _written(
        self, ident: str, action: str, change: Callable[[Node, float], Refused | changes.Written]
    ) -> Refused | Node:
        """A change that is announced before and after."""
        now_s, request = self._begin()
        node = self._find(ident)
        if node is None:
            return no_such_node(ident)
        written = change(self._locked(node, now_s), now_s)
        if isinstance(written, Refused):
            return written
        self._say_written(written.start, action, "start", now_s, request)
        if written.refused is not None:
            self._say_written(written.start, action, "error", now_s, request)
            return written.refused
        self._replace(node, written.after)
        self._say_written(written.after, action, "end", now_s, request)
        return written.after

    def _say_written(self, node: Node, action: str, status: str, at_s: float, request: str) -> None:
        if action == "maintenance_set":
            self._announcer.say(MaintenanceSet(node, status), at_s, request)
        else:
            self._announcer.say(NodeWritten(node, action, status), at_s, request)

    def _ordered(self, ident: str, order: Callable[[Node, float], Refused | Going]) -> Refused | Node:
        """An order that the conductor begins to carry out."""
        now_s, request = self._begin()
        node = self._find(ident)
        if node is None:
            return no_such_node(ident)
        went = order(self._locked(node, now_s), now_s)
        if isinstance(went, Refused):
            return went
        self._go(node, went, now_s, request)
        return went.node

    def _quietly(self, ident: str, change: Callable[[Node], Refused | Node]) -> Refused | Node:
        """A change that no notification tells of."""
        now_s, _ = self._begin()
        node = self._find(ident)
        if node is None:
            return no_such_node(ident)
        changed = change(self._locked(node, now_s))
        if isinstance(changed, Node):
            self._replace(node, changed)
        return changed

    def _go(self, node: Node, went: Going, at_s: float, request: str) -> None:
        """Keep the node, say what is to be said, and plan the job that follows; a former job is off."""
        self._jobs.pop(node.uuid, None)
        self._replace(node, went.node)
        for said in went.said:
            self._announcer.say(said, at_s, request)
        if went.job is not None:
            self._jobs[node.uuid] = planned = (went.job, request)
            self._at(went.job.due_s, partial(self._finish, node.uuid, planned))

    def _finish(self, uuid: str, planned: tuple[Job, str], at_s: float) -> None:
        node = self._nodes.get(uuid)
        if node is None or self._jobs.get(uuid) is not planned:
            return
        job, request = planned
        if job.name in ("clean timeout", "deploy timeout"):
            request = self._periodic
        self._go(
            node,
            work.finish(node, job, partial(self._why_fails, node, at_s), at_s, self._rules),
            at_s,
            request,
        )

    def _why_fails(self, node: Node, at_s: float, kind: str) -> str:
        if kind in _NEEDS_BMC and self._is_silent(node, at_s):
            return f"Failed to get power state for node {node.uuid}: the BMC did not answer."
        if not self.script.faults:
            return ""
        return why_work_fails(self.script, kind, self._about(node.uuid, at_s))

    def _is_silent(self, node: Node, at_s: float) -> bool:
        if node.uuid in self._silenced:
            return True
        return bool(self.script.faults) and is_bmc_silent(
            self.script, About(node.name, node.uuid, self._since_s(at_s), 0)
        )

    def _watch_power(self) -> None:
        """Sync the power of nodes as long as there may be something to find."""
        if self._is_sync_due or not self._suspects():
            return
        self._is_sync_due = True
        self._at(self._clock_s() + self.settings.delays.power_sync_s, self._sync_power)

    def _suspects(self) -> Sequence[str]:
        if any(isinstance(fault, BmcSilent) for fault in self.script.faults):
            return [*self._nodes]
        failed = (uuid for uuid, node in self._nodes.items() if node.fault == POWER_FAILURE)
        return sorted({*self._silenced, *failed})

    def _sync_power(self, at_s: float) -> None:
        self._is_sync_due = False
        for uuid in self._suspects():
            node = self._nodes.get(uuid)
            if node is None:
                self._silenced.discard(uuid)
                continue
            went = work.power_synced(node, self._is_silent(node, at_s), at_s)
            if went is not None:
                self._replace(node, went.node)
                for said in went.said:
                    self._announcer.say(said, at_s, self._periodic)
        self._watch_power()

    def _at(self, due_s: float, action: Callable[[float], None]) -> None:
        self._timers.at(due_s, action)
        self._wake.set()

    def _founded(self, node: Node) -> Node:
        """A node of the start, with the times that it lacks."""
        at = second(self._started_s)
        return structs.replace(
            node,
            created_at=node.created_at or at,
            provision_updated_at=node.provision_updated_at
            or (None if node.provision_state == states.ENROLL else at),
            bmc_power=node.bmc_power or node.power_state,
        )

    def _add(self, node: Node) -> None:
        if node.uuid in self._nodes:
            raise ValueError(f"two nodes have the uuid {node.uuid}")
        self._nodes[node.uuid] = node
        self._index(node)

    def _index(self, node: Node) -> None:
        if node.name is not None:
            self._names[node.name] = node.uuid
        if node.instance_uuid is not None:
            self._instances[node.instance_uuid] = node.uuid

    def _unindex(self, node: Node) -> None:
        if node.name is not None:
            self._names.pop(node.name, None)
        if node.instance_uuid is not None:
            self._instances.pop(node.instance_uuid, None)

    def _replace(self, old: Node, new: Node) -> None:
        if old.name != new.name or old.instance_uuid != new.instance_uuid:
            self._unindex(old)
            self._index(new)
        if old.allocation_uuid is not None and new.allocation_uuid is None:
            self.allocations.pop(old.allocation_uuid, None)
        self._nodes[new.uuid] = new

    def _remove(self, node: Node) -> None:
        self._unindex(node)
        del self._nodes[node.uuid]
        self._jobs.pop(node.uuid, None)
        self._silenced.discard(node.uuid)
        if node.allocation_uuid is not None:
            self.allocations.pop(node.allocation_uuid, None)


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


def _no_such_allocation(ident: str) -> Refused:
    return Refused(NOT_FOUND, f"Allocation {ident} does not exist.")


def _patched_allocation(allocation: Allocation, operations: object) -> Allocation | Refused:
    if flaw := flaw_of(operations):
        return Refused(BAD_REQUEST, f"The patch is not valid: {flaw}.")
    assert isinstance(operations, Sequence)
    for operation in operations:
        field, *inside = keys_of(operation["path"])
        if field not in ("name", "extra"):
            return Refused(BAD_REQUEST, f"Cannot patch {operation['path']}. Only these can be: name, extra.")
        new = patched(getattr(allocation, field), inside, operation)
        if isinstance(new, Refused):
            return new
        allocation = structs.replace(allocation, **{field: {} if field == "extra" and new is None else new})
    return allocation
