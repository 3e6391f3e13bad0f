"""Nodes as the REST API shows them."""

from collections.abc import Sequence
from typing import Any

from compute_sim.laboratory.ironic.core.changes import FIELD_MINORS, check_minors
from compute_sim.laboratory.ironic.core.node import SimulatedNode
from compute_sim.laboratory.ironic.core.payloads import masked
from compute_sim.laboratory.ironic.core.refusals import BAD_REQUEST, RequestRefused

SHORT_FIELDS = ("instance_uuid", "maintenance", "power_state", "provision_state", "uuid", "name")
_TIMES = frozenset(
    {
        "created_at",
        "updated_at",
        "provision_updated_at",
        "inspection_finished_at",
        "inspection_started_at",
    }
)
_MASKED = frozenset({"driver_info", "driver_internal_info", "instance_info"})
_ALL_FIELDS = (
    "uuid",
    "created_at",
    "updated_at",
    "automated_clean",
    "bios_interface",
    "boot_interface",
    "boot_mode",
    "clean_step",
    "conductor_group",
    "console_enabled",
    "console_interface",
    "disable_power_off",
    "deploy_interface",
    "deploy_step",
    "description",
    "driver",
    "driver_info",
    "driver_internal_info",
    "extra",
    "fault",
    "firmware_interface",
    "health",
    "inspection_finished_at",
    "inspection_started_at",
    "inspect_interface",
    "instance_info",
    "instance_name",
    "instance_uuid",
    "last_error",
    "lessee",
    "maintenance",
    "maintenance_reason",
    "management_interface",
    "name",
    "network_data",
    "network_interface",
    "owner",
    "parent_node",
    "power_interface",
    "power_state",
    "properties",
    "protected",
    "protected_reason",
    "provision_state",
    "provision_updated_at",
    "raid_config",
    "raid_interface",
    "rescue_interface",
    "reservation",
    "resource_class",
    "retired",
    "retired_reason",
    "secure_boot",
    "service_step",
    "shard",
    "storage_interface",
    "target_power_state",
    "target_provision_state",
    "target_raid_config",
    "traits",
    "vendor_interface",
    "conductor",
    "allocation_uuid",
    "chassis_uuid",
)
# Fields that cannot be requested by name.
_NOT_ASKED_FOR = frozenset({"created_at", "updated_at"})


def asked_fields(text: str, minor: int) -> tuple[str, ...]:
    """The fields named in `?fields=`."""
    fields = tuple(each.strip() for each in text.split(",") if each.strip())
    check_minors(fields, minor)
    for field in fields:
        if field not in _ALL_FIELDS or field in _NOT_ASKED_FOR:
            raise RequestRefused(BAD_REQUEST, f"Field {field} is not a valid field.")
    return fields


def node_shown(
    node: SimulatedNode, minor: int, fields: Sequence[str] | None, conductor: str
) -> dict[str, Any]:
    """A node as the API shows it: these fields, or all if None. Ironic's links are left out."""
    return {
        field: _value(node, field, conductor)
        for field in (_ALL_FIELDS if fields is None else fields)
        if FIELD_MINORS.get(field, 1) <= minor
    }


def _value(node: SimulatedNode, field: str, conductor: str) -> Any:
    if field == "conductor":
        return conductor
    if field == "health":
        return None
    value = getattr(node, field)
    if field in _TIMES and value is not None:
        return value.replace("Z", "+00:00")
    return masked(value) if field in _MASKED else value
