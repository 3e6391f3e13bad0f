"""The arguments of builds and moves, by name, the messages that they make, and the ids of our own requests."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, cast
from uuid import UUID

from msgspec import convert

from bus.message import AggregateId, GroupId
from bus.messages.build import (
    BuildInstance,
    Flavor,
    Image,
    InstanceId,
    JoinedGroup,
    MoveKind,
    PortRequest,
    RequestId,
    VolumeRequest,
    Wait,
)
from bus.messages.moves import MoveInstance, MoveWait
from moor.client.questions import as_received

# The states of instances (the bus's reference, `InstanceState`).
StateName = Literal[
    "accepted",
    "waiting",
    "placed",
    "building",
    "active",
    "rebuilding",
    "moving",
    "moved",
    "stopped",
    "shelved",
    "offloaded",
    "error",
    "deleting",
    "deleted",
]


class BuildFields(TypedDict, total=False):
    """The fields of a build request beside its flavor (the bus's reference describes each).

    `image_name` names a stored image. `image` may be an image's source alone, `group` the group's id, `wait` the seconds, and `member_of` single aggregates.
    """

    request_id: UUID
    count: int
    all_or_nothing: bool
    instance_ids: Sequence[UUID]
    name: str
    project: str
    user: str
    image: Image | str
    image_name: str
    image_properties: Mapping[str, str]
    availability_zone: str
    group: JoinedGroup | UUID
    hosts: Sequence[str]
    ignore_hosts: Sequence[str]
    different_host: Sequence[UUID]
    same_host: Sequence[UUID]
    member_of: Sequence[UUID | Sequence[UUID]]
    forbidden_aggregates: Sequence[UUID]
    deadline_s: int
    config_drive: str
    ports: Sequence[str]
    port_requests: Sequence[PortRequest]
    volume_requests: Sequence[VolumeRequest]
    wait: Wait | int
    alternatives: Sequence[Flavor]


class OrderFields(TypedDict, total=False):
    """What every order about one instance may name. An order with a `request_id` of yours may be sent again."""

    request_id: UUID
    project: str
    deadline_s: int


class MoveFields(OrderFields, total=False):
    """The fields of a move to another host: one of `hosts`, together with its group, and how it waits for room."""

    hosts: Sequence[str]
    with_group: bool
    wait: MoveWait | int
    for_user: str


def build_of(flavor: Flavor | str | Sequence[str], project: str, fields: BuildFields) -> BuildInstance:
    """The build request as its receiver reads it. Raises `Rejected` for a value that cannot be sent."""
    given = cast("dict[str, Any]", {"project": project, **fields})
    if isinstance(group := given.get("group"), UUID):
        given["group"] = JoinedGroup(id=GroupId(group))
    if isinstance(image := given.get("image"), str):
        given["image"] = Image(source=image)
    if isinstance(wait := given.get("wait"), int):
        given["wait"] = Wait(for_s=wait)
    if "member_of" in given:
        given["member_of"] = [
            (AggregateId(each),) if isinstance(each, UUID) else each for each in given["member_of"]
        ]
    if isinstance(flavor, Flavor):
        return as_received(BuildInstance(flavor=flavor, **given))
    names = (flavor,) if isinstance(flavor, str) else tuple(flavor)
    return as_received(BuildInstance(flavor_names=names, **given))


def move_of(
    instance: UUID, kind: MoveKind, project: str, fields: Mapping[str, Any], **more: Any
) -> MoveInstance:
    """The order to move, as its receiver reads it. Raises `Rejected` for a value that cannot be sent."""
    given = {"project": project, **fields, **more}
    given["wait"] = wait_of(given.get("wait"))
    given["request_id"] = order_id(given.get("request_id"))
    return as_received(MoveInstance(instance=InstanceId(instance), kind=kind, **given))


def wait_of(wait: MoveWait | int | None) -> MoveWait | None:
    """How a move waits; a number is the seconds."""
    return MoveWait(for_s=wait) if isinstance(wait, int) else wait


def order_id(stated: UUID | None) -> RequestId:
    """The id of an order: the caller's, or a new one."""
    return RequestId(stated) if stated is not None else new_request_ids(1)[0]


_UUID7 = 0x7 << 76 | 0b10 << 62
_RANDOM_BITS = (1 << 76) - 1 & ~(0b11 << 62)


def new_request_ids(count: int) -> list[RequestId]:
    """Make new request ids, as uuid7: 48 bits are the time in milliseconds, and 74 are random.

    So the ids of one time begin alike, and databases store their rows together.
    """
    since = time.time_ns() // 1_000_000 << 80 | _UUID7
    chance = os.urandom(10 * count)
    # Half as dear as UUID(int=...).
    return [
        RequestId(
            convert((since | int.from_bytes(chance[place : place + 10]) & _RANDOM_BITS).to_bytes(16), UUID)
        )
        for place in range(0, len(chance), 10)
    ]
