"""Orders for one node, and what a deploy of it may find."""

from typing import Any
from uuid import UUID

from bus.messages.cell import (
    AdoptDeployed,
    DeployInstance,
    InstanceRedeployed,
    LeaveNode,
    RedeployInstance,
    UndeployInstance,
)
from engine.flavors import Flavor, Image, InstanceId
from engine.inventories import ConsumerId, ResourceAmount, Share
from ironic_sync.core.rows import NodeDeploy
from tests.unit.ironic.captured import NODE_ID

OURS = InstanceId(ConsumerId(UUID(int=0xA)))
THEIRS = InstanceId(ConsumerId(UUID(int=0xB)))
IMAGE = Image(source="http://images/debian", checksum="0a1b")
OTHER_IMAGE = Image(source="http://images/fedora", checksum="1b2c")


def an_order(instance: InstanceId = OURS, attempt: int = 1, **fields: Any) -> DeployInstance:
    values: dict[str, Any] = {"cell": "c1", "host": NODE_ID, "flavor": Flavor(), "image": IMAGE, **fields}
    share = Share(host=values["host"], amounts=(ResourceAmount(values["host"], "CUSTOM_GOLD", 1),))
    return DeployInstance(instance=instance, attempt=attempt, share=share, **values)


def an_undeploy(instance: InstanceId = OURS, attempt: int = 1, **fields: Any) -> UndeployInstance:
    values: dict[str, Any] = {"cell": "c1", "host": NODE_ID, **fields}
    return UndeployInstance(instance=instance, attempt=attempt, **values)


def an_adoption(instance: InstanceId = OURS, attempt: int = 1) -> AdoptDeployed:
    return AdoptDeployed(cell="c1", host=NODE_ID, instance=instance, attempt=attempt)


def a_leave(instance: InstanceId = OURS, attempt: int = 1) -> LeaveNode:
    return LeaveNode(cell="c1", host=NODE_ID, instance=instance, attempt=attempt)


def a_redeploy(number: int = 102, instance: InstanceId = OURS, **fields: Any) -> RedeployInstance:
    values: dict[str, Any] = {
        "cell": "c1",
        "host": NODE_ID,
        "attempt": 1,
        "flavor": Flavor(),
        "image": OTHER_IMAGE,
        **fields,
    }
    return RedeployInstance(instance=instance, number=number, **values)


def a_rebuild(**fields: Any) -> NodeDeploy:
    values: dict[str, Any] = {"cell": "c1", "instance": OURS, "attempt": 1, "order": a_redeploy(), **fields}
    return NodeDeploy(kind="rebuild", **values)


def a_deploy(**fields: Any) -> NodeDeploy:
    order = fields.pop("order", None) or an_order()
    values: dict[str, Any] = {"kind": "deploy", "cell": "c1", "instance": OURS, "attempt": 1, **fields}
    return NodeDeploy(order=order if values["kind"] == "deploy" else None, **values)


def redeployed(failure: str = "", *, number: int = 102, is_active: bool = True) -> InstanceRedeployed:
    return InstanceRedeployed(
        cell="c1",
        instance=OURS,
        attempt=1,
        host=NODE_ID,
        number=number,
        failure=failure,
        is_active=is_active,
    )
