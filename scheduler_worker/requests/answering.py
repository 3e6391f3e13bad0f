"""Rejections of requests, with the reason. The client gets a rejection as a reply, and an event says the same, for clients
that use a plain AMQP library and wait for no reply.
"""

from collections.abc import Iterable
from datetime import timedelta

from msgspec import structs

from bus.message import Message
from bus.messages.build import BuildInstance, BuildRejected, InstanceId, RequestId
from bus.workers.handling import Answer, Received, Said, Tell

# The field that a request is refused for when it comes too late.
SENT_AT = "sent_at"


def rejection(field: str, value: object, reason: str, request: RequestId | None = None) -> BuildRejected:
    return BuildRejected(request_id=request, field=field, value=str(value), reason=reason)


def too_old(ask: Received[BuildInstance], horizon: timedelta) -> BuildRejected:
    return rejection(
        SENT_AT,
        ask.sent_at,
        f"too old: a request that was sent more than {horizon.total_seconds():.0f} s ago may have been built and deleted since, "
        "and its rows may be forgotten",
        ask.message.request_id,
    )


def other_content(ask: Received[BuildInstance]) -> BuildRejected:
    request = ask.message.request_id
    return rejection(
        "request_id",
        request,
        "duplicate id: a request with this id and other content was taken before",
        request,
    )


def taken_instances(request: RequestId, instances: Iterable[InstanceId]) -> BuildRejected:
    named = ", ".join(map(str, instances))
    return rejection("instance_ids", named, "duplicate id: they belong to another request", request)


def rejected(ask: Received[Message], why: BuildRejected) -> tuple[Said, ...]:
    if isinstance(ask.message, BuildInstance):
        why = structs.replace(why, project=ask.message.project)
    return (Answer(ask, why), Tell(why, ask))
