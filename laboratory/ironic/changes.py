"""Patching a node and setting its maintenance, traits and ports: what is allowed, and the notifications.

Ironic sends a notification before its conductor has agreed: first the requested change, then the result or the error. A
change that the API itself refuses has no notification. Of Ironic's rules those are here that a client of nodes and instances meets; rules
about what only operators set (classes, interfaces, owners) are not.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, structs

from laboratory.ironic import states
from laboratory.ironic.node import (
    BAD_REQUEST,
    CONFLICT,
    DRIVERS,
    INTERFACES,
    NO_NETWORK,
    RequestRefused,
    Rule,
    SimulatedNode,
    check_unlocked,
    first_refusal,
    refusal_of_lock,
    second,
)

_UUID = re.compile(r"[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}\Z")
_TRAIT = re.compile(r"(CUSTOM|HW|COMPUTE|STORAGE|MISC|OWNER)_[A-Z0-9_]+\Z")
PATCH_ALLOWED = frozenset(
    {
        *INTERFACES,
        *("automated_clean", "chassis_uuid", "conductor_group", "description", "disable_power_off", "driver"),
        *("driver_info", "extra", "instance_info", "instance_uuid", "lessee", "maintenance", "name", "owner"),
        *(
            "properties",
            "protected",
            "protected_reason",
            "resource_class",
            "retired",
            "retired_reason",
            "shard",
        ),
    }
)
# Null in a request means what a new node has.
_NEW = SimulatedNode(uuid="")


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


class Operation(Struct, frozen=True):
    """One operation of JSON Patch, on a field of a node or inside of an object; not in lists, which nobody patches."""

    op: Literal["add", "replace", "remove"]
    path: Annotated[str, Meta(pattern="^/.")]
    value: Any = UNSET

    def __post_init__(self) -> None:
        if self.op != "remove" and self.value is UNSET:
            raise ValueError(f"{self.op} of {self.path} has no value")

    @property
    def keys(self) -> list[str]:
        """The keys that `path` consists of: the name of the node's field, then the keys inside of its value."""
        return [key.replace("~1", "/").replace("~0", "~") for key in self.path[1:].split("/")]


def operations_of(document: object) -> tuple[Operation, ...]:
    try:
        return msgspec.convert(document, tuple[Operation, ...])
    except msgspec.ValidationError as problem:
        raise RequestRefused(BAD_REQUEST, f"The patch is not valid: {problem}.") from None


def patched(value: Any, keys: Sequence[str], operation: Operation) -> Any:
    """The value of a field after the patch operation. `keys` leads to the place inside of the value."""
    if not keys:
        return None if operation.op == "remove" else operation.value
    key, *inside = keys
    if not isinstance(value, Mapping) or (key not in value and (inside or operation.op != "add")):
        raise RequestRefused(
            BAD_REQUEST,
            f"The patch {operation.op} {operation.path} can not be applied: there is no {key!r}.",
        )
    if operation.op == "remove" and not inside:
        return {other: kept for other, kept in value.items() if other != key}
    return {**value, key: patched(value.get(key), inside, operation)}


def patch(node: SimulatedNode, document: object, in_use: ValuesInUse, at_s: float) -> ChangedNode:
    operations = operations_of(document)
    fields: dict[str, Any] = {}
    for operation in operations:
        field, *inside = operation.keys
        if field not in PATCH_ALLOWED:
            raise RequestRefused(BAD_REQUEST, f"Cannot patch {operation.path}.")
        fields[field] = patched(fields.get(field, getattr(node, field)), inside, operation)
    _check_transition(node, operations)
    changed = {field: value for field, value in values_of(fields).items() if value != getattr(node, field)}
    start = structs.replace(node, **changed)
    check_conductor(start.driver, start.conductor_group, in_use)
    refused = _conductor_refuses(node, changed, in_use)
    return ChangedNode(start, start if refused else _settled(start, changed, at_s), refused)


def _check_transition(node: SimulatedNode, operations: Sequence[Operation]) -> None:
    """A node that changes its state cannot be patched. In maintenance its instance may still be removed."""
    if node.maintenance and operations == (Operation("remove", "/instance_uuid"),):
        return
    state = node.provision_state
    if node.target_provision_state and state not in states.UPDATE_ALLOWED:
        raise RequestRefused(CONFLICT, f"Node {node.uuid} can not be updated while it is {state!r}.")


def values_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a request's fields, as a node stores them: null becomes the default of the field."""
    for field in ("uuid", "instance_uuid"):
        if (value := fields.get(field)) is not None and not is_uuid(value):
            raise RequestRefused(BAD_REQUEST, f"Expected UUID for {field}: {value}")
    return {
        field: getattr(_NEW, field)
        if value is None
        else value.lower()
        if field == "conductor_group"
        else value
        for field, value in fields.items()
    }


def is_uuid(text: str) -> bool:
    return _UUID.match(text) is not None


def check_conductor(driver: str, group: str, in_use: ValuesInUse) -> None:
    if driver not in DRIVERS or group not in in_use.groups:
        text = f'No conductor serves driver {driver} for conductor group "{group}".'
        raise RequestRefused(BAD_REQUEST, f"No valid host was found. Reason: {text}")


def _conductor_refuses(
    node: SimulatedNode, changed: Mapping[str, Any], in_use: ValuesInUse
) -> RequestRefused | None:
    instance, name = changed.get("instance_uuid"), changed.get("name")
    rules: tuple[Rule, ...] = (
        (
            instance and node.instance_uuid,
            CONFLICT,
            f"Node {node.uuid} is associated with instance {node.instance_uuid}.",
        ),
        (
            instance in in_use.instances,
            CONFLICT,
            f"Instance {instance} is associated with another node.",
        ),
        (name in in_use.names, CONFLICT, f"There is a node with name {name} already."),
    )
    return refusal_of_lock(node) or first_refusal(rules)


def _settled(start: SimulatedNode, changed: Mapping[str, Any], at_s: float) -> SimulatedNode:
    """The node with the fields that follow from an accepted change: without maintenance, for example, no reason."""
    more: dict[str, Any] = {"updated_at": second(at_s)}
    if changed.get("maintenance") is False:
        more.update(maintenance_reason=None, fault=None)
    if "instance_uuid" in changed and changed["instance_uuid"] is None:
        more["allocation_uuid"] = None
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


def set_traits(node: SimulatedNode, names: Collection[str]) -> ChangedNode:
    if wrong := [name for name in sorted(names) if not _TRAIT.match(name)]:
        raise RequestRefused(BAD_REQUEST, f"{wrong[0]!r} is no trait.")
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
