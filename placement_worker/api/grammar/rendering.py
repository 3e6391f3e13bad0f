"""Turns replies and errors into what is sent: a status, headers and bytes.

Errors have OpenStack's form: `{"errors": [{status, title, detail, request_id, code}]}`, with the code from version 1.23 on.
Clients that do not accept JSON get HTML or plain text.
"""

import re
import time
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from html import escape
from http import HTTPStatus
from typing import Final

import msgspec
from msgspec import Struct

from placement_worker.api.values.accept_header import HTML, JSON, TEXT, accepts
from placement_worker.api.values.call import Call
from placement_worker.api.values.pieces import Pieces
from placement_worker.api.values.problems import ApiError
from placement_worker.api.values.request import Reply
from placement_worker.api.values.versions import HEADER, SERVICE, Version, version_text

# The first line of a detail: the kind of error. The last line says what exactly was wrong.
_IN_GENERAL: Final[Mapping[HTTPStatus, str]] = {
    HTTPStatus.BAD_REQUEST: "The request is malformed, or asks for what cannot be.",
    HTTPStatus.UNAUTHORIZED: "The server does not know who asks.",
    HTTPStatus.FORBIDDEN: "The caller may not do this.",
    HTTPStatus.NOT_FOUND: "The resource could not be found.",
    HTTPStatus.METHOD_NOT_ALLOWED: "The resource does not have this method.",
    HTTPStatus.NOT_ACCEPTABLE: "The server has nothing of a type or version that the client takes.",
    HTTPStatus.REQUEST_TIMEOUT: "The request did not arrive in time.",
    HTTPStatus.CONFLICT: "The request conflicts with what is there.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The request is too large.",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "The server does not read bodies of this type.",
    HTTPStatus.TOO_MANY_REQUESTS: "The caller has asked for too much; it may ask again later.",
    HTTPStatus.INTERNAL_SERVER_ERROR: "The server failed.",
    HTTPStatus.SERVICE_UNAVAILABLE: "The server cannot answer now.",
}
_LINE_BREAK: Final = re.compile(r"\s*[\r\n]\s*")
CODES_SINCE: Final[Version] = (1, 23)
FRESHNESS_SINCE: Final[Version] = (1, 15)
REQUEST_ID: Final = "x-openstack-request-id"

_encode = msgspec.json.Encoder().encode


class RenderedAnswer(Struct, frozen=True):
    status: HTTPStatus
    headers: Mapping[str, str]
    # The body, in pieces that are sent one after another; at least one.
    pieces: tuple[bytes, ...]

    @property
    def length(self) -> int:
        return sum(map(len, self.pieces))


def answer_to(call: Call, reply: Reply) -> RenderedAnswer:
    headers = {**reply.headers, **_headers(call)}
    pieces: tuple[bytes, ...] = (b"",)
    if reply.body is not None:
        headers["content-type"] = JSON
        pieces = reply.body.of if isinstance(reply.body, Pieces) else (_encode(reply.body),)
    if reply.is_fresh and call.version is not None and call.version >= FRESHNESS_SINCE:
        headers["cache-control"] = "no-cache"
        headers["last-modified"] = _date(int(time.time()))
    answer = RenderedAnswer(reply.status, headers, pieces)
    if reply.status is not HTTPStatus.NO_CONTENT:
        headers["content-length"] = str(answer.length)
    return answer


@lru_cache(maxsize=2)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)


def refusal_of(call: Call, problem: ApiError) -> RenderedAnswer:
    media, body = _told(call, problem)
    headers = {
        **problem.headers,
        **_headers(call),
        "content-type": media,
        "content-length": str(len(body)),
    }
    return RenderedAnswer(problem.status, headers, (body,))


def error_body(request_id: str, problem: ApiError, version: Version | None) -> bytes:
    error: dict[str, object] = {
        "status": problem.status.value,
        "title": problem.status.phrase,
        "detail": detail_text(problem),
        "request_id": request_id,
        **problem.extra,
    }
    if version is not None and version >= CODES_SINCE:
        error["code"] = problem.code
    return _encode({"errors": [error]})


def detail_text(problem: ApiError) -> str:
    """The `detail` of an error in Placement's form: the kind of error, an empty line, and one line that says what is
    wrong.

    The `openstack` client prints only the last line.
    """
    general = _IN_GENERAL.get(problem.status, f"{problem.status.phrase}.")
    return f"{general}\n\n{_LINE_BREAK.sub(' ', problem.detail.strip())}"


def _told(call: Call, problem: ApiError) -> tuple[str, bytes]:
    title, detail = problem.status.phrase, problem.detail
    accept = call.headers.get("accept", "")
    if accepts(accept, JSON):
        return JSON, error_body(call.request_id, problem, call.version)
    if accepts(accept, HTML):
        page = (
            f"<html><head><title>{title}</title></head><body><h1>{title}</h1>{escape(detail)}</body></html>"
        )
        return f"{HTML}; charset=UTF-8", page.encode()
    return f"{TEXT}; charset=UTF-8", f"{problem.status.value} {title}\n\n{detail}\n".encode()


def _headers(call: Call) -> dict[str, str]:
    if call.version is None:
        return {REQUEST_ID: call.request_id}
    return {
        REQUEST_ID: call.request_id,
        HEADER: f"{SERVICE} {version_text(call.version)}",
        "vary": HEADER,
    }
