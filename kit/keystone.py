"""A token of Keystone (v3) for one account: by a user's password, or by an application credential.

The token is kept, and a new one is asked for shortly before it ends, or after a service has refused it. How long a token lasts
is the difference of two times of Keystone's, so the clocks of the two machines need not agree. Many callers that need a
token at once cause a single question. An account that Keystone refuses is not tried again for a while, since Keystone may lock
an account after several failures.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final, Literal

import httpx
import msgspec
from msgspec import Struct

from kit.errors import BadSecretFile, Operational, Unavailable, WrongAnswer, read_secret
from kit.tls import tls_failure

# A token is replaced when it lasts no longer than this, or only half of its time.
RENEW_BEFORE_S: Final = 120.0
# For how long a refusal is told again without asking.
REFUSED_S: Final = 10.0
TIMEOUT_S: Final = 10.0


class KeystoneRefused(Operational):
    """Keystone does not accept this account."""


class KeystoneAccount(Struct, frozen=True, kw_only=True):
    """The address of Keystone, and an account there: a user with a password, or an application credential."""

    # "https://cloud.example.com/identity", with or without /v3.
    url: str
    user: str = ""
    password: str = ""
    user_domain: str = "Default"
    # A user asks for a token for a project, or for the whole system. An application credential is made for one project, so
    # these three fields are not sent for it.
    scope: Literal["project", "system"] = "project"
    project: str = "service"
    project_domain: str = "Default"
    application_credential_id: str = ""
    application_credential_secret: str = ""
    # The file of the password, or of the secret, in place of it. It is read for each token.
    secret_file: str = ""
    # The certificate that the client shows to Keystone, for messages.
    cert_file: str = ""

    @property
    def secret(self) -> str:
        """The password, or the secret of the application credential. Raises BadSecretFile."""
        if self.secret_file:
            return read_secret(self.secret_file)
        return self.application_credential_secret if self.application_credential_id else self.password

    @property
    def name(self) -> str:
        """The account as it is named in messages."""
        if self.application_credential_id:
            return f"application credential {self.application_credential_id!r}"
        of = "the system" if self.scope == "system" else f"project {self.project!r}"
        return f"user {self.user!r} of {of}"

    @property
    def base(self) -> str:
        return self.url.rstrip("/").removesuffix("/v3")


class Endpoint(Struct, frozen=True):
    """The address of a service in Keystone's catalogue."""

    service: str
    interface: str
    region: str
    url: str


class Token(Struct, frozen=True):
    text: str
    endpoints: tuple[Endpoint, ...]
    # By the clock of this process.
    renewed_at_s: float


class KeystoneTokens:
    """Keeps a token for one account. `client` belongs to the caller, who closes it."""

    def __init__(
        self,
        account: KeystoneAccount,
        client: httpx.AsyncClient,
        *,
        with_catalogue: bool = False,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._account = account
        self._client = client
        # Keystone sends its catalogue with each token, unless the request says no.
        self._query = "" if with_catalogue else "?nocatalog"
        self._clock_s = clock_s
        self._asking = asyncio.Lock()
        self._token: Token | None = None
        self._refusal, self._refused_until_s = "", 0.0

    async def current(self) -> Token:
        """The token, or a new one if it ends soon. Raises Unavailable, KeystoneRefused or WrongAnswer."""
        async with self._asking:
            now_s = self._clock_s()
            if self._token is None or now_s >= self._token.renewed_at_s:
                if now_s < self._refused_until_s:
                    raise KeystoneRefused(self._refusal)
                self._token = await self._new()
            return self._token

    def forget(self, token: Token) -> None:
        """A service has refused this token: ask for another, unless that has happened already."""
        if self._token is token:
            self._token = None

    async def _new(self) -> Token:
        url = f"{self._account.base}/v3/auth/tokens{self._query}"
        name = f"Keystone at {self._account.base}"
        try:
            asked = _asked_for(self._account)
        except BadSecretFile as problem:
            raise Unavailable(f"no login to {name} as {self._account.name}: {problem}") from None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answer = await self._client.post(url, json={"auth": asked})
        except (TimeoutError, httpx.HTTPError) as problem:
            raise Unavailable(f"{name} does not answer: {type(problem).__name__} {problem}") from problem
        except ssl.SSLError as problem:
            raise Unavailable(f"{name}: {tls_failure(problem, self._account.cert_file)}") from problem
        if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR or answer.status_code in (
            HTTPStatus.TOO_MANY_REQUESTS,
            HTTPStatus.REQUEST_TIMEOUT,
        ):
            raise Unavailable(f"{name} answers {answer.status_code}")
        if answer.status_code != HTTPStatus.CREATED:
            self._refusal = f"{name} answers {answer.status_code} to {self._account.name}"
            self._refused_until_s = self._clock_s() + REFUSED_S
            raise KeystoneRefused(self._refusal)
        try:
            return _read(answer, self._clock_s())
        except (KeyError, TypeError, ValueError, RecursionError, msgspec.MsgspecError) as problem:
            raise WrongAnswer(f"{name}: an answer that is not as it must be: {problem!r}") from None


class _Endpoint(Struct):
    interface: str
    url: str
    region_id: str | None = None


class _Service(Struct):
    type: str
    endpoints: Sequence[_Endpoint] = ()


class _Token(Struct):
    issued_at: datetime
    expires_at: datetime
    catalog: Sequence[_Service] = ()


class _Answer(Struct):
    token: _Token


def _asked_for(account: KeystoneAccount) -> Mapping[str, Any]:
    if account.application_credential_id:
        credential = {
            "id": account.application_credential_id,
            "secret": account.secret,
        }
        return {
            "identity": {"methods": ["application_credential"], "application_credential": credential},
        }
    user = {
        "name": account.user,
        "password": account.secret,
        "domain": {"name": account.user_domain},
    }
    scope = (
        {"system": {"all": True}}
        if account.scope == "system"
        else {"project": {"name": account.project, "domain": {"name": account.project_domain}}}
    )
    return {"identity": {"methods": ["password"], "password": {"user": user}}, "scope": scope}


def _read(answer: httpx.Response, now_s: float) -> Token:
    """Read Keystone's answer. Raises an error of msgspec or of a lookup if it has not the form it must have."""
    token = msgspec.json.decode(answer.content, type=_Answer).token
    lasts_s = (token.expires_at - token.issued_at).total_seconds()
    return Token(
        answer.headers["x-subject-token"],
        tuple(
            Endpoint(service.type, each.interface, each.region_id or "", each.url)
            for service in token.catalog
            for each in service.endpoints
        ),
        now_s + lasts_s - min(RENEW_BEFORE_S, lasts_s / 2),
    )
