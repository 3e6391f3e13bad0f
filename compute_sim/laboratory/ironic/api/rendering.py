"""Nodes and allocations as the REST API shows them."""

from collections.abc import Mapping, Sequence
from typing import Any

from compute_sim.laboratory.ironic.core import states
from compute_sim.laboratory.ironic.core.allocations import Allocation
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
_SUBRESOURCES = ("ports", "states", "portgroups", "volume")


def asked_fields(text: str, minor: int) -> tuple[str, ...]:
    """The fields named in `?fields=`."""
    fields = tuple(each.strip() for each in text.split(",") if each.strip())
    check_minors(fields, minor)
    for field in fields:
        if field not in _ALL_FIELDS or field in _NOT_ASKED_FOR:
            raise RequestRefused(BAD_REQUEST, f"Field {field} is not a valid field.")
    return fields


def node_shown(
    node: SimulatedNode, minor: int, fields: Sequence[str] | None, base: str, conductor: str
) -> dict[str, Any]:
    """A node as the API shows it: these fields, or all if None."""
    shown = {
        field: _value(node, field, minor, conductor)
        for field in (_ALL_FIELDS if fields is None else fields)
        if FIELD_MINORS.get(field, 1) <= minor
    }
    shown["links"] = _links(base, "nodes", node.uuid)
    if fields is None:
        for name in _SUBRESOURCES:
            shown[name] = _links(base, "nodes", f"{node.uuid}/{name}")
    return shown


def _value(node: SimulatedNode, field: str, minor: int, conductor: str) -> Any:
    if field == "conductor":
        return conductor
    if field == "health":
        return None
    value = getattr(node, field)
    if field in _TIMES:
        return _time(value)
    if field in _MASKED:
        return masked(value)
    if field == "provision_state" and value == states.AVAILABLE and minor < _AVAILABLE_MINOR:
        return None
    return value


_AVAILABLE_MINOR = 2


def states_shown(node: SimulatedNode, minor: int, conductor: str) -> dict[str, Any]:
    fields = [
        "console_enabled",
        "inspection_finished_at",
        "inspection_started_at",
        "last_error",
        "power_state",
        "provision_state",
        "provision_updated_at",
        "raid_config",
        "target_power_state",
        "target_provision_state",
        "target_raid_config",
        "boot_mode",
        "secure_boot",
    ]
    return {
        field: _value(node, field, minor, conductor)
        for field in fields
        if FIELD_MINORS.get(field, 1) <= minor
    }


def allocation_shown(allocation: Allocation, minor: int, base: str) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "uuid": allocation.uuid,
        "created_at": _time(allocation.created_at),
        "updated_at": _time(allocation.updated_at),
        "candidate_nodes": list(allocation.candidate_nodes or ()),
        "extra": allocation.extra,
        "last_error": allocation.last_error,
        "name": allocation.name,
        "resource_class": allocation.resource_class,
        "state": allocation.state,
        "traits": list(allocation.traits or ()),
        "node_uuid": allocation.node_uuid,
        "links": _links(base, "allocations", allocation.uuid),
    }
    if minor >= _ALLOCATION_OWNER_MINOR:
        shown["owner"] = allocation.owner
    return shown


_ALLOCATION_OWNER_MINOR = 60


def _time(text: str | None) -> str | None:
    return None if text is None else text.replace("Z", "+00:00")


def _links(base: str, resource: str, ident: str) -> list[Mapping[str, str]]:
    return [
        {"href": f"{base}/v1/{resource}/{ident}", "rel": "self"},
        {"href": f"{base}/{resource}/{ident}", "rel": "bookmark"},
    ]


def root_shown(base: str, latest_minor: int) -> dict[str, Any]:
    version = _version_shown(base, latest_minor)
    return {
        "name": "OpenStack Ironic API",
        "description": "A simulated Ironic.",
        "default_version": version,
        "versions": [version],
    }


def v1_shown(base: str, latest_minor: int) -> dict[str, Any]:
    return {
        "id": "v1",
        "links": [{"href": f"{base}/v1/", "rel": "self"}],
        "media_types": {
            "base": "application/json",
            "type": "application/vnd.openstack.ironic.v1+json",
        },
        "nodes": _links(base, "nodes", ""),
        "allocations": _links(base, "allocations", ""),
        "version": _version_shown(base, latest_minor),
    }


def _version_shown(base: str, latest_minor: int) -> dict[str, Any]:
    return {
        "id": "v1",
        "links": [{"href": f"{base}/v1/", "rel": "self"}],
        "status": "CURRENT",
        "min_version": "1.1",
        "version": f"1.{latest_minor}",
    }
