"""An httpx transport to a simulated Ironic in this process."""

import httpx

from compute_sim.laboratory.ironic.api.app import ironic_app
from compute_sim.laboratory.ironic.simulated import SimulatedIronic


class IronicTransport(httpx.AsyncBaseTransport):
    """Sends httpx requests to the simulated Ironic without a network. Raises ConnectError while it takes no connections."""

    def __init__(self, ironic: SimulatedIronic) -> None:
        self._ironic = ironic
        self._inner = httpx.ASGITransport(ironic_app(ironic))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._ironic.refuses_connections:
            raise httpx.ConnectError("the simulated Ironic takes no connections", request=request)
        return await self._inner.handle_async_request(request)
