"""An ASGI application at one address, as one part of a process: it runs until it is told to stop.

When it stops, it accepts no new connections, answers the requests in progress, and tells clients that it closes. Only processes
that serve HTTP load this, since it loads uvicorn.

Slow clients, half-open connections and long heads are for the proxy in front of it: uvicorn has no settings for them.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import uvicorn
from msgspec import structs
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kit.health import Listen
from kit.process import told_of_hangups
from kit.tls import ServerTls

# A proxy on this machine is trusted to name the client's address and scheme.
_PROXIES_HERE: Final = ("127.0.0.1", "::1")
# Nova's services fork after their first use of a connection, and parent and children then read each other's answers from it: with
# 75 seconds 2 answers of 1,400 were lost, with 5, as Apache has it before OpenStack's Placement, none.
_IDLE_S_MAX: Final = 5
# Beyond these a request is answered with a 503. A process has 1,024 files, as a rule.
_CONNECTIONS_MAX: Final = 800


class HttpServer:
    """Serves this application. The constructor binds the address, so that an address in use is reported before anything
    else starts; may raise BadAddressError, which calls the address `what`.
    """

    def __init__(
        self,
        app: Any,
        listen: Listen,
        what: str = "listen",
        tls: ServerTls | None = None,
        *,
        drain_s_max: int = 8,
        proxies: tuple[str, ...] = (),
    ) -> None:
        """`proxies` are trusted as those of this machine are. On a SIGHUP, the files of `tls` are read again."""
        self._tls = tls
        self._socket = listen.bound(what)
        self.listen = structs.replace(listen, port=self._socket.getsockname()[1])
        self.url = f"{'https' if tls else 'http'}://{self.listen}"
        config = uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            # What it says otherwise is of no use beside our own logs.
            log_level="warning",
            access_log=False,
            forwarded_allow_ips=[*_PROXIES_HERE, *proxies],
            server_header=False,
            limit_concurrency=_CONNECTIONS_MAX,
            timeout_keep_alive=_IDLE_S_MAX,
            timeout_graceful_shutdown=drain_s_max,
            ssl_context_factory=None if tls is None else lambda *_: tls,
        )
        config.load()
        self._server = _Server(config)

    async def run(self) -> None:
        with told_of_hangups(self._tls.read_again) if self._tls else nullcontext():
            await self._server.serve(sockets=[self._socket])

    async def stop(self) -> None:
        self._server.should_exit = True


class _Server(uvicorn.Server):
    """Leaves signals to the process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Protocol(HttpToolsProtocol):
    """Says why it refuses what is no HTTP request. The application never gets it, and Placement's clients expect the reason."""

    def send_400_response(self, msg: str) -> None:
        # uvicorn calls it while the parser's error is handled.
        why = str(sys.exception() or "")
        if "Content-Length" in why:
            why = "content-length header must be an integer"
        super().send_400_response(f"{msg} {why}")
