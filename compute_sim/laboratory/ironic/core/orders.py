"""Orders for a node's provision state and for its power: which are allowed now, and how they begin."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, structs

from compute_sim.laboratory.ironic.core import states
from compute_sim.laboratory.ironic.core.node import Json, SimulatedNode, check_unlocked, microsecond, second
from compute_sim.laboratory.ironic.core.node_events import PowerSet, after_event, internal
from compute_sim.laboratory.ironic.core.refusals import (
    BAD_REQUEST,
    CONFLICT,
    FORBIDDEN,
    NOT_ACCEPTABLE,
    SERVER_ERROR,
    RequestRefused,
    check,
)
from compute_sim.laboratory.ironic.core.work import (
    Job,
    Step,
    WorkRules,
    begin_cleaning,
    boot_agent,
    make_step,
    step_after,
)

# The microversion that introduced a verb.
_VERB_MINORS: Mapping[str, int] = {
    "manage": 4,
    "provide": 4,
    "inspect": 6,
    "abort": 13,
    "clean": 15,
    "adopt": 17,
    "rescue": 38,
    "unrescue": 38,
    "deploy": 73,
    "undeploy": 73,
}
_DEPLOY_WAIT_ABORT_MINOR = 110
_CONFIGDRIVE_OBJECT_MINOR = 56


class ProvisionOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    target: str
    configdrive: str | Json | None = None
    clean_steps: tuple[Json, ...] = ()
    rescue_password: str | None = None


def order_provision(
    node: SimulatedNode, order: ProvisionOrder, at_s: float, rules: WorkRules, minor: int
) -> Step:
    event = states.VERBS.get(order.target, "")
    _check_possible(node, order, event)
    _check_version(node, order, minor)
    _check_form(order, event)
    _check_by_conductor(node, event)
    return _begin(node, order, event, at_s, rules)


def _check_possible(node: SimulatedNode, order: ProvisionOrder, event: str) -> None:
    target = order.target
    if event in ("deploy", "rebuild") and node.maintenance:
        raise RequestRefused(BAD_REQUEST, f"Node {node.uuid} is in maintenance: it can not be provisioned.")
    if not event:
        raise RequestRefused(BAD_REQUEST, f'The requested action "{target}" is not known.')
    if states.state_after(node.provision_state, event) is None:
        check_unlocked(node)
        raise RequestRefused(
            BAD_REQUEST,
            f'The requested action "{target}" is not possible on node "{node.uuid}" in state "{node.provision_state}".',
        )


def _check_version(node: SimulatedNode, order: ProvisionOrder, minor: int) -> None:
    needed = _VERB_MINORS.get(order.target, 1)
    if order.target == "abort" and node.provision_state == states.DEPLOY_WAIT:
        needed = _DEPLOY_WAIT_ABORT_MINOR
    if isinstance(order.configdrive, Mapping):
        needed = max(needed, _CONFIGDRIVE_OBJECT_MINOR)
    if minor < needed:
        raise RequestRefused(NOT_ACCEPTABLE, f'"{order.target}" in this form needs API version 1.{needed}.')


def _check_form(order: ProvisionOrder, event: str) -> None:
    allowed = {
        "configdrive": (bool(order.configdrive), ("deploy", "rebuild")),
        "clean_steps": (bool(order.clean_steps), ("clean",)),
        "rescue_password": (order.rescue_password is not None, ("rescue",)),
    }
    for field, (is_given, events) in allowed.items():
        if is_given and event not in events:
            raise RequestRefused(BAD_REQUEST, f'"{field}" is not allowed with the target "{order.target}".')
    needed = {
        "clean": ("clean_steps", bool(order.clean_steps)),
        "rescue": ("rescue_password", bool(order.rescue_password and order.rescue_password.strip())),
    }
    field, is_given = needed.get(event, ("", True))
    if not is_given:
        raise RequestRefused(BAD_REQUEST, f'"{field}" is required with the target "{order.target}".')


def _check_by_conductor(node: SimulatedNode, event: str) -> None:
    check_unlocked(node)
    lacks_image = node.has_agent and not node.instance_info.get("image_source")
    check(
        (
            node.protected and event in ("delete", "rebuild"),
            FORBIDDEN,
            f"Node {node.uuid} is protected: no undeploying, rebuilding or deleting.",
        ),
        (
            node.retired and event == "provide",
            BAD_REQUEST,
            f"Node {node.uuid} is retired: it can not be made available.",
        ),
        (
            node.maintenance and event == "clean",
            BAD_REQUEST,
            f"Node {node.uuid} is in maintenance: it can not be cleaned.",
        ),
        (
            lacks_image and event in ("deploy", "rebuild"),
            SERVER_ERROR,
            f"Node {node.uuid} has no image_source in instance_info to deploy.",
        ),
        (
            node.rescue_interface == "no-rescue" and event == "rescue",
            BAD_REQUEST,
            f"Node {node.uuid} has rescue_interface no-rescue.",
        ),
    )


def _begin(node: SimulatedNode, order: ProvisionOrder, event: str, at_s: float, rules: WorkRules) -> Step:
    changes: dict[str, Any] = {"last_error": "Aborted on request." if event == "abort" else None}
    if event == "manage" and node.provision_state != states.ENROLL:
        del changes["last_error"]
    if event in ("deploy", "rebuild") and order.configdrive is not None:
        changes["instance_info"] = {**node.instance_info, "configdrive": order.configdrive}
    if event in ("provide", "clean"):
        node, said = after_event(node, event, at_s, **changes)
        return begin_cleaning(_with_steps(node, order), (said,), at_s, rules)
    if event in ("deploy", "rebuild") and node.has_agent:
        node, said = after_event(node, event, at_s, **changes)
        return boot_agent(node, (said,), "deploy boot", at_s, rules)
    return step_after(node, event, at_s, rules, **changes)


def _with_steps(node: SimulatedNode, order: ProvisionOrder) -> SimulatedNode:
    """The node with the steps of a manual cleaning. Ironic stores them after it has sent its notification."""
    if not order.clean_steps:
        return node
    steps = [{**step, "abortable": False, "priority": 0} for step in order.clean_steps]
    info = internal(node, clean_steps=steps, cleaning_disable_ramdisk=False, declarative_cleaning=True)
    return structs.replace(node, driver_internal_info=info)


def order_power(node: SimulatedNode, target: str, at_s: float, rules: WorkRules) -> Step:
    power = states.POWER_TARGETS.get(target)
    check(
        (power is None, BAD_REQUEST, f'The requested power state "{target}" is not known.'),
        (
            node.provision_state in (states.CLEANING, states.CLEAN_WAIT),
            BAD_REQUEST,
            f'The power of node "{node.uuid}" is not changed while it is cleaned.',
        ),
        (
            node.disable_power_off and power == states.POWER_OFF,
            CONFLICT,
            f"Node {node.uuid} must not be powered off.",
        ),
    )
    check_unlocked(node)
    node = structs.replace(
        node,
        target_power_state=power,
        last_error=None,
        updated_at=second(at_s),
        driver_internal_info=internal(node, last_power_state_change=microsecond(at_s)),
    )
    job = Job("power", at_s + rules.delays.power_s, target)
    return make_step(node, (PowerSet(node, target, "start"),), job, rules.host)
