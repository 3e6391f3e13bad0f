"""Reads a request from oslo.messaging's envelope 2.0, as it is on RabbitMQ.

The body of the AMQP message is a JSON object: the version of the envelope, and the message as a JSON text. The message names a method,
its version and its arguments, and has the context of the request. A call has the address of its answer, a cast has none.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from uuid import UUID

import msgspec
from msgspec import Struct

from kit.errors import UNREADABLE

# The error of everything that reads Nova's messages.


SHOWN_MAX = 200
FIELD_MAX, REASON_MAX = 300, 1000
HIDDEN = "***"
# The fields in which Nova's contexts, objects and arguments have secrets, by their exact names: traits, extra specs and metadata are named
# by users, and may be called after secrets.
SECRETS = frozenset(
    {
        *("auth_token", "service_catalog", "token", "password", "admin_password", "admin_pass", "new_pass"),
        *("auth_password", "user_data", "key_data", "injected_files", "system_metadata", "connection_info"),
        *("transport_url", "database_connection"),
    }
)


class RefusedError(Exception):
    """A message of Nova that cannot be read, or asks for what cannot be honoured. `field` is the path of the value."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        # A field may be a key of the sender's, and a reason may repeat it.
        self.field = field[:FIELD_MAX]
        self.value = HIDDEN if field.rpartition(".")[2] in SECRETS else without_login(shown(value))
        self.reason = reason[:REASON_MAX]
        super().__init__(f"{self.field} is {self.value}: {self.reason}")


class UnknownNameError(RefusedError):
    """A host or a cell that is not known here. Nova may have discovered it since it was read."""


def shown(value: object) -> str:
    """A value as an error shows it: never long, and of an object or a list only how large it is."""
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    if isinstance(value, list | tuple | set | frozenset):
        return f"a list of {len(value)}"
    if value is None:
        return "null"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > SHOWN_MAX:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}... ({len(text)} characters)"


# Fields of a JSON object, read by type. A missing field, or one of another type, is refused by its path.


# Lists longer than this are in no message of Nova's about one request.
ITEMS_MAX = 10_000
WHOLE_MAX = 2**31 - 1


class Fields:
    """The values of a JSON object, with the path at which it stands in the message. A field that is null counts as missing."""

    __slots__ = ("path", "values")

    def __init__(self, values: object, path: str) -> None:
        if not isinstance(values, dict):
            raise RefusedError(path, values, "it must be an object")
        self.values: Mapping[str, object] = values
        self.path = path

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def value(self, name: str) -> object:
        return self.values.get(name)

    def refuse(self, name: str, reason: str) -> RefusedError:
        return RefusedError(self.at(name), self.values.get(name), reason)

    def text(self, name: str, default: str | None = None) -> str:
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.refuse(name, "it must be a text")
        return value

    def whole(self, name: str, default: int | None = None) -> int:
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= WHOLE_MAX:
            raise self.refuse(name, f"it must be a whole number from 0 to {WHOLE_MAX}")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(name, "it must be true or false")
        return value

    def id(self, name: str) -> UUID:
        return id_in(self.values.get(name), self.at(name))

    def list(self, name: str) -> tuple[object, ...]:
        """The items of a list; none if the field is missing."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or len(value) > ITEMS_MAX:
            raise self.refuse(name, f"it must be a list of at most {ITEMS_MAX} items")
        return tuple(value)

    def texts(self, name: str) -> tuple[str, ...]:
        return texts_in(self.list(name), self.at(name))

    def object(self, name: str) -> "Fields":
        """The object in this field; an empty one if the field is missing."""
        value = self.values.get(name)
        return Fields({} if value is None else value, self.at(name))

    def text_values(self) -> dict[str, str]:
        """All fields of this object, each of which must be a text."""
        return {name: self.text(name) for name in self.values}

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Refuse a field that is none of these and asks for something: a later release of Nova may mean another host by it."""
        names = frozenset(known)
        for name, value in self.values.items():
            if name not in names and _asks(value):
                raise self.refuse(name, "this field is unknown here, and may change which host is right")


def _asks(value: object) -> bool:
    """Does a field with this value ask for anything? A new field of Nova's that is null, false, 0 or empty leaves all as it was before
    there was such a field; so does an object all of whose fields are like that.
    """
    told = value.get(_DATA, value) if isinstance(value, dict) else value
    return any(map(_asks, told.values())) if isinstance(told, dict) else bool(told)


def texts_in(items: Iterable[object], path: str) -> tuple[str, ...]:
    found: list[str] = []
    for number, item in enumerate(items):
        if not isinstance(item, str):
            raise RefusedError(f"{path}[{number}]", item, "it must be a text")
        found.append(item)
    return tuple(found)


def id_in(value: object, path: str) -> UUID:
    try:
        return UUID(value if isinstance(value, str) else "")
    except ValueError:
        raise RefusedError(path, value, "it must be a uuid") from None


# Takes out of Nova's messages what nobody else may know: tokens, passwords, and the addresses of brokers and databases, which have
# passwords in them. Only of what is logged or recorded: a request is decided by the message as it is.


# Nova's own messages have about 15 levels.
DEPTH_MAX = 64
# The field of the envelope that has the message, as a JSON text.
MESSAGE = "oslo.message"
CONTEXT = "_context_"
# Kept of a request's context: its project, its user, the ids that its log lines have, and when it began.
CONTEXT_KEPT = frozenset(
    f"{CONTEXT}{name}" for name in ("request_id", "global_request_id", "project_id", "user_id", "timestamp")
)
# What a message has beside these is not oslo.messaging's, so nobody knows what it is.
_OF_OSLO = CONTEXT_KEPT | {
    *("method", "version", "args", "namespace", "result", "failure", "ending", "_unique_id", "_msg_id"),
    *("_reply_q", "_timeout", "event_type", "publisher_id", "payload", "timestamp", "message_id", "priority"),
}
# An address with a user's name and password, wherever it stands.
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]{1,20}://)[^/\s@]*@", re.IGNORECASE)


def refuse_deep(value: object, path: str, depth: int = 0) -> None:
    if depth > DEPTH_MAX:
        raise RefusedError(path, value, f"it is nested more than {DEPTH_MAX} levels deep")
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        refuse_deep(each, path, depth + 1)


def without_secrets(value: object) -> object:
    """A copy of this JSON value in which the fields are hidden that Nova has secrets in."""
    if isinstance(value, dict):
        return {
            name: HIDDEN if name in SECRETS and item else without_secrets(item)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(item) for item in value]
    return without_login(value) if isinstance(value, str) else value


def without_login(text: str) -> str:
    return _URL.sub(rf"\g<scheme>{HIDDEN}@", text) if "://" in text else text


def redacted(body: bytes) -> bytes:
    """The body of an AMQP message without its secrets. Of one that is no JSON only the length is told: where its secrets are
    is unknown.
    """
    try:
        outer = msgspec.json.decode(body)
        plain = without_secrets(outer)
        if isinstance(plain, dict) and isinstance(inner := outer.get(MESSAGE), str):
            plain[MESSAGE] = msgspec.json.encode(_without_context(msgspec.json.decode(inner))).decode()
        return msgspec.json.encode(plain)
    except UNREADABLE:
        return msgspec.json.encode({"unreadable": len(body)})


def _without_context(message: object) -> object:
    """The message with its contexts cut down to what is kept of them."""
    if not isinstance(message, dict):
        return without_secrets(message)
    kept = {
        name: item for name, item in message.items() if name in CONTEXT_KEPT or not name.startswith(CONTEXT)
    }
    return {name: without_secrets(item) if name in _OF_OSLO else HIDDEN for name, item in kept.items()}


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
    """A request without its context's secrets. `call` is None for a cast. `unique_id` tells a message that comes twice; it may be empty.
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
    told = _json_in(outer.text(MESSAGE).encode(), MESSAGE)
    refuse_deep(told, MESSAGE)
    message = Fields(told, MESSAGE)
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


# Nova's versioned objects as they are in messages: a name, a namespace, a version, the data, and which fields were changed.
#
# A newer minor version adds fields, so a reader refuses a field that it does not know, if the field has a value. Another major version
# may mean anything.


NAMESPACE = "nova"
# All objects that a request to a scheduler has are of this major version, with these exceptions.
MAJOR = 1
MAJORS = {"Instance": 2, "InstanceList": 2}

_NAME, _SPACE, _OBJECTS_VERSION = "nova_object.name", "nova_object.namespace", "nova_object.version"
_DATA, _CHANGES = "nova_object.data", "nova_object.changes"


def read_object(value: object, path: str, name: str) -> Fields:
    """The fields of an object of this name."""
    outer = Fields(value, path)
    if outer.text(_NAME) != name:
        raise outer.refuse(_NAME, f"it must be an object {name}")
    if outer.text(_SPACE) != NAMESPACE:
        raise outer.refuse(_SPACE, f"an object {name} is known in the namespace {NAMESPACE} alone")
    version = version_in(outer.text(_OBJECTS_VERSION), outer.at(_OBJECTS_VERSION))
    if version.major != (known := MAJORS.get(name, MAJOR)):
        raise outer.refuse(_OBJECTS_VERSION, f"known are versions {known}.x of an object {name}")
    return Fields(outer.values.get(_DATA), path)


def object_in(fields: Fields, field: str, name: str) -> Fields | None:
    """The object in this field; None if the field is null or missing."""
    value = fields.value(field)
    return None if value is None else read_object(value, fields.at(field), name)


def objects_in(fields: Fields, field: str, name: str) -> tuple[Fields, ...]:
    """The objects in a list of them; none if the field is null or missing."""
    at = fields.at(field)
    return tuple(read_object(each, f"{at}[{number}]", name) for number, each in enumerate(fields.list(field)))


def listed_in(fields: Fields, field: str, list_name: str, name: str) -> tuple[Fields, ...]:
    """The objects in an object that is a list of them, such as a ComputeNodeList."""
    listed = object_in(fields, field, list_name)
    return () if listed is None else objects_in(listed, "objects", name)


def write_object(name: str, version: str, data: Mapping[str, object]) -> dict[str, object]:
    """An object of which every field was set."""
    return {
        _NAME: name,
        _SPACE: NAMESPACE,
        _OBJECTS_VERSION: version,
        _DATA: dict(data),
        _CHANGES: sorted(data),
    }


# Writes the answers to a call in oslo.messaging's envelope 2.0: a result, a failure, or a sign of life before either.
#
# An answer goes by the default exchange to the caller's queue, persistent, as JSON in UTF-8. A failure names an exception class, which
# the caller makes and raises if it trusts the class's module: nova-conductor trusts those of `nova.exception`, and raises all others
# as oslo.messaging's RemoteError.


CONTENT_TYPE, CONTENT_ENCODING = "application/json", "utf-8"
PERSISTENT = 2
# RabbitMQ keeps a message whole; a fault of an instance shows the first 255 characters.
OSLO_REPLIES_REASON_MAX = 10_000

_NOVA, _OSLO = "nova.exception", "oslo_messaging.rpc.dispatcher"


class RemoteFailure(Struct, frozen=True):
    """An exception for the caller. `kwargs` are what its class is made with, beside the message."""

    module: str
    name: str
    message: str
    kwargs: dict[str, object] = {}


def no_valid_host(reason: str) -> RemoteFailure:
    """What nova-conductor expects where no host is chosen: it ends a boot in cell0, and leaves an instance that was to move."""
    said = reason[:OSLO_REPLIES_REASON_MAX]
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
