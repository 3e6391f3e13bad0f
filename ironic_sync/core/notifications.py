"""Reads the body of a message from Ironic's exchange.

The body is oslo.messaging's envelope, with the notification as a JSON text inside, or the notification itself. The
event type decides first whether the notification is believed, only doubted or ignored; the node is decoded after that.

Pure: whatever the bytes are, the answer is a value. Nothing is raised.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from engine.inventories import ConsumerId, ProviderId
from ironic_sync.core.node import SHOWN_MAX, Label, Node, NodeData, flaw_of, node_of, shown
from kit.clock import microseconds
from kit.errors import UNREADABLE

# The table of Ironic's event types for nodes and allocations, and how each is treated.
#
# The notification that a request to Ironic's API has started carries the values that were asked for, true or not: only
# the one at the request's end is believed. A notification of a changed state is believed with any status, since it
# carries the node as it is.


Treatment = Literal["taken", "taken and doubted", "deleted", "doubted", "ignored", "allocation"]


class Event(Struct, frozen=True):
    treatment: Treatment
    kind: str
    reason: str = ""


_ASKED_FOR = "a start carries the values that were asked for, true or not"
_NO_NODE = "not about a node"
_NO_OFFER = "a console changes no offer"
_NOT_YET = "an allocation that starts has taken no node yet"


def _event_table() -> dict[str, Event]:
    rows: list[tuple[str, str, Treatment, str]] = [
        ("node.provision_set", "start success end", "taken", ""),
        ("node.provision_set", "error", "taken and doubted", ""),
        ("node.power_state_corrected", "start success end", "taken", ""),
        ("node.power_state_corrected", "error", "taken and doubted", ""),
        ("node.power_set", "end", "taken", ""),
        ("node.create", "end", "taken", ""),
        ("node.update", "end", "taken", ""),
        ("node.maintenance_set", "end", "taken", ""),
        ("node.delete", "end", "deleted", ""),
        ("node.console_set", "start end error", "ignored", _NO_OFFER),
    ]
    for kind in ("power_set", "create", "update", "maintenance_set", "delete"):
        rows += [(f"node.{kind}", "start", "ignored", _ASKED_FOR), (f"node.{kind}", "error", "doubted", "")]
    for kind in ("create", "update", "delete"):
        rows += [(f"allocation.{kind}", "start", "ignored", _NOT_YET)]
        rows += [(f"allocation.{kind}", "end error", "allocation", "")]
        rows += [
            (f"{other}.{kind}", "start end error", "ignored", _NO_NODE)
            for other in ("port", "portgroup", "chassis", "deploytemplate", "runbook")
        ]
    return {
        f"baremetal.{subject}.{status}": Event(treatment, subject.partition(".")[2], reason)
        for subject, statuses, treatment, reason in rows
        for status in statuses.split()
    }


EVENTS: Final[Mapping[str, Event]] = _event_table()

BODY_BYTES_MAX = 4 * 1024 * 1024
OSLO_MAJOR = "2"
PAYLOAD_MAJOR = "1"


class NodeNotified(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node as a notification describes it, to be believed if it is the newest.

    With a `doubt` it is believed and read again. `is_deleted`: this is the last that was known of the node.
    """

    node: Node
    at_us: int
    publisher: str
    kind: str
    doubt: str = ""
    is_deleted: bool = False


class NodeDoubted(Struct, frozen=True, kw_only=True):
    """A request to Ironic failed. The notification carries values that were asked for: only the node's id is believed."""

    id: ProviderId
    doubt: str


class AllocationNotified(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An allocation of Ironic's own changed; it may have set or cleared a node's `instance_uuid` without another notification.

    Only a deletion names the node. Otherwise the allocation must be read to find it.
    """

    # Ironic writes the id of an allocation into its node's `instance_uuid`.
    allocation: ConsumerId
    node: ProviderId | None
    kind: str


class Ignored(Struct, frozen=True):
    """A notification that changes no row. `is_known` is false if its event type is not in `EVENTS`."""

    reason: str
    event_type: str
    is_known: bool = True


class UnreadableNotification(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A body that cannot be read as a notification. `reason` names the wrong field. `node` is the id of its node, if
    that can be read: then the node is read from Ironic.
    """

    reason: str
    node: ProviderId | None = None
    at_us: int = 0


Notification = NodeNotified | NodeDoubted | AllocationNotified | UnreadableNotification


# Ironic's own envelope.
class _Envelope(Struct, frozen=True, gc=False):
    version: str | UnsetType = msgspec.field(default=UNSET, name="oslo.version")
    message: str | UnsetType = msgspec.field(default=UNSET, name="oslo.message")


class _Notification(Struct, frozen=True, gc=False):
    event_type: str
    timestamp: datetime
    publisher_id: Label
    payload: Raw


class _Payload(Struct, frozen=True, gc=False):
    version: str = msgspec.field(name="ironic_object.version")
    data: Raw = msgspec.field(name="ironic_object.data")


class _Named(Struct, frozen=True, gc=False):
    uuid: ProviderId


class _NotifiedAllocation(Struct, frozen=True, kw_only=True, gc=False):
    uuid: ConsumerId
    node_uuid: ProviderId | None = None


_envelope = msgspec.json.Decoder(_Envelope)
_notification = msgspec.json.Decoder(_Notification)
_payload = msgspec.json.Decoder(_Payload)
_node = msgspec.json.Decoder(NodeData)
_named = msgspec.json.Decoder(_Named)
_allocation = msgspec.json.Decoder(_NotifiedAllocation)


def read(body: bytes) -> Notification | Ignored:
    """The notification in the body, or the reason why there is none."""
    notification = _unwrapped(body)
    if isinstance(notification, UnreadableNotification):
        return notification
    event = EVENTS.get(notification.event_type)
    if event is None:
        name = notification.event_type[:SHOWN_MAX]
        return Ignored(f"event type {name!r} is not known", name, is_known=False)
    if event.treatment == "ignored":
        return Ignored(event.reason, notification.event_type)
    # Ironic writes UTC and names no zone.
    timestamp = notification.timestamp
    at_us = microseconds(timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC))
    if at_us <= 0:
        return UnreadableNotification(reason=f"timestamp is {timestamp}: only times after 1970 are allowed")
    result = _about(notification, event, at_us)
    if not isinstance(result, UnreadableNotification):
        return result
    # With the node, so that it can be read again.
    return structs.replace(result, node=_node_named_in(notification), at_us=at_us)


def _unwrapped(body: bytes) -> _Notification | UnreadableNotification:
    """The notification itself, whether or not oslo.messaging's envelope is around it."""
    if len(body) > BODY_BYTES_MAX:
        return UnreadableNotification(reason=f"the body has {len(body)} bytes: {BODY_BYTES_MAX} are allowed")
    text: bytes | str = body
    try:
        envelope = _envelope.decode(body)
        if isinstance(envelope.version, str) and envelope.version.partition(".")[0] != OSLO_MAJOR:
            return _wrong_version("oslo.version", envelope.version, OSLO_MAJOR)
        if isinstance(envelope.message, str):
            text = envelope.message
        return _notification.decode(text)
    except UNREADABLE as problem:
        return UnreadableNotification(reason=flaw_of(problem, text))


def _about(notification: _Notification, event: Event, at_us: int) -> Notification:
    """The notification with its payload decoded. How much is decoded depends on its event type: the
    whole node, its id alone, or an allocation.
    """
    text = notification.payload
    error = f"{event.kind} ended in an error"
    try:
        payload = _payload.decode(text)
        if payload.version.partition(".")[0] != PAYLOAD_MAJOR:
            return _wrong_version("payload.ironic_object.version", payload.version, PAYLOAD_MAJOR)
        text = payload.data
        match event.treatment:
            case "doubted":
                return NodeDoubted(id=_named.decode(text).uuid, doubt=error)
            case "allocation":
                allocation = _allocation.decode(text)
                return AllocationNotified(
                    allocation=allocation.uuid, node=allocation.node_uuid, kind=event.kind
                )
            case _:
                return NodeNotified(
                    node=node_of(_node.decode(text)),
                    at_us=at_us,
                    publisher=notification.publisher_id,
                    kind=event.kind,
                    doubt=error if event.treatment == "taken and doubted" else "",
                    is_deleted=event.treatment == "deleted",
                )
    except UNREADABLE as problem:
        return UnreadableNotification(reason=flaw_of(problem, bytes(text)))


def _wrong_version(field: str, version: str, major: str) -> UnreadableNotification:
    return UnreadableNotification(
        reason=f"{field} is {shown(version)}: this release reads {major}.x, whatever the x"
    )


def _node_named_in(notification: _Notification) -> ProviderId | None:
    if not notification.event_type.startswith("baremetal.node."):
        return None
    try:
        return _named.decode(_payload.decode(notification.payload).data).uuid
    except UNREADABLE:
        return None
