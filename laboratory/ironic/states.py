"""Ironic's provision states: which event leads from which state to which, and which event each verb of the API means.

Without the states of holds and of services, which Moorage does not order.
"""

from collections.abc import Mapping
from types import MappingProxyType

ENROLL, VERIFYING, MANAGEABLE, AVAILABLE, ACTIVE = "enroll", "verifying", "manageable", "available", "active"
DEPLOYING, DEPLOY_WAIT, DEPLOY_FAILED = "deploying", "wait call-back", "deploy failed"
DELETING, ERROR = "deleting", "error"
CLEANING, CLEAN_WAIT, CLEAN_FAILED = "cleaning", "clean wait", "clean failed"
INSPECTING, INSPECT_WAIT, INSPECT_FAILED = "inspecting", "inspect wait", "inspect failed"
ADOPTING, ADOPT_FAILED = "adopting", "adopt failed"
RESCUE, RESCUING, RESCUE_WAIT, RESCUE_FAILED = "rescue", "rescuing", "rescue wait", "rescue failed"
UNRESCUING, UNRESCUE_FAILED = "unrescuing", "unrescue failed"

POWER_ON, POWER_OFF, REBOOTING, POWER_ERROR = "power on", "power off", "rebooting", "error"
SOFT_REBOOTING, SOFT_POWER_OFF = "soft rebooting", "soft power off"
# The power state that each power order leads to.
POWER_TARGETS: Mapping[str, str] = MappingProxyType(
    {
        POWER_ON: POWER_ON,
        POWER_OFF: POWER_OFF,
        REBOOTING: POWER_ON,
        SOFT_REBOOTING: POWER_ON,
        SOFT_POWER_OFF: POWER_OFF,
    }
)

# The API's target, and the event that it means.
VERBS: Mapping[str, str] = MappingProxyType(
    {
        "active": "deploy",
        "deploy": "deploy",
        "rebuild": "rebuild",
        "deleted": "delete",
        "undeploy": "delete",
        "manage": "manage",
        "provide": "provide",
        "inspect": "inspect",
        "abort": "abort",
        "clean": "clean",
        "adopt": "adopt",
        "rescue": "rescue",
        "unrescue": "unrescue",
    }
)

_AFTER: Mapping[str, Mapping[str, str]] = {
    ENROLL: {"manage": VERIFYING},
    VERIFYING: {"done": MANAGEABLE, "fail": ENROLL},
    MANAGEABLE: {"provide": CLEANING, "clean": CLEANING, "inspect": INSPECTING, "adopt": ADOPTING},
    AVAILABLE: {"deploy": DEPLOYING, "manage": MANAGEABLE},
    ACTIVE: {"rebuild": DEPLOYING, "delete": DELETING, "rescue": RESCUING},
    DEPLOYING: {"wait": DEPLOY_WAIT, "done": ACTIVE, "fail": DEPLOY_FAILED},
    DEPLOY_WAIT: {
        "resume": DEPLOYING,
        "fail": DEPLOY_FAILED,
        "abort": DEPLOY_FAILED,
        "delete": DELETING,
    },
    DEPLOY_FAILED: {"rebuild": DEPLOYING, "deploy": DEPLOYING, "delete": DELETING},
    DELETING: {"clean": CLEANING, "fail": ERROR},
    ERROR: {"rebuild": DEPLOYING, "delete": DELETING},
    CLEANING: {
        "done": AVAILABLE,
        "manage": MANAGEABLE,
        "wait": CLEAN_WAIT,
        "fail": CLEAN_FAILED,
    },
    CLEAN_WAIT: {"resume": CLEANING, "fail": CLEAN_FAILED, "abort": CLEAN_FAILED},
    CLEAN_FAILED: {"manage": MANAGEABLE},
    INSPECTING: {"done": MANAGEABLE, "wait": INSPECT_WAIT, "fail": INSPECT_FAILED},
    INSPECT_WAIT: {
        "done": MANAGEABLE,
        "resume": INSPECTING,
        "fail": INSPECT_FAILED,
        "abort": INSPECT_FAILED,
    },
    INSPECT_FAILED: {"manage": MANAGEABLE, "inspect": INSPECTING},
    ADOPTING: {"done": ACTIVE, "fail": ADOPT_FAILED},
    ADOPT_FAILED: {"adopt": ADOPTING, "manage": MANAGEABLE},
    RESCUING: {"done": RESCUE, "wait": RESCUE_WAIT, "fail": RESCUE_FAILED},
    RESCUE_WAIT: {"resume": RESCUING, "fail": RESCUE_FAILED, "abort": RESCUE_FAILED, "delete": DELETING},
    RESCUE: {"rescue": RESCUING, "unrescue": UNRESCUING, "delete": DELETING},
    RESCUE_FAILED: {"rescue": RESCUING, "unrescue": UNRESCUING, "delete": DELETING},
    UNRESCUING: {"done": ACTIVE, "fail": UNRESCUE_FAILED},
    UNRESCUE_FAILED: {"rescue": RESCUING, "unrescue": UNRESCUING, "delete": DELETING},
}
ALL = tuple(_AFTER)

# States without a target.
STABLE = frozenset({ENROLL, MANAGEABLE, AVAILABLE, ACTIVE, ERROR, RESCUE})
# The conductor works, or waits for the node. The notification of an event depends on which of its two states are among
# these.
UNSTABLE = frozenset(
    {
        DEPLOYING,
        DEPLOY_WAIT,
        CLEANING,
        CLEAN_WAIT,
        VERIFYING,
        DELETING,
        INSPECTING,
        INSPECT_WAIT,
        ADOPTING,
        RESCUING,
        RESCUE_WAIT,
        UNRESCUING,
    }
)
# A node with a target can be patched only in these states.
UPDATE_ALLOWED = frozenset(
    {
        DEPLOY_FAILED,
        INSPECTING,
        INSPECT_FAILED,
        INSPECT_WAIT,
        CLEAN_FAILED,
        ERROR,
        VERIFYING,
        ADOPT_FAILED,
        RESCUE_FAILED,
        UNRESCUE_FAILED,
    }
)

_TARGETS: Mapping[str, str] = {
    VERIFYING: MANAGEABLE,
    INSPECTING: MANAGEABLE,
    INSPECT_WAIT: MANAGEABLE,
    INSPECT_FAILED: MANAGEABLE,
    CLEANING: AVAILABLE,
    CLEAN_WAIT: AVAILABLE,
    CLEAN_FAILED: AVAILABLE,
    DELETING: AVAILABLE,
    RESCUING: RESCUE,
    RESCUE_WAIT: RESCUE,
    RESCUE_FAILED: RESCUE,
}
_CLEANS = frozenset({CLEANING, CLEAN_WAIT, CLEAN_FAILED})


def state_after(state: str, event: str) -> str | None:
    """The state after this event; None if the event is not allowed in this state."""
    return _AFTER.get(state, {}).get(event)


def target_after(state: str, target: str | None, event: str, after: str) -> str | None:
    """A node's target state after an event led it to `after`. Manual cleaning keeps its own target until it is over."""
    if after in STABLE:
        return None
    if event == "clean" and state == MANAGEABLE:
        return MANAGEABLE
    if state in _CLEANS and after in _CLEANS:
        return target
    return _TARGETS.get(after, ACTIVE)


def status_of(state: str, event: str, after: str) -> str:
    """The status in the notification of an event that leads from `state` to `after`: start, end, success or error."""
    if event == "fail":
        return "error"
    match (state in UNSTABLE, after in UNSTABLE):
        case (False, True):
            return "start"
        case (True, False):
            return "end"
        case _:
            return "success"
