"""The dashboard, as one part of a process: the page for each path, and the users that may read it.

An administrator sees everything; everybody else only the instances of their own project. What writes is in `actions.py`: each
of its forms belongs to a session, so a page cannot be made to act for its reader by another site.
"""

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import click
from msgspec import Struct
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bus.broker import Broker
from bus.workers.running import about, run_worker
from kit.errors import ConnectionLost, Failure, Refusal
from kit.health import Listen, read_listen
from kit.http_server import HttpServer
from kit.process import run_until
from kit.tls import ServerTls
from moor.client import Client, ClientError, NotFound, Rejected
from moor.dashboard.access import Access, FormRefused, OpeningToken, SessionStore
from moor.dashboard.actions import Actions, Clouds, TooManyJobs
from moor.dashboard.cloud_pages import EVERY_S, CloudPages, Watcher
from moor.dashboard.instance_pages import InstancePages
from moor.dashboard.keeping_pages import KeepingPages
from moor.dashboard.letters import LetterPages, LetterReader
from moor.dashboard.node_pages import MetalReader, NodePages
from moor.dashboard.rendering import HERE, NOBODY, PageRefused, Reader, why_refused
from moor.dashboard.resource_pages import (
    AGGREGATES,
    CAMPAIGNS,
    GROUPS,
    HOSTS,
    INSTANCE_LIST,
    MOVEMENTS,
    MOVES,
    WAITING_LIST,
    ResourcePages,
)
from moor.options import option_of, wrong_value
from moor.placement.placement_api_options import (
    AccessFlags,
    authentication_of,
    check_guarded,
    proxies_of,
    served_tls,
)
from moor.settings import GENERAL, Settings
from placement_worker.api.auth import Authentication, NoAuthentication
from placement_worker.api.values import ApiError

if TYPE_CHECKING:
    from kit.parts import Periodic

Page = Callable[[Request, Reader], Awaitable[Response]]
# A page that needs no reader: to log in and out.
Door = Callable[[Request], Awaitable[Response]]


def dashboard_app(
    pages: CloudPages,
    things: ResourcePages,
    instances: InstancePages,
    nodes: NodePages,
    letters: LetterPages,
    *,
    keeping: KeepingPages,
    actions: Actions,
    hosts: Iterable[str],
) -> Starlette:
    """`hosts` are the names under which browsers may reach it: another name could be made to lead here by anyone."""
    paths = _Paths(actions)
    route, door = paths.route, paths.door
    routes = [
        route("/", pages.overview),
        route("/live", pages.live),
        route("/hosts", partial(things.listed, HOSTS)),
        route("/hosts/{cell}/{name:path}", things.host),
        route("/tiles/{cell}/{number}", pages.tile),
        route("/instances", partial(things.listed, INSTANCE_LIST), for_all=True),
        route("/instances/live", things.live_instances, for_all=True),
        route("/instances/{id:uuid}", instances.instance, for_all=True),
        route("/why", instances.why, for_all=True),
        route("/waiting", partial(things.listed, WAITING_LIST)),
        route("/moves", partial(things.listed, MOVES)),
        route("/keeping", keeping.keeping),
        route("/keeping/live", keeping.live),
        route("/campaigns", partial(things.listed, CAMPAIGNS)),
        route("/campaigns/{id:uuid}", keeping.campaign),
        route("/questions/{id:uuid}", keeping.question),
        route("/movements", partial(things.listed, MOVEMENTS)),
        route("/domains/~{place:path}/{number}", keeping.tile),
        route("/workers", pages.workers),
        route("/groups", partial(things.listed, GROUPS), for_all=True),
        route("/groups/{id:uuid}", things.group, for_all=True),
        route("/aggregates", partial(things.listed, AGGREGATES)),
        route("/aggregates/{name:path}", things.aggregate),
        route("/nodes", nodes.nodes),
        route("/nodes/{id:uuid}", nodes.node),
        route("/ring", nodes.ring),
        route("/dead", letters.letters),
        route("/dead/{broker}/{handle}", letters.letter),
        route("/orders/{what}", actions.confirm, for_all=True),
        route("/orders/{what}", actions.send, for_all=True, method="POST"),
        route("/jobs/{id:uuid}", actions.job, for_all=True),
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
        except NotFound as nothing:
            why = f"There is no {nothing.what} {nothing.name}."
            return self._pages.refusal(request, reader, HTTPStatus.NOT_FOUND, why)
        except Rejected as wrong:
            return self._pages.refusal(request, reader, HTTPStatus.BAD_REQUEST, str(wrong))
        except (ClientError, Failure, ConnectionLost, Refusal, TooManyJobs) as problem:
            return self._pages.refusal(request, reader, HTTPStatus.SERVICE_UNAVAILABLE, why_refused(problem))


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


log = logging.getLogger(__name__)

# Browsers of this machine may call it so.
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
END_S_MAX = 2
ANSWER_S = 10.0


class DashboardOptions(Struct, frozen=True):
    """`names` are host names of this service for browsers, beside those of the loopback address and that to listen on."""

    listen: Listen
    auth: Authentication
    names: tuple[str, ...] = ()
    tls: ServerTls | None = None
    every_s: float = EVERY_S
    # On other machines: those of this machine are always trusted.
    proxies: tuple[str, ...] = ()


def dashboard_client(bus: str | Broker, *, as_operator: bool = False) -> Client:
    """A client of the dashboard. It waits for a broker that is away."""
    return Client(bus, project="", patience_s=ANSWER_S, as_operator=as_operator, role="dashboard", waits=True)


async def serve(
    connect: Callable[[], Client],
    ordering: Callable[[], Client],
    settings: Settings,
    options: DashboardOptions,
    *,
    health_at: str,
    show: Callable[[str], None],
) -> None:
    """Run the dashboard as a process of its own, until it is told to stop."""
    service = DashboardService(connect, ordering, settings, options, show)
    await run_worker(
        about("dashboard", brokers=(settings.bus_url,)), (service,), END_S_MAX + 1, health_at=health_at
    )


class DashboardService:
    """Serves the dashboard. The constructor binds the address, and raises BadAddressError if that fails."""

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Client]],
        ordering: Callable[[], AbstractAsyncContextManager[Client]],
        settings: Settings,
        options: DashboardOptions,
        show: Callable[[str], None],
    ) -> None:
        """`connect` opens the client on the bus that asks for all readers, and `ordering` one for each order.

        `show` shows a line to the person who has started the process: the address by which one browser may order.
        """
        self._connect = connect
        self._ordering = ordering
        self._show = show
        self._settings = settings
        self._options = options
        self._app: ASGIApp | None = None
        # An open stream would otherwise keep the server from ending.
        self._server = HttpServer(
            self._answer,
            options.listen,
            "the dashboard's address",
            options.tls,
            proxies=options.proxies,
            drain_s_max=END_S_MAX,
        )
        self.url = self._server.url
        # Health shows them.
        self.parts: tuple[Periodic, ...] = ()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        async with self._connect() as moor:
            watcher = Watcher(moor, self._settings, self._options.every_s)
            names = {*LOOPBACK_NAMES, self._options.listen.host, *self._options.names}
            letters = LetterPages(LetterReader(watcher.brokers))
            actions = Actions(
                access_of(
                    self._options,
                    self._server.listen.port,
                    lambda token: self._show(
                        f"to order by the dashboard, open this address in one browser: {self.url}/open?token={token}"
                    ),
                ),
                Clouds(moor, letters.reader, self._ordering),
            )
            metal = MetalReader(self._settings)
            self._app = dashboard_app(
                CloudPages(moor, watcher),
                ResourcePages(moor),
                InstancePages(moor),
                NodePages(metal),
                letters,
                keeping=KeepingPages(moor),
                actions=actions,
                hosts=names,
            )
            self.parts = (watcher, metal.part)
            log.info("the dashboard is served at %s", self.url)
            try:
                # The server first: its open streams ask the others.
                await run_until(self._stopping, (self._server, *self.parts), END_S_MAX + 1)
            finally:
                await actions.jobs.close()
                await watcher.close()
                await metal.close()
                await self._options.auth.close()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._app is not None, "the server runs only when there is an application"
        await self._app(scope, receive, send)

    async def stop(self) -> None:
        self._stopping.set()


def access_of(options: DashboardOptions, port: int, show: Callable[[str], None]) -> Access:
    """`show` is called with each token that opens one browser. Only where nobody proves who they are, and only on this machine, is
    there one: it proves that a browser belongs to the person who sees the output of this process.
    """
    is_own = isinstance(options.auth, NoAuthentication) and options.listen.is_loopback
    opening = OpeningToken(show) if is_own else None
    return Access(options.auth, SessionStore(), port=port, opening=opening)


# The flags of the dashboard. All are read and checked before it starts.

DASHBOARD_LISTEN = "127.0.0.1:8781"
OFF = "off"
DashboardAt = Annotated[str, option_of(GENERAL, "dashboard_listen", metavar="HOST:PORT")]


class DashboardFlags(AccessFlags, frozen=True, kw_only=True):
    dashboard_listen: DashboardAt = DASHBOARD_LISTEN
    dashboard_names: Annotated[str, option_of(GENERAL, "dashboard_names", metavar="NAME,NAME")] = ""


def dashboard_options(flags: DashboardFlags) -> DashboardOptions:
    """Check the flags. Raise click.BadParameter, which names the wrong flag."""
    if flags.auth == "noauth2":
        raise click.BadParameter(
            "auth is noauth2, which the dashboard does not have: use none, basic or keystone"
        )
    with wrong_value():
        listen = read_listen(flags.dashboard_listen)
        check_guarded(flags, listen)
        return DashboardOptions(
            listen=listen,
            auth=authentication_of(flags),
            names=tuple(name for part in flags.dashboard_names.split(",") if (name := part.strip())),
            tls=served_tls(flags),
            proxies=proxies_of(flags),
        )
