"""The JSON of an Ironic node, which notifications and REST answers share, and the Node that is made of it.

Both sources use this struct, so that a node which was heard of and a node which was read are equal if nothing changed.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from bus.message import ConsumerId, ProviderId
from ironic_sync.core.node import Node

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
