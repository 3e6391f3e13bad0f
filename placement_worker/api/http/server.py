"""The application on a listening socket, as one part of a process: it runs until it is told to stop.

When it stops, it accepts no new connections, answers the requests in progress, and tells clients that it closes.
"""

import logging
import ssl
from pathlib import Path

import uvicorn
from msgspec import Struct, structs
from starlette.types import ASGIApp

from bus.operating.listen_address import address_text, listening_socket, read_address
from bus.operating.part_server import PartServer
from bus.tls import BadCertificate, server_tls
from placement_worker.api.http.connections import Connections, is_of_this_machine
from placement_worker.api.http.freed_memory import keep_freed_memory
from placement_worker.api.http.protocol import protocol_for
from placement_worker.api.settings import ApiSettings

log = logging.getLogger(__name__)

BACKLOG = 2_048
# A proxy on this machine is trusted to name the client's address and scheme.
PROXIES_HERE = ("127.0.0.1", "::1")


class BadListenError(ValueError):
    """An address that cannot be bound, or a certificate that cannot be used."""


class Listen(Struct, frozen=True):
    host: str
    port: int
    # Other processes may listen at the same address: the kernel distributes connections among them.
    is_shared: bool = False

    @property
    def is_loopback(self) -> bool:
        """Is this a loopback address, which only this machine can reach?"""
        return self.host == "localhost" or is_of_this_machine(self.host)

    def __str__(self) -> str:
        return address_text(self.host, self.port)


def read_listen(text: str, *, is_shared: bool = False) -> Listen:
    """Parse the address to listen on: `127.0.0.1:8780`, `[::1]:8780`, `localhost:8780`; port 0 is any free port."""
    return Listen(*read_address(text, "listen", "host:port, as 127.0.0.1:8780 or [::]:8780"), is_shared)


def read_certificate(chain: Path, key: Path, clients_ca: Path | None = None) -> ssl.SSLContext:
    """A TLS context with this certificate. With `clients_ca`, clients must show certificates of an authority in that file."""
    try:
        return server_tls(str(chain), str(key), str(clients_ca or ""))
    except BadCertificate as wrong:
        what = f"the certificate {chain} with key {key}"
        if wrong.argument == "clients_ca_file":
            what = f"the file of the clients' authorities, {wrong.file},"
        raise BadListenError(f"{what} cannot be used: {wrong.why}") from None


class HttpServer:
    """Serves placement's HTTP API, an ASGI application, at one address.

    The constructor binds the address, so that an address in use is reported before anything else starts.
    """

    def __init__(
        self,
        app: ASGIApp,
        listen: Listen,
        settings: ApiSettings,
        tls: ssl.SSLContext | None = None,
        *,
        connections: Connections | None = None,
        drain_s_max: int = 8,
        proxies: tuple[str, ...] = (),
    ) -> None:
        try:
            self._socket = listening_socket(
                listen.host, listen.port, backlog=BACKLOG, is_shared=listen.is_shared
            )
        except OSError as problem:
            raise BadListenError(f"listen is {listen}: {problem.strerror}") from None
        self.listen = structs.replace(listen, port=self._socket.getsockname()[1])
        self.scheme = "http" if tls is None else "https"
        config = uvicorn.Config(
            app,
            http=protocol_for(settings, connections or Connections(settings)),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=True,
            forwarded_allow_ips=[*PROXIES_HERE, *proxies],
            server_header=False,
            # uvicorn passes it to call_later, which accepts fractions of seconds.
            timeout_keep_alive=settings.idle_s_max,  # type: ignore[arg-type]
            timeout_graceful_shutdown=drain_s_max,
            ssl_context_factory=None if tls is None else lambda *_: tls,
        )
        self._server = PartServer(config)

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.listen}"

    async def run(self) -> None:
        log.info("placement is served at %s", self.url)
        keep_freed_memory()
        await self._server.serve(sockets=[self._socket])

    async def stop(self) -> None:
        self._server.should_exit = True
