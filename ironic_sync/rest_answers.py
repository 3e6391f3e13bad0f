"""Answers of Ironic's REST API, the forms that their bodies must have, and the nodes that are read from them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct

from bus.message import ProviderId
from bus.rest.answers import ERRORS, NOT_FOUND, RestAnswer
from bus.unreadable import NOT_AS_EXPECTED
from ironic_sync.core.flaws import NOT_AS_TYPED, flaw_of, shown
from ironic_sync.core.node import Node
from ironic_sync.core.node_data import NodeData, node_of
from ironic_sync.rest import ChangeTime, IronicRefused, NodesRead, UnreadableNode

# Fields of a node that need a higher microversion than the minimum.
YOUNG_FIELDS = ("owner", "lessee", "retired")


class Listing(Struct, frozen=True):
    nodes: list[Any]
    next: str | None = None


class Patched(Struct, frozen=True):
    uuid: UUID


class Vif(Struct, frozen=True):
    id: str


class Vifs(Struct, frozen=True):
    vifs: list[Vif]


class Allocated(Struct, frozen=True):
    node_uuid: ProviderId | None = None


def is_missing(answer: RestAnswer) -> bool:
    """Whether Ironic itself says that there is no such thing: a 404 in the form of its errors. A proxy in front of
    Ironic may answer 404 to every request.
    """
    try:
        return answer.status == NOT_FOUND and bool(msgspec.json.decode(answer.body)["error_message"])
    except NOT_AS_EXPECTED:
        return False


class Console(Struct, frozen=True, rename={"is_on": "console_enabled", "info": "console_info"}):
    """The console of a node. `info` says where it is, in a form that depends on the driver; None while it is off."""

    is_on: bool
    info: dict[str, Any] | None = None


def refusal_of(answer: RestAnswer) -> IronicRefused | None:
    return IronicRefused(answer.status, answer.message) if answer.status >= ERRORS else None


class Read(Struct, frozen=True):
    """A node that was read from an answer of Ironic. `reservation` is the conductor that holds the node's lock; None
    if none does.
    """

    node: Node
    reservation: str | None = None


def read_page(listed: Sequence[object]) -> NodesRead:
    """Read each node of a page by itself, so that one that is wrong does not make the others unreadable."""
    read = [read_node(each) for each in listed]
    return NodesRead(
        tuple(each.node for each in read if isinstance(each, Read)),
        tuple(each for each in read if isinstance(each, UnreadableNode)),
    )


def read_node(listed: object) -> Read | UnreadableNode:
    """Read a node of Ironic's answer. If it has a wrong field, the reason names the field and its value.

    Fields that an old Ironic does not have count as null.
    """
    if not isinstance(listed, dict):
        return UnreadableNode(None, f"a node must be an object, not {shown(listed)}")
    reservation = listed.get("reservation")
    if not isinstance(reservation, str | None):
        return UnreadableNode(
            _id_of(listed), f"reservation is {shown(reservation)}: it must be a text or null"
        )
    try:
        data = msgspec.convert(dict.fromkeys(YOUNG_FIELDS) | listed, NodeData)
    except NOT_AS_TYPED as problem:
        return UnreadableNode(_id_of(listed), flaw_of(problem, msgspec.json.encode(listed)))
    return Read(node_of(data), reservation)


def changed_at(listed: object, by: ChangeTime = "updated_at") -> datetime | None:
    """When Ironic last changed or created this node of its answer; None if that is not there, or cannot be read."""
    try:
        written = msgspec.convert(listed, _Written)
        at = written.updated_at if by == "updated_at" else written.created_at
    except NOT_AS_TYPED:
        return None
    return at if at is None or at.tzinfo is not None else at.replace(tzinfo=UTC)


class _Written(Struct):
    updated_at: datetime | None = None
    created_at: datetime | None = None


def _id_of(listed: Mapping[str, object]) -> ProviderId | None:
    try:
        return msgspec.convert(listed.get("uuid"), ProviderId)
    except NOT_AS_TYPED:
        return None
