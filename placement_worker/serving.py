"""Placement over HTTP, put together: one part of a process, alone in `moor run placement-api`, beside others in `moor up`.

Any number of them serve one database, and need nothing else: each reads what others wrote before it answers, and what they
write is told to the bus by the placement workers, out of the change log.
"""

import ssl
from collections.abc import Callable
from datetime import datetime

from msgspec import Struct

from placement_worker.api.app import PlacementApp
from placement_worker.api.auth import Authentication
from placement_worker.api.connections import Connections
from placement_worker.api.policy import Policy
from placement_worker.api.routes import routes_of
from placement_worker.api.server import HttpServer, Listen
from placement_worker.api.settings import ApiSettings
from placement_worker.desk import Desk
from placement_worker.store import PlacementStore
from placement_worker.view import View
from placement_worker.wiring import STANDARD, now


class Serving(Struct, frozen=True):
    """What an operator decides of the service."""

    listen: Listen
    auth: Authentication
    policy: Policy
    settings: ApiSettings = ApiSettings()
    tls: ssl.SSLContext | None = None


class PlacementService:
    """Its address is taken when it is made: raises BadListenError if it cannot be."""

    def __init__(self, store: PlacementStore, serving: Serving, clock: Callable[[], datetime] = now) -> None:
        self._desk = Desk(store, STANDARD, clock)
        self._view = View(store)
        self._auth = serving.auth
        routes = routes_of(self._desk, self._view, store, STANDARD, serving.settings.search_limits)
        connections = Connections(serving.settings)
        app = PlacementApp(routes, serving.auth, serving.policy, serving.settings, connections)
        self._server = HttpServer(app, serving.listen, serving.settings, serving.tls, connections=connections)

    @property
    def url(self) -> str:
        return self._server.url

    async def run(self) -> None:
        try:
            await self._server.run()
        finally:
            await self._desk.close()
            await self._view.close()
            await self._auth.close()

    async def stop(self) -> None:
        await self._server.stop()
