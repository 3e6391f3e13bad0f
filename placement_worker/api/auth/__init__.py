"""Authentication finds the sender of a request. An operator chooses one of the four kinds when the service starts."""

from typing import Protocol

from placement_worker.api.values.request import Caller
from placement_worker.api.values.request_parts import Headers


class Authentication(Protocol):
    async def caller(self, headers: Headers, address: str = "") -> Caller:
        """Find out who sent a request with these headers, from this address.

        Raises ApiError 401 if the headers do not prove it, 429 if too many logins of the user or of the address are being checked,
        and Unavailable if it cannot be found out now.
        """
        ...

    async def close(self) -> None: ...
