"""Placement over HTTP, as one part of a process: alone in `moor run placement-api`, with others in `moor up`.

Any number of these processes may serve one database, and they need nothing else. Each reads what others have written
before it answers a request. Its own writes are in the change log, which the placement workers publish.
"""

import logging

from msgspec import Struct

from engine.candidates.budget import SearchLimits
from kit.health import Listen
from kit.http_server import HttpServer
from kit.settings import require
from kit.times import now
from kit.tls import ServerTls
from placement_worker.admin_writes import WriteBatcher
from placement_worker.api.auth import Authentication
from placement_worker.api.http_app import PlacementApp
from placement_worker.api.policy import Policy
from placement_worker.api.routes import routes_of
from placement_worker.settings import PlacementSettings
from placement_worker.store import PlacementStore
from placement_worker.view import ProviderView
from placement_worker.wiring import STANDARD

log = logging.getLogger(__name__)

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
        steps_max, bytes_max = self.settings.search_steps_max, self.settings.search_bytes_max
        return SearchLimits(steps_max, bytes_max, bytes_max // 2)


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
