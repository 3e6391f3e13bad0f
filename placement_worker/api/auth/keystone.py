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

from bus.errors import Unavailable
from bus.keystone import TIMEOUT_S, KeystoneAccount, KeystoneRefused, KeystoneTokens
from bus.tls import client_tls
from placement_worker.api.auth.logins import LoginTurns
from placement_worker.api.values.problems import ApiError
from placement_worker.api.values.request import Caller
from placement_worker.api.values.request_parts import Headers

REMEMBERED_S: Final = 300.0
REMEMBERED_MAX: Final = 10_000


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
        self._tokens = KeystoneTokens(account, client)
        self._turns = LoginTurns()

    async def caller(self, headers: Headers, address: str = "") -> Caller:
        del address
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

    async def token_by_password(
        self, user: str, password: str, project: str, domain: str, address: str = ""
    ) -> str:
        """A token of this user for a project. A user or a project of another domain than the service user's is named with
        `domain`. Raises KeystoneRefused, Unavailable, or ApiError 429 if too many logins of the user or of the address wait.
        """
        account = KeystoneAccount(
            url=self._account.url,
            user=user,
            password=password,
            project=project,
            user_domain=domain or self._account.user_domain,
            project_domain=domain or self._account.project_domain,
        )
        async with self._turns.of(user, address):
            return (await KeystoneTokens(account, self._client).current()).text

    async def close(self) -> None:
        for task in tuple(self._asking.values()):
            task.cancel()
        await self._client.aclose()

    async def _ask(self, token: str, digest: bytes) -> Caller:
        answer = await self._validated(token)
        if answer.status_code == HTTPStatus.UNAUTHORIZED:
            # Keystone has forgotten this service's own token. `_validated` gets a new one.
            answer = await self._validated(token)
        if answer.status_code == HTTPStatus.NOT_FOUND:
            raise self._refused("Keystone does not know the token, or the token has expired")
        if answer.status_code == HTTPStatus.FORBIDDEN:
            raise Unavailable(
                f"Keystone answered 403 to a question about a token: {self._account.name} needs the role service or admin"
            )
        if answer.status_code != HTTPStatus.OK:
            raise Unavailable(f"Keystone answered {answer.status_code} to a question about a token")
        caller, until = _read(answer)
        self._known[digest] = (caller, min(until, self._now() + REMEMBERED_S))
        if len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)
        return caller

    async def _validated(self, token: str) -> httpx.Response:
        try:
            own = await self._tokens.current()
        except KeystoneRefused as refused:
            raise Unavailable(f"{refused}: check the service user, its password and its project") from None
        headers = {"x-auth-token": own.text, "x-subject-token": token}
        # The catalogue is long and not needed.
        url = f"{self._account.base}/v3/auth/tokens?nocatalog"
        try:
            answer = await self._client.get(url, headers=headers)
        except (httpx.HTTPError, ssl.SSLError) as problem:
            raise Unavailable(
                f"Keystone at {self._account.url} does not answer: {type(problem).__name__} {problem}"
            ) from problem
        if answer.status_code == HTTPStatus.UNAUTHORIZED:
            self._tokens.forget(own)
        return answer

    def _refused(self, detail: str) -> ApiError:
        return ApiError(
            HTTPStatus.UNAUTHORIZED,
            detail,
            headers={"www-authenticate": f"Keystone uri='{self._account.url}'"},
        )


def keystone_client(ca_file: Path | None = None) -> httpx.AsyncClient:
    """An HTTP client for Keystone, which checks Keystone's certificate by those in `ca_file`, or by the system's. Raises
    BadCertificate.
    """
    return httpx.AsyncClient(timeout=TIMEOUT_S, verify=client_tls(str(ca_file or "")))


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
