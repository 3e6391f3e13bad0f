"""The page for each path, and the users that may read it.

An administrator sees everything; everybody else only the instances of their own project. What writes is in `actions.py`: each
of its forms belongs to a session, so a page cannot be made to act for its reader by another site.
"""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kit.errors import ConnectionLost, Failure, Refusal
from moor.client.errors import ClientError
from moor.dashboard.access import Access, FormRefused
from moor.dashboard.actions import Actions
from moor.dashboard.cloud_pages import CloudPages
from moor.dashboard.instance_pages import InstancePages
from moor.dashboard.letters import LetterPages
from moor.dashboard.node_pages import NodePages
from moor.dashboard.orders import TooManyJobs
from moor.dashboard.rendering import HERE, NOBODY, PageRefused, Reader
from placement_worker.api.values import ApiError

Page = Callable[[Request, Reader], Awaitable[Response]]
# A page that needs no reader: to log in and out.
Door = Callable[[Request], Awaitable[Response]]


def dashboard_app(
    pages: CloudPages,
    instances: InstancePages,
    nodes: NodePages,
    letters: LetterPages,
    actions: Actions,
    *,
    hosts: Iterable[str],
) -> Starlette:
    """`hosts` are the names under which browsers may reach it: another name could be made to lead here by anyone."""
    paths = _Paths(actions)
    route, door = paths.route, paths.door
    routes = [
        route("/", pages.overview),
        route("/live", pages.live),
        route("/hosts", pages.hosts),
        route("/hosts/{cell}/{name:path}", pages.host),
        route("/tiles/{cell}/{number}", pages.tile),
        route("/instances", instances.instances, for_all=True),
        route("/instances/live", instances.live_instances, for_all=True),
        route("/instances/{id:uuid}", instances.instance, for_all=True),
        route("/why", instances.why, for_all=True),
        route("/waiting", instances.waiting),
        route("/moves", instances.moves),
        route("/workers", pages.workers),
        route("/groups", pages.groups, for_all=True),
        route("/groups/{id:uuid}", pages.group, for_all=True),
        route("/aggregates", pages.aggregates),
        route("/aggregates/{name:path}", pages.aggregate),
        route("/nodes", nodes.nodes),
        route("/nodes/{id:uuid}", nodes.node),
        route("/ring", nodes.ring),
        route("/dead", letters.letters),
        route("/dead/{broker}/{handle}", letters.letter),
        route("/orders/{what}", actions.confirm, for_all=True),
        route("/orders/{what}", actions.send, for_all=True, method="POST"),
        route("/jobs/{id:uuid}", actions.job, for_all=True),
        route("/jobs/{id:uuid}/stop", actions.stop, for_all=True, method="POST"),
        door("/login", actions.login_page, "GET"),
        door("/login", actions.log_in, "POST"),
        door("/logout", actions.log_out, "POST"),
        door("/open", actions.open, "GET"),
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ]
    middleware = [
        Middleware(TrustedHostMiddleware, allowed_hosts=[*hosts], www_redirect=False),
        Middleware(ProtectedPages),
    ]
    return Starlette(routes=routes, middleware=middleware, exception_handlers={404: actions.not_found})


class _Paths:
    """Makes the routes: each finds its reader first, and shows why there is no answer."""

    def __init__(self, actions: Actions) -> None:
        self._pages = actions
        self._access = actions.access

    def route(self, path: str, page: Page, *, for_all: bool = False, method: str = "GET") -> BaseRoute:
        async def answer(request: Request) -> Response:
            try:
                reader = await self._access.reader(request)
            except ApiError as refused:
                return _unknown(request, self._access, refused)
            except Failure as problem:
                return PlainTextResponse(str(problem), HTTPStatus.SERVICE_UNAVAILABLE)
            if not (reader.is_admin or for_all):
                why = "Only administrators may see this."
                return self._pages.refusal(request, reader, HTTPStatus.FORBIDDEN, why)
            shown = await self._told(request, reader, page(request, reader))
            if isinstance(shown, StreamingResponse):
                shown.body_iterator = _while_allowed(request, self._access, shown.body_iterator)
            return shown

        return Route(path, answer, methods=[method])

    def door(self, path: str, page: Door, method: str) -> BaseRoute:
        async def answer(request: Request) -> Response:
            return await self._told(request, NOBODY, page(request))

        return Route(path, answer, methods=[method])

    async def _told(self, request: Request, reader: Reader, answering: Awaitable[Response]) -> Response:
        """The answer, or the page that says why there is none."""
        try:
            return await answering
        except FormRefused as wrong:
            return self._pages.refusal(request, reader, wrong.status, str(wrong))
        except PageRefused as wrong:
            return self._pages.refusal(request, reader, HTTPStatus.BAD_REQUEST, str(wrong))
        except (ClientError, Failure, ConnectionLost, Refusal, TooManyJobs) as problem:
            return self._pages.refusal(request, reader, HTTPStatus.SERVICE_UNAVAILABLE, str(problem))


def _unknown(request: Request, access: Access, refused: ApiError) -> Response:
    """The answer to a reader who has not proved who they are: a person is sent to the form to log in."""
    is_person = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    has_tried = {"authorization", "x-auth-token"} & {*request.headers.keys()}
    if refused.status == HTTPStatus.UNAUTHORIZED and is_person and not has_tried and access.fields:
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"/login?{urlencode({'next': path})}", HTTPStatus.SEE_OTHER)
    return PlainTextResponse(refused.detail, refused.status, dict(refused.headers))


async def _while_allowed(request: Request, access: Access, parts: AsyncIterable[Any]) -> AsyncIterator[Any]:
    """The parts of a stream, as long as its reader may read: a user that logs out sees nothing more, on any open page."""
    try:
        async for part in parts:
            if not await access.goes_on(request):
                return
            yield part
    finally:
        await parts.aclose()  # type: ignore[attr-defined]  # it is a generator


# They protect browsers, on every answer.
HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    # With less, browsers would not say of which site the page is that sends a form.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class ProtectedPages:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name for name, _ in message["headers"]}
                cached = () if b"cache-control" in known else ((b"cache-control", b"no-store"),)
                message["headers"] = [*message["headers"], *HEADERS, *cached]
            await send(message)

        await self._app(scope, receive, with_headers)
