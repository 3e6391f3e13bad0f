"""The payload of each notification: its name, its version and its fields in Ironic's order."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, structs

from compute_sim.laboratory.ironic.core.node import COMMON_COUNT, COMMON_FIELDS, Json, SimulatedNode
from compute_sim.laboratory.ironic.core.node_events import (
    NodeEvent,
    NodeWritten,
    PowerCorrected,
    PowerSet,
    ProvisionSet,
)

MASKED = "******"
_SECRETS = ("password", "secret", "token", "auth_key", "credential")
_MASKED_IN_INSTANCE = ("image_url", "configdrive")


class Payload(Struct, frozen=True):
    event_type: str
    # The publishing service: "api" or "conductor".
    service: str
    is_error: bool
    name: str
    version: str
    data: Mapping[str, Any]


def payload_of(said: NodeEvent) -> Payload:
    match said:
        case ProvisionSet(node, event, status, previous_state, previous_target):
            first = {
                "instance_info": masked(node.instance_info),
                "driver_internal_info": masked(node.driver_internal_info),
                "event": event,
                "previous_provision_state": previous_state,
                "previous_target_provision_state": previous_target,
            }
            return _payload("provision_set", status, "NodeSetProvisionStatePayload", "1.18", first, node=node)
        case PowerSet(node, to_power, status):
            first = {"to_power": to_power}
            return _payload("power_set", status, "NodeSetPowerStatePayload", "1.17", first, node=node)
        case PowerCorrected(node, from_power):
            first = {"from_power": from_power}
            return _payload(
                "power_state_corrected", "success", "NodeCorrectedPowerStatePayload", "1.17", first, node=node
            )
        case NodeWritten(node, "maintenance_set" as action, status):
            return _payload(action, status, "NodePayload", "1.17", {}, node=node, service="api")
        case NodeWritten(node, action, status):
            first = {
                "chassis_uuid": node.chassis_uuid,
                "instance_info": masked(node.instance_info),
                "driver_info": masked(node.driver_info),
            }
            return _payload(action, status, "NodeCRUDPayload", "1.15", first, node=node, service="api")


def _payload(
    action: str,
    status: str,
    name: str,
    version: str,
    first: Mapping[str, Any],
    *,
    node: SimulatedNode,
    service: str = "conductor",
) -> Payload:
    common = zip(COMMON_FIELDS, structs.astuple(node)[:COMMON_COUNT], strict=True)
    event_type = f"baremetal.node.{action}.{status}"
    return Payload(event_type, service, status == "error", name, version, {**first, **dict(common)})


def masked(info: Json) -> Json:
    """A copy of a field of a node, in which passwords, and what may contain them, are masked."""
    if not info:
        return info
    return {key: MASKED if _is_secret(key) else _inner(value) for key, value in info.items()}


def _inner(value: Any) -> Any:
    return masked(value) if isinstance(value, Mapping) else value


def _is_secret(key: str) -> bool:
    return key in _MASKED_IN_INSTANCE or any(each in key.lower() for each in _SECRETS)
