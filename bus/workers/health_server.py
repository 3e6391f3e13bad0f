"""A worker's health, readiness and metrics over HTTP, for supervisors and monitoring.

    /healthz    200 while the event loop runs and no part has ended; 503 otherwise. The body names the failing parts.
    /readyz     200 when the worker is connected, consumes and has what it needs; else 503, and what it waits for.
    /metrics    counters for Prometheus, read from the parts on each request.

It decides nothing. The server's libraries are loaded only where an address is given.
"""

from typing import TYPE_CHECKING, Any

from kit.health import Health, Listen, read_address

if TYPE_CHECKING:
    from starlette.applications import Starlette

VARIABLE = "MOOR_HEALTH_LISTEN"
SETTING = f"{VARIABLE} (--health-listen)"
LOOPBACK = "127.0.0.1"


class HealthServer:
    """Serves a worker's health and metrics over HTTP. The constructor binds the address; may raise BadAddressError."""

    def __init__(self, address: str, health: Health) -> None:
        listen = read_health_address(address)
        from kit.http_server import HttpServer  # noqa: PLC0415 - only where an address is given

        self._server = HttpServer(_app(health), listen, SETTING, drain_s_max=1)
        self.url = self._server.url

    async def run(self) -> None:
        await self._server.run()

    async def stop(self) -> None:
        await self._server.stop()


def read_health_address(text: str) -> Listen:
    """Parse host and port. `9100` and `:9100` listen on loopback; `0.0.0.0:9100` and `[::]:9100` everywhere."""
    examples = "port or host:port, as 9100, 0.0.0.0:9100 or [::]:9100"
    return read_address(text, SETTING, examples, default_host=LOOPBACK)


def _app(health: Health) -> "Starlette":
    from starlette.applications import Starlette  # noqa: PLC0415 - only where an address is given
    from starlette.responses import JSONResponse, Response  # noqa: PLC0415
    from starlette.routing import Route  # noqa: PLC0415

    from bus.workers.metrics_page import CONTENT_TYPE, Metrics  # noqa: PLC0415

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
