"""Nodes are created and deleted, get traits, and are switched on at the node itself; with Ironic's notifications."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from laboratory.ironic import SimulatedIronic, SimulatedNode
from laboratory.ironic.node import BAD_REQUEST, CONFLICT, Rule, Said, check, second, with_fields
from laboratory.ironic.notifications import new_uuid
from laboratory.ironic.work import AVAILABLE, ENROLL, MANAGEABLE, Job, Step

_TRAIT = re.compile(r"(CUSTOM|HW|COMPUTE|STORAGE|MISC|OWNER)_[A-Z0-9_]+\Z")
_DELETE_ALLOWED = (MANAGEABLE, ENROLL, "adopt failed", AVAILABLE)


def create(ironic: SimulatedIronic, fields: Mapping[str, Any]) -> SimulatedNode:
    """A new node in state `enroll`; Ironic draws a uuid if the fields have none."""
    begun = ironic.begin()
    check(("driver" not in fields, BAD_REQUEST, "driver is missing: a node needs one."))
    new = with_fields(SimulatedNode(uuid=new_uuid(ironic.chance), created_at=second(begun[0])), fields)
    rules: list[Rule] = [
        (new.uuid in ironic.nodes, CONFLICT, f"There is a node with UUID {new.uuid} already."),
        (new.name in ironic.table.names, CONFLICT, f"There is a node with name {new.name} already."),
    ]
    return ironic.announce(new, "create", rules, ironic.table.add, begun)


def delete(ironic: SimulatedIronic, ident: str) -> SimulatedNode:
    gone = ironic.write(ident, "delete", lambda node: node, _why_not_deleted)
    ironic.forget(gone)
    ironic.table.remove(gone)
    return gone


def _why_not_deleted(node: SimulatedNode, _: SimulatedNode) -> list[Rule]:
    state, allowed = node.provision_state, ", ".join(_DELETE_ALLOWED)
    is_used, is_busy = node.instance_uuid, state not in _DELETE_ALLOWED
    return [
        (
            (is_used or is_busy) and not node.maintenance,
            CONFLICT,
            f'Node "{node.uuid}" is {state!r}, instance {is_used}: it is deleted without one in {allowed}, or in maintenance.',
        )
    ]


def set_traits(ironic: SimulatedIronic, ident: str, traits: Sequence[str]) -> SimulatedNode:
    wrong = next((name for name in traits if not _TRAIT.match(name)), None)
    check((wrong, BAD_REQUEST, f"{wrong!r} is no trait."))
    names = tuple(sorted({*traits}))
    return ironic.write(ident, "update", lambda node: structs.replace(node, traits=names))


def switch_at_the_node(ironic: SimulatedIronic, ident: str) -> None:
    """Change the power at the node itself: the conductor notices it, and sets it back to its record."""
    node = ironic.known(ident)
    at_s, _ = ironic.begin()
    if node.reservation or node.power_state is None:
        return
    said = Said(node, "power_set", "start", {"to_power": node.power_state})
    job = Job("power", at_s + ironic.settings.delays.power_s, node.power_state)
    locked = structs.replace(node, reservation=ironic.settings.host)
    ironic.go(node, Step(locked, said, job), at_s, ironic.periodic)
