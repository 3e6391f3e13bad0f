"""A bare-metal node as Ironic describes it, in its notifications and in its REST API alike."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from engine.inventories import ConsumerId, ProviderId
from kit.errors import UNREADABLE


class Node(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of an Ironic node that Moorage uses, in Ironic's words. None means null.

    `shard` is in no notification: empty until the node was read by REST.
    """

    id: ProviderId
    name: str | None = None
    provision_state: str | None = None
    target_provision_state: str | None = None
    power_state: str | None = None
    maintenance: bool = False
    maintenance_reason: str | None = None
    fault: str | None = None
    retired: bool = False
    protected: bool = False
    resource_class: str | None = None
    traits: tuple[str, ...] = ()
    instance_uuid: UUID | None = None
    owner: str | None = None
    lessee: str | None = None
    conductor_group: str = ""
    shard: str | None = None
    driver: str | None = None
    last_error: str | None = None
    provision_updated_at: datetime | None = None
    properties: Mapping[str, Any] = {}


# What Ironic says of a node whose power it cannot control for long enough, and of one that is switched off.
POWER_FAILURE = "power failure"
POWER_OFF = "power off"


class InterfaceCheck(Struct, frozen=True):
    """Ironic's result for one interface of a node; `result` is None for one that the node's driver does not have."""

    result: bool | None
    reason: str | None = None


# The JSON of an Ironic node, which notifications and REST answers share, and the Node that is made of it.
#
# Both sources use this struct, so that a node which was heard of and a node which was read are equal if nothing changed.


# No text of PostgreSQL may have a NUL in it.
Text = Annotated[str, Meta(pattern=r"^[^\x00]*\Z")]
Label = Annotated[str, Meta(pattern=r"^[^\x00]*\Z", max_length=255)]
Moment = Annotated[datetime, Meta(tz=True)]
# As many traits as placement takes in one report. Ironic allows 50.
Traits = Annotated[tuple[Label, ...], Meta(max_length=400)]

# Ironic does not limit these. The row of a node keeps no more of them.
LONG_TEXT_MAX = 2_000
PROPERTIES_MAX = 100


class NodeData(Struct, frozen=True, kw_only=True, gc=False):
    """The fields of a node that Moorage reads. The first twelve must be there: no offer can be made of a node without
    one of them.

    All other fields are skipped, whatever they contain. Only REST answers have `shard`.
    """

    uuid: ProviderId
    provision_state: Label | None
    power_state: Label | None
    maintenance: bool | None
    retired: bool | None
    fault: Label | None
    resource_class: Label | None
    traits: Traits | None
    instance_uuid: ConsumerId | None
    conductor_group: Label | None
    owner: Label | None
    lessee: Label | None
    name: Label | None = None
    target_provision_state: Label | None = None
    maintenance_reason: Text | None = None
    protected: bool | None = None
    shard: Label | None = None
    driver: Label | None = None
    last_error: Text | None = None
    provision_updated_at: Moment | None = None
    properties: dict[str, Any] | None = None


def node_of(data: NodeData) -> Node:
    """The Node of this JSON, always in the same form: traits sorted, long texts cut, null replaced where it means
    "no".

    Ironic's own schema allows null in that sense for `maintenance`, `retired`, `traits` and `conductor_group`.
    """
    return Node(
        id=data.uuid,
        name=data.name,
        provision_state=data.provision_state,
        target_provision_state=data.target_provision_state,
        power_state=data.power_state,
        maintenance=bool(data.maintenance),
        maintenance_reason=data.maintenance_reason and data.maintenance_reason[:LONG_TEXT_MAX],
        fault=data.fault,
        retired=bool(data.retired),
        protected=bool(data.protected),
        resource_class=data.resource_class,
        traits=tuple(sorted(set(data.traits))) if data.traits else (),
        instance_uuid=data.instance_uuid,
        owner=data.owner,
        lessee=data.lessee,
        conductor_group=data.conductor_group or "",
        shard=data.shard,
        driver=data.driver,
        last_error=data.last_error and data.last_error[:LONG_TEXT_MAX],
        provision_updated_at=data.provision_updated_at,
        properties=_plain(data.properties) if data.properties else {},
    )


def _plain(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The properties that are one text or number each. Nested ones are hints for Ironic itself."""
    plain = [(key, value) for key, value in properties.items() if _is_plain(key) and _is_plain(value)]
    return dict(plain[:PROPERTIES_MAX])


def _is_plain(value: object) -> bool:
    match value:
        case str():
            return len(value) <= LONG_TEXT_MAX and "\0" not in value
        case int():
            # Larger ones cannot be written as JSON again.
            return -(2**63) <= value < 2**63
        case _:
            return value is None or isinstance(value, float)


# Names the field and the value that make a JSON text unreadable, for the author of the text.
#
# Such texts are rare, so this may take time.


SHOWN_MAX = 80
_MISSING = re.compile(r"missing required field `(?P<key>[^`]+)`")
_DATA = "ironic_object.data"


def flaw_of(problem: Exception, text: bytes | str) -> str:
    """The decoder's complaint, with the field and the value in front."""
    if isinstance(problem, RecursionError):
        return "nested too deep to be read"
    complaint, _, path = str(problem)[:1_000].partition(" - at `$")
    keys = _keys_of(path.rstrip("`"))
    if missing := _MISSING.search(complaint):
        return f"{_field_of([*keys, missing['key']])} is missing"
    if not keys:
        return f"not a notification: {complaint}"
    return f"{_field_of(keys)} is {_value_at(keys, text)}: {complaint}"


def _keys_of(path: str) -> list[str]:
    """The keys of a path such as `.ironic_object.data.traits[...]`. The dot in `ironic_object.data` belongs to the key itself,
    as in `oslo.message`.
    """
    whole = path.replace("ironic_object.", "ironic_object ").replace("oslo.", "oslo ")
    return [key.replace(" ", ".") for key in re.split(r"[.\[]", whole.replace("]", "")) if key.strip(".")]


def _field_of(keys: list[str]) -> str:
    """The name of a field as in Ironic's documentation: without a leading `ironic_object.data`, and without the
    indexes of lists.
    """
    inner = keys[1:] if keys[0] == _DATA else keys
    return ".".join(key for key in inner or keys if not key.isdigit())


def _value_at(keys: list[str], text: bytes | str) -> str:
    try:
        value: Any = msgspec.json.decode(text)
        for key in keys:
            value = value[int(key)] if isinstance(value, list) else value[key]
        return shown(value)
    except UNREADABLE:
        return "not as it must be"


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


# The one table of Ironic's provision states: what each means for an offer of its node, and for the orders on it.


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


def is_of_nobody(node: Node) -> bool:
    """Whether Ironic has deployed the node, or tried to, and has no instance there: the instance was removed while its deploy was
    on the way to Ironic.
    """
    return node.instance_uuid is None and provision_state(node.provision_state).undeploy in {
        "delete",
        "abort",
    }
