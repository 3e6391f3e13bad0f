"""A node of the simulated Ironic with all its fields, under Ironic's names."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from msgspec import Struct

from compute_sim.laboratory.ironic.core.refusals import CONFLICT, RequestRefused

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
    instance_name: str | None = None
    network_data: Json = {}
    parent_node: str | None = None
    raid_config: Json = {}
    target_raid_config: Json = {}
    service_step: Json = {}
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
