"""The one table of Ironic's provision states: what each means for an offer of its node, and for the orders on it."""

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct


class ProvisionState(Struct, frozen=True):
    """`reserved` says why nobody may claim a node in this state; empty if it may be claimed.

    `deploy` is for a node that is free or has the instance of the deploy: the deploy begins, waits, is done, has failed, or has
    lost the node. It is done in every state that an instance enters only after it was active.

    `undeploy` is for a node that has the instance: Ironic is to delete it or to abort what is on hold, or is waited for. With
    `clear` only the instance_uuid is left: nothing was deployed, or it was removed.
    """

    reserved: str
    deploy: Literal["begin", "wait", "done", "failed", "lost", "unknown"]
    undeploy: Literal["delete", "abort", "clear", "wait"]


PROVISION_STATES: Final[Mapping[str | None, ProvisionState]] = {
    None: ProvisionState("", "begin", "clear"),
    "available": ProvisionState("", "begin", "clear"),
    "enroll": ProvisionState("Ironic does not manage the node yet", "lost", "clear"),
    "verifying": ProvisionState("Ironic checks the node's credentials", "lost", "wait"),
    "manageable": ProvisionState("an operator works on the node", "lost", "clear"),
    "inspecting": ProvisionState("Ironic inspects the hardware", "lost", "wait"),
    "inspect wait": ProvisionState("Ironic inspects the hardware", "lost", "wait"),
    "inspect failed": ProvisionState("the inspection failed", "lost", "clear"),
    "adopting": ProvisionState("Ironic takes over a running node", "lost", "wait"),
    "adopt failed": ProvisionState("the adoption failed", "lost", "clear"),
    "deploy": ProvisionState("a deploy was asked for", "wait", "wait"),
    "deploying": ProvisionState("Ironic deploys an instance", "wait", "wait"),
    "wait call-back": ProvisionState("Ironic deploys an instance", "wait", "delete"),
    "deploy complete": ProvisionState("an instance was deployed", "wait", "wait"),
    "deploy failed": ProvisionState("the deploy failed", "failed", "delete"),
    "deploy hold": ProvisionState("the deploy is on hold", "wait", "abort"),
    "active": ProvisionState("an instance runs on the node", "done", "delete"),
    "rebuild": ProvisionState("Ironic builds the instance anew", "wait", "wait"),
    "rescue": ProvisionState("the instance is in rescue", "done", "delete"),
    "rescuing": ProvisionState("the instance goes to rescue", "done", "wait"),
    "rescue wait": ProvisionState("the instance goes to rescue", "done", "delete"),
    "rescue failed": ProvisionState("the rescue failed", "done", "delete"),
    "unrescuing": ProvisionState("the instance comes back from rescue", "done", "wait"),
    "unrescue failed": ProvisionState("the return from rescue failed", "done", "delete"),
    "service": ProvisionState("the instance is being serviced", "done", "delete"),
    "servicing": ProvisionState("the instance is being serviced", "done", "wait"),
    "service wait": ProvisionState("the instance is being serviced", "done", "delete"),
    "service failed": ProvisionState("the service failed", "done", "delete"),
    "service hold": ProvisionState("the service is on hold", "done", "abort"),
    "undeploy": ProvisionState("an undeploy was asked for", "lost", "wait"),
    "deleting": ProvisionState("Ironic takes the instance off the node", "lost", "wait"),
    "deleted": ProvisionState("the instance was taken off, the node is not clean yet", "lost", "wait"),
    "cleaning": ProvisionState("Ironic cleans the node", "lost", "wait"),
    "clean wait": ProvisionState("Ironic cleans the node", "lost", "wait"),
    "clean failed": ProvisionState("the cleaning failed", "lost", "clear"),
    "clean hold": ProvisionState("the cleaning is on hold", "lost", "wait"),
    "error": ProvisionState("Ironic could not take the instance off the node", "failed", "delete"),
}
# A later Ironic may have more states.
_UNKNOWN = ProvisionState("a state that is not known here", "unknown", "wait")


def provision_state(name: str | None) -> ProvisionState:
    return PROVISION_STATES.get(name, _UNKNOWN)
