"""A node before and after an event of its state machine, and the notification of the event."""

from typing import Any

from msgspec import Struct, structs

from compute_sim.laboratory.ironic.core import states
from compute_sim.laboratory.ironic.core.node import SimulatedNode, second


class ProvisionSet(Struct, frozen=True):
    """An event has changed the node's provision state."""

    node: SimulatedNode
    event: str
    status: str
    previous_state: str
    previous_target: str | None


class PowerSet(Struct, frozen=True):
    """The power of a node will change, has changed, or could not be changed."""

    node: SimulatedNode
    to_power: str
    status: str


class PowerCorrected(Struct, frozen=True):
    """The conductor found that a node's power differs from its record."""

    node: SimulatedNode
    from_power: str | None


class NodeWritten(Struct, frozen=True):
    """The API creates, updates or deletes a node, or sets its maintenance (`action`).

    `status` says whether it begins (`start`), is done (`end`), or was refused (`error`).
    """

    node: SimulatedNode
    action: str
    status: str


NodeEvent = ProvisionSet | PowerSet | PowerCorrected | NodeWritten


def after_event(
    node: SimulatedNode, event: str, at_s: float, **changes: Any
) -> tuple[SimulatedNode, ProvisionSet]:
    """The node after an event that is allowed in its state, with these other changes; and the notification."""
    state = node.provision_state
    after = states.state_after(state, event)
    if after is None:
        raise ValueError(f"node {node.uuid} is {state!r}, which does not allow the event {event!r}")
    at = second(at_s)
    if after == states.INSPECTING:
        changes["inspection_started_at"] = at
    elif state in (states.INSPECTING, states.INSPECT_WAIT) and after != states.INSPECT_WAIT:
        changes["inspection_started_at"] = None
        if after == states.MANAGEABLE:
            changes["inspection_finished_at"] = at
    new = structs.replace(
        node,
        provision_state=after,
        target_provision_state=states.target_after(state, node.target_provision_state, event, after),
        provision_updated_at=at,
        updated_at=at,
        **changes,
    )
    status = states.status_of(state, event, after)
    return new, ProvisionSet(new, event, status, state, node.target_provision_state)


def internal(node: SimulatedNode, **values: Any) -> dict[str, Any]:
    """A copy of the node's driver_internal_info with these keys set."""
    return {**node.driver_internal_info, **values}
