"""Writes the answers to a call in oslo.messaging's envelope 2.0: a result, a failure, or a sign of life before either.

An answer goes by the default exchange to the caller's queue, persistent, as JSON in UTF-8. A failure names an exception class, which
the caller makes and raises if it trusts the class's module: nova-conductor trusts those of `nova.exception`, and raises all others
as oslo.messaging's RemoteError.
"""

import msgspec
from msgspec import Struct

from scheduler_worker.nova.oslo_envelope import RpcCall, RpcRequest

CONTENT_TYPE, CONTENT_ENCODING = "application/json", "utf-8"
PERSISTENT = 2
# RabbitMQ keeps a message whole; a fault of an instance shows the first 255 characters.
REASON_MAX = 10_000

_NOVA, _OSLO = "nova.exception", "oslo_messaging.rpc.dispatcher"


class RemoteFailure(Struct, frozen=True):
    """An exception for the caller. `kwargs` are what its class is made with, beside the message."""

    module: str
    name: str
    message: str
    kwargs: dict[str, object] = {}


def no_valid_host(reason: str) -> RemoteFailure:
    """What nova-conductor expects where no host is chosen: it ends a boot in cell0, and leaves an instance that was to move."""
    said = reason[:REASON_MAX]
    return RemoteFailure(
        _NOVA, "NoValidHost", f"No valid host was found. {said}", {"reason": said, "code": 500}
    )


def unsupported_version(request: RpcRequest, newest: str) -> RemoteFailure:
    said = f"{request.method} is known up to RPC version {newest}, and {request.version} was asked for"
    return RemoteFailure(_OSLO, "UnsupportedVersion", said)


def no_such_method(request: RpcRequest) -> RemoteFailure:
    return RemoteFailure(_OSLO, "NoSuchMethod", f"there is no RPC method {request.method!r} here")


def write_result(call: RpcCall, result: object, unique_id: str) -> bytes:
    return _enveloped(call, unique_id, result=result)


def write_failure(call: RpcCall, failure: RemoteFailure, unique_id: str) -> bytes:
    plain = {
        "class": failure.name,
        "module": failure.module,
        "message": failure.message,
        # No lines of a traceback: the caller would append them to the message.
        "tb": [],
        "args": [failure.message],
        "kwargs": failure.kwargs,
    }
    return _enveloped(call, unique_id, failure=_text(plain))


def write_heartbeat(call: RpcCall, unique_id: str) -> bytes:
    """A sign of life: the caller waits on."""
    return _enveloped(call, unique_id, ending=False)


def _enveloped(
    call: RpcCall, unique_id: str, *, result: object = None, failure: str | None = None, ending: bool = True
) -> bytes:
    message = {
        "result": result,
        "failure": failure,
        "ending": ending,
        "_msg_id": call.id,
        "_unique_id": unique_id,
    }
    return msgspec.json.encode({"oslo.version": "2.0", "oslo.message": _text(message)})


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
