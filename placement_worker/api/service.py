"""Placement over HTTP, as one part of a process: alone in `moor run placement-api`, with others in `moor up`.

Any number of these processes may serve one database, and they need nothing else. Each reads what others have written
before it answers a request. Its own writes are in the change log, which the placement workers publish.

The steps that all requests share, in this order:

    authenticate (401) ▶ version (400, 406) ▶ content type present (400) ▶ route (404, 405) ▶ client accepts JSON (406)
    and sends JSON (415) ▶ policy (403) ▶ read the body (413) ▶ the handler ▶ render, count, log

`GET /` and `GET /metrics` need no authentication. An ApiError from a handler is the answer. An
unreachable database is a 503, which clients retry. Every other exception is a bug: a 500, with details in the log only.
"""

import asyncio
import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote

import msgspec
from msgspec import Struct, structs
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import Receive, Scope, Send

from engine.candidates.budget import SearchLimits
from kit.clock import now
from kit.errors import Transient
from kit.health import Listen
from kit.http_server import HttpServer
from kit.metrics import Metric as Described
from kit.settings import require
from kit.tls import ServerTls
from placement_worker.admin_writes import WriteBatcher
from placement_worker.api.answers import RenderedAnswer, answer_to, refusal_of
from placement_worker.api.auth import Authentication
from placement_worker.api.names import version_document
from placement_worker.api.policy import Policy
from placement_worker.api.routes import routes_of
from placement_worker.api.routing import HttpRoute, Match, Router
from placement_worker.api.values import (
    HEADER,
    JSON,
    ApiError,
    Call,
    ClientGone,
    Headers,
    Reply,
    Request,
    accepts,
    bad_request,
    body_of,
    has_body,
    query_of,
    version_asked,
    version_text,
)
from placement_worker.settings import PlacementSettings
from placement_worker.store_sql import PlacementStore
from placement_worker.view import ProviderView
from placement_worker.wiring import STANDARD

log = logging.getLogger(__name__)

# The version document needs no policy: clients read it to learn what they may ask.
_ROOT = HttpRoute("GET", "/", version_document, rule="", tells_json=False)

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
# glibc learns from no larger block than 32 MiB.
KEPT_BYTES = 31 * 2**20


class ServiceOptions(Struct, frozen=True):
    """The operator's options of the HTTP service."""

    listen: Listen
    auth: Authentication
    policy: Policy
    settings: PlacementSettings = PlacementSettings()
    tls: ServerTls | None = None
    # On other machines: those of this machine are always trusted.
    proxies: tuple[str, ...] = ()
    prefix: str = ""
    cors_origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(
            not self.prefix or (self.prefix.startswith("/") and not self.prefix.endswith("/")),
            f"prefix is {self.prefix!r}, must begin with a slash and not end with one",
        )

    @property
    def search_limits(self) -> SearchLimits:
        return SearchLimits(self.settings.search_steps_max)


class PlacementService:
    """Placement's HTTP service. The constructor binds the address, and raises BadAddressError if that fails."""

    def __init__(self, store: PlacementStore, serving: ServiceOptions) -> None:
        self._batcher = WriteBatcher(store, STANDARD, now)
        self._view = ProviderView(store)
        self._auth = serving.auth
        routes = routes_of(self._batcher, self._view, store, STANDARD, serving.search_limits)
        app = PlacementApp(
            routes, serving.auth, serving.policy, prefix=serving.prefix, cors_origins=serving.cors_origins
        )
        self._server = HttpServer(app, serving.listen, tls=serving.tls, proxies=serving.proxies)

    @property
    def url(self) -> str:
        return self._server.url

    async def run(self) -> None:
        log.info("placement is served at %s", self.url)
        # glibc keeps as much freed memory as twice the largest block that it ever freed, and gives the rest back to the kernel, which
        # clears each page again at its next use: for an answer of 6 MB that takes a third of the CPU.
        bytes(KEPT_BYTES)
        try:
            await self._server.run()
        finally:
            await self._batcher.close()
            await self._view.close()
            await self._auth.close()

    async def stop(self) -> None:
        await self._server.stop()


class PlacementApp:
    def __init__(
        self,
        routes: Iterable[HttpRoute],
        auth: Authentication,
        policy: Policy,
        *,
        prefix: str = "",
        cors_origins: Sequence[str] = (),
    ) -> None:
        """`prefix` is the path before all paths, which a proxy forwards without removing it, as /placement."""
        self._router = Router((_ROOT, *routes))
        self._auth = auth
        self._policy = policy
        self._prefix = prefix
        self._cors = Cors(cors_origins)
        self._metrics = HttpMetrics()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", f"the server offers {scope['type']}, and is set up for HTTP alone"
        call = Call.of(scope, self._prefix)
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
        note(call, answer, took_s)

    async def _answer(self, call: Call, receive: Receive) -> RenderedAnswer:
        if (preflight := self._cors.preflight(call.method, call.headers)) is not None:
            return preflight
        if call.path == METRICS_PATH and call.method == "GET":
            call.route = METRICS_PATH
            page = self._metrics.page()
            headers = {"content-type": METRICS_TYPE, "content-length": str(len(page))}
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
        if call.path != _ROOT.path:
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
            body=await body_of(call.headers, receive),
        )
        return await match.route.handler(request)


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


# CORS: which web pages may read the answers in a browser? Those of the configured origins. All others get the same answer
# without the headers that allow it.

ALLOWED_METHODS: Final = "GET, POST, PUT, DELETE"
ALLOWED_HEADERS: Final = frozenset(
    (
        "openstack-api-version",
        "x-auth-token",
        "x-openstack-request-id",
        "authorization",
        "content-type",
        "accept",
    )
)
EXPOSED_HEADERS: Final = "openstack-api-version, x-openstack-request-id, location"
KEPT_S: Final = "3600"


class Cors:
    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origins)

    def preflight(self, method: str, headers: Headers) -> RenderedAnswer | None:
        """The complete answer to a browser's preflight request; None if the request is no preflight request."""
        if not self._origins or method != "OPTIONS" or "access-control-request-method" not in headers:
            return None
        added = self.headers(headers)
        if added:
            wanted = headers.get("access-control-request-headers", "").lower().split(",")
            allowed = ",".join(name for part in wanted if (name := part.strip()) in ALLOWED_HEADERS)
            added = {
                **added,
                "access-control-allow-methods": ALLOWED_METHODS,
                "access-control-allow-headers": allowed,
                "access-control-max-age": KEPT_S,
            }
        return RenderedAnswer(HTTPStatus.OK, {**added, "content-length": "0"}, (b"",))

    def headers(self, headers: Headers) -> Mapping[str, str]:
        """The CORS headers of an answer to this request."""
        origin = headers.get("origin")
        if origin is None or not self._origins & {origin, "*"}:
            return {}
        return {"access-control-allow-origin": origin, "access-control-expose-headers": EXPOSED_HEADERS}


# The access log: one line of JSON for each request. JSON escapes what clients send, so they cannot forge a second line.

access_log = logging.getLogger("placement_worker.api.access")

_encode = msgspec.json.Encoder().encode
_GLOBAL_ID: Final = re.compile(r"req-[0-9a-fA-F-]{36}")


class AccessLine(Struct, frozen=True, omit_defaults=True, gc=False):
    """The line of the log about one request. Fields that are not known are left out."""

    request_id: str
    client: str
    method: str
    target: str
    status: int
    sent_bytes: int
    took_ms: float
    global_request_id: str = ""
    version: str = ""
    user: str = ""
    project: str = ""


def note(call: Call, answer: RenderedAnswer, took_s: float) -> None:
    """Log one answered request, if an access log is kept."""
    if not access_log.isEnabledFor(logging.INFO):
        return
    query = call.scope["query_string"].decode("latin-1")
    # The id of another service's request that caused this one. Another form stays out of the log.
    cause = call.headers.get("x-openstack-request-id", "")
    line = AccessLine(
        request_id=call.request_id,
        client=call.client or "-",
        method=call.method,
        target=f"{call.prefix}{call.path}" + (f"?{query}" if query else ""),
        status=answer.status.value,
        sent_bytes=answer.length,
        took_ms=round(took_s * 1000, 2),
        global_request_id=cause if _GLOBAL_ID.fullmatch(cause) else "",
        version="" if call.version is None else version_text(call.version),
        user=call.caller.user,
        project=call.caller.project,
    )
    access_log.info(_encode(line).decode())


# Prometheus metrics of requests: counts and times, by route and never by path, since there are millions of paths.

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
METRICS_PATH: Final = "/metrics"

REQUESTS = Described(
    "moor_placement_http_requests", "counter", "Requests that were answered.", ("method", "route", "status")
)
SECONDS = Described(
    "moor_placement_http_request_seconds",
    "histogram",
    "From a request's headers to the last of its answer.",
    ("method", "route"),
)
UNDER_WAY = Described("moor_placement_http_requests_under_way", "gauge", "Requests not yet answered.")
METRICS = (REQUESTS, SECONDS, UNDER_WAY)

_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class HttpMetrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            REQUESTS.name,
            REQUESTS.meaning,
            REQUESTS.labels,
            registry=self._registry,
        )
        self._seconds = Histogram(
            SECONDS.name,
            SECONDS.meaning,
            SECONDS.labels,
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        # A plain counter that the application changes: a Gauge would take a lock each time.
        self.under_way = 0
        Gauge(UNDER_WAY.name, UNDER_WAY.meaning, registry=self._registry).set_function(lambda: self.under_way)
        # To look up a label's child takes a lock and a tuple of strings; there are few, so they are cached.
        self._child = lru_cache(maxsize=1024)(self._made)

    def answered(self, method: str, route: str, status: int, took_s: float) -> None:
        count, seconds = self._child(method, route, status)
        count.inc()
        seconds.observe(took_s)

    def page(self) -> bytes:
        return generate_latest(self._registry)

    def _made(self, method: str, route: str, status: int) -> tuple[Counter, Histogram]:
        return self._requests.labels(method, route, str(status)), self._seconds.labels(method, route)
