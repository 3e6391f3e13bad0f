"""`none`: every client that reaches the service is an administrator. Tokens are ignored."""

from typing import Final

from placement_worker.api.values.request import Caller
from placement_worker.api.values.request_parts import Headers

# All roles that default rules require: an administrator may also do what is reserved for services.
ALL_ROLES: Final = frozenset(("admin", "service", "member", "reader"))
ADMIN: Final = Caller(user="admin", project="admin", roles=ALL_ROLES)


class NoAuthentication:
    async def caller(self, headers: Headers, address: str = "") -> Caller:
        del headers, address
        return ADMIN

    async def close(self) -> None:
        pass
