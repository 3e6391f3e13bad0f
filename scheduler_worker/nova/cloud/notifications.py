"""Nova's versioned notifications, read: of services and aggregates. Others are counted and ignored.

The body is oslo.messaging's envelope, with the notification as a JSON text inside. Whatever the bytes are, the answer is a value.
"""

from datetime import UTC, datetime
from uuid import UUID

import msgspec
from msgspec import Struct

from bus.message import AggregateId
from scheduler_worker.nova.cloud.answers import COMPUTE, hosts_in
from scheduler_worker.nova.cloud.values import CloudAggregate, ComputeService
from scheduler_worker.nova.json_fields import Fields
from scheduler_worker.nova.objects import read_object
from scheduler_worker.nova.refusals import RefusedError

BODY_MAX = 4 * 1024 * 1024
_EVENT_SHOWN_MAX = 100


class ServiceHeard(Struct, frozen=True, kw_only=True):
    """A compute service, as it was at `at`. Nova tells when it was disabled or forced down, and not when it falls silent: whether it
    is up is read from the API.
    """

    at: datetime
    service: ComputeService
    is_deleted: bool = False


class AggregateHeard(Struct, frozen=True, kw_only=True):
    at: datetime
    aggregate: CloudAggregate
    is_deleted: bool = False


Heard = ServiceHeard | AggregateHeard


class NotHeard(Struct, frozen=True):
    """A notification that changes nothing known here: of another kind, or unreadable for the reason."""

    event: str
    reason: str = ""


# The end of what an administrator does to an aggregate. Its beginning says nothing that is so yet.
_AGGREGATE_ENDS = frozenset(
    f"aggregate.{action}.end"
    for action in ("create", "add_host", "remove_host", "update_metadata", "update_prop")
)


def read_notification(body: bytes) -> Heard | NotHeard:
    try:
        fields = Fields(msgspec.json.decode(_unwrapped(body)), "")
        event = fields.text("event_type")
    except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
        return NotHeard("", f"this is no notification: {problem}")
    except RefusedError as refused:
        return NotHeard("", str(refused))
    try:
        return _heard(fields, event)
    except RefusedError as refused:
        return NotHeard(event[:_EVENT_SHOWN_MAX], str(refused))


def _unwrapped(body: bytes) -> bytes | str:
    if len(body) > BODY_MAX:
        raise RefusedError("", len(body), f"a notification has at most {BODY_MAX} bytes")
    outer = msgspec.json.decode(body)
    if isinstance(outer, dict) and isinstance(inner := outer.get("oslo.message"), str):
        return inner
    return body


def _heard(fields: Fields, event: str) -> Heard | NotHeard:
    if event in ("service.create", "service.update", "service.delete"):
        payload = read_object(fields.value("payload"), "payload", "ServiceStatusPayload")
        if payload.text("binary", "") != COMPUTE:
            return NotHeard(event)
        return _service(payload, _moment(fields, "timestamp"), is_deleted=event == "service.delete")
    if event in _AGGREGATE_ENDS or event == "aggregate.delete.end":
        payload = read_object(fields.value("payload"), "payload", "AggregatePayload")
        aggregate = CloudAggregate(
            id=AggregateId(payload.id("uuid")),
            name=payload.text("name", ""),
            hosts=hosts_in(payload),
            metadata=payload.object("metadata").text_values(),
        )
        return AggregateHeard(
            at=_moment(fields, "timestamp"),
            aggregate=aggregate,
            is_deleted=event == "aggregate.delete.end",
        )
    return NotHeard(event[:_EVENT_SHOWN_MAX])


def _service(payload: Fields, at: datetime, *, is_deleted: bool) -> ServiceHeard:
    service = ComputeService(
        id=payload.id("uuid"),
        host=payload.text("host"),
        is_up=payload.value("last_seen_up") is not None,
        is_disabled=payload.flag("disabled"),
        disabled_reason=payload.text("disabled_reason", ""),
        is_forced_down=payload.flag("forced_down"),
    )
    return ServiceHeard(at=at, service=service, is_deleted=is_deleted)


def _moment(fields: Fields, name: str) -> datetime:
    """A time as Nova writes it: UTC, with or without saying so."""
    try:
        at = datetime.fromisoformat(fields.text(name))
    except ValueError:
        raise fields.refuse(name, "it must be a time") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def id_heard(heard: Heard) -> UUID:
    match heard:
        case ServiceHeard():
            return heard.service.id
        case AggregateHeard():
            return heard.aggregate.id
