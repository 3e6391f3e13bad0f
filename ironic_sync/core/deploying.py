"""What is to be done next with a node that is deployed or undeployed?

Every step follows from the order and from the node as Ironic has it now, and is safe to repeat. So nothing is lost when a
daemon dies, when an answer is lost, or when another daemon takes the node over: the owner reads the node and goes on.

Ironic's `instance_uuid` is the fence: it is only ever added where there is none, and a node with another instance's is left
alone. What fails is cleaned up before it is said, so that the next host is the only one.

    deploy     set instance_uuid and instance_info, attach the ports, validate, order `active`, wait
    undeploy   order `deleted` and wait until the instance is off the node; where it never got so far, detach the ports and
               remove instance_uuid and instance_info
    rebuild    note since when the node is in its provision state, set instance_info, validate, order `rebuild`, wait; done
               when the node is active, and Ironic took the order, or the node is active since another time than noted

The instance is off the node when Ironic has removed its instance_uuid, which it does before it cleans the node. The node
stays reserved until Ironic says that it is available.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, structs

from bus.messages.build import InstanceId
from bus.messages.cell import DeployInstance, RedeployInstance
from ironic_sync.core.node import Node
from ironic_sync.core.offers import reasons_against
from ironic_sync.core.orders import destroyed, redeployed, spawn_failed, spawned, with_end, with_rebuilt
from ironic_sync.core.rows import Answer, Deploy, Deployed, NodeRow, Rebuilt

# What a deploy does in each provision state in which its instance is on the node, or in which the node is free.
BEGIN, WAIT, DONE, FAILED, LOST = "begin", "wait", "done", "failed", "lost"
OF_DEPLOYS: Mapping[str | None, str] = {
    **dict.fromkeys((None, "available"), BEGIN),
    **dict.fromkeys(
        ("deploy", "deploying", "wait call-back", "deploy complete", "deploy hold", "rebuild"), WAIT
    ),
    # Whatever was done with an instance later, it was active before.
    **dict.fromkeys(
        (
            *(
                "active",
                "rescue",
                "rescuing",
                "rescue wait",
                "rescue failed",
                "unrescuing",
                "unrescue failed",
            ),
            *("service", "servicing", "service wait", "service failed", "service hold"),
        ),
        DONE,
    ),
    **dict.fromkeys(("deploy failed", "error"), FAILED),
    **dict.fromkeys(
        (
            *("enroll", "verifying", "manageable", "inspecting", "inspect wait", "inspect failed"),
            *("adopting", "adopt failed", "undeploy", "deleting", "deleted"),
            *("cleaning", "clean wait", "clean failed", "clean hold"),
        ),
        LOST,
    ),
}

# What an undeploy does in each provision state in which its instance is on the node.
DELETE, ABORT, CLEAR = "delete", "abort", "clear"
OF_UNDEPLOYS: Mapping[str | None, str] = {
    **dict.fromkeys(
        (
            *("active", "deploy failed", "wait call-back", "error"),
            *("rescue", "rescue wait", "rescue failed", "unrescue failed"),
            *("service", "service wait", "service failed"),
        ),
        DELETE,
    ),
    **dict.fromkeys(("deploy hold", "service hold"), ABORT),
    # Nothing was deployed, or it was taken off, and the instance_uuid is left.
    **dict.fromkeys(
        (None, "available", "enroll", "manageable", "inspect failed", "adopt failed", "clean failed"), CLEAR
    ),
    **dict.fromkeys(
        (
            *("deploy", "deploying", "deploy complete", "rebuild", "undeploy", "deleting", "deleted"),
            *("cleaning", "clean wait", "clean hold", "verifying", "inspecting", "inspect wait", "adopting"),
            *("rescuing", "unrescuing", "servicing"),
        ),
        WAIT,
    ),
}

# What a rebuild does in each provision state in which Ironic rebuilds an instance, or works at it.
OF_REBUILDS: Mapping[str | None, str] = {
    "active": BEGIN,
    **{state: BEGIN for state, what in OF_DEPLOYS.items() if what == FAILED},
    **{state: WAIT for state, what in OF_DEPLOYS.items() if what == WAIT},
}

# Ironic must find that these can do what a deploy needs of them. A node without storage interface has none to check.
VALIDATED = ("deploy", "power", "storage")
# How often the instance_uuid may be refused where the node is free: another node may still be losing it.
CONFLICTS_MAX = 12
_CONFLICT, _MISSING = 409, 404


class Seen(Struct, frozen=True):
    """The node as Ironic has it now, None if Ironic does not know it; and which steps were taken since it was read.

    `vifs` are the ports that are attached, None if that was not asked. `is_ordered`: Ironic took the order to rebuild.
    """

    node: Node | None
    vifs: tuple[str, ...] | None = None
    has_info: bool = False
    is_valid: bool = False
    is_ordered: bool = False


class SetInstance(Struct, frozen=True):
    """Set instance_info, and instance_uuid unless the node has it."""

    info: Mapping[str, Any]
    instance: InstanceId | None = None


class ClearInstance(Struct, frozen=True):
    """Remove instance_uuid and instance_info."""


class ReadVifs(Struct, frozen=True):
    """Ask which ports are attached."""


class AttachVif(Struct, frozen=True):
    vif: str


class DetachVif(Struct, frozen=True):
    vif: str


class Validate(Struct, frozen=True):
    """Have Ironic check that the node can be deployed."""


class SetState(Struct, frozen=True):
    """Order a provision state."""

    target: Literal["active", "deleted", "abort", "rebuild"]
    configdrive: str = ""


Step = SetInstance | ClearInstance | ReadVifs | AttachVif | DetachVif | Validate | SetState


class Wait(Struct, frozen=True):
    """Ironic is at work: look again when a notification comes, or after a while."""

    words: str


class Again(Struct, frozen=True):
    """It did not work this time: try again after a pause."""

    words: str


class Note(Struct, frozen=True):
    """Write down since when the node is in its provision state, and only then go on."""

    before: str


class Fail(Struct, frozen=True):
    """The deploy has failed: clean up. A rebuild has failed: say so."""

    reason: str


class Finish(Struct, frozen=True):
    """The instance is active on the node, with the image that was ordered."""


class Gone(Struct, frozen=True):
    """Nothing of the attempt is left on the node."""


Outcome = Wait | Again | Note | Fail | Finish | Gone


def next_step(deploy: Deploy, seen: Seen) -> Step | Outcome:
    if deploy.kind == "undeploy" or deploy.failure:
        return _undeploying(deploy, seen)
    assert deploy.order is not None, "a deploy has its order"
    if isinstance(deploy.order, RedeployInstance):
        return _rebuilding(deploy, deploy.order, seen)
    return _deploying(deploy, deploy.order, seen)


def after_step(seen: Seen, step: Step) -> Seen:
    """What is known after Ironic took this step. A change of the node itself is read, not assumed."""
    match step:
        case SetInstance():
            return structs.replace(seen, has_info=True)
        case Validate():
            return structs.replace(seen, is_valid=True)
        case AttachVif(vif):
            return structs.replace(seen, vifs=(*(seen.vifs or ()), vif))
        case DetachVif(vif):
            return structs.replace(seen, vifs=tuple(each for each in seen.vifs or () if each != vif))
        case _:
            return seen


def after_refusal(deploy: Deploy, step: Step, status: int, words: str) -> Outcome:
    """What Ironic's no to a step means."""
    if deploy.kind == "undeploy" or deploy.failure or status == _MISSING:
        return Again(f"Ironic refuses: {words}")
    if isinstance(step, SetInstance) and status == _CONFLICT and deploy.tries < CONFLICTS_MAX:
        return Again(f"Ironic refuses: {words}")
    return Fail(f"Ironic refuses: {words}")


def why_invalid(checks: Mapping[str, tuple[bool | None, str]]) -> str:
    """Why the node cannot be deployed; empty if it can. By interface: Ironic's result, and its reason."""
    wrong = {name: checks.get(name, (None, "")) for name in VALIDATED}
    flaws = [
        f"{name}: {reason or 'not supported'}"
        for name, (result, reason) in wrong.items()
        if result is False or (result is None and name != "storage")
    ]
    return f"the node does not validate: {'; '.join(flaws)}" if flaws else ""


def is_end(deploy: Deploy, outcome: Outcome) -> bool:
    """Is nothing left to be done? After the failure of a deploy there is."""
    return isinstance(outcome, Finish | Gone) or (isinstance(outcome, Fail) and deploy.kind == "rebuild")


def ended(
    row: NodeRow, deploy: Deploy, outcome: Outcome, node: Node | None = None
) -> tuple[NodeRow, Answer | None]:
    """The row without its deploy, and what its conductor is told, if it waits for it. `node` is as it was read last."""
    row = structs.replace(row, deploy=None)
    if deploy.kind == "rebuild" and isinstance(deploy.order, RedeployInstance):
        how = _rebuilt(deploy, deploy.order, outcome, node)
        return with_rebuilt(row, deploy.order, how), redeployed(deploy.order, row, how)
    if isinstance(outcome, Finish):
        done = Deployed(cell=deploy.cell, instance=deploy.instance, attempt=deploy.attempt)
        return structs.replace(row, deployed=done), spawned(done, row)
    if row.deployed is not None and row.deployed.instance == deploy.instance:
        row = structs.replace(row, deployed=None)
    row = with_end(row, deploy.instance, deploy.attempt, deploy.failure)
    if deploy.kind == "deploy":
        return row, spawn_failed(deploy, row, deploy.failure)
    return row, None if deploy.is_leftover else destroyed(deploy, row)


def is_held(row: NodeRow) -> bool:
    """Whether placement holds the node reserved, so that an end of its claim opens no gap. A removal or a report that
    placement refuses is not waited for, nor is what cannot be reported.
    """
    return bool(row.reported and row.reported.reserved) or bool(row.report_note) or not row.cell


def _rebuilt(deploy: Deploy, order: RedeployInstance, outcome: Outcome, node: Node | None) -> Rebuilt:
    if not isinstance(outcome, Fail):
        return Rebuilt(number=order.number)
    is_ours = node is not None and node.instance_uuid == deploy.instance
    is_active = is_ours and node is not None and OF_DEPLOYS.get(node.provision_state) == DONE
    return Rebuilt(number=order.number, failure=outcome.reason, is_active=is_active)


def instance_info(order: DeployInstance | RedeployInstance, node: Node) -> dict[str, Any]:
    """What Ironic is told of an instance: the same that Nova tells."""
    flavor, image = order.flavor, order.image
    info: dict[str, Any] = {
        "display_name": order.name or str(order.instance),
        "vcpus": str(flavor.vcpus),
        "memory_mb": str(flavor.ram_mb),
        "local_gb": str(node.properties.get("local_gb", 0)),
        "root_gb": str(flavor.root_gb),
        "swap_mb": str(flavor.swap_mb),
    }
    if flavor.ephemeral_gb:
        info["ephemeral_gb"] = str(flavor.ephemeral_gb)
    if image is not None:
        named = {
            "image_source": image.source,
            "image_checksum": image.checksum,
            "kernel": image.kernel,
            "ramdisk": image.ramdisk,
        }
        info |= {key: value for key, value in named.items() if value}
    if capabilities := _after("capabilities:", flavor.extra_specs):
        info["capabilities"] = json.dumps(capabilities, sort_keys=True)
    traits = {**_after("trait:", flavor.extra_specs), **_after("trait:", order.image_properties)}
    if required := sorted(name for name, how in traits.items() if how == "required"):
        info["traits"] = required
    return info


def _deploying(  # noqa: PLR0911 - one for each kind of state
    deploy: Deploy, order: DeployInstance, seen: Seen
) -> Step | Outcome:
    node = seen.node
    if node is None:
        return Fail("the node is deleted in Ironic")
    if node.instance_uuid not in (None, deploy.instance):
        return Fail(f"instance {node.instance_uuid} is on the node")
    state = node.provision_state
    is_ours = node.instance_uuid is not None
    match OF_DEPLOYS.get(state):
        case "begin":
            return _beginning(deploy, order, node, seen)
        case "wait" if is_ours and node.maintenance:
            why = f": {node.maintenance_reason}" if node.maintenance_reason else ""
            return Fail(f"the node was put in maintenance while it was deployed{why}")
        case "wait" if is_ours:
            return Wait(_words(node))
        case "done" if is_ours:
            return Finish()
        case "failed" if is_ours:
            return Fail(f"{state}: {node.last_error or 'Ironic gives no reason'}")
        case None if is_ours:
            return Wait(f"provision state {state!r} is not known here")
        case _:
            return Fail("; ".join(reasons_against(_without_instance(node))))


def _beginning(deploy: Deploy, order: DeployInstance, node: Node, seen: Seen) -> Step | Outcome:
    if reasons := reasons_against(_without_instance(node)):
        return Fail("; ".join(reasons))
    if not seen.has_info:
        missing = deploy.instance if node.instance_uuid is None else None
        return SetInstance(instance_info(order, node), missing)
    if order.ports:
        if seen.vifs is None:
            return ReadVifs()
        if left := [each for each in order.ports if each not in seen.vifs]:
            return AttachVif(left[0])
    return SetState("active", order.config_drive) if seen.is_valid else Validate()


def _rebuilding(  # noqa: PLR0911 - one for each kind of state
    deploy: Deploy, order: RedeployInstance, seen: Seen
) -> Step | Outcome:
    node = seen.node
    if node is None:
        return Fail("the node is deleted in Ironic")
    if node.instance_uuid != deploy.instance:
        return Fail(f"the instance is not on the node, but {node.instance_uuid or 'none'}")
    is_ordered = deploy.is_ordered or seen.is_ordered
    match OF_REBUILDS.get(node.provision_state):
        case "wait":
            return Wait(_words(node))
        case "begin" if not deploy.before:
            return Note(_since(node))
        case "begin" if deploy.before == _since(node) and not is_ordered:
            return _beginning_rebuild(order, node, seen)
        case "begin" if node.provision_state == "active":
            return Finish()
        case "begin":
            return Fail(f"{node.provision_state}: {node.last_error or 'Ironic gives no reason'}")
        case _:
            return Fail(f"{_words(node)}, and Ironic rebuilds no instance in that")


def _beginning_rebuild(order: RedeployInstance, node: Node, seen: Seen) -> Step:
    if not seen.has_info:
        return SetInstance(instance_info(order, node))
    return SetState("rebuild", order.config_drive) if seen.is_valid else Validate()


def _since(node: Node) -> str:
    at = node.provision_updated_at
    return f"{node.provision_state} since {at.isoformat() if at else 'ever'}"


def _undeploying(deploy: Deploy, seen: Seen) -> Step | Outcome:
    node = seen.node
    if node is None or node.instance_uuid != deploy.instance:
        return Gone()
    match OF_UNDEPLOYS.get(node.provision_state):
        case "delete":
            return SetState("deleted")
        case "abort":
            return SetState("abort")
        case "clear" if seen.vifs is None:
            return ReadVifs()
        case "clear":
            return DetachVif(seen.vifs[0]) if seen.vifs else ClearInstance()
        case _:
            return Wait(_words(node))


def _words(node: Node) -> str:
    return f"provision state is {node.provision_state!r}"


def _without_instance(node: Node) -> Node:
    return structs.replace(node, instance_uuid=None)


def _after(prefix: str, specs: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix(prefix): value for key, value in specs.items() if key.startswith(prefix)}
