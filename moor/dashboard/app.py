"""The page for each path, and the users that may read it.

An administrator sees everything; everybody else only the instances of their own project. Nothing here writes: a page cannot
be made to act for its reader by another site, and needs no session.
"""

from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bus.broker import ConnectionLost, Refusal
from bus.errors import Failure
from moor.dashboard.letter_pages import LetterPages
from moor.dashboard.node_pages import NodePages
from moor.dashboard.pages import Pages
from moor.dashboard.rendering import HERE, PageRefused, Reader
from placement_worker.api.auth import Authentication
from placement_worker.api.values.problems import ApiError

ADMIN = "admin"
HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
Page = Callable[[Request, Reader], Awaitable[Response]]


def dashboard_app(
    pages: Pages, letters: LetterPages, nodes: NodePages, auth: Authentication, hosts: Iterable[str]
) -> Starlette:
    """`hosts` are the names under which browsers may reach it: another name could be made to lead here by anyone."""

    def route(path: str, page: Page, *, for_all: bool = False) -> BaseRoute:
        async def answer(request: Request) -> Response:
            try:
                reader = await _reader(request, auth)
            except ApiError as refused:
                return PlainTextResponse(refused.detail, refused.status, dict(refused.headers))
            except Failure as problem:
                return PlainTextResponse(str(problem), HTTPStatus.SERVICE_UNAVAILABLE)
            if not (reader.is_admin or for_all):
                return pages.refusal(
                    request, reader, HTTPStatus.FORBIDDEN, "Only administrators may see this."
                )
            try:
                return await page(request, reader)
            except PageRefused as wrong:
                return pages.refusal(request, reader, HTTPStatus.BAD_REQUEST, str(wrong))
            except (Failure, ConnectionLost, Refusal) as problem:
                return pages.refusal(request, reader, HTTPStatus.SERVICE_UNAVAILABLE, str(problem))

        return Route(path, answer, methods=["GET"])

    routes = [
        route("/", pages.overview),
        route("/live", pages.live),
        route("/hosts", pages.hosts),
        route("/hosts/{cell}/{name:path}", pages.host),
        route("/tiles/{cell}/{number}", pages.tile),
        route("/instances", pages.instances, for_all=True),
        route("/instances/{id:uuid}", pages.instance, for_all=True),
        route("/why", pages.why, for_all=True),
        route("/waiting", pages.waiting),
        route("/moves", pages.moves),
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
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ]
    middleware = [
        Middleware(TrustedHostMiddleware, allowed_hosts=[*hosts], www_redirect=False),
        Middleware(ProtectedPages),
    ]
    return Starlette(routes=routes, middleware=middleware, exception_handlers={404: pages.not_found})


class ProtectedPages:
    """Adds the headers that protect browsers to every answer."""

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


async def _reader(request: Request, auth: Authentication) -> Reader:
    caller = await auth.caller(request.headers)
    is_admin = ADMIN in caller.roles
    if not (is_admin or caller.project):
        # In a question, no project means all.
        raise ApiError(
            HTTPStatus.FORBIDDEN, f"{caller.user} acts for no project here, and is no administrator"
        )
    return Reader(name=caller.user, project="" if is_admin else caller.project, is_admin=is_admin)
