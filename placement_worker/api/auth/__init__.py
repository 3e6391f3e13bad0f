"""Who asks? One way of finding out is chosen when the service starts."""

from typing import Protocol

from placement_worker.api.headers import Headers
from placement_worker.api.request import Caller


class Authentication(Protocol):
    async def caller(self, headers: Headers) -> Caller:
        """Who sent these headers. Raises ApiError 401 where they do not tell, and Unavailable where it cannot be found
        out for now.
        """
        ...

    async def close(self) -> None: ...
