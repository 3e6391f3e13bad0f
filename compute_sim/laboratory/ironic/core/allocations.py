"""Ironic's own allocation API: a client asks for a node of a resource class, and the conductor picks one.

When a node is taken or released in this way, Ironic sends no notification of the node. It sends some of the allocation,
but they name the node only when the allocation is deleted.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct, structs

from compute_sim.laboratory.ironic.core import states
from compute_sim.laboratory.ironic.core.node import Json, SimulatedNode, second
from compute_sim.laboratory.ironic.core.refusals import CONFLICT, RequestRefused

ALLOCATING, ACTIVE, FAILED = "allocating", "active", "error"


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


class AllocationWritten(Struct, frozen=True):
    allocation: Allocation
    action: str
    status: str


def fits(allocation: Allocation, node: SimulatedNode) -> bool:
    return (
        node.resource_class == allocation.resource_class
        and node.provision_state == states.AVAILABLE
        and node.instance_uuid is None
        and not node.maintenance
        and node.power_state is not None
        and node.reservation is None
        and (not allocation.candidate_nodes or node.uuid in allocation.candidate_nodes)
        and {*(allocation.traits or ())} <= {*node.traits}
        and (allocation.owner is None or allocation.owner in (node.owner, node.lessee))
    )


def allocate(
    allocation: Allocation, nodes: Iterable[SimulatedNode], at_s: float
) -> tuple[Allocation, SimulatedNode | None]:
    """The allocation and the first suitable node; or the allocation with an error, and None."""
    allocation = structs.replace(
        allocation,
        traits=allocation.traits or (),
        candidate_nodes=allocation.candidate_nodes or (),
        updated_at=second(at_s),
    )
    node = next((each for each in nodes if fits(allocation, each)), None)
    if node is None:
        error = (
            f"Failed to process allocation {allocation.uuid}: "
            f"no available nodes match the resource class {allocation.resource_class}."
        )
        return structs.replace(allocation, state=FAILED, last_error=error), None
    taken: dict[str, Any] = {"instance_uuid": allocation.uuid, "allocation_uuid": allocation.uuid}
    node = structs.replace(node, updated_at=second(at_s), **taken)
    return structs.replace(allocation, state=ACTIVE, node_uuid=node.uuid), node


def check_deletable(allocation: Allocation, node: SimulatedNode) -> None:
    """Raise RequestRefused if the allocation's node changes its state or is active, and is not in maintenance."""
    state = node.provision_state
    in_transition = node.target_provision_state and state not in states.UPDATE_ALLOWED
    if not node.maintenance and (in_transition or state == states.ACTIVE):
        text = (
            f"Allocation {allocation.uuid} stays: its node {node.uuid} is {state!r} and not in maintenance."
        )
        raise RequestRefused(CONFLICT, text)
