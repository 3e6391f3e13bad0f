"""`keystone`: Keystone checks each token and names its user.

This service asks with a token of its own, which it gets by a service user's password, and gets anew when Keystone refuses
it. Keystone's answers are cached for a while, and never longer than the token is valid. So a revoked token may be accepted
for up to that while. Many requests with one unknown token cause a single question.
"""

import asyncio
import hashlib
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Final

import httpx
from msgspec import Struct

from bus.errors import Unavailable
from placement_worker.api.values.problems import ApiError
from placement_worker.api.values.request import Caller
from placement_worker.api.values.request_parts import Headers

REMEMBERED_S: Final = 300.0
REMEMBERED_MAX: Final = 10_000
TIMEOUT_S: Final = 10.0


class KeystoneAccount(Struct, frozen=True, kw_only=True):
    """The address of Keystone, and the service user by which this service asks it."""

    # "https://cloud.example.com/identity": the part before /v3.
    url: str
    user: str
    password: str
    project: str = "service"
    user_domain: str = "Default"
    project_domain: str = "Default"


class KeystoneAuthentication:
    def __init__(
        self,
        account: KeystoneAccount,
        client: httpx.AsyncClient,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._account = account
        self._client = client
        self._now = now
        self._known: OrderedDict[bytes, tuple[Caller, float]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Caller]] = {}
        self._own_token = ""

    async def caller(self, headers: Headers) -> Caller:
        token = headers.get("x-auth-token", "")
        if not token:
            raise self._refused("The header X-Auth-Token is missing")
        if not token.isascii():
            raise self._refused("X-Auth-Token has characters that are not ASCII; no token has any")
        # A dump of this process's memory must not contain tokens.
        digest = hashlib.sha256(token.encode("ascii")).digest()
        known = self._known.get(digest)
        if known is not None and self._now() < known[1]:
            return known[0]
        asking = self._asking.get(digest)
        if asking is None:
            asking = self._asking[digest] = asyncio.create_task(self._ask(token, digest))
            asking.add_done_callback(lambda _: self._asking.pop(digest))
        # Shielded: a caller that disconnects must not cancel the question for the others.
        return await asyncio.shield(asking)

    async def close(self) -> None:
        for task in tuple(self._asking.values()):
            task.cancel()
        await self._client.aclose()

    async def _ask(self, token: str, digest: bytes) -> Caller:
        answer = await self._validated(token)
        if answer.status_code == HTTPStatus.UNAUTHORIZED:
            # This service's own token has expired, or Keystone has forgotten it.
            self._own_token = ""
            answer = await self._validated(token)
        if answer.status_code == HTTPStatus.NOT_FOUND:
            raise self._refused("Keystone does not know the token, or the token has expired")
        if answer.status_code != HTTPStatus.OK:
            raise Unavailable(f"Keystone answered {answer.status_code} to a question about a token")
        caller, until = _read(answer)
        self._known[digest] = (caller, min(until, self._now() + REMEMBERED_S))
        if len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)
        return caller

    async def _validated(self, token: str) -> httpx.Response:
        return await self._sent(
            "GET",
            {"x-auth-token": self._own_token or await self._authenticated(), "x-subject-token": token},
        )

    async def _authenticated(self) -> str:
        """Ask Keystone for a new token with which this service identifies itself."""
        account = self._account
        identity = {
            "methods": ["password"],
            "password": {
                "user": {
                    "name": account.user,
                    "password": account.password,
                    "domain": {"name": account.user_domain},
                }
            },
        }
        scope = {"project": {"name": account.project, "domain": {"name": account.project_domain}}}
        answer = await self._sent("POST", json={"auth": {"identity": identity, "scope": scope}})
        if answer.status_code != HTTPStatus.CREATED:
            raise Unavailable(
                f"Keystone answered {answer.status_code} to user {account.user!r} of project {account.project!r}: "
                "check the service user, its password and its project"
            )
        self._own_token = answer.headers["x-subject-token"]
        return self._own_token

    async def _sent(
        self, method: str, headers: dict[str, str] | None = None, json: object = None
    ) -> httpx.Response:
        # The catalogue is long and not needed.
        url = f"{self._account.url.rstrip('/')}/v3/auth/tokens?nocatalog"
        try:
            return await self._client.request(method, url, headers=headers, json=json)
        except httpx.HTTPError as problem:
            raise Unavailable(
                f"Keystone at {self._account.url} does not answer: {type(problem).__name__} {problem}"
            ) from problem

    def _refused(self, detail: str) -> ApiError:
        return ApiError(
            HTTPStatus.UNAUTHORIZED,
            detail,
            headers={"www-authenticate": f"Keystone uri='{self._account.url}'"},
        )


def keystone_client(ca_file: Path | None = None) -> httpx.AsyncClient:
    """An HTTP client for Keystone, which checks Keystone's certificate by those in `ca_file`, or by the system's."""
    return httpx.AsyncClient(timeout=TIMEOUT_S, verify=ssl.create_default_context(cafile=ca_file))


def _read(answer: httpx.Response) -> tuple[Caller, float]:
    """Read Keystone's answer about a token: returns the caller, and the time until which the token is valid."""
    try:
        token = answer.json()["token"]
        expires = datetime.fromisoformat(token["expires_at"]).replace(tzinfo=UTC).timestamp()
        caller = Caller(
            user=token["user"]["id"],
            project=token.get("project", {}).get("id", ""),
            roles=frozenset(role["name"].lower() for role in token.get("roles", ())),
            system_scope="all" if token.get("system", {}).get("all") else "",
        )
    except (KeyError, TypeError, ValueError) as problem:
        raise Unavailable(
            f"Keystone's answer about a token is not in the expected form: {problem!r}"
        ) from None
    return caller, expires
