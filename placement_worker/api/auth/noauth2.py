"""`noauth2`: believes the user that the token names. For tests only; upstream's test suite uses it.

The token is `user` or `user:project`. Roles come from X-Roles; without it, the user admin is an administrator and all
others have no roles.
"""

from http import HTTPStatus

from placement_worker.api.values.problems import ApiError
from placement_worker.api.values.request import Caller
from placement_worker.api.values.request_parts import Headers


class BelievedToken:
    async def caller(self, headers: Headers, address: str = "") -> Caller:
        del address
        token = headers.get("x-auth-token")
        if token is None:
            raise ApiError(
                HTTPStatus.UNAUTHORIZED,
                "The header X-Auth-Token is missing",
                headers={"www-authenticate": "Token"},
            )
        user, _, project = token.partition(":")
        scope = headers.get("openstack-system-scope", "")
        said = headers.get("x-roles")
        roles = said.split(",") if said is not None else ["admin"] if user == "admin" else []
        return Caller(
            user=user,
            project=headers.get("x-project-id", "" if scope else project or user),
            roles=frozenset(role.strip().lower() for role in roles),
            system_scope=scope,
        )

    async def close(self) -> None:
        pass
