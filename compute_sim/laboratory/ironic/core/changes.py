"""Patching a node and setting its maintenance: what is allowed, and the notifications.

Ironic sends a notification before its conductor has agreed: first the requested change, then the result or the error. A
change that the API itself refuses has no notification.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from msgspec import Struct, structs

from compute_sim.laboratory.ironic.core import states
from compute_sim.laboratory.ironic.core.json_patch import Operation, operations_of, patched
from compute_sim.laboratory.ironic.core.node import (
    DRIVERS,
    INTERFACES,
    NO_NETWORK,
    SimulatedNode,
    check_unlocked,
    refusal_of_lock,
    second,
)
from compute_sim.laboratory.ironic.core.refusals import (
    BAD_REQUEST,
    CONFLICT,
    NOT_ACCEPTABLE,
    RequestRefused,
    Rule,
    first_refusal,
)

TRAITS_MAX = 50
_UUID = re.compile(r"[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}\Z")
_CUSTOM_TRAIT = re.compile(r"CUSTOM_[A-Z0-9_]+\Z")
_TRAIT_LENGTH_MAX = 255

# The fields that can be patched, by the type of their values. Of Ironic's checks of values, only those of types and UUIDs are
# here: lengths and names of hosts are right in whatever Moorage sends.
_FIELDS: Mapping[type[Any], tuple[str, ...]] = {
    dict: ("driver_info", "extra", "instance_info", "network_data", "properties"),
    bool: ("automated_clean", "disable_power_off", "maintenance", "protected", "retired"),
    str: (
        *INTERFACES,
        "chassis_uuid",
        "conductor_group",
        "description",
        "driver",
        "instance_name",
        "instance_uuid",
        "lessee",
        "name",
        "owner",
        "parent_node",
        "protected_reason",
        "resource_class",
        "retired_reason",
        "shard",
    ),
}
PATCH_ALLOWED = frozenset(chain.from_iterable(_FIELDS.values()))
_UUIDS = ("uuid", "instance_uuid", "chassis_uuid")
# Null in a request means these.
_OF_NULL: Mapping[str, Any] = {
    **{field: {} for field in _FIELDS[dict]},
    **dict.fromkeys(_FIELDS[bool], False),
    "automated_clean": None,
    "conductor_group": "",
}
# The microversion that introduced a field; fields without one were always there.
FIELD_MINORS: Mapping[str, int] = {
    "driver_internal_info": 3,
    "name": 5,
    "inspection_finished_at": 6,
    "inspection_started_at": 6,
    "clean_step": 7,
    "raid_config": 12,
    "target_raid_config": 12,
    "network_interface": 20,
    "resource_class": 21,
    "boot_interface": 31,
    "console_interface": 31,
    "deploy_interface": 31,
    "inspect_interface": 31,
    "management_interface": 31,
    "power_interface": 31,
    "raid_interface": 31,
    "vendor_interface": 31,
    "storage_interface": 33,
    "traits": 37,
    "rescue_interface": 38,
    "bios_interface": 40,
    "fault": 42,
    "deploy_step": 44,
    "conductor_group": 46,
    "automated_clean": 47,
    "protected": 48,
    "protected_reason": 48,
    "conductor": 49,
    "owner": 50,
    "description": 51,
    "allocation_uuid": 52,
    "retired": 61,
    "retired_reason": 61,
    "lessee": 65,
    "network_data": 66,
    "boot_mode": 75,
    "secure_boot": 75,
    "shard": 82,
    "parent_node": 83,
    "firmware_interface": 86,
    "service_step": 87,
    "disable_power_off": 95,
    "instance_name": 104,
    "health": 109,
}


class ChangedNode(Struct, frozen=True):
    """The result of a request to change a node.

    One notification is published before the change and one after it. `start` is the node with the requested values, as
    in the first notification. `after` is the node that is stored, with the values that Ironic itself adds. `refused`
    says why the conductor refused the change, if it did.
    """

    start: SimulatedNode
    after: SimulatedNode
    refused: RequestRefused | None = None


class ValuesInUse(Struct, frozen=True):
    """Values in use by other nodes: names and instances; and the existing conductor groups."""

    names: Collection[str]
    instances: Collection[str]
    groups: Collection[str]


def check_minors(names: Iterable[str], minor: int, minors: Mapping[str, int] = FIELD_MINORS) -> None:
    """Raise RequestRefused if the microversion does not have one of these fields yet."""
    for name in names:
        if minors.get(name, 1) > minor:
            raise RequestRefused(NOT_ACCEPTABLE, f"{name} needs API version 1.{minors[name]}.")


def is_uuid(text: str) -> bool:
    return _UUID.match(text) is not None


def patch(node: SimulatedNode, document: object, in_use: ValuesInUse, at_s: float, minor: int) -> ChangedNode:
    operations = operations_of(document)
    fields = _patched_fields(node, operations)
    _check_transition(node, operations, minor)
    values = values_of(fields, minor)
    changed = {field: value for field, value in values.items() if value != getattr(node, field)}
    start = structs.replace(node, **changed)
    check_conductor(start.driver, start.conductor_group, in_use)
    refused = _conductor_refuses(node, start, changed, in_use)
    return ChangedNode(start, start if refused else _settled(start, changed, at_s), refused)


def _patched_fields(node: SimulatedNode, operations: Sequence[Operation]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for operation in operations:
        field, *inside = operation.keys
        if field == "traits":
            raise RequestRefused(BAD_REQUEST, "Traits are not patched: they have an address of their own.")
        if field not in PATCH_ALLOWED:
            raise RequestRefused(
                BAD_REQUEST,
                f"Cannot patch {operation.path}. Only these can be: {', '.join(sorted(PATCH_ALLOWED))}.",
            )
        value = fields[field] if field in fields else getattr(node, field)
        fields[field] = patched(value, inside, operation)
    return fields


def _check_transition(node: SimulatedNode, operations: Sequence[Operation], minor: int) -> None:
    """A node that changes its state cannot be patched. In maintenance its instance may still be removed."""
    if node.maintenance and operations == (Operation("remove", "/instance_uuid"),):
        return
    state = node.provision_state
    if node.target_provision_state and state not in states.UPDATE_ALLOWED:
        raise RequestRefused(CONFLICT, f"Node {node.uuid} can not be updated while it is {state!r}.")
    if state == states.INSPECTING and minor >= _INSPECT_WAIT_MINOR:
        raise RequestRefused(CONFLICT, f'Node "{node.uuid}" can not be updated while it is {state!r}.')


_INSPECT_WAIT_MINOR = 39


def values_of(fields: Mapping[str, Any], minor: int) -> dict[str, Any]:
    """The values of a request's fields, as a node stores them: null becomes the default of the field."""
    check_minors(fields, minor)
    return {field: _value_of(field, value) for field, value in fields.items()}


def _value_of(field: str, value: Any) -> Any:
    if value is None:
        return _OF_NULL.get(field)
    kind = next((kind for kind, fields in _FIELDS.items() if field in fields), str)
    if not isinstance(value, kind):
        raise RequestRefused(BAD_REQUEST, f"{field} is {str(value)[:100]!r}, must be a {kind.__name__}.")
    if field in _UUIDS and not is_uuid(value):
        raise RequestRefused(BAD_REQUEST, f"Expected UUID for {field}: {value}")
    return value.lower() if field == "conductor_group" else value


def check_conductor(driver: str, group: str, in_use: ValuesInUse) -> None:
    if driver not in DRIVERS or group not in in_use.groups:
        text = f'No conductor serves driver {driver} for conductor group "{group}".'
        raise RequestRefused(BAD_REQUEST, f"No valid host was found. Reason: {text}")


def _conductor_refuses(
    node: SimulatedNode, start: SimulatedNode, changed: Mapping[str, Any], in_use: ValuesInUse
) -> RequestRefused | None:
    state, name, is_associated = node.provision_state, changed.get("name"), changed.get("instance_uuid")
    is_class_fixed = state not in states.CLASS_CHANGE_ALLOWED
    allowed = ", ".join(states.CLASS_CHANGE_ALLOWED)
    interface = next((each for each in changed if each in INTERFACES), None)
    rules: list[Rule] = [
        (
            changed.get("protected") and state not in (states.ACTIVE, states.RESCUE),
            CONFLICT,
            f"Node {node.uuid} is {state!r}: only active and rescue nodes are protected.",
        ),
        (
            changed.get("retired") and state == states.AVAILABLE,
            CONFLICT,
            f"Node {node.uuid} is {state!r}: retired can not be set there.",
        ),
        *(
            (
                changed.get(f"{switch}_reason") and not getattr(start, switch),
                BAD_REQUEST,
                f"{switch}_reason can only be set while {switch} is true.",
            )
            for switch in ("retired", "protected")
        ),
        (
            is_associated and node.instance_uuid,
            CONFLICT,
            f"Node {node.uuid} is associated with instance {node.instance_uuid}.",
        ),
        (
            is_associated and start.instance_uuid in in_use.instances,
            CONFLICT,
            f"Instance {start.instance_uuid} is associated with another node.",
        ),
        (
            name is not None and name in in_use.names,
            CONFLICT,
            f"There is a node with name {name} already.",
        ),
        (
            is_class_fixed and "resource_class" in changed and node.resource_class,
            CONFLICT,
            f"Node {node.uuid} is {state!r}: its resource_class changes only in {allowed}.",
        ),
        (
            is_class_fixed and interface is not None and not node.maintenance,
            CONFLICT,
            f"Node {node.uuid} is {state!r}: its {interface} changes only in {allowed}, or in maintenance.",
        ),
        (
            is_class_fixed and "instance_uuid" in changed and node.allocation_uuid and not node.maintenance,
            CONFLICT,
            f"Node {node.uuid} is {state!r} and allocated: its instance_uuid leaves only in {allowed}.",
        ),
    ]
    return refusal_of_lock(node) or first_refusal(rules)


def _settled(start: SimulatedNode, changed: Mapping[str, Any], at_s: float) -> SimulatedNode:
    """The node with the fields that follow from an accepted change: without maintenance, for example, no reason."""
    more: dict[str, Any] = {"updated_at": second(at_s)}
    if changed.get("maintenance") is False:
        more.update(maintenance_reason=None, fault=None)
    if changed.get("protected") is False:
        more["protected_reason"] = None
    if changed.get("retired") is False:
        more["retired_reason"] = None
    if "instance_uuid" in changed and changed["instance_uuid"] is None:
        more["allocation_uuid"] = None
    display_name = start.instance_info.get("display_name")
    if "instance_info" in changed and not start.instance_name and isinstance(display_name, str):
        more["instance_name"] = display_name
    return structs.replace(start, **more)


def set_maintenance(node: SimulatedNode, is_on: bool, reason: str | None, at_s: float) -> ChangedNode:  # noqa: FBT001 - the value set
    """Sets or ends maintenance. A repeated call is notified again."""
    start = structs.replace(node, maintenance=is_on, maintenance_reason=reason if is_on else None)
    if refused := refusal_of_lock(node):
        return ChangedNode(start, node, refused)
    after = start
    if is_on != node.maintenance or start.maintenance_reason != node.maintenance_reason:
        after = structs.replace(start, updated_at=second(at_s), fault=node.fault if is_on else None)
    return ChangedNode(start, after)


def set_traits(node: SimulatedNode, names: Collection[str], standard: Collection[str]) -> ChangedNode:
    for name in sorted(names):
        if len(name) > _TRAIT_LENGTH_MAX or (name not in standard and not _CUSTOM_TRAIT.match(name)):
            raise RequestRefused(
                BAD_REQUEST, f"{name!r} is no trait: neither a standard one nor CUSTOM_[A-Z0-9_]+."
            )
    if len({*names}) > TRAITS_MAX:
        raise RequestRefused(BAD_REQUEST, f"A node has at most {TRAITS_MAX} traits, not {len({*names})}.")
    start = structs.replace(node, traits=tuple(sorted({*names})))
    refused = refusal_of_lock(node)
    return ChangedNode(start, start if refused is None else node, refused)


def set_console(node: SimulatedNode, *, is_on: bool) -> SimulatedNode:
    check_unlocked(node)
    if node.console_interface == "no-console":
        raise RequestRefused(
            BAD_REQUEST, f"Node {node.uuid} has console_interface no-console: it has no console to switch."
        )
    return structs.replace(node, console_enabled=is_on)


def attach_vif(node: SimulatedNode, vif: str, ports_count: int) -> SimulatedNode:
    """The node with this port. A node whose network interface is `noop` accepts each port and attaches none, as Ironic's
    does.
    """
    check_unlocked(node)
    if node.network_interface == NO_NETWORK:
        return node
    if vif in node.vifs:
        raise RequestRefused(CONFLICT, f"VIF {vif} is attached to node {node.uuid} already.")
    if len(node.vifs) >= ports_count:
        raise RequestRefused(
            BAD_REQUEST, f"Node {node.uuid} has no free port for VIF {vif}: it has {ports_count}."
        )
    return structs.replace(node, vifs=(*node.vifs, vif))


def detach_vif(node: SimulatedNode, vif: str) -> SimulatedNode:
    check_unlocked(node)
    if node.network_interface == NO_NETWORK:
        return node
    if vif not in node.vifs:
        raise RequestRefused(BAD_REQUEST, f"VIF {vif} is not attached to node {node.uuid}.")
    return structs.replace(node, vifs=tuple(each for each in node.vifs if each != vif))
