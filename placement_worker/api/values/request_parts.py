"""The parts of a request as they arrive: headers, path, query and body, each within its limit."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope

from placement_worker.api.settings import ApiSettings
from placement_worker.api.values.problems import ApiError, bad_request

# Names are in lower case. The values of a repeated header are joined by commas, as HTTP says.
Headers = Mapping[str, str]

# The rest of the body is not read, so the connection cannot be used again.
_LAST_ANSWER: Final[Mapping[str, str]] = {"connection": "close"}

# Each group of a question has a few keys, and a question of many groups hundreds. To parse more costs time before they are refused.
QUERY_KEYS_MAX: Final = 1_000


class ClientGone(Exception):  # noqa: N818 - named for what happened
    """The client disconnected before its request was complete: no one waits for an answer."""


def headers_of(scope: Scope) -> Headers:
    """The headers of a request by name. They are read once, since several steps look at them."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def path_of(scope: Scope, settings: ApiSettings) -> tuple[str, str]:
    """The mount point of the service, and the path below it, as sent: a slash written as %2F does not separate segments."""
    prefix = scope.get("root_path", "").rstrip("/")
    path = scope.get("raw_path", scope["path"].encode()).decode("latin-1").removeprefix(prefix)
    if settings.prefix and (path == settings.prefix or path.startswith(f"{settings.prefix}/")):
        prefix += settings.prefix
        path = path.removeprefix(settings.prefix)
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


async def body_of(headers: Headers, receive: Receive, settings: ApiSettings) -> bytes:
    """Read the whole body of a request.

    A body whose stated length is too long is not read at all.
    """
    if not has_body(headers):
        return b""
    _check_length(_stated_length(headers.get("content-length", "0")), settings)
    body = await _whole_body(receive, settings)
    _check_values(body, settings)
    return body


async def _whole_body(receive: Receive, settings: ApiSettings) -> bytes:
    body, is_whole = bytearray(), False
    while not is_whole:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        _check_length(len(body), settings)
        is_whole = not message.get("more_body", False)
    return bytes(body)


def _stated_length(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise bad_request(f"content-length header must be an integer, not {text!r}")
    return int(text)


def _check_length(length: int, settings: ApiSettings) -> None:
    if length > settings.body_bytes_max:
        raise ApiError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"The body has {length} bytes, and at most {settings.body_bytes_max} are allowed",
            headers=_LAST_ANSWER,
        )


def _check_values(body: bytes, settings: ApiSettings) -> None:
    """Refuse a body with too many values, before it is parsed.

    Counting its commas is a thousand times as fast as parsing it.
    """
    if len(body) <= settings.body_values_max:
        return
    values = body.count(b",") + 1
    if values > settings.body_values_max:
        raise ApiError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"The body has {values} values, and at most {settings.body_values_max} are allowed",
        )
