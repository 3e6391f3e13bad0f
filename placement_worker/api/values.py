"""Requests, replies and errors: as they arrive, and as handlers read and return them."""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Final, TypeVar
from urllib.parse import parse_qsl
from uuid import uuid4

import msgspec
from msgspec import Struct
from starlette.types import Receive, Scope

# The microversion of a request. The header is OpenStack's: `OpenStack-API-Version: placement 1.39`.
#
# A header may name several services; the last entry for placement counts. A client that names no version for placement gets
# the oldest one.


SERVICE: Final = "placement"
HEADER: Final = "openstack-api-version"

# (major, minor), so that versions compare correctly.
Version = tuple[int, int]

OLDEST: Final[Version] = (1, 0)
NEWEST: Final[Version] = (1, 39)

# Placement reads signs, too. At most four digits: int() of a megabyte of digits is an attack.
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,4}")


# Few clients, which send the same header again and again.
@lru_cache(maxsize=256)
def version_asked(header: str) -> Version:
    """The version that the header asks for. Raises ApiError: 400 if it cannot be parsed, 406 if it is not served."""
    word = _last_word(header)
    if word is None:
        return OLDEST
    if word == "latest":
        return NEWEST
    version = _read(word)
    if not OLDEST <= version <= NEWEST:
        oldest, newest = version_text(OLDEST), version_text(NEWEST)
        raise ApiError(
            HTTPStatus.NOT_ACCEPTABLE,
            f"Unacceptable version header: {word}; the oldest version is {oldest}, the newest {newest}",
            extra={"min_version": oldest, "max_version": newest},
        )
    return version


def version_text(version: Version) -> str:
    major, minor = version
    return f"{major}.{minor}"


def _last_word(header: str) -> str | None:
    for part in reversed(header.split(",")):
        match part.split(None, 1):
            case [service, word] if service.lower() == SERVICE:
                return word.strip()
    return None


def _read(word: str) -> Version:
    major, dot, minor = word.partition(".")
    if not (dot and _NUMBER.fullmatch(major) and _NUMBER.fullmatch(minor)):
        raise bad_request(f"invalid version string: {word}; it must be X.Y or latest")
    return int(major), int(minor)


# A request as handlers see it, with its version and its caller; and their reply, before it is rendered.


class Caller(Struct, frozen=True):
    """The authenticated sender of a request."""

    user: str
    # Empty where the caller is not scoped to a project.
    project: str = ""
    roles: frozenset[str] = frozenset()
    # "all" for a caller that acts on the whole system, otherwise empty.
    system_scope: str = ""


class Request(Struct, frozen=True, kw_only=True):
    """Everything about a request that a handler may use.

    The application has checked already that the path and the method exist at this version, and that the caller may do
    this. A body that will be read has the right content type, and sizes are within their limits.
    """

    # Where the service is mounted ("/placement" behind a proxy), without a trailing slash. Links in bodies begin with it.
    prefix: str = ""
    version: Version
    caller: Caller
    # The parts of the path that stand for {name}, decoded.
    params: Mapping[str, str]
    # Decoded keys and values, in their order, with repeated ones. A key without `=` has an empty value.
    query: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


class Reply(Struct, frozen=True):
    """The reply of a handler: a status, and a body if there is one.

    `body` is any value that msgspec can encode; `Pieces` are JSON already and are sent as they are; None means no body
    and no content type. `is_fresh` says that the answer is the state of this moment: from version 1.15 on it has
    `cache-control: no-cache` and `last-modified`. The application adds versions, request ids and the like.
    """

    status: HTTPStatus = HTTPStatus.OK
    body: object = None
    headers: Mapping[str, str] = {}
    is_fresh: bool = False


# Refusals: the errors that handlers raise, and the codes by which clients tell them apart.


# Clients branch on these codes, from version 1.23 on.
UNDEFINED: Final = "placement.undefined_code"
INVENTORY_IN_USE: Final = "placement.inventory.inuse"
CONCURRENT_UPDATE: Final = "placement.concurrent_update"
DUPLICATE_NAME: Final = "placement.duplicate_name"
PROVIDER_IN_USE: Final = "placement.resource_provider.inuse"
CANNOT_DELETE_PARENT: Final = "placement.resource_provider.cannot_delete_parent"
PROVIDER_NOT_FOUND: Final = "placement.resource_provider.not_found"
DUPLICATE_KEY: Final = "placement.query.duplicate_key"
BAD_VALUE: Final = "placement.query.bad_value"
MISSING_VALUE: Final = "placement.query.missing_value"
# Placement itself has no such code: its searches have no limit.
TOO_COSTLY: Final = "placement.query.too_costly"

# Details may quote what a client sent, which may be megabytes long.
DETAIL_CHARACTERS_MAX: Final = 4_000
_NONE: Final[Mapping[str, str]] = {}


class ApiError(Exception):
    """Ends a request with this status. Handlers raise it, and the steps before them; one place renders it.

    `detail` is for people and is sent as one line: what was wrong, which value, which numbers. `extra` goes into the
    error's body beside the usual keys.
    """

    def __init__(
        self,
        status: HTTPStatus,
        detail: str,
        code: str = UNDEFINED,
        *,
        headers: Mapping[str, str] = _NONE,
        extra: Mapping[str, str] = _NONE,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = (
            detail if len(detail) <= DETAIL_CHARACTERS_MAX else f"{detail[:DETAIL_CHARACTERS_MAX]} ..."
        )
        self.code = code
        self.headers = headers
        self.extra = extra


def bad_request(detail: str, code: str = UNDEFINED) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, detail, code)


def not_found(detail: str) -> ApiError:
    return ApiError(HTTPStatus.NOT_FOUND, detail, UNDEFINED)


def conflict(detail: str, code: str = UNDEFINED) -> ApiError:
    return ApiError(HTTPStatus.CONFLICT, detail, code)


# The parts of a request as they arrive: headers, path, query and body, each within its limit.


# Names are in lower case. The values of a repeated header are joined by commas, as HTTP says.
Headers = Mapping[str, str]

# The rest of the body is not read, so the connection cannot be used again.
_LAST_ANSWER: Final[Mapping[str, str]] = {"connection": "close"}

# Each group of a question has a few keys, and a question of many groups hundreds. To parse more costs time before they are refused.
QUERY_KEYS_MAX: Final = 1_000
# The largest reshape of a whole cloud's tree is far smaller.
BODY_BYTES_MAX: Final = 16 * 1024 * 1024
# Keys and their values, items of lists: to move a host with a thousand instances takes ten thousand.
BODY_VALUES_MAX: Final = 50_000


class ClientGone(Exception):  # noqa: N818 - named for what happened
    """The client disconnected before its request was complete: no one waits for an answer."""


def headers_of(scope: Scope) -> Headers:
    """The headers of a request by name. They are read once, since several steps look at them."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def path_of(scope: Scope, mounted_at: str) -> tuple[str, str]:
    """The mount point of the service, and the path below it, as sent: a slash written as %2F does not separate segments."""
    prefix = scope.get("root_path", "").rstrip("/")
    path = scope.get("raw_path", scope["path"].encode()).decode("latin-1").removeprefix(prefix)
    if mounted_at and (path == mounted_at or path.startswith(f"{mounted_at}/")):
        prefix += mounted_at
        path = path.removeprefix(mounted_at)
    return prefix, path or "/"


def query_of(scope: Scope) -> tuple[tuple[str, str], ...]:
    text = scope["query_string"]
    if not text:
        return ()
    try:
        pairs = parse_qsl(
            text.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=QUERY_KEYS_MAX,
        )
    except UnicodeDecodeError:
        raise bad_request("Invalid query string parameters: they are not UTF-8") from None
    except ValueError:
        keys = text.count(b"&") + 1
        raise bad_request(
            f"Invalid query string parameters: {keys} keys, and at most {QUERY_KEYS_MAX} are allowed"
        ) from None
    return tuple(pairs)


def has_body(headers: Headers) -> bool:
    """HTTP/1.1: a request without either of these headers has no body."""
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


async def body_of(headers: Headers, receive: Receive) -> bytes:
    """Read the whole body of a request.

    A body whose stated length is too long is not read at all.
    """
    if not has_body(headers):
        return b""
    _check_length(_stated_length(headers.get("content-length", "0")))
    body = await _whole_body(receive)
    _check_values(body)
    return body


async def _whole_body(receive: Receive) -> bytes:
    body, is_whole = bytearray(), False
    while not is_whole:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        _check_length(len(body))
        is_whole = not message.get("more_body", False)
    return bytes(body)


def _stated_length(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise bad_request(f"content-length header must be an integer, not {text!r}")
    return int(text)


def _check_length(length: int) -> None:
    if length > BODY_BYTES_MAX:
        raise ApiError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"The body has {length} bytes, and at most {BODY_BYTES_MAX} are allowed",
            headers=_LAST_ANSWER,
        )


def _check_values(body: bytes) -> None:
    """Refuse a body with too many values, before it is parsed.

    Counting its commas is a thousand times as fast as parsing it.
    """
    if len(body) <= BODY_VALUES_MAX:
        return
    values = body.count(b",") + 1
    if values > BODY_VALUES_MAX:
        raise ApiError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"The body has {values} values, and at most {BODY_VALUES_MAX} are allowed",
        )


# One request in progress, and what is known about it so far.


_NOBODY: Final = Caller(user="")
_UNROUTED: Final = "-"


class Call(Struct):
    """An HTTP call while it is read and checked. It may end with an error before all fields are known."""

    scope: Scope
    method: str
    prefix: str
    path: str
    headers: Headers
    # Sent to the client as x-openstack-request-id, and in each error.
    request_id: str
    # None until it is decided; afterwards every answer names it.
    version: Version | None = None
    caller: Caller = _NOBODY
    route: str = _UNROUTED

    @classmethod
    def of(cls, scope: Scope, mounted_at: str) -> "Call":
        prefix, path = path_of(scope, mounted_at)
        return cls(scope, scope["method"], prefix, path, headers_of(scope), f"req-{uuid4()}")

    @property
    def client(self) -> str:
        """The client's address, as a trusted proxy says if there is one. Empty if there is none, as on a Unix socket."""
        return (self.scope.get("client") or ("",))[0]

    @property
    def counted_method(self) -> str:
        """The HTTP method as the metrics count it. Unknown methods may be any word, so they are counted as one."""
        return self.method if self.method in ("GET", "POST", "PUT", "DELETE") else "other"


# Does a client accept this media type? Reads the Accept header as far as needed here: types are not ranked.


JSON: Final = "application/json"
HTML: Final = "text/html"
TEXT: Final = "text/plain"
_WORD: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_RANGE: Final = re.compile(rf"\s*{_WORD}/{_WORD}(\s*;\s*{_WORD}=({_WORD}|\"[^\"]*\"))*\s*", re.ASCII)


# Few clients, which send the same header again and again.
@lru_cache(maxsize=256)
def accepts(header: str, media: str) -> bool:
    """Does a client with this Accept header take this media type?

    An empty header accepts every type, and so does a header that cannot be parsed, as in Placement.
    """
    if not header.strip() or not all(_RANGE.fullmatch(part) for part in header.split(",") if part.strip()):
        return True
    whole = media.partition("/")[0] + "/*"
    named = dict(_ranges(header))
    for wanted in (media, whole, "*/*"):
        if wanted in named:
            return named[wanted]
    return False


def _ranges(header: str) -> list[tuple[str, bool]]:
    """The media ranges of the header, each with whether the client accepts it: a weight of 0 means that it does not."""
    found = []
    for part in header.split(","):
        media, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weights = [
            text.partition("=")[2].strip() for text in parameters if text.partition("=")[0].strip() == "q"
        ]
        found.append((media, not (weights and weights[-1].strip("0") in ("", "."))))
    return found


# Long answers in pieces, which are sent one after another so that other requests are answered in between.
#
# To join a hundred megabytes into one text, and to copy that to the socket, would block the process for a quarter of a
# second.


PIECE_BYTES = 256 * 1024
# Rows that are written between two turns of the event loop: about two milliseconds.
_ROWS_AT_ONCE = 200

_encode = msgspec.json.Encoder().encode
Row = TypeVar("Row")


class Pieces(Struct, frozen=True):
    """The body of an answer as pieces of JSON text, at least one."""

    of: tuple[bytes, ...]


def pieces_of(parts: Iterable[bytes], size: int = PIECE_BYTES) -> Pieces:
    """Join short parts to pieces of at least `size` bytes; only the last piece may be shorter."""
    return Pieces((*_joined(parts, size),))


def with_commas(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The parts with a comma between each two."""
    for number, part in enumerate(parts):
        if number:
            yield b","
        yield part


async def rows_in_turns(
    before: bytes, states: Sequence[Row], row: Callable[[Row], object], after: bytes
) -> Pieces:
    """Encode a list of any length as JSON between `before` and `after`. Other requests run while it is encoded."""
    texts = []
    for start in range(0, len(states), _ROWS_AT_ONCE):
        if start:
            await asyncio.sleep(0)
        texts.append(b",".join([_encode(row(state)) for state in states[start : start + _ROWS_AT_ONCE]]))
    return pieces_of((before, *with_commas(texts), after))


def _joined(parts: Iterable[bytes], size: int) -> Iterator[bytes]:
    some: list[bytes] = []
    length = 0
    for part in parts:
        some.append(part)
        length += len(part)
        if length >= size:
            yield b"".join(some)
            some, length = [], 0
    yield b"".join(some)
