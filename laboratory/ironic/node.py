"""A node of the simulated Ironic with all its fields, under Ironic's names; what is told of it in notifications; and how requests are refused."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from msgspec import Struct, structs

from laboratory.ironic import states

Json = Mapping[str, Any]
# Deploy interfaces that boot an agent on the node and wait for its call.
AGENT_INTERFACES = frozenset({"direct", "custom-agent", "ansible", "bootc", "anaconda"})
# The drivers that the conductor serves.
DRIVERS = ("fake-hardware", "redfish")
INTERFACES = (
    "bios_interface",
    "boot_interface",
    "console_interface",
    "deploy_interface",
    "firmware_interface",
    "inspect_interface",
    "management_interface",
    "network_interface",
    "power_interface",
    "raid_interface",
    "rescue_interface",
    "storage_interface",
    "vendor_interface",
)
# A network interface that does nothing: it takes each port and attaches none.
NO_NETWORK = "noop"
MASKED = "******"
_SECRETS = ("password", "secret", "token", "auth_key", "credential")
_MASKED_IN_INSTANCE = ("image_url", "configdrive")
# Whether a rule is broken, and the status and the text of the refusal.
Rule = tuple[object, int, str]
BAD_REQUEST, NOT_FOUND, NOT_ACCEPTABLE, CONFLICT, SERVER_ERROR = 400, 404, 406, 409, 500


class RequestRefused(Exception):  # noqa: N818 - named for what it is
    """An error: its HTTP status and its text. It is raised where it is found, and answered in one place (api.py)."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.text = text


def no_such_node(ident: str) -> RequestRefused:
    return RequestRefused(NOT_FOUND, f"Node {ident} does not exist.")


def first_refusal(rules: Iterable[Rule]) -> RequestRefused | None:
    return next((RequestRefused(status, text) for is_broken, status, text in rules if is_broken), None)


def check(*rules: Rule) -> None:
    """Refuse a request by the first of these rules that it breaks: raise the error of that rule. If none is broken, do
    nothing.
    """
    if refused := first_refusal(rules):
        raise refused


class SimulatedNode(Struct, frozen=True, kw_only=True):
    """A node. The fields up to `uuid` are in every notification of a node, in this order; the others only in some.

    Times are texts, as in notifications. `bmc_power` is the power that the hardware would report, None for a driver
    that does not know.
    """

    clean_step: Json = {}
    conductor_group: str = ""
    console_enabled: bool | None = False
    created_at: str | None = None
    deploy_step: Json = {}
    description: str | None = None
    disable_power_off: bool | None = False
    driver: str = "fake-hardware"
    extra: Json = {}
    boot_mode: str | None = None
    secure_boot: bool | None = None
    inspection_finished_at: str | None = None
    inspection_started_at: str | None = None
    instance_uuid: str | None = None
    last_error: str | None = None
    maintenance: bool | None = False
    maintenance_reason: str | None = None
    fault: str | None = None
    bios_interface: str | None = "fake"
    boot_interface: str | None = "fake"
    console_interface: str | None = "fake"
    deploy_interface: str | None = "fake"
    inspect_interface: str | None = "fake"
    management_interface: str | None = "fake"
    network_interface: str | None = "noop"
    power_interface: str | None = "fake"
    raid_interface: str | None = "fake"
    rescue_interface: str | None = "fake"
    storage_interface: str | None = "noop"
    vendor_interface: str | None = "fake"
    name: str | None = None
    owner: str | None = None
    lessee: str | None = None
    power_state: str | None = None
    properties: Json = {}
    protected: bool | None = False
    protected_reason: str | None = None
    provision_state: str = "enroll"
    provision_updated_at: str | None = None
    resource_class: str | None = None
    retired: bool | None = False
    retired_reason: str | None = None
    target_power_state: str | None = None
    target_provision_state: str | None = None
    traits: tuple[str, ...] = ()
    updated_at: str | None = None
    uuid: str

    # Only in some notifications.
    chassis_uuid: str | None = None
    instance_info: Json = {}
    driver_info: Json = {}
    driver_internal_info: Json = {}
    # In no notification.
    firmware_interface: str | None = "fake"
    shard: str | None = None
    reservation: str | None = None
    allocation_uuid: str | None = None
    automated_clean: bool | None = None
    vifs: tuple[str, ...] = ()
    bmc_power: str | None = None

    @property
    def has_agent(self) -> bool:
        return self.deploy_interface in AGENT_INTERFACES


# The number of fields in every notification of a node.
COMMON_COUNT = SimulatedNode.__struct_fields__.index("uuid") + 1
COMMON_FIELDS = SimulatedNode.__struct_fields__[:COMMON_COUNT]


def second(at_s: float) -> str:
    """A time as text in the format of notifications' fields, in whole seconds."""
    return _second(int(at_s))


@lru_cache(maxsize=16)
def _second(at_s: int) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def microsecond(at_s: float) -> str:
    """A time as text in the format of driver_internal_info: with microseconds, without a zone."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%S.%f}"


def refusal_of_lock(node: SimulatedNode) -> RequestRefused | None:
    """The refusal while a conductor holds the node's lock; None if none does."""
    if not node.reservation:
        return None
    text = f"Node {node.uuid} is locked by host {node.reservation}: try again when its operation is over."
    return RequestRefused(CONFLICT, text)


def check_unlocked(node: SimulatedNode) -> None:
    if refused := refusal_of_lock(node):
        raise refused


# What is told of a node


class ProvisionSet(Struct, frozen=True):
    """An event has changed the node's provision state."""

    node: SimulatedNode
    event: str
    status: str
    previous_state: str
    previous_target: str | None


class PowerSet(Struct, frozen=True):
    """The power of a node will change, has changed, or could not be changed."""

    node: SimulatedNode
    to_power: str
    status: str


class PowerCorrected(Struct, frozen=True):
    """The conductor found that a node's power differs from its record."""

    node: SimulatedNode
    from_power: str | None


class NodeWritten(Struct, frozen=True):
    """The API creates, updates or deletes a node, or sets its maintenance (`action`).

    `status` says whether it begins (`start`), is done (`end`), or was refused (`error`).
    """

    node: SimulatedNode
    action: str
    status: str


NodeEvent = ProvisionSet | PowerSet | PowerCorrected | NodeWritten


def after_event(
    node: SimulatedNode, event: str, at_s: float, **changes: Any
) -> tuple[SimulatedNode, ProvisionSet]:
    """The node after an event that is allowed in its state, with these other changes; and the notification."""
    state = node.provision_state
    after = states.state_after(state, event)
    if after is None:
        raise ValueError(f"node {node.uuid} is {state!r}, which does not allow the event {event!r}")
    at = second(at_s)
    if after == states.INSPECTING:
        changes["inspection_started_at"] = at
    elif state in (states.INSPECTING, states.INSPECT_WAIT) and after != states.INSPECT_WAIT:
        changes["inspection_started_at"] = None
        if after == states.MANAGEABLE:
            changes["inspection_finished_at"] = at
    new = structs.replace(
        node,
        provision_state=after,
        target_provision_state=states.target_after(state, node.target_provision_state, event, after),
        provision_updated_at=at,
        updated_at=at,
        **changes,
    )
    status = states.status_of(state, event, after)
    return new, ProvisionSet(new, event, status, state, node.target_provision_state)


def internal(node: SimulatedNode, **values: Any) -> dict[str, Any]:
    """A copy of the node's driver_internal_info with these keys set."""
    return {**node.driver_internal_info, **values}


class Payload(Struct, frozen=True):
    event_type: str
    # The publishing service: "api" or "conductor".
    service: str
    is_error: bool
    name: str
    version: str
    data: Mapping[str, Any]


def payload_of(said: NodeEvent) -> Payload:
    match said:
        case ProvisionSet(node, event, status, previous_state, previous_target):
            first = {
                "instance_info": masked(node.instance_info),
                "driver_internal_info": masked(node.driver_internal_info),
                "event": event,
                "previous_provision_state": previous_state,
                "previous_target_provision_state": previous_target,
            }
            return _payload("provision_set", status, "NodeSetProvisionStatePayload", "1.18", first, node=node)
        case PowerSet(node, to_power, status):
            first = {"to_power": to_power}
            return _payload("power_set", status, "NodeSetPowerStatePayload", "1.17", first, node=node)
        case PowerCorrected(node, from_power):
            first = {"from_power": from_power}
            return _payload(
                "power_state_corrected", "success", "NodeCorrectedPowerStatePayload", "1.17", first, node=node
            )
        case NodeWritten(node, "maintenance_set" as action, status):
            return _payload(action, status, "NodePayload", "1.17", {}, node=node, service="api")
        case NodeWritten(node, action, status):
            first = {
                "chassis_uuid": node.chassis_uuid,
                "instance_info": masked(node.instance_info),
                "driver_info": masked(node.driver_info),
            }
            return _payload(action, status, "NodeCRUDPayload", "1.15", first, node=node, service="api")


def _payload(
    action: str,
    status: str,
    name: str,
    version: str,
    first: Mapping[str, Any],
    *,
    node: SimulatedNode,
    service: str = "conductor",
) -> Payload:
    common = zip(COMMON_FIELDS, structs.astuple(node)[:COMMON_COUNT], strict=True)
    event_type = f"baremetal.node.{action}.{status}"
    return Payload(event_type, service, status == "error", name, version, {**first, **dict(common)})


def masked(info: Json) -> Json:
    """A copy of a field of a node, in which passwords, and what may contain them, are masked."""
    if not info:
        return info
    return {key: MASKED if _is_secret(key) else _inner(value) for key, value in info.items()}


def _inner(value: Any) -> Any:
    return masked(value) if isinstance(value, Mapping) else value


def _is_secret(key: str) -> bool:
    return key in _MASKED_IN_INSTANCE or any(each in key.lower() for each in _SECRETS)
