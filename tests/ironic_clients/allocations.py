"""Ironic's own allocation API: a client asks for a node of a resource class, and the conductor picks one a moment later.

When a node is taken or released in this way, Ironic sends no notification of the node. It sends some of the allocation,
but they name the node only when the allocation is deleted.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, structs

from laboratory.ironic import SimulatedIronic, SimulatedNode
from laboratory.ironic.node import CONFLICT, NOT_FOUND, Json, RequestRefused, operations_of, patched, second
from laboratory.ironic.notifications import Payload
from laboratory.ironic.work import AVAILABLE, STATES

ALLOCATING, ACTIVE, FAILED = "allocating", "active", "error"
# From the creation of an allocation to its node.
TAKES_S = 0.1


class Allocation(Struct, frozen=True, kw_only=True):
    """An allocation of Ironic, with its fields in the order of the notifications.

    As in Ironic, `traits` and `candidate_nodes` are null until the conductor has read the allocation from its database.
    """

    uuid: str
    name: str | None = None
    node_uuid: str | None = None
    state: str | None = None
    last_error: str | None = None
    owner: str | None = None
    resource_class: str | None = None
    traits: tuple[str, ...] | None = None
    candidate_nodes: tuple[str, ...] | None = None
    extra: Json = {}
    created_at: str | None = None
    updated_at: str | None = None


class Allocations:
    """The allocations of one simulated Ironic."""

    def __init__(self, ironic: SimulatedIronic) -> None:
        self._ironic = ironic
        self._written: dict[str, Allocation] = {}

    @property
    def present(self) -> Mapping[str, Allocation]:
        """By uuid. An allocation ends with its node, and when its node is torn down."""
        return {uuid: each for uuid, each in self._written.items() if self._has_node(each)}

    def _has_node(self, allocation: Allocation) -> bool:
        if allocation.node_uuid is None:
            return True
        node = self._ironic.nodes.get(allocation.node_uuid)
        return node is not None and node.allocation_uuid == allocation.uuid

    def find(self, uuid: str) -> Allocation | None:
        self._ironic.advance()
        return self.present.get(uuid)

    def create(self, allocation: Allocation) -> Allocation:
        now_s, request = self._ironic.begin()
        if allocation.uuid in self.present:
            raise RequestRefused(CONFLICT, f"There is an allocation with UUID {allocation.uuid} already.")
        self._say(allocation, "create", "start", now_s, request)
        created = structs.replace(allocation, state=ALLOCATING, created_at=second(now_s))
        self._written[created.uuid] = created
        self._say(created, "create", "end", now_s, request)
        self._ironic.at(now_s + TAKES_S, partial(self._pick, created.uuid))
        return created

    def patch_extra(self, uuid: str, operations: Sequence[Mapping[str, Any]]) -> None:
        """Change what is in `extra`. The notification lacks the node, as Ironic's does."""
        now_s, request = self._ironic.begin()
        changed = self._known(uuid)
        for operation in operations_of(operations):
            _, *inside = operation.keys
            changed = structs.replace(changed, extra=patched(changed.extra, inside, operation))
        self._say(structs.replace(changed, node_uuid=None), "update", "start", now_s, request)
        self._written[uuid] = changed = structs.replace(changed, updated_at=second(now_s))
        self._say(structs.replace(changed, node_uuid=None), "update", "end", now_s, request)

    def delete(self, uuid: str) -> None:
        now_s, request = self._ironic.begin()
        allocation = self._known(uuid)
        self._say(allocation, "delete", "start", now_s, request)
        node = self._ironic.nodes.get(allocation.node_uuid or "")
        if node is not None and _is_in_use(node):
            self._say(allocation, "delete", "error", now_s, request)
            text = f"Allocation {uuid} stays: its node {node.uuid} is {node.provision_state!r} and not in maintenance."
            raise RequestRefused(CONFLICT, text)
        if node is not None:
            free = structs.replace(node, instance_uuid=None, allocation_uuid=None, updated_at=second(now_s))
            self._ironic.table.replace(node, free)
        del self._written[uuid]
        self._say(allocation, "delete", "end", now_s, request)

    def _known(self, uuid: str) -> Allocation:
        if (allocation := self.present.get(uuid)) is None:
            raise RequestRefused(NOT_FOUND, f"Allocation {uuid} does not exist.")
        return allocation

    def _pick(self, uuid: str, at_s: float) -> None:
        """Give the allocation the first suitable node, or an error."""
        if uuid not in self._written:
            return
        allocation = structs.replace(
            self._written[uuid],
            traits=self._written[uuid].traits or (),
            candidate_nodes=self._written[uuid].candidate_nodes or (),
            updated_at=second(at_s),
        )
        node = next((each for each in self._ironic.nodes.values() if _fits(allocation, each)), None)
        if node is None:
            error = (
                f"Failed to process allocation {uuid}: "
                f"no available nodes match the resource class {allocation.resource_class}."
            )
            self._written[uuid] = structs.replace(allocation, state=FAILED, last_error=error)
            return
        self._written[uuid] = structs.replace(allocation, state=ACTIVE, node_uuid=node.uuid)
        taken = structs.replace(node, updated_at=second(at_s), instance_uuid=uuid, allocation_uuid=uuid)
        self._ironic.table.replace(node, taken)

    def _say(self, allocation: Allocation, action: str, status: str, at_s: float, request: str) -> None:
        event_type, data = f"baremetal.allocation.{action}.{status}", structs.asdict(allocation)
        payload = Payload(event_type, "api", "AllocationCRUDPayload", "1.1", data)
        self._ironic.publish(payload, (at_s, request))


def _fits(allocation: Allocation, node: SimulatedNode) -> bool:
    return (
        node.resource_class == allocation.resource_class
        and node.provision_state == AVAILABLE
        and node.instance_uuid is None
        and not node.maintenance
        and node.power_state is not None
        and node.reservation is None
        and (not allocation.candidate_nodes or node.uuid in allocation.candidate_nodes)
        and {*(allocation.traits or ())} <= {*node.traits}
        and (allocation.owner is None or allocation.owner in (node.owner, node.lessee))
    )


def _is_in_use(node: SimulatedNode) -> bool:
    """Does the node change its state, or is it active, and is not in maintenance?"""
    return not node.maintenance and bool(STATES[node.provision_state].work or node.provision_state == ACTIVE)
