"""Ironic's state machine, and the conductor's work by it: which orders a node's state allows, what work follows, and how that ends.

A node has at most one job. While it runs the conductor holds the node's lock; but not while it waits for an agent's call, when only the
node's state protects it from changes. The states of holds and of services, which Moorage does not order, are not here; nor are cleanings and
inspections by an agent.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, structs

from laboratory.ironic.node import (
    AGENT_INTERFACES,
    BAD_REQUEST,
    SERVER_ERROR,
    Json,
    Said,
    SimulatedNode,
    check,
    second,
)

AVAILABLE, ACTIVE, MANAGEABLE, ENROLL = "available", "active", "manageable", "enroll"
CLEANING, CLEAN_FAILED, VERIFYING, INSPECTING = "cleaning", "clean failed", "verifying", "inspecting"
POWER_ON, POWER_OFF = "power on", "power off"
CLEAN_FAILURE, POWER_FAILURE = "clean failure", "power failure"
# Until the agent runs on the node, and then until it calls.
BOOT, AGENT_CALL = "boot", "agent call"


class State(Struct, frozen=True):
    """The state after each event that is allowed in this one, and the target that a node gets here.

    `work` is what the conductor does in this state, or waits for; `takes` is its duration's field in `WorkDurations`; `ends` is the event at its
    end.
    """

    after: Mapping[str, str]
    target: str | None = None
    work: str = ""
    takes: str = ""
    ends: str = "done"


_DELETE_OR_REBUILD = {"rebuild": "deploying", "delete": "deleting"}
_FROM_RESCUE = {"rescue": "rescuing", "unrescue": "unrescuing", "delete": "deleting"}
STATES: Mapping[str, State] = {
    ENROLL: State({"manage": VERIFYING}),
    VERIFYING: State({"done": MANAGEABLE, "fail": ENROLL}, MANAGEABLE, "verify", "verify_s"),
    MANAGEABLE: State(
        {"provide": CLEANING, "clean": CLEANING, "inspect": INSPECTING, "adopt": "adopting"},
    ),
    INSPECTING: State({"done": MANAGEABLE, "fail": "inspect failed"}, MANAGEABLE, "inspect", "inspect_s"),
    "inspect failed": State({"manage": MANAGEABLE, "inspect": INSPECTING}, MANAGEABLE),
    "adopting": State({"done": ACTIVE, "fail": "adopt failed"}, ACTIVE, "adopt", "adopt_s"),
    "adopt failed": State({"adopt": "adopting", "manage": MANAGEABLE}, ACTIVE),
    AVAILABLE: State({"deploy": "deploying", "manage": MANAGEABLE}),
    "deploying": State(
        {"wait": "wait call-back", "done": ACTIVE, "fail": "deploy failed"}, ACTIVE, "deploy", "deploy_s"
    ),
    "wait call-back": State(
        {"resume": "deploying", "abort": "deploy failed", "delete": "deleting"},
        ACTIVE,
        AGENT_CALL,
        "agent_call_s",
        "resume",
    ),
    "deploy failed": State({**_DELETE_OR_REBUILD, "deploy": "deploying"}, ACTIVE),
    ACTIVE: State({**_DELETE_OR_REBUILD, "rescue": "rescuing"}),
    "rescuing": State({"done": "rescue", "fail": "rescue failed"}, "rescue", "rescue", "rescue_s"),
    "rescue": State(_FROM_RESCUE),
    "rescue failed": State(_FROM_RESCUE, "rescue"),
    "unrescuing": State({"done": ACTIVE, "fail": "unrescue failed"}, ACTIVE, "unrescue", "rescue_s"),
    "unrescue failed": State(_FROM_RESCUE, ACTIVE),
    "deleting": State({"clean": CLEANING, "fail": "error"}, AVAILABLE, "tear down", "tear_down_s", "clean"),
    "error": State(_DELETE_OR_REBUILD),
    CLEANING: State(
        {"done": AVAILABLE, "manage": MANAGEABLE, "fail": CLEAN_FAILED}, AVAILABLE, "clean", "clean_s"
    ),
    CLEAN_FAILED: State({"manage": MANAGEABLE}, AVAILABLE),
}
# The API's targets, and the events that they mean; and the power that each power order leads to.
VERBS: Mapping[str, str] = {
    "active": "deploy",
    "deploy": "deploy",
    "rebuild": "rebuild",
    "deleted": "delete",
    "undeploy": "delete",
    **{
        each: each
        for each in ("manage", "provide", "inspect", "abort", "clean", "adopt", "rescue", "unrescue")
    },
}
POWERS: Mapping[str, str] = {
    **dict.fromkeys((POWER_ON, "rebooting", "soft rebooting"), POWER_ON),
    **dict.fromkeys((POWER_OFF, "soft power off"), POWER_OFF),
}
_DEPLOYS = ("deploy", "rebuild")


class WorkDurations(Struct, frozen=True, kw_only=True):
    """The durations of the conductor's work, in seconds."""

    verify_s: float = 1.0
    inspect_s: float = 1.0
    adopt_s: float = 1.0
    clean_s: float = 1.0
    deploy_s: float = 2.0
    tear_down_s: float = 2.0
    rescue_s: float = 2.0
    power_s: float = 1.0
    # From an agent's boot to its call.
    agent_call_s: float = 1.0
    # The interval of the power sync, which asks every BMC for its power.
    power_sync_s: float = 60.0


class IronicSimSettings(Struct, frozen=True, kw_only=True):
    """The settings of a simulated Ironic and its conductor."""

    delays: WorkDurations = WorkDurations()
    # The host name of the API and the conductor.
    host: str = "ironic-sim-1"
    # The conductor groups that are served; "" is the default group.
    conductor_groups: tuple[str, ...] = ("", "rack1", "rack2", "rack3")
    ports_count: int = 2
    # The exchange of its notifications: several Ironics on one broker have one each.
    exchange: str = "ironic"
    # The limit of notifications that wait for the bus; beyond it the oldest is lost.
    unsent_max: int = 100_000
    sends_at_once_max: int = 64


def paced(delays: WorkDurations, pace: float) -> WorkDurations:
    """The delays multiplied by `pace`, except the power sync."""
    shortened = {field: delay * pace for field, delay in structs.asdict(delays).items()}
    return structs.replace(delays, **{**shortened, "power_sync_s": delays.power_sync_s})


class Job(Struct, frozen=True):
    work: str
    due_s: float
    to_power: str = ""


class Step(Struct, frozen=True):
    """One step of work: the node after it, its notification, and the next job."""

    node: SimulatedNode
    said: Said | None = None
    job: Job | None = None


class IronicOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of any request that orders something; each request reads its own fields."""

    target: str = ""
    configdrive: str | Json | None = None
    clean_steps: tuple[Json, ...] = ()
    rescue_password: str | None = None
    enabled: bool | None = None
    reason: str | None = None
    id: str = ""


def order_provision(node: SimulatedNode, order: IronicOrder, at_s: float, rules: IronicSimSettings) -> Step:
    event = VERBS.get(order.target, "")
    about = f'the action "{order.target}" on node "{node.uuid}"'
    check(
        (event in _DEPLOYS and node.maintenance, BAD_REQUEST, f"Not possible: {about} in maintenance."),
        (not event, BAD_REQUEST, f"Not known: {about}."),
        node.lock,
        (
            event not in STATES[node.provision_state].after,
            BAD_REQUEST,
            f'Not possible: {about} in state "{node.provision_state}".',
        ),
        (event == "provide" and node.retired, BAD_REQUEST, f"Not possible: {about}, which is retired."),
        (event == "clean" and not order.clean_steps, BAD_REQUEST, f"clean_steps is missing for {about}."),
        (
            event == "rescue" and not order.rescue_password,
            BAD_REQUEST,
            f"rescue_password is missing for {about}.",
        ),
        (event in _DEPLOYS and node.why_no_image, SERVER_ERROR, node.why_no_image),
    )
    changes: dict[str, Any] = {"last_error": "Aborted on request." if event == "abort" else None}
    if event == "manage" and node.provision_state != ENROLL:
        # Why the last cleaning or inspection failed, can still be read.
        del changes["last_error"]
    if event in _DEPLOYS and order.configdrive is not None:
        changes["instance_info"] = {**node.instance_info, "configdrive": order.configdrive}
    return enter(node, event, at_s, rules, **changes)


def order_power(node: SimulatedNode, target: str, at_s: float, rules: IronicSimSettings) -> Step:
    power = POWERS.get(target)
    check(
        (power is None, BAD_REQUEST, f'The requested power state "{target}" is not known.'),
        (
            node.provision_state == CLEANING,
            BAD_REQUEST,
            f'The power of node "{node.uuid}" is not changed while it is cleaned.',
        ),
        node.lock,
    )
    node = structs.replace(
        node,
        target_power_state=power,
        last_error=None,
        updated_at=second(at_s),
        reservation=rules.host,
    )
    job = Job("power", at_s + rules.delays.power_s, target)
    return Step(node, Said(node, "power_set", "start", {"to_power": target}), job)


def enter(node: SimulatedNode, event: str, at_s: float, rules: IronicSimSettings, **changes: Any) -> Step:
    """The step by which this event takes a node to its next state, with the work that begins there."""
    before, at = STATES[node.provision_state], second(at_s)
    name = before.after[event]
    after = STATES[name]
    is_by_hand = event == "clean" and node.provision_state == MANAGEABLE
    keeps_target = node.provision_state == CLEANING and name == CLEAN_FAILED
    node_after = structs.replace(
        node,
        provision_state=name,
        target_provision_state=MANAGEABLE
        if is_by_hand
        else node.target_provision_state
        if keeps_target
        else after.target,
        provision_updated_at=at,
        updated_at=at,
        **changes,
    )
    work, takes = after.work, after.takes
    if event in _DEPLOYS and node.deploy_interface in AGENT_INTERFACES:
        work, takes = BOOT, "power_s"
    more = {
        "event": event,
        "previous_provision_state": node.provision_state,
        "previous_target_provision_state": node.target_provision_state,
    }
    said = Said(node_after, "provision_set", _status(event, before, after), more)
    job = Job(work, at_s + getattr(rules.delays, takes)) if work else None
    return Step(_held(node_after, job, rules), said, job)


def _status(event: str, before: State, after: State) -> str:
    """The status in the notification: it depends on whether the conductor works before the event, and after it."""
    if event == "fail":
        return "error"
    if bool(before.work) == bool(after.work):
        return "success"
    return "start" if after.work else "end"


def _held(node: SimulatedNode, job: Job | None, rules: IronicSimSettings) -> SimulatedNode:
    """The node, locked if the conductor works on it."""
    holder = rules.host if job is not None and job.work != AGENT_CALL else None
    return structs.replace(node, reservation=holder)


def resumed(node: SimulatedNode, at_s: float, rules: IronicSimSettings) -> Step | None:
    """Begin again the work on a node that was under way when the process ended; None if there was none.

    Its beginning is not announced again.
    """
    state, job = STATES[node.provision_state], None
    if node.target_power_state is not None:
        job = Job("power", at_s + rules.delays.power_s, node.target_power_state)
    elif state.work:
        job = Job(state.work, at_s + getattr(rules.delays, state.takes))
    elif node.reservation is None:
        return None
    return Step(_held(node, job, rules), None, job)


def finish(node: SimulatedNode, job: Job, failure: str, at_s: float, rules: IronicSimSettings) -> Step:
    """The step that ends a due job."""
    if job.work == "power":
        return _end_power(node, job, failure, at_s)
    changes: dict[str, Any] = {}
    event = "wait" if job.work == BOOT else STATES[node.provision_state].ends
    if failure:
        event, changes = "fail", {"last_error": failure}
    match job.work:
        case "clean" if failure:
            changes.update(maintenance=True, maintenance_reason=failure, fault=CLEAN_FAILURE)
        case "clean" if node.retired or node.target_provision_state == MANAGEABLE:
            # A retired node does not become available again.
            event = "manage"
        case "deploy" if not failure:
            changes = _powered(node, POWER_ON)
        case "verify" if not failure:
            changes = {"power_state": node.bmc_power}
        case "tear down":
            cleared: dict[str, Any] = {
                **dict.fromkeys(("instance_uuid", "allocation_uuid")),
                "instance_info": {},
                "vifs": (),
                **_powered(node, POWER_OFF),
            }
            if failure:
                # The instance is removed after `error` is announced.
                step = enter(node, event, at_s, rules, **changes)
                return structs.replace(step, node=structs.replace(step.node, **cleared))
            changes = cleared
    return enter(node, event, at_s, rules, **changes)


def _powered(node: SimulatedNode, power: str) -> dict[str, Any]:
    """The fields by which a deploy turns a node on, or a removal turns it off; empty if the power does not change.

    Ironic's `fake` deploy interface does not change the power.
    """
    if node.power_state is None or node.deploy_interface == "fake":
        return {}
    return {"power_state": power, "bmc_power": power}


def _end_power(node: SimulatedNode, job: Job, failure: str, at_s: float) -> Step:
    power = "error" if failure else POWERS[job.to_power]
    node = structs.replace(
        node,
        power_state=power,
        bmc_power=node.bmc_power if failure else power,
        target_power_state=None,
        last_error=failure or None,
        updated_at=second(at_s),
        reservation=None,
    )
    return Step(node, Said(node, "power_set", "error" if failure else "end", {"to_power": job.to_power}))


def power_synced(node: SimulatedNode, at_s: float, *, is_silent: bool) -> Said | None:
    """The node after the power sync, as its BMC answers or does not; None if nothing changes.

    The sync skips nodes that are locked, in maintenance for another reason, or not yet managed.
    """
    falls_silent = is_silent and not node.maintenance
    is_back = not is_silent and node.fault == POWER_FAILURE
    if node.reservation or node.provision_state in (ENROLL, VERIFYING) or not (falls_silent or is_back):
        return None
    why = f"The BMC of node {node.uuid} did not answer the power sync: maintenance is set."
    changed = structs.replace(
        node,
        power_state=None if falls_silent else node.bmc_power,
        maintenance=falls_silent,
        maintenance_reason=why if falls_silent else None,
        fault=POWER_FAILURE if falls_silent else None,
        last_error=why if falls_silent else node.last_error,
        updated_at=second(at_s),
    )
    return Said(changed, "power_state_corrected", "success", {"from_power": node.power_state})
