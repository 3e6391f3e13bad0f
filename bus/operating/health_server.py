"""A worker's health, readiness and metrics over HTTP, for supervisors and monitoring.

    /healthz    200 while the event loop runs and no part has ended; 503 otherwise. The body names the failing parts.
    /readyz     200 when the worker is connected, consumes and has what it needs; else 503, and what it waits for.
    /metrics    counters for Prometheus, read from the parts on each request.

It decides nothing. The server's libraries are loaded only where an address is given.
"""

import logging
import socket
from typing import TYPE_CHECKING, Any

from bus.operating.health import Health

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette

VARIABLE = "MOOR_HEALTH_LISTEN"
LOOPBACK = "127.0.0.1"
PORT_MAX = 65_535


class BadAddressError(ValueError):
    """The worker cannot listen on this address."""


class HealthServer:
    """Serves a worker's health and metrics over HTTP. The constructor binds the address; may raise BadAddressError."""

    def __init__(self, address: str, health: Health) -> None:
        self._socket = _bound(*read_address(address))
        host, port = self._socket.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._server = _server(_app(health))

    async def run(self) -> None:
        await self._server.serve(sockets=[self._socket])

    async def stop(self) -> None:
        self._server.should_exit = True


def read_address(text: str) -> tuple[str, int]:
    """Parse host and port. `9100` and `:9100` listen on loopback; `0.0.0.0:9100` and `[::]:9100` everywhere."""
    host, _, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or LOOPBACK
    if not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
        raise BadAddressError(
            f"{VARIABLE} (--health-listen) is {text!r}: write port or host:port, as 9100, 0.0.0.0:9100 or [::]:9100"
        )
    return host, int(port)


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.create_server(address, family=family)
    except OSError as problem:
        raise BadAddressError(
            f"{VARIABLE} (--health-listen) is {host}:{port}: {problem.strerror or problem}"
        ) from None
    bound.setblocking(False)
    return bound


def _server(app: "Starlette") -> "uvicorn.Server":
    import uvicorn  # noqa: PLC0415 - only where an address is given

    from bus.operating.part_server import PartServer  # noqa: PLC0415

    config = uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        # Monitoring asks every few seconds: its requests are not worth a log line.
        log_level=logging.WARNING,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=1,
    )
    config.load()
    return PartServer(config)


def _app(health: Health) -> "Starlette":
    from starlette.applications import Starlette  # noqa: PLC0415 - only where an address is given
    from starlette.responses import JSONResponse, Response  # noqa: PLC0415
    from starlette.routing import Route  # noqa: PLC0415

    from bus.operating.metrics import CONTENT_TYPE, Metrics  # noqa: PLC0415

    metrics = Metrics(health)

    async def healthz(_: Any) -> JSONResponse:
        told = {"status": "ok" if health.is_well else "a part has ended", "role": health.about.role}
        return JSONResponse(told | {"failing": health.failing()}, 200 if health.is_well else 503)

    async def readyz(_: Any) -> JSONResponse:
        awaited = health.awaits()
        told = {"status": "not ready" if awaited else "ready", "role": health.about.role}
        return JSONResponse(told | {"awaits": dict(awaited)}, 503 if awaited else 200)

    async def page(_: Any) -> Response:
        return Response(metrics.page(), media_type=CONTENT_TYPE)

    return Starlette(routes=[Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", page)])
