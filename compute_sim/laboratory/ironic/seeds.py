"""Creates nodes for the start of a simulated Ironic."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid5

from msgspec import structs

from compute_sim.laboratory.ironic.core import states
from compute_sim.laboratory.ironic.core.node import SimulatedNode, second

_NAMESPACE = UUID("3f1c8a52-6d0e-4f5b-9c77-0a4be2d1c6ee")


def available_nodes(
    count: int,
    *,
    resource_class: str | None = "baremetal",
    name: str = "node",
    **fields: Any,
) -> tuple[SimulatedNode, ...]:
    """Equal nodes, available and powered off: `node-00000` and so on, each with a uuid derived from its name."""
    made = []
    for number in range(count):
        own = f"{name}-{number:05}"
        values = {
            "provision_state": states.AVAILABLE,
            "power_state": states.POWER_OFF,
            # With this interface a deploy leaves the node powered on, as real ones do; `fake`, the default, does not.
            "deploy_interface": "ramdisk",
            # Ports can be attached. The default, `noop`, takes them and attaches none.
            "network_interface": "flat",
            "properties": {"cpus": 8, "memory_mb": 65536, "local_gb": 480, "cpu_arch": "x86_64"},
            **fields,
        }
        made.append(
            SimulatedNode(uuid=str(uuid5(_NAMESPACE, own)), name=own, resource_class=resource_class, **values)
        )
    return tuple(made)


def nodes_in_groups(count: int, groups: Sequence[str], **fields: Any) -> tuple[SimulatedNode, ...]:
    """Available nodes, distributed in turn over these conductor groups; all in the default group if there are none."""
    return tuple(
        structs.replace(node, conductor_group=groups[number % len(groups)]) if groups else node
        for number, node in enumerate(available_nodes(count, **fields))
    )


def with_start_times(node: SimulatedNode, at_s: float) -> SimulatedNode:
    """A node at the start of the simulation: missing times are filled in, and the power that its BMC reports."""
    at = second(at_s)
    provisioned_at = None if node.provision_state == states.ENROLL else at
    return structs.replace(
        node,
        created_at=node.created_at or at,
        provision_updated_at=node.provision_updated_at or provisioned_at,
        bmc_power=node.bmc_power or node.power_state,
    )
