"""The dashboard, as one part of a process."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct, structs
from starlette.types import ASGIApp, Receive, Scope, Send

from bus.broker import Broker
from bus.settings import BusSettings
from bus.workers.running import about, run_worker
from kit.health import Listen, read_listen
from kit.http_server import HttpServer
from kit.keystone import OPENSTACK
from kit.tls import ServerTls
from moor.asking import CommandClient, station_on
from moor.dashboard.access import Access, OpeningToken, SessionStore
from moor.dashboard.actions import Actions
from moor.dashboard.app import dashboard_app
from moor.dashboard.cloud_pages import CloudPages
from moor.dashboard.instance_pages import InstancePages
from moor.dashboard.letters import LetterPages, LetterReader
from moor.dashboard.node_pages import MetalReader, NodePages
from moor.dashboard.orders import Clouds
from moor.dashboard.watching import EVERY_S, Watcher
from moor.options import option_of, tuned, wrong_value
from moor.placement.placement_api_options import (
    AccessFlags,
    Auth,
    authentication_of,
    check_guarded,
    proxies_of,
    served_tls,
)
from moor.settings import GENERAL, Settings
from placement_worker.api.auth import Authentication, NoAuthentication

if TYPE_CHECKING:
    from kit.parts import Periodic

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


@asynccontextmanager
async def reading_client(broker: Broker, bus: BusSettings | None = None) -> AsyncIterator[CommandClient]:
    """A client that asks for the dashboard. It waits for a broker that is away."""
    patient = structs.replace(bus or BusSettings(), answer_timeout_ms=ANSWER_S * 1000)
    async with station_on(broker, "dashboard", patient) as (station, running):
        yield CommandClient(station, running)


async def serve(
    broker: Broker,
    operating: Broker,
    settings: Settings,
    options: DashboardOptions,
    *,
    bus: BusSettings,
    health_at: str,
    show: Callable[[str], None],
) -> None:
    """Run the dashboard as a process of its own, until it is told to stop. `operating` is the broker as the user that orders."""
    service = DashboardService(
        lambda: reading_client(broker, bus), lambda: reading_client(operating, bus), settings, options, show
    )
    await run_worker(
        about("dashboard", brokers=(settings.bus_url,)), (service,), END_S_MAX + 1, health_at=health_at
    )


class DashboardService:
    """Serves the dashboard. The constructor binds the address, and raises BadAddressError if that fails."""

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[CommandClient]],
        ordering: Callable[[], AbstractAsyncContextManager[CommandClient]],
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
        async with self._connect() as asking:
            watcher = Watcher(asking, self._settings, self._options.every_s)
            names = {*LOOPBACK_NAMES, self._options.listen.host, *self._options.names}
            letters = LetterPages(LetterReader(watcher.brokers))
            actions = Actions(
                access_of(self._options, self._server.listen.port, self._show_address),
                Clouds(asking, letters.reader, self._ordering),
            )
            metal = MetalReader(self._settings, lambda: tuned(OPENSTACK))
            self._app = dashboard_app(
                CloudPages(asking, watcher),
                InstancePages(asking),
                NodePages(metal),
                letters,
                actions,
                hosts=names,
            )
            self.parts = (watcher, metal.part)
            log.info("the dashboard is served at %s", self.url)
            try:
                if not self._stopping.is_set():
                    await self._serve()
            finally:
                await actions.jobs.close()
                await watcher.close()
                await metal.close()
                await self._options.auth.close()

    def _show_address(self, token: str) -> None:
        self._show(
            f"to order by the dashboard, open this address in one browser: {self.url}/open?token={token}"
        )

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._app is not None, "the server runs only when there is an application"
        await self._app(scope, receive, send)

    async def _serve(self) -> None:
        """Serve and watch until told to stop. If one of them ends by itself, that is a bug, and ends the others."""
        serving = asyncio.create_task(self._server.run())
        tasks = [*(asyncio.create_task(part.run()) for part in self.parts), serving]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await self._server.stop()
        for part in self.parts:
            await part.stop()
        for task in tasks:
            await task

    async def stop(self) -> None:
        self._stopping.set()
        for each in self.parts:
            await each.stop()
        await self._server.stop()


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
    """Check the flags. Raise typer.BadParameter, which names the wrong flag."""
    if flags.auth is Auth.NOAUTH2:
        raise typer.BadParameter(
            "auth is noauth2, which the dashboard does not have: use none, basic or keystone"
        )
    with wrong_value():
        listen = read_listen(flags.dashboard_listen)
        check_guarded(flags, listen, "moor run dashboard")
        return DashboardOptions(
            listen=listen,
            auth=authentication_of(flags),
            names=tuple(name for part in flags.dashboard_names.split(",") if (name := part.strip())),
            tls=served_tls(flags),
            proxies=proxies_of(flags),
        )
