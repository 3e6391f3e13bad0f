"""Decides the next step of a deploy, undeploy or rebuild.

Each step follows from the order and the node's present state in Ironic, and is safe to repeat. So nothing is lost when a
daemon dies, an answer is lost, or another daemon takes the node over: the owner reads the node and goes on.

Ironic's `instance_uuid` is the fence: it is set only where there is none, and a node with another instance is left alone. A
failed deploy is cleaned up before the failure is reported, so that the instance is never on two hosts.

    deploy     Set instance_uuid and instance_info, attach the ports, validate, order `active`, wait.
    undeploy   Order `deleted`, and wait until the instance is off the node. If the deploy was never ordered, detach the
               ports and remove instance_uuid and instance_info instead.
    rebuild    Note the time since when the node has its provision state. Set instance_info, validate, order `rebuild`,
               wait. Done when the node is active, and either Ironic accepted the order, or the node has been active
               since another time than noted.

The instance is off the node when Ironic has removed its instance_uuid, which happens before the cleaning. The node stays
reserved until Ironic says that it is available.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, structs

from bus.messages.cell import DeployInstance, RedeployInstance
from engine.flavors import InstanceId, parts_of, with_names
from ironic_sync.core.node import InterfaceCheck, Node, provision_state
from ironic_sync.core.offers import reasons_against
from ironic_sync.core.rows import Answer, Deployed, NodeDeploy, NodeRow, Rebuilt
from ironic_sync.core.settling import destroyed, redeployed, spawn_failed, spawned, with_end, with_rebuilt

# The interfaces that must pass Ironic's validation. A node without a storage interface has none to validate.
VALIDATED = ("deploy", "power", "storage")
# So often a step may fail although Ironic answers: it is refused for the moment, the node is locked, the answer is an error.
# After that a deploy or rebuild fails, and a cleanup leaves the ports attached.
REFUSALS_MAX = 12
# So often Ironic may accept a step that then shows no effect. A node whose network interface is `noop`, for example,
# accepts every port and attaches none.
NO_EFFECT_MAX = 4
_CONFLICT, _MISSING = 409, 404
# Why a delete waits although Ironic has no such instance on the node.
FORGOTTEN = "Ironic has forgotten the instance of the node, and has not taken it off"
NO_NODE = "Ironic does not know the node any more, and nobody has said that it is gone: `moor node ring missing --remove` does"
# States that a node reaches without being cleaned.
_UNCLEANED = frozenset({"enroll", "verifying", "manageable", "inspecting", "inspect wait", "inspect failed"})


class Seen(Struct, frozen=True):
    """The node as Ironic has it now, None if Ironic does not know it; and the steps that were taken since it was read.

    `vifs` are the attached ports, None if they were not read since they were last changed. `is_ordered`: Ironic accepted
    the order to rebuild, to take the instance off, or to clean the node.
    `row` is the node's row: by that, the instance of an undeploy may have been active here, and others have ended.
    """

    node: Node | None
    vifs: tuple[str, ...] | None = None
    has_info: bool = False
    is_valid: bool = False
    is_ordered: bool = False
    row: NodeRow | None = None


class SetInstance(Struct, frozen=True):
    """A step: set instance_info, and instance_uuid unless the node has it."""

    info: Mapping[str, Any]
    instance: InstanceId | None = None


class ClearInstance(Struct, frozen=True):
    """A step: remove instance_uuid and instance_info."""


class ReadVifs(Struct, frozen=True):
    """A step: ask which network ports (VIFs) are attached to the node."""


class AttachVif(Struct, frozen=True):
    vif: str


class DetachVif(Struct, frozen=True):
    vif: str


class Validate(Struct, frozen=True):
    """A step: have Ironic check that the node can be deployed."""


class SetState(Struct, frozen=True):
    """A step: order Ironic to bring the node into a provision state."""

    target: Literal["active", "deleted", "abort", "rebuild", "manage", "provide"]
    # A URL, an image, or its parts.
    configdrive: str | Mapping[str, Any] = ""


_WORDS: Mapping[type, str] = {
    SetInstance: "set the instance",
    ClearInstance: "remove the instance",
    ReadVifs: "list the ports",
    Validate: "validate the node",
}
Step = SetInstance | ClearInstance | ReadVifs | AttachVif | DetachVif | Validate | SetState


class WaitForNode(Struct, frozen=True):
    """An outcome: nothing can be done for now. Read the node again when a notification comes, or after a while."""

    why: str


class Again(Struct, frozen=True):
    """An outcome: the step failed this time. Try it again after a pause.

    `is_refusal`: it failed although Ironic answers. `is_without_effect`: Ironic accepted it, and nothing changed.
    """

    why: str
    is_refusal: bool = False
    is_without_effect: bool = False


class Note(Struct, frozen=True):
    """An outcome: store the node's provision state and its time on the row. Only then may a rebuild be ordered, or a node be
    cleaned of which Ironic has forgotten the instance.
    """

    before: str


class Fail(Struct, frozen=True):
    """An outcome: a deploy has failed and is cleaned up, or a rebuild has failed and is reported."""

    reason: str


class Finish(Struct, frozen=True):
    """An outcome: the instance is active on the node, with the image that was ordered."""


class Gone(Struct, frozen=True):
    """An outcome: nothing of the attempt is left on the node."""


Outcome = WaitForNode | Again | Note | Fail | Finish | Gone


def next_step(deploy: NodeDeploy, seen: Seen) -> Step | Outcome:
    if deploy.is_cleanup:
        return _undeploying(deploy, seen)
    assert deploy.order is not None, "a deploy has its order"
    if isinstance(deploy.order, RedeployInstance):
        return _rebuilding(deploy, deploy.order, seen)
    return _deploying(deploy, deploy.order, seen)


def after_step(seen: Seen, step: Step) -> Seen:
    """The known state after Ironic accepted this step. Changes of the node and of its ports must be read; they are not
    assumed.
    """
    match step:
        case SetInstance():
            return structs.replace(seen, has_info=True)
        case Validate():
            return structs.replace(seen, is_valid=True)
        case AttachVif() | DetachVif():
            return structs.replace(seen, vifs=None)
        case _:
            return seen


def after_refusal(deploy: NodeDeploy, step: Step, status: int, message: str) -> Outcome:
    """The outcome when Ironic refuses a step. A conflict about the instance_uuid may pass: another node may still be
    losing it. So may a 404: the node is read again.
    """
    why = f"Ironic refuses to {words_of(step)}: {message}"
    may_pass = status == _MISSING or (isinstance(step, SetInstance) and status == _CONFLICT)
    return after_failure(deploy, why) if may_pass or deploy.is_cleanup else Fail(why)


def after_failure(deploy: NodeDeploy, why: str, *, is_answer: bool = True) -> Outcome:
    """The outcome when a step fails though Ironic has just answered a question about the node. `is_answer`: the failure
    itself is an answer, such as a lock or an error; otherwise no answer came.

    A cleanup never fails: only Ironic can take the instance off the node.
    """
    if deploy.is_cleanup:
        return Again(why, is_refusal=is_answer)
    if deploy.refusals < REFUSALS_MAX:
        return Again(why, is_refusal=True)
    return Fail(f"{why} (try {deploy.refusals + 1}, the last)")


def after_no_effect(deploy: NodeDeploy, step: Step) -> Outcome:
    """The outcome when Ironic has just accepted this step, and the node is as it was before."""
    hint = " (the network interface 'noop' attaches none)" if isinstance(step, AttachVif) else ""
    why = f"Ironic accepts the order to {words_of(step)}, and nothing changes{hint}"
    if deploy.is_cleanup or deploy.repeats + 1 < NO_EFFECT_MAX:
        return Again(why, is_without_effect=True)
    return Fail(f"{why}: {deploy.repeats + 1} tries")


def leaves_ports(deploy: NodeDeploy) -> bool:
    """Whether a cleanup gives up detaching ports: Ironic has refused it, or accepted it without effect, too often."""
    return deploy.refusals >= REFUSALS_MAX or deploy.repeats >= NO_EFFECT_MAX


def words_of(step: Step) -> str:
    """The step in words, for reasons of failures: Ironic refuses to ..."""
    match step:
        case AttachVif(vif):
            return f"attach port {vif}"
        case DetachVif(vif):
            return f"detach port {vif}"
        case SetState(target):
            return f"bring the node to {target!r}"
        case _:
            return _WORDS[type(step)]


def why_invalid(checks: Mapping[str, InterfaceCheck]) -> str:
    """Why the node cannot be deployed; empty if it can. `checks` are those of the node's interfaces by their names."""
    needed = {name: checks.get(name, InterfaceCheck(None)) for name in VALIDATED}
    flaws = [
        f"{name}: {check.reason or 'not supported'}"
        for name, check in needed.items()
        if check.result is False or (check.result is None and name != "storage")
    ]
    return f"the node does not validate: {'; '.join(flaws)}" if flaws else ""


def is_end(deploy: NodeDeploy, outcome: Outcome) -> bool:
    """Is the order finished by this outcome? After a failed deploy, the cleanup is left to do."""
    return isinstance(outcome, Finish | Gone) or (isinstance(outcome, Fail) and deploy.kind == "rebuild")


def ended(
    row: NodeRow, deploy: NodeDeploy, outcome: Outcome, node: Node | None = None
) -> tuple[NodeRow, Answer | None]:
    """The row without its deploy, and the answer for the conductor, if it waits for one. `node` is the last state read."""
    row = structs.replace(row, deploy=None)
    if deploy.kind == "rebuild" and isinstance(deploy.order, RedeployInstance):
        how = _rebuilt(deploy, deploy.order, outcome, node)
        return with_rebuilt(row, deploy.order, how), redeployed(deploy.order, row, how)
    if isinstance(outcome, Finish):
        done = Deployed(
            cell=deploy.cell,
            instance=deploy.instance,
            attempt=deploy.attempt,
            active_at=None if node is None else node.provision_updated_at,
        )
        return structs.replace(row, deployed=done), spawned(done, row)
    if row.deployed is not None and row.deployed.instance == deploy.instance:
        row = structs.replace(row, deployed=None)
    row = with_end(row, deploy.instance, deploy.attempt, deploy.failure)
    if deploy.kind == "deploy":
        return row, spawn_failed(deploy, row, deploy.failure)
    return row, None if deploy.is_leftover else destroyed(deploy, row)


def is_held(row: NodeRow) -> bool:
    """Whether an order on this node may end: placement must have the node reserved, or others could claim it as soon
    as the order's own claim ends.

    The answer is also yes where waiting would be in vain: placement refuses the report or the removal, or the node
    has no cell, so it is not reported.
    """
    return bool(row.reported and row.reported.reserved) or bool(row.report_note) or not row.cell


def _rebuilt(deploy: NodeDeploy, order: RedeployInstance, outcome: Outcome, node: Node | None) -> Rebuilt:
    if not isinstance(outcome, Fail):
        return Rebuilt(number=order.number)
    is_ours = node is not None and node.instance_uuid == deploy.instance
    is_active = is_ours and node is not None and provision_state(node.provision_state).deploy == "done"
    return Rebuilt(number=order.number, failure=outcome.reason, is_active=is_active)


def instance_info(order: DeployInstance | RedeployInstance, node: Node) -> dict[str, Any]:
    """The instance_info for Ironic: the same fields that Nova sets."""
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


def config_drive(order: DeployInstance | RedeployInstance) -> str | Mapping[str, Any]:
    """The config drive for Ironic. Its parts have the id and names of the instance."""
    try:
        parts = parts_of(order.config_drive)
    except ValueError:
        # Ironic refuses it with its own words.
        return order.config_drive
    if parts is None:
        return order.config_drive
    drive: dict[str, Any] = {"meta_data": with_names(parts, order.instance, order.name).meta_data}
    if parts.user_data:
        drive["user_data"] = parts.user_data
    if parts.network_data:
        drive["network_data"] = parts.network_data
    return drive


def _deploying(  # noqa: PLR0911 - one for each kind of state
    deploy: NodeDeploy, order: DeployInstance, seen: Seen
) -> Step | Outcome:
    node = seen.node
    if node is None:
        return Fail("the node is deleted in Ironic")
    if node.instance_uuid not in (None, deploy.instance):
        return Fail(f"instance {node.instance_uuid} is on the node")
    state = node.provision_state
    is_ours = node.instance_uuid is not None
    match provision_state(state).deploy:
        case "begin":
            return _beginning(deploy, order, node, seen)
        case "wait" if is_ours and node.maintenance:
            why = f": {node.maintenance_reason}" if node.maintenance_reason else ""
            return Fail(f"the node was put in maintenance while it was deployed{why}")
        case "wait" if is_ours:
            return WaitForNode(_state_of(node))
        case "done" if is_ours:
            return Finish()
        case "failed" if is_ours:
            return _failed(node)
        case "unknown" if is_ours:
            return WaitForNode(f"provision state {state!r} is not known here")
        case _:
            return Fail("; ".join(reasons_against(_without_instance(node))))


def _beginning(deploy: NodeDeploy, order: DeployInstance, node: Node, seen: Seen) -> Step | Outcome:
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
    return SetState("active", config_drive(order)) if seen.is_valid else Validate()


def _rebuilding(  # noqa: PLR0911 - one for each kind of state
    deploy: NodeDeploy, order: RedeployInstance, seen: Seen
) -> Step | Outcome:
    node = seen.node
    if node is None:
        return Fail("the node is deleted in Ironic")
    if node.instance_uuid != deploy.instance:
        return Fail(f"the instance is not on the node, but {node.instance_uuid or 'none'}")
    is_ordered = deploy.is_ordered or seen.is_ordered
    is_active, state = node.provision_state == "active", provision_state(node.provision_state)
    if state.deploy == "wait":
        return WaitForNode(_state_of(node))
    if not is_active and state.deploy != "failed":
        return Fail(f"{_state_of(node)}, and Ironic rebuilds no instance in that")
    if not deploy.before:
        return Note(_since(node))
    if deploy.before == _since(node) and not is_ordered:
        return _beginning_rebuild(order, node, seen)
    return Finish() if is_active else _failed(node)


def _beginning_rebuild(order: RedeployInstance, node: Node, seen: Seen) -> Step:
    if not seen.has_info:
        return SetInstance(instance_info(order, node))
    return SetState("rebuild", config_drive(order)) if seen.is_valid else Validate()


def _since(node: Node) -> str:
    at = node.provision_updated_at
    return f"{node.provision_state} since {at.isoformat() if at else 'ever'}"


def _undeploying(  # noqa: PLR0911 - one for each kind of state
    deploy: NodeDeploy, seen: Seen
) -> Step | Outcome:
    node, row = seen.node, seen.row
    if node is None:
        # A 404 confirms no cleaning. Ironic's notification, or a person, says that the node was deleted.
        is_in_doubt = row is not None and not row.is_deleted and _was_active(deploy, row)
        return WaitForNode(NO_NODE) if is_in_doubt else Gone()
    if node.instance_uuid != deploy.instance:
        if not _is_forgotten(deploy, node, seen):
            return _detaching_ours(deploy, node, seen)
        if node.instance_uuid is None or not deploy.before or not _has_ended(node, seen):
            return _confirming(deploy, node, seen)
    match provision_state(node.provision_state).undeploy:
        case "delete":
            return SetState("deleted")
        case "abort":
            return SetState("abort")
        case "clear" if leaves_ports(deploy):
            return ClearInstance()
        case "clear" if seen.vifs is None:
            return ReadVifs()
        case "clear":
            return DetachVif(seen.vifs[0]) if seen.vifs else ClearInstance()
        case _:
            return WaitForNode(_state_of(node))


def _is_forgotten(deploy: NodeDeploy, node: Node, seen: Seen) -> bool:
    """Whether the instance was active on the node, and nothing shows that Ironic has taken it off: then Ironic has lost what it
    knew, as by a restore of an older backup, and the machine still runs.

    It is shown by an order that Ironic accepted, or by a change of the node after the instance became active. Of the latter, a node
    that an operator works on shows nothing: no cleaning leads there from `available`. But the cleaning of a retired node ends there, and
    the order to take the instance off may have come through though its answer was lost.
    """
    if seen.row is None or not _was_active(deploy, seen.row):
        return False
    done = seen.row.deployed
    at, active_at = node.provision_updated_at, None if done is None else done.active_at
    if deploy.before or deploy.is_ordered or seen.is_ordered:
        # Ironic may be restored also while it takes the instance off.
        return bool(deploy.before) or (at is not None and active_at is not None and at < active_at)
    is_later = active_at is not None and at is not None and at > active_at
    is_cleaned = node.provision_state not in _UNCLEANED or (node.retired and deploy.is_sent)
    return not (is_later and is_cleaned)


def _was_active(deploy: NodeDeploy, row: NodeRow) -> bool:
    done = row.deployed
    return done is not None and (done.instance, done.attempt) == (deploy.instance, deploy.attempt)


def _has_ended(node: Node, seen: Seen) -> bool:
    return seen.row is not None and any(each.instance == node.instance_uuid for each in seen.row.ended)


def _confirming(deploy: NodeDeploy, node: Node, seen: Seen) -> Step | Outcome:
    """The next step of a delete whose instance Ironic has forgotten: the delete is over when Ironic has cleaned the node."""
    if not deploy.before:
        return Note(_since(node))
    if node.instance_uuid is not None:
        return WaitForNode(f"{FORGOTTEN}, and says that instance {node.instance_uuid} is there")
    match node.provision_state:
        case None | "available":
            return Gone() if deploy.is_ordered or seen.is_ordered else SetState("manage")
        case "manageable":
            return SetState("provide")
        case _:
            return WaitForNode(f"{FORGOTTEN}; it must clean the node first: {_state_of(node)}")


def _detaching_ours(deploy: NodeDeploy, node: Node, seen: Seen) -> Step | Outcome:
    """The next step of a cleanup when Ironic's instance_uuid is not ours any more, or never was.

    The ports of our order may still be attached, and nobody else knows of them, so they are detached. Ironic itself
    detaches all ports when it takes an instance off a node.
    """
    ours = deploy.order.ports if isinstance(deploy.order, DeployInstance) else ()
    is_taken_off = node.instance_uuid is None and provision_state(node.provision_state).undeploy != "clear"
    if not ours or is_taken_off or leaves_ports(deploy):
        return Gone()
    if seen.vifs is None:
        return ReadVifs()
    left = [each for each in ours if each in seen.vifs]
    return DetachVif(left[0]) if left else Gone()


def _failed(node: Node) -> Fail:
    return Fail(f"{node.provision_state}: {node.last_error or 'Ironic gives no reason'}")


def _state_of(node: Node) -> str:
    return f"provision state is {node.provision_state!r}"


def _without_instance(node: Node) -> Node:
    return structs.replace(node, instance_uuid=None)


def _after(prefix: str, specs: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix(prefix): value for key, value in specs.items() if key.startswith(prefix)}
