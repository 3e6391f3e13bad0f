"""Turns replies and errors into what is sent: a status, headers and bytes.

Errors have OpenStack's form: `{"errors": [{status, title, detail, request_id, code}]}`, with the code from version 1.23 on.
Clients that do not accept JSON get HTML or plain text.
"""

import re
import time
from collections.abc import Iterable, Mapping
from email.utils import formatdate
from functools import lru_cache
from html import escape
from http import HTTPStatus
from typing import Final

import msgspec
import os_resource_classes
from msgspec import Struct

from bus.messages.books import (
    AlreadyThere,
    ConsumerMoved,
    GenerationMoved,
    HasChildren,
    IdTaken,
    InventoryAbsent,
    InventoryPresent,
    NameInUse,
    NameTaken,
    UnknownClass,
    UnknownConsumer,
    UnknownProvider,
    UnknownTrait,
    WriteVerdict,
)
from bus.messages.placement import InventoryInUse
from engine.inventories import CUSTOM
from engine.refusals import DoesNotFit, NotAllowed, Shortfall, TooCostly
from placement_worker.api.values import (
    CANNOT_DELETE_PARENT,
    CONCURRENT_UPDATE,
    DUPLICATE_NAME,
    HEADER,
    HTML,
    INVENTORY_IN_USE,
    JSON,
    PROVIDER_NOT_FOUND,
    SERVICE,
    TEXT,
    TOO_COSTLY,
    UNDEFINED,
    ApiError,
    Call,
    Pieces,
    Reply,
    Version,
    accepts,
    bad_request,
    not_found,
    version_text,
)

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


# Translates refusing verdicts into HTTP errors.
#
# Clients of Placement read the text as well as the status and the code, and its conformance suite requires many texts; those
# are used here.


_SHORTFALLS_TOLD_MAX = 10

NO_SUCH_CLASS: Final = "No such resource class {names}."
NO_SUCH_TRAIT: Final = "No such trait(s): {names}."
IN_USE: Final = "Inventory for '{resource}' on resource provider '{provider}' in use"


class HttpRefusal(Struct, frozen=True):
    """The HTTP error for one kind of verdict.

    In `text`, names in braces stand for the verdict's fields; `{doing}` is the beginning of the sentence, which says what
    the client tried.
    """

    status: HTTPStatus
    text: str
    code: str = UNDEFINED


Refusals = Mapping[type[WriteVerdict], HttpRefusal]

# For endpoints without special cases.
AS_USUAL: Final[Refusals] = {}

_USUAL: Final[Refusals] = {
    UnknownProvider: HttpRefusal(HTTPStatus.NOT_FOUND, "No resource provider with uuid {provider} found"),
    UnknownClass: HttpRefusal(HTTPStatus.BAD_REQUEST, f"{{doing}}: {NO_SUCH_CLASS}"),
    UnknownTrait: HttpRefusal(HTTPStatus.BAD_REQUEST, f"{{doing}}: {NO_SUCH_TRAIT}"),
    UnknownConsumer: HttpRefusal(HTTPStatus.NOT_FOUND, "No allocations for consumer '{consumer}'"),
    GenerationMoved: HttpRefusal(
        HTTPStatus.CONFLICT,
        "{doing}: resource provider generation conflict: {provider} has moved, actual: {current}, given: {seen}",
        CONCURRENT_UPDATE,
    ),
    ConsumerMoved: HttpRefusal(
        HTTPStatus.CONFLICT,
        "{doing}: {consumer}: consumer generation conflict - expected {current} but got {seen}",
        CONCURRENT_UPDATE,
    ),
    NameTaken: HttpRefusal(
        HTTPStatus.CONFLICT,
        "Conflicting resource provider name: {name} already exists.",
        DUPLICATE_NAME,
    ),
    IdTaken: HttpRefusal(
        HTTPStatus.CONFLICT,
        "Conflicting resource provider uuid: {provider} already exists.",
        DUPLICATE_NAME,
    ),
    HasChildren: HttpRefusal(
        HTTPStatus.CONFLICT,
        "Unable to delete parent resource provider {provider}: It has child resource providers. "
        "One of them is {child}.",
        CANNOT_DELETE_PARENT,
    ),
    InventoryPresent: HttpRefusal(
        HTTPStatus.CONFLICT,
        "Update conflict: {provider} has an inventory of {resource} already",
        CONCURRENT_UPDATE,
    ),
    InventoryAbsent: HttpRefusal(HTTPStatus.NOT_FOUND, "No inventory of class {resource} for {provider}"),
    InventoryInUse: HttpRefusal(
        HTTPStatus.CONFLICT, f"{{doing}}: {IN_USE}: {{used}} of {{resource}} is held", INVENTORY_IN_USE
    ),
    NameInUse: HttpRefusal(HTTPStatus.CONFLICT, "{doing}: {name} is in use by provider {provider}"),
    AlreadyThere: HttpRefusal(HTTPStatus.CONFLICT, "{doing}: {name} exists already"),
    DoesNotFit: HttpRefusal(HTTPStatus.CONFLICT, "{doing}: {shortfalls}"),
    NotAllowed: HttpRefusal(HTTPStatus.BAD_REQUEST, "{doing}: {field}: {reason}"),
}
# A provider that a body names is no 404; by the field that names it.
_UNKNOWN_IN_BODY: Final[Mapping[str, HttpRefusal]] = {
    "parent": HttpRefusal(HTTPStatus.BAD_REQUEST, "{doing}: parent provider UUID does not exist: {provider}"),
    "allocations": HttpRefusal(
        HTTPStatus.BAD_REQUEST,
        "{doing}: Allocation for resource provider '{provider}' that does not exist",
    ),
    "inventories": HttpRefusal(
        HTTPStatus.BAD_REQUEST,
        "{doing}: resource provider {provider} does not exist",
        PROVIDER_NOT_FOUND,
    ),
}


def refusal(verdict: WriteVerdict, doing: str, special: Refusals = AS_USUAL, **words: str) -> ApiError:
    """The HTTP error for a verdict that refuses. An endpoint's own errors, in `special`, come before the usual ones.

    `doing` says what the client tried. `words` fill further names in braces, which only texts in `special` have.
    """
    said = special.get(type(verdict)) or _USUAL.get(type(verdict))
    if isinstance(verdict, UnknownProvider):
        said = _UNKNOWN_IN_BODY.get(verdict.field, said)
    if said is None:
        raise AssertionError(f"{verdict!r} is not a refusal")
    fields = {field: _in_words(getattr(verdict, field)) for field in verdict.__struct_fields__}
    if isinstance(verdict, DoesNotFit):
        fields["shortfalls"] = _what_is_short(verdict.shortfalls)
    return ApiError(said.status, said.text.format_map({"doing": doing, **words, **fields}), said.code)


def too_costly(verdict: TooCostly) -> ApiError:
    said = {
        "steps": f"The search was stopped after {verdict.spent} steps; at most {verdict.budget} are allowed",
        "bytes": f"The search was stopped when it used {verdict.spent} bytes; at most {verdict.budget} are allowed",
        "answer_bytes": f"The answer would have {verdict.spent} bytes; at most {verdict.budget} are allowed",
    }[verdict.what]
    return bad_request(
        f"{said}. There may be more candidates: ask for fewer groups, for groups that do not ask for the same "
        "resources, or for fewer candidates by limit",
        TOO_COSTLY,
    )


def no_such_provider(provider: str) -> ApiError:
    return not_found(f"No resource provider with uuid {provider} found")


def _in_words(value: object) -> str:
    match value:
        case None:
            return "null"
        case tuple():
            return ", ".join(map(str, value))
        case _:
            return str(value)


def _what_is_short(shortfalls: tuple[Shortfall, ...]) -> str:
    told = "; ".join(map(_shortfall, shortfalls[:_SHORTFALLS_TOLD_MAX]))
    more = len(shortfalls) - _SHORTFALLS_TOLD_MAX
    return f"{told}; and {more} more" if more > 0 else told


def _shortfall(short: Shortfall) -> str:
    where = f"{short.resource} on resource provider '{short.provider}'"
    match short.rule:
        case "no_inventory":
            return (
                f"Inventory for '{short.resource}' on resource provider '{short.provider}' invalid: "
                f"asked {short.asked}, and it has none of that class"
            )
        case "capacity":
            return (
                f"{where}: asked {short.asked}, free {max(short.free, 0)}. "
                "The requested amount would exceed the capacity"
            )
        case rule:
            return f"{where}: asked {short.asked}, and its {rule} is {short.bound}"


# The order of names in answers: of resource classes, and of traits.


_NUMBERS = {name: number for number, name in enumerate(os_resource_classes.STANDARDS)}


def standard_first(traits: Iterable[str]) -> list[str]:
    """Sort traits in Placement's order: standard traits come before custom ones."""
    return sorted(traits, key=lambda name: (name.startswith(CUSTOM), name))


def classes_in_order(classes: Iterable[str]) -> list[str]:
    """Sort resource classes in Placement's order: standard classes by number, then custom ones by name."""
    return sorted(classes, key=lambda name: (_NUMBERS.get(name, len(_NUMBERS)), name))
