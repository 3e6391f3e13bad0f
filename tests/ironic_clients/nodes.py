"""Nodes are created and deleted, lose traits, and are switched on at the node itself; with Ironic's notifications."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from laboratory.ironic import SimulatedIronic, SimulatedNode, states
from laboratory.ironic.changes import PATCH_ALLOWED, ChangedNode, ValuesInUse, check_conductor, values_of
from laboratory.ironic.node import (
    BAD_REQUEST,
    CONFLICT,
    DRIVERS,
    INTERFACES,
    NOT_FOUND,
    PowerSet,
    RequestRefused,
    Rule,
    first_refusal,
    refusal_of_lock,
    second,
)
from laboratory.ironic.notifications import new_uuid
from laboratory.ironic.work import Job, make_step

_CREATE_ALLOWED = (PATCH_ALLOWED | {"uuid"}) - {"protected", "protected_reason"}
_DELETE_ALLOWED = (states.MANAGEABLE, states.ENROLL, states.ADOPT_FAILED, states.AVAILABLE)
# Fields that are null in Ironic's object of a node before it is stored.
_UNSAID = dict.fromkeys(("console_enabled", "disable_power_off", "maintenance", "protected", "retired"))
_FAKE, _REDFISH = DRIVERS
_DEFAULT_INTERFACES: Mapping[str, Mapping[str, str]] = {
    _FAKE: {**dict.fromkeys(INTERFACES, "fake"), "network_interface": "noop", "storage_interface": "noop"},
    _REDFISH: {
        **dict.fromkeys(INTERFACES, "redfish"),
        "boot_interface": "redfish-virtual-media",
        "console_interface": "no-console",
        "deploy_interface": "direct",
        "network_interface": "noop",
        "rescue_interface": "no-rescue",
        "storage_interface": "noop",
    },
}


def create(ironic: SimulatedIronic, fields: Mapping[str, Any]) -> SimulatedNode:
    """A new node in state `enroll`; Ironic draws a uuid if the fields have none."""
    now_s, request = ironic.begin()
    written = _created(fields, ironic.table.in_use, now_s, uuid=new_uuid(ironic.chance))
    uuids: Sequence[Rule] = [
        (
            written.start.uuid in ironic.nodes,
            CONFLICT,
            f"There is a node with UUID {written.start.uuid} already.",
        )
    ]
    written = structs.replace(written, refused=first_refusal(uuids) or written.refused)
    return ironic.announce(written, "create", now_s, request, ironic.table.add)


def _created(fields: Mapping[str, Any], in_use: ValuesInUse, at_s: float, *, uuid: str) -> ChangedNode:
    for field in fields:
        if field not in _CREATE_ALLOWED:
            raise RequestRefused(
                BAD_REQUEST, f"A node has no field {field!r} that can be set when it is created."
            )
    if "driver" not in fields:
        raise RequestRefused(BAD_REQUEST, "driver is missing: a node needs one.")
    values = values_of(fields)
    driver = values["driver"]
    check_conductor(driver, values.get("conductor_group", ""), in_use)
    uuid = values.pop("uuid", None) or uuid
    unsaid = {**_UNSAID, **dict.fromkeys(INTERFACES)}
    start = SimulatedNode(uuid=uuid, provision_state=states.ENROLL, **{**unsaid, **values})
    after = structs.replace(
        start,
        created_at=second(at_s),
        **{field: False for field in _UNSAID if getattr(start, field) is None},
        **{
            name: given for name, given in _DEFAULT_INTERFACES[driver].items() if getattr(start, name) is None
        },
    )
    rules: list[Rule] = [
        (start.name in in_use.names, CONFLICT, f"There is a node with name {start.name} already."),
    ]
    return ChangedNode(start, after, first_refusal(rules))


def delete(ironic: SimulatedIronic, ident: str) -> SimulatedNode:
    gone = ironic.write(ident, "delete", lambda node, _: ChangedNode(node, node, _why_not_deleted(node)))
    ironic.forget(gone)
    ironic.table.remove(gone)
    return gone


def _why_not_deleted(node: SimulatedNode) -> RequestRefused | None:
    state, allowed = node.provision_state, ", ".join(_DELETE_ALLOWED)
    rules: list[Rule] = [
        (
            node.instance_uuid and not node.maintenance,
            CONFLICT,
            f"Node {node.uuid} is associated with instance {node.instance_uuid}.",
        ),
        (
            not node.maintenance and state not in _DELETE_ALLOWED,
            CONFLICT,
            f'Node "{node.uuid}" is {state!r}: it is deleted only in {allowed}, or in maintenance.',
        ),
    ]
    return refusal_of_lock(node) or first_refusal(rules)


def remove_trait(ironic: SimulatedIronic, ident: str, name: str) -> SimulatedNode:
    def removed(node: SimulatedNode, _: float) -> ChangedNode:
        start = structs.replace(node, traits=tuple(each for each in node.traits if each != name))
        missing: list[Rule] = [
            (name not in node.traits, NOT_FOUND, f"Node {node.uuid} has no trait {name!r}.")
        ]
        refused = refusal_of_lock(node) or first_refusal(missing)
        return ChangedNode(start, node if refused else start, refused)

    return ironic.write(ident, "update", removed)


def switch_at_the_node(ironic: SimulatedIronic, ident: str) -> None:
    """Change the power at the node itself: the conductor notices it, and sets it back to its record."""
    node = ironic.known(ident)
    at_s, _ = ironic.begin()
    if node.reservation or node.power_state is None:
        return
    start = PowerSet(node, node.power_state, "start")
    job = Job("power kept", at_s + ironic.settings.delays.power_s, node.power_state)
    step = make_step(node, (start,), job, ironic.settings.host)
    ironic.go(node, step, at_s, ironic.periodic)
