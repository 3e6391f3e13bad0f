"""Reads a request from oslo.messaging's envelope 2.0, as it is on RabbitMQ.

The body of the AMQP message is a JSON object: the version of the envelope, and the message as a JSON text. The message names a method,
its version and its arguments, and has the context of the request. A call has the address of its answer, a cast has none.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from scheduler_worker.nova.json_fields import Fields
from scheduler_worker.nova.redaction import CONTEXT, MESSAGE, without_secrets
from scheduler_worker.nova.refusals import RefusedError

BODY_MAX = 16 * 1024 * 1024
NAME_MAX = 255
TIMEOUT_S_MAX = 7 * 86_400

_ENVELOPE = "oslo.version"
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})", re.ASCII)
# What oslo.messaging names the queues on which callers wait: by a random id, or by host, process and number. No other queue is
# answered, since the default exchange delivers to each queue by its name.
_REPLY_QUEUE = re.compile(r"reply_[A-Za-z0-9_.:-]{1,240}", re.ASCII)


class RpcVersion(Struct, frozen=True, order=True):
    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    def can_serve(self, asked: "RpcVersion") -> bool:
        """Does an endpoint of this version understand what a caller of the asked version sends?"""
        return self.major == asked.major and self.minor >= asked.minor


class RpcCall(Struct, frozen=True):
    """Where the caller waits for the answer. With a `heartbeat_s`, it wants a sign of life more often than that."""

    id: str
    reply_queue: str
    heartbeat_s: float | None = None


class RpcCaller(Struct, frozen=True):
    """The project, the user and the ids in the context of a request. Its token and all else is dropped when it is read."""

    request_id: str = ""
    global_request_id: str = ""
    project_id: str = ""
    user_id: str = ""


class RpcRequest(Struct, frozen=True):
    """A request without its secrets. `call` is None for a cast. `unique_id` tells a message that comes twice; it may be empty.
    `caller_began_at` is when the user's request began that it is for, if it says so: the caller waits at most since then.
    """

    method: str
    version: RpcVersion
    args: Mapping[str, object]
    namespace: str = ""
    unique_id: str = ""
    call: RpcCall | None = None
    caller: RpcCaller = RpcCaller()
    caller_began_at: datetime | None = None


def read_envelope(body: bytes) -> RpcRequest:
    """The request in the body of an AMQP message. Raises `RefusedError`."""
    if len(body) > BODY_MAX:
        raise RefusedError("body", len(body), f"a message has at most {BODY_MAX} bytes")
    # Its fields need no path, but the body itself has a name.
    outer = Fields(Fields(_json_in(body, "body"), "body").values, "")
    envelope = outer.text(_ENVELOPE)
    if not RpcVersion(2, 0).can_serve(version_in(envelope, _ENVELOPE)):
        raise outer.refuse(_ENVELOPE, "this version of the envelope is unknown; known is 2.0")
    message = Fields(without_secrets(_json_in(outer.text(MESSAGE).encode(), MESSAGE), MESSAGE), MESSAGE)
    return RpcRequest(
        method=_name(message, "method"),
        version=version_in(message.text("version", "1.0"), message.at("version")),
        args=message.object("args").values,
        namespace=_name(message, "namespace", ""),
        unique_id=_name(message, "_unique_id", ""),
        call=_call_in(message),
        caller=RpcCaller(
            **{name: _name(message, f"{CONTEXT}{name}", "") for name in RpcCaller.__struct_fields__}
        ),
        caller_began_at=_moment_in(message.value(f"{CONTEXT}timestamp")),
    )


def version_in(text: str, path: str) -> RpcVersion:
    found = _VERSION.fullmatch(text)
    if found is None:
        raise RefusedError(path, text, "it must be a version, such as 4.5")
    return RpcVersion(int(found[1]), int(found[2]))


def _call_in(message: Fields) -> RpcCall | None:
    id_ = _name(message, "_msg_id", "")
    if not id_:
        return None
    queue = _name(message, "_reply_q")
    if not _REPLY_QUEUE.fullmatch(queue):
        raise message.refuse("_reply_q", "it must be a queue of oslo.messaging's for answers: reply_ID")
    return RpcCall(id=id_, reply_queue=queue, heartbeat_s=_heartbeat_in(message))


def _heartbeat_in(message: Fields) -> float | None:
    """Two signs of life in the time after which the caller gives up, so that one may be late."""
    timeout = message.value("_timeout")
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 1 <= timeout <= TIMEOUT_S_MAX:
        raise message.refuse("_timeout", f"it must be a number of seconds from 1 to {TIMEOUT_S_MAX}")
    return timeout / 2


def _moment_in(value: object) -> datetime | None:
    """The moment in this field of the context, which Nova writes in UTC without a zone. None if it is none: it is only a hint."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return None if moment is None else moment.replace(tzinfo=moment.tzinfo or UTC)


def _name(message: Fields, name: str, default: str | None = None) -> str:
    text = message.text(name, default)
    if len(text) > NAME_MAX or (default is None and not text):
        raise message.refuse(name, f"it must have 1 to {NAME_MAX} characters")
    return text


def _json_in(text: bytes, path: str) -> object:
    try:
        value: object = msgspec.json.decode(text)
    except RecursionError:
        raise RefusedError(path, len(text), "its JSON is nested too deep") from None
    except (msgspec.DecodeError, UnicodeError) as wrong:
        raise RefusedError(path, len(text), f"these bytes are no JSON: {wrong}") from None
    return value
