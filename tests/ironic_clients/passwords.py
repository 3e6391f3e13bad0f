"""A simulated Ironic that asks for a user's name and password, by HTTP basic authentication."""

import json
from base64 import b64encode

import httpx

from laboratory.ironic import IronicTransport, SimulatedIronic


class PasswordTransport(IronicTransport):
    """Answers 401 to requests without these credentials, in the format of Ironic's layer for authentication."""

    def __init__(self, ironic: SimulatedIronic, user: str, password: str) -> None:
        super().__init__(ironic)
        self._expected = f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        given = request.headers.get("authorization")
        if given == self._expected:
            return await super().handle_async_request(request)
        text = "Authorization required" if given is None else "Incorrect username or password"
        return httpx.Response(
            401,
            headers={"WWW-Authenticate": 'Basic realm="Baremetal API"'},
            content=json.dumps({"error": {"message": text, "code": 401}}),
            request=request,
        )
