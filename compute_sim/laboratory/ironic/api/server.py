"""The REST API on a loopback port, as a part of a process."""

import asyncio

import uvicorn

from bus.operating.listen_address import address_text, listening_socket
from bus.operating.part_server import PartServer
from bus.parts import Supervised
from compute_sim.laboratory.ironic.api.app import ironic_app
from compute_sim.laboratory.ironic.simulated import SimulatedIronic

_BACKLOG = 256
_DRAIN_S = 2
_LOOKS_EVERY_S = 0.05


class IronicServer(Supervised):
    """Serves the REST API; it listens as soon as it is created. While Ironic takes no connections the port is closed; later it is opened again."""

    def __init__(self, ironic: SimulatedIronic, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__("API of the simulated Ironic", self._listen, is_cut_short=False)
        self._ironic = ironic
        self._app = ironic_app(ironic)
        self._socket = listening_socket(host, port, backlog=_BACKLOG)
        self._address: tuple[str, int] = (host, self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://{address_text(*self._address)}"

    async def _listen(self) -> None:
        try:
            while not self.stopping.is_set():
                if self._ironic.refuses_connections:
                    self._socket.close()
                    await asyncio.sleep(_LOOKS_EVERY_S)
                    continue
                if self._socket.fileno() < 0:
                    self._socket = listening_socket(*self._address, backlog=_BACKLOG)
                await self._serve()
        finally:
            self._socket.close()

    async def _serve(self) -> None:
        """Serve until it is stopped, or Ironic takes no connections any more."""
        config = uvicorn.Config(
            self._app,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_DRAIN_S,
        )
        server = PartServer(config)
        serving = asyncio.create_task(server.serve(sockets=[self._socket]))
        try:
            while not serving.done() and not self.stopping.is_set() and not self._ironic.refuses_connections:
                await asyncio.wait((serving,), timeout=_LOOKS_EVERY_S)
        finally:
            server.should_exit = True
            await serving
