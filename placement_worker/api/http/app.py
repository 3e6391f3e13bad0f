"""The ASGI application: the steps that all requests share, in this order.

    authenticate (401) ▶ version (400, 406) ▶ content type present (400) ▶ route (404, 405) ▶ client accepts JSON (406)
    and sends JSON (415) ▶ policy (403) ▶ read the body (413) ▶ the handler ▶ render, count, log

`GET /`, `GET /openapi.json` and `GET /metrics` need no authentication. An ApiError from a handler is the answer. An
unreachable database is a 503, which clients retry. Every other exception is a bug: a 500, with details in the log only.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote

from msgspec import structs
from starlette.types import Receive, Scope, Send

from bus.errors import Transient
from placement_worker.api import openapi_document
from placement_worker.api.auth import Authentication
from placement_worker.api.endpoints.root import version_document
from placement_worker.api.grammar.rendering import RenderedAnswer, answer_to, refusal_of
from placement_worker.api.grammar.routing import HttpRoute, Match, Router
from placement_worker.api.http import access_log, metrics
from placement_worker.api.http.cors import Cors
from placement_worker.api.policy import Policy
from placement_worker.api.settings import ApiSettings
from placement_worker.api.values.accept_header import JSON, accepts
from placement_worker.api.values.call import Call
from placement_worker.api.values.problems import ApiError, bad_request
from placement_worker.api.values.request import Reply, Request
from placement_worker.api.values.request_parts import ClientGone, Headers, body_of, has_body, query_of
from placement_worker.api.values.versions import HEADER, version_asked

log = logging.getLogger(__name__)

# The version document needs no policy: clients read it to learn what they may ask.
_ROOT = HttpRoute("GET", "/", version_document, rule="", tells_json=False)
_FOR_EVERYBODY: Final = (_ROOT.path, openapi_document.PATH)


# The reasons go to the log only: they name hosts, and more.
_UNAVAILABLE: Final = ApiError(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "The server cannot reach something that it needs for this request. Try again; its log has the reason under the "
    "request id",
    headers={"retry-after": "1"},
)
_FAILED: Final = ApiError(
    HTTPStatus.INTERNAL_SERVER_ERROR,
    "The server failed at this request; its log has the reason under the request id",
)


class PlacementApp:
    def __init__(
        self,
        routes: Iterable[HttpRoute],
        auth: Authentication,
        policy: Policy,
        settings: ApiSettings,
    ) -> None:
        self._described = (_ROOT, *routes)
        # It tells nothing that the manual does not, and the author of a client has no token yet.
        document = HttpRoute("GET", openapi_document.PATH, self._document, rule="")
        self._router = Router((*self._described, document))
        self._auth = auth
        self._policy = policy
        self._settings = settings
        self._cors = Cors(settings.cors_origins)
        self._metrics = metrics.HttpMetrics()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", f"the server offers {scope['type']}, and is set up for HTTP alone"
        call = Call.of(scope, self._settings)
        began = time.perf_counter()
        self._metrics.under_way += 1
        try:
            answer = await self._answer(call, receive)
            await _send(answer, self._cors.headers(call.headers), send)
        except ClientGone:
            return
        finally:
            self._metrics.under_way -= 1
        took_s = time.perf_counter() - began
        self._metrics.answered(call.counted_method, call.route, answer.status.value, took_s)
        access_log.note(call, answer, took_s)

    async def _answer(self, call: Call, receive: Receive) -> RenderedAnswer:
        if (preflight := self._cors.preflight(call.method, call.headers)) is not None:
            return preflight
        if call.path == metrics.PATH and call.method == "GET":
            call.route = metrics.PATH
            page = self._metrics.page()
            headers = {"content-type": metrics.CONTENT_TYPE, "content-length": str(len(page))}
            return RenderedAnswer(HTTPStatus.OK, headers, (page,))
        try:
            return answer_to(call, _located(await self._reply(call, receive), call))
        except ApiError as problem:
            return refusal_of(call, problem)
        except Transient as problem:
            log.warning("%s: not served for now: %s", call.request_id, problem)
            return refusal_of(call, _UNAVAILABLE)
        except ClientGone:
            raise
        except Exception:
            # This is the loop around all handlers: a faulty one must not stop the others. The details are for the operator,
            # in the log, and never for the client.
            log.exception("%s: %s %s failed", call.request_id, call.method, call.path)
            return refusal_of(call, _FAILED)

    async def _reply(self, call: Call, receive: Receive) -> Reply:
        if call.path not in _FOR_EVERYBODY:
            call.caller = await self._auth.caller(call.headers, call.client)
        call.version = version = version_asked(call.headers.get(HEADER, ""))
        _check_type_is_said(call.headers)
        match = self._router.match(call.method, call.path, version)
        call.route = match.route.path
        _check_media(match.route, call.headers)
        query = query_of(call.scope)
        if match.route.rule:
            self._policy.check(match.route.rule, call.caller, query)
        request = Request(
            prefix=call.prefix,
            version=version,
            caller=call.caller,
            params=_decoded(match),
            query=query,
            body=await body_of(call.headers, receive, self._settings),
        )
        return await match.route.handler(request)

    async def _document(self, request: Request) -> Reply:
        return Reply(body=openapi_document.openapi(self._described, request.version))


def _check_type_is_said(headers: Headers) -> None:
    if has_body(headers) and not headers.get("content-type"):
        raise bad_request(
            "content-type header required: the request has a body, and the header must name its type"
        )


def _check_media(route: HttpRoute, headers: Headers) -> None:
    if route.method == "GET" and route.tells_json and not accepts(headers.get("accept", ""), JSON):
        raise ApiError(HTTPStatus.NOT_ACCEPTABLE, f"Only {JSON} is provided")
    if route.body is None:
        return
    media = headers.get("content-type", "").partition(";")[0].strip().lower() or "None"
    if media != JSON:
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"The media type {media} is not supported, use {JSON}"
        )


def _located(reply: Reply, call: Call) -> Reply:
    """The reply with a full URL as its location, at the host that the client asked. Handlers give only a path."""
    location = reply.headers.get("location")
    if location is None:
        return reply
    host = call.headers.get("host", "")
    return structs.replace(
        reply, headers={**reply.headers, "location": f"{call.scope['scheme']}://{host}{location}"}
    )


def _decoded(match: Match) -> Mapping[str, str]:
    decoded = {name: unquote(value) if "%" in value else value for name, value in match.params.items()}
    for name, value in decoded.items():
        # Databases cannot store this character.
        if "\0" in value:
            raise bad_request(f"The path has {value!r} as {name}; the character NUL is not allowed")
    return decoded


async def _send(answer: RenderedAnswer, added: Mapping[str, str], send: Send) -> None:
    headers = {**answer.headers, **added}
    if added:
        # The response differs by origin, so a browser's cache must, too.
        headers["vary"] = ", ".join(filter(None, (headers.get("vary"), "origin")))
    await send(
        {
            "type": "http.response.start",
            "status": answer.status.value,
            "headers": [_line(name, value) for name, value in headers.items()],
        }
    )
    for number, piece in enumerate(answer.pieces, 1):
        has_more = number < len(answer.pieces)
        await send({"type": "http.response.body", "body": piece, "more_body": has_more})
        if has_more:
            # A client that reads as fast as the server writes must not make all others wait.
            await asyncio.sleep(0)


def _line(name: str, value: str) -> tuple[bytes, bytes]:
    # It may contain what a client sent, and must not become a second header.
    assert "\n" not in value, f"{name!r} has a line break in {value!r}"
    return name.encode("latin-1"), value.encode("latin-1")
