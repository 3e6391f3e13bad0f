"""Orders for a node's provision state and for its power: which are allowed now; and the conductor's jobs after them: which job runs, when
it is due, and how it ends.

A node has at most one job. While a job runs the conductor holds the node's lock. While it waits for an agent's call it
holds none, and only the node's target protects it from changes.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct, structs

from laboratory.ironic import states
from laboratory.ironic.node import (
    BAD_REQUEST,
    SERVER_ERROR,
    Json,
    NodeEvent,
    PowerCorrected,
    PowerSet,
    RequestRefused,
    SimulatedNode,
    after_event,
    check,
    check_unlocked,
    internal,
    microsecond,
    second,
)

JobName = Literal[
    "verify",
    "inspect",
    "adopt",
    "rescue",
    "unrescue",
    "deploy",
    "deploy boot",
    "deploy wait",
    "deploy timeout",
    "tear down",
    "clean",
    "clean skipped",
    "clean boot",
    "clean wait",
    "clean timeout",
    "power",
    "power kept",
    "power down",
]
# The job in each state in which the conductor works or waits for the node, and its delay.
_WORK_IN: Mapping[str, tuple[JobName, str]] = {
    states.VERIFYING: ("verify", "verify_s"),
    states.INSPECTING: ("inspect", "inspect_s"),
    states.ADOPTING: ("adopt", "adopt_s"),
    states.RESCUING: ("rescue", "rescue_s"),
    states.UNRESCUING: ("unrescue", "rescue_s"),
    states.DEPLOYING: ("deploy", "deploy_s"),
    states.DEPLOY_WAIT: ("deploy wait", "agent_call_s"),
    states.DELETING: ("tear down", "tear_down_s"),
    states.CLEANING: ("clean", "clean_s"),
    states.CLEAN_WAIT: ("clean wait", "agent_call_s"),
}
# Jobs in which the conductor waits for the node without its lock.
WAITS = frozenset({"deploy wait", "deploy timeout", "clean wait", "clean timeout"})
# Returns why this kind of job fails on the node now; empty if it succeeds.
Fails = Callable[[str], str]

CLEAN_FAILURE, POWER_FAILURE = "clean failure", "power failure"
_AGENT_ERASES = {
    "agent_erase_devices_iterations": 1,
    "agent_erase_devices_zeroize": True,
    "agent_continue_if_secure_erase_failed": False,
    "agent_continue_if_ata_erase_failed": False,
    "agent_enable_nvme_secure_erase": True,
    "agent_enable_ata_secure_erase": True,
    "disk_erasure_concurrency": 4,
    "agent_erase_skip_read_only": False,
}
_MANUAL_CLEANING_KEYS = ("cleaning_disable_ramdisk", "declarative_cleaning")


class WorkDurations(Struct, frozen=True, kw_only=True):
    """The durations of the conductor's work, in seconds."""

    verify_s: float = 1.0
    inspect_s: float = 1.0
    adopt_s: float = 1.0
    clean_s: float = 1.0
    # From the end of a deploy to available, where nothing is cleaned.
    clean_skipped_s: float = 0.03
    deploy_s: float = 2.0
    tear_down_s: float = 2.0
    rescue_s: float = 2.0
    power_s: float = 1.0
    # From an agent's boot to its first call; and how long the conductor waits for that call.
    agent_call_s: float = 1.0
    agent_timeout_s: float = 20.0
    # The interval of the power sync, which asks every BMC for its power.
    power_sync_s: float = 60.0


class IronicSimSettings(Struct, frozen=True, kw_only=True):
    """The settings of a simulated Ironic and its conductor."""

    delays: WorkDurations = WorkDurations()
    # Whether a node is cleaned before it is available; a node's automated_clean overrides this.
    cleans: bool = True
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
    """The delays multiplied by `pace`, except the power sync and the wait for an agent."""
    shortened = {
        field: getattr(delays, field) * pace
        for field in delays.__struct_fields__
        if field not in ("power_sync_s", "agent_timeout_s")
    }
    return structs.replace(delays, **shortened)


class Job(Struct, frozen=True):
    name: JobName
    due_s: float
    to_power: str = ""


class Step(Struct, frozen=True):
    """One step of work: the node after it, its notifications, and the next job."""

    node: SimulatedNode
    said: tuple[NodeEvent, ...]
    job: Job | None = None


class ProvisionOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    target: str
    configdrive: str | Json | None = None
    clean_steps: tuple[Json, ...] = ()
    rescue_password: str | None = None


def order_provision(
    node: SimulatedNode, order: ProvisionOrder, at_s: float, rules: IronicSimSettings
) -> Step:
    event = states.VERBS.get(order.target, "")
    if event in ("deploy", "rebuild") and node.maintenance:
        raise RequestRefused(BAD_REQUEST, f"Node {node.uuid} is in maintenance: it can not be provisioned.")
    if not event:
        raise RequestRefused(BAD_REQUEST, f'The requested action "{order.target}" is not known.')
    check_unlocked(node)
    check(
        (
            states.state_after(node.provision_state, event) is None,
            BAD_REQUEST,
            f'The requested action "{order.target}" is not possible on node "{node.uuid}" in state "{node.provision_state}".',
        ),
        (
            node.retired and event == "provide",
            BAD_REQUEST,
            f"Node {node.uuid} is retired: it can not be made available.",
        ),
        (
            event in ("deploy", "rebuild") and node.has_agent and not node.instance_info.get("image_source"),
            SERVER_ERROR,
            f"Node {node.uuid} has no image_source in instance_info to deploy.",
        ),
    )
    return _begin(node, order, event, at_s, rules)


def _begin(
    node: SimulatedNode, order: ProvisionOrder, event: str, at_s: float, rules: IronicSimSettings
) -> Step:
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


def order_power(node: SimulatedNode, target: str, at_s: float, rules: IronicSimSettings) -> Step:
    power = states.POWER_TARGETS.get(target)
    check(
        (power is None, BAD_REQUEST, f'The requested power state "{target}" is not known.'),
        (
            node.provision_state in (states.CLEANING, states.CLEAN_WAIT),
            BAD_REQUEST,
            f'The power of node "{node.uuid}" is not changed while it is cleaned.',
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


def make_step(node: SimulatedNode, said: tuple[NodeEvent, ...], job: Job | None, host: str) -> Step:
    """One step of the conductor's work: the node, the notifications, and the next job on it.

    The node is locked if that job needs the conductor's lock, and unlocked otherwise.
    """
    holder = host if job is not None and job.name not in WAITS else None
    return Step(structs.replace(node, reservation=holder), said, job)


def job_in(node: SimulatedNode, at_s: float, rules: IronicSimSettings) -> Job | None:
    """The job that begins when the node enters its state; None if there is nothing to do."""
    if node.provision_state not in _WORK_IN:
        return None
    name, delay = _WORK_IN[node.provision_state]
    return Job(name, at_s + getattr(rules.delays, delay))


def step_after(
    node: SimulatedNode, event: str, at_s: float, rules: IronicSimSettings, **changes: Any
) -> Step:
    """The step by which this event takes a node to its next state, with the job that begins in that state."""
    node, said = after_event(node, event, at_s, **changes)
    return make_step(node, (said,), job_in(node, at_s, rules), rules.host)


def begin_cleaning(
    node: SimulatedNode, said: tuple[NodeEvent, ...], at_s: float, rules: IronicSimSettings
) -> Step:
    """Begin to clean a node that has just entered `cleaning`."""
    delays = rules.delays
    is_manual = node.target_provision_state == states.MANAGEABLE
    cleans = rules.cleans if node.automated_clean is None else node.automated_clean
    if not is_manual and not cleans:
        return make_step(node, said, Job("clean skipped", at_s + delays.clean_skipped_s), rules.host)
    if node.has_agent:
        return boot_agent(node, said, "clean boot", at_s, rules)
    return make_step(node, said, Job("clean", at_s + delays.clean_s), rules.host)


def resumed(node: SimulatedNode, at_s: float, rules: IronicSimSettings) -> Step | None:
    """Begin again the work on a node that was under way when the process ended; None if there was none.

    Its beginning is not announced again.
    """
    if node.target_power_state is not None:
        job: Job | None = Job("power", at_s + rules.delays.power_s, node.target_power_state)
    else:
        job = job_in(node, at_s, rules)
    if job is None and node.reservation is None:
        return None
    return make_step(node, (), job, rules.host)


def boot_agent(
    node: SimulatedNode, said: tuple[NodeEvent, ...], job: JobName, at_s: float, rules: IronicSimSettings
) -> Step:
    start = PowerSet(node, states.REBOOTING, "start")
    info = internal(node, last_power_state_change=microsecond(at_s))
    node = structs.replace(node, driver_internal_info=info)
    return make_step(node, (*said, start), Job(job, at_s + rules.delays.power_s), rules.host)


def finish(  # noqa: PLR0911 - one for each kind of job
    node: SimulatedNode, job: Job, fails: Fails, at_s: float, rules: IronicSimSettings
) -> Step:
    """The step that ends a due job."""
    match job.name:
        case "power" | "power kept" | "power down":
            return _end_power(node, job, fails("power"), at_s, rules)
        case "tear down":
            return _end_tear_down(node, fails("tear down"), at_s, rules)
        case "clean boot" | "deploy boot":
            return _end_boot(node, job, fails, at_s, rules)
        case "clean wait" | "deploy wait":
            # The agent has called.
            return step_after(node, "resume", at_s, rules)
        case "clean timeout":
            return _clean_timed_out(node, at_s, rules)
        case "deploy timeout":
            return step_after(node, "fail", at_s, rules, last_error="The agent did not call back in time.")
        case "clean" | "clean skipped":
            return _end_cleaning(node, job, fails, at_s, rules)
        case _:
            return _end_simple(node, job, fails(job.name), at_s, rules)


def _end_simple(node: SimulatedNode, job: Job, failure: str, at_s: float, rules: IronicSimSettings) -> Step:
    if failure:
        return step_after(node, "fail", at_s, rules, last_error=failure)
    changes: dict[str, Any] = {}
    if job.name == "deploy":
        changes = {
            **_powered(node, states.POWER_ON),
            "driver_internal_info": internal(node, deploy_steps=None),
        }
    elif job.name == "verify":
        changes["power_state"] = node.bmc_power
    return step_after(node, "done", at_s, rules, **changes)


def _end_cleaning(node: SimulatedNode, job: Job, fails: Fails, at_s: float, rules: IronicSimSettings) -> Step:
    is_skipped = job.name == "clean skipped"
    failure = "" if is_skipped else fails("clean")
    if failure:
        return step_after(
            node,
            "fail",
            at_s,
            rules,
            last_error=failure,
            maintenance=True,
            maintenance_reason=failure,
            fault=CLEAN_FAILURE,
        )
    is_manual = node.target_provision_state == states.MANAGEABLE
    info = node.driver_internal_info
    if not is_skipped:
        info = {
            key: value
            for key, value in internal(node, clean_steps=None).items()
            if key not in _MANUAL_CLEANING_KEYS
        }
    # A retired node does not become available again.
    event = "manage" if is_manual or node.retired else "done"
    return step_after(node, event, at_s, rules, driver_internal_info=info)


def _end_boot(node: SimulatedNode, job: Job, fails: Fails, at_s: float, rules: IronicSimSettings) -> Step:
    """End the boot of the agent's ramdisk. Then the conductor waits for the agent's call, which may never come."""
    delays, is_clean = rules.delays, job.name == "clean boot"
    failure = fails("power")
    if failure:
        node = structs.replace(node, power_state=states.POWER_ERROR, updated_at=second(at_s))
        told = PowerSet(node, states.REBOOTING, "error")
        changes: dict[str, Any] = {"last_error": failure}
        if is_clean:
            changes.update(maintenance=True, maintenance_reason=failure, fault=CLEAN_FAILURE)
        node, said = after_event(node, "fail", at_s, **changes)
        return make_step(node, (told, said), None, rules.host)
    node = structs.replace(
        node, power_state=states.POWER_ON, bmc_power=states.POWER_ON, updated_at=second(at_s)
    )
    end = PowerSet(node, states.REBOOTING, "end")
    info = internal(node, clean_steps=None, **_AGENT_ERASES) if is_clean else node.driver_internal_info
    node, said = after_event(node, "wait", at_s, driver_internal_info=info)
    if fails("clean wait" if is_clean else "deploy wait"):
        next_job = Job("clean timeout" if is_clean else "deploy timeout", at_s + delays.agent_timeout_s)
    else:
        next_job = Job("clean wait" if is_clean else "deploy wait", at_s + delays.agent_call_s)
    return make_step(node, (end, said), next_job, rules.host)


def _clean_timed_out(node: SimulatedNode, at_s: float, rules: IronicSimSettings) -> Step:
    """The step that ends a cleaning for which no agent has called in time. Maintenance is not set.

    The conductor powers the node off before it announces the failure.
    """
    node, said = after_event(node, "fail", at_s)
    start = PowerSet(node, states.POWER_OFF, "start")
    job = Job("power down", at_s + rules.delays.power_s, states.POWER_OFF)
    return make_step(node, (start, said), job, rules.host)


def _end_power(node: SimulatedNode, job: Job, failure: str, at_s: float, rules: IronicSimSettings) -> Step:
    at = second(at_s)
    if failure:
        node = structs.replace(
            node,
            power_state=states.POWER_ERROR,
            target_power_state=None,
            last_error=failure,
            updated_at=at,
        )
        return make_step(node, (PowerSet(node, job.to_power, "error"),), None, rules.host)
    power = states.POWER_TARGETS[job.to_power]
    node = structs.replace(
        node,
        power_state=power,
        bmc_power=power,
        target_power_state=None,
        updated_at=at,
        driver_internal_info=node.driver_internal_info
        if job.name == "power kept"
        else internal(node, last_power_state_change=microsecond(at_s)),
    )
    end = PowerSet(node, job.to_power, "end")
    if job.name == "power down":
        # The reason is stored last, after the notifications.
        reason = f"Cleaning timed out: no agent called from node {node.uuid}."
        node = structs.replace(node, last_error=reason)
    return make_step(node, (end,), None, rules.host)


def _end_tear_down(node: SimulatedNode, failure: str, at_s: float, rules: IronicSimSettings) -> Step:
    """End a tear-down. The instance is removed before `cleaning` is announced, or after `error` is."""
    cleared: dict[str, Any] = {
        "instance_info": {},
        "instance_uuid": None,
        "allocation_uuid": None,
        "vifs": (),
        **_powered(node, states.POWER_OFF),
    }
    if failure:
        node, said = after_event(node, "fail", at_s, last_error=failure)
        return make_step(structs.replace(node, **cleared), (said,), None, rules.host)
    node, said = after_event(node, "clean", at_s, **cleared)
    return begin_cleaning(node, (said,), at_s, rules)


def _powered(node: SimulatedNode, power: str) -> dict[str, Any]:
    """The fields by which a deploy turns a node on, or a removal turns it off; empty if the power does not change.

    Ironic's `fake` deploy interface does not change the power, as the messages captured from Ironic show.
    """
    if node.power_state is None or node.deploy_interface == "fake":
        return {}
    return {"power_state": power, "bmc_power": power}


def power_synced(node: SimulatedNode, is_silent: bool, at_s: float) -> Step | None:  # noqa: FBT001 - what the BMC did
    """The step of the power sync for a BMC that answers or does not; None if nothing changes.

    The sync skips nodes that are locked, in maintenance for another reason, or not yet managed.
    """
    if node.reservation or node.provision_state in (states.ENROLL, states.VERIFYING, states.CLEAN_WAIT):
        return None
    before = node.power_state
    if is_silent and not node.maintenance:
        why = f"The BMC of node {node.uuid} did not answer the power sync: maintenance is set."
        node = structs.replace(
            node,
            power_state=None,
            maintenance=True,
            maintenance_reason=why,
            fault=POWER_FAILURE,
            last_error=why,
            updated_at=second(at_s),
        )
    elif not is_silent and node.fault == POWER_FAILURE:
        node = structs.replace(
            node,
            power_state=node.bmc_power,
            maintenance=False,
            maintenance_reason=None,
            fault=None,
            updated_at=second(at_s),
        )
    else:
        return None
    return Step(node, (PowerCorrected(node, before),))
