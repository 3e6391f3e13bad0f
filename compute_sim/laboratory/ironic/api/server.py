"""The REST API on a loopback port, as a part of a process."""

import asyncio

from bus.operating.http_server import HttpServer
from bus.operating.listen_address import Listen
from bus.parts import Supervised
from compute_sim.laboratory.ironic.api.app import ironic_app
from compute_sim.laboratory.ironic.simulated import SimulatedIronic

_DRAIN_S = 2
_LOOKS_EVERY_S = 0.05


class IronicServer(Supervised):
    """Serves the REST API; it listens as soon as it is created. While Ironic takes no connections the port is closed; later it is opened again."""

    def __init__(self, ironic: SimulatedIronic, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__("API of the simulated Ironic", self._listen, is_cut_short=False)
        self._ironic = ironic
        self._app = ironic_app(ironic)
        self._server = self._at(Listen(host, port))
        self.url = self._server.url

    def _at(self, listen: Listen) -> HttpServer:
        return HttpServer(self._app, listen, "ironic-listen", drain_s_max=_DRAIN_S)

    async def _listen(self) -> None:
        await self._serve(self._server)
        while not self.stopping.is_set():
            if self._ironic.refuses_connections:
                await asyncio.sleep(_LOOKS_EVERY_S)
            else:
                await self._serve(self._at(self._server.listen))

    async def _serve(self, server: HttpServer) -> None:
        """Serve until it is stopped, or Ironic takes no connections any more. Then the port is closed."""
        serving = asyncio.create_task(server.run())
        try:
            while not serving.done() and not self.stopping.is_set() and not self._ironic.refuses_connections:
                await asyncio.wait((serving,), timeout=_LOOKS_EVERY_S)
        finally:
            await server.stop()
            await serving
