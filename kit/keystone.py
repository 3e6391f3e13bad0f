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
from typing import Annotated, Any, Final, Literal, NoReturn

import httpx
import msgspec
from msgspec import Meta, Struct

from kit.errors import UNREADABLE, Operational, Unavailable, WrongAnswer
from kit.settings import BadSetting, Section
from kit.tls import TlsClient
from kit.urls import BadSecretFile, read_secret

# A token is replaced when it lasts no longer than this, or only half of its time.
RENEW_BEFORE_S: Final = 120.0
# For how long a refusal is told again without asking.
REFUSED_S: Final = 10.0
TIMEOUT_S: Final = 10.0


class KeystoneRefused(Operational):
    """Keystone does not accept this account."""


class OpenStackSettings(Struct, frozen=True, kw_only=True):
    """The account with which this process signs in to OpenStack's services."""

    keystone_url: Annotated[
        str,
        Meta(
            description="Keystone's URL, with or without /v3: services are used with its tokens. Empty: by HTTP's basic "
            "authentication if user is set, otherwise without signing in."
        ),
    ] = ""
    user: Annotated[
        str,
        Meta(description="The user that signs in."),
    ] = ""
    password: Annotated[
        str,
        Meta(description="The password of that user, or the secret of the application credential."),
    ] = ""
    password_file: Annotated[
        str,
        Meta(
            description="A file with that password or secret alone, in place of it. It is read each time, so it can change without a stop."
        ),
    ] = ""
    user_domain: Annotated[
        str,
        Meta(description="With Keystone: the domain of the user."),
    ] = "Default"
    scope: Annotated[
        Literal["project", "system"],
        Meta(
            description="With Keystone: what the token is for, a project or the whole system. A project sees only what its role allows."
        ),
    ] = "project"
    project: Annotated[
        str,
        Meta(description="With Keystone: the project of the token."),
    ] = "service"
    project_domain: Annotated[
        str,
        Meta(description="With Keystone: the domain of the project."),
    ] = "Default"
    # It is made for one project, so no scope is sent with it.
    application_credential_id: Annotated[
        str,
        Meta(
            description="With Keystone: the id of an application credential, in place of user, scope and project."
        ),
    ] = ""
    interface: Annotated[
        Literal["public", "internal", "admin"],
        Meta(
            description="Which of the addresses in Keystone's catalogue is used, where the address of a service is `keystone`."
        ),
    ] = "public"
    region: Annotated[
        str,
        Meta(description="The region of that address. Empty: any."),
    ] = ""
    ca_file: Annotated[
        str,
        Meta(
            description="The PEM file of the certificates by which the services and Keystone are verified, if not the system's."
        ),
    ] = ""
    cert_file: Annotated[
        str,
        Meta(
            description="The PEM file of the certificate by which the services and Keystone know the client."
        ),
    ] = ""
    key_file: Annotated[
        str,
        Meta(description="The PEM file of that certificate's key. Empty if cert_file has it."),
    ] = ""

    @property
    def secret(self) -> str:
        """The password, or the secret of the application credential. Raises BadSecretFile."""
        return read_secret(self.password_file) if self.password_file else self.password

    @property
    def name(self) -> str:
        """The account as it is named in messages."""
        if self.application_credential_id:
            return f"application credential {self.application_credential_id!r}"
        of = "the system" if self.scope == "system" else f"project {self.project!r}"
        return f"user {self.user!r} of {of}"

    @property
    def tls(self) -> TlsClient:
        return TlsClient(self.cert_file, OPENSTACK.variable("cert_file"), OPENSTACK.variable("ca_file"))

    @property
    def base(self) -> str:
        """Keystone's URL without the version."""
        return self.keystone_url.rstrip("/").removesuffix("/v3")


OPENSTACK = Section(
    "openstack", OpenStackSettings, "what signs in to Keystone, Ironic, Nova and OpenStack's placement"
)


def check_account(account: OpenStackSettings) -> None:
    """Raise BadSetting, which names the settings, if nobody can sign in like this."""
    who = "application_credential_id" if account.application_credential_id else "user"
    is_named = bool(getattr(account, who))
    has_secret = bool(account.password or account.password_file)
    if account.password and account.password_file:
        _refuse(account, "password_file", "password is set too: leave one of them out")
    if account.user and account.application_credential_id:
        _refuse(account, "user", "application_credential_id is set too, and one of them signs in")
    if account.application_credential_id and not account.keystone_url:
        _refuse(account, who, f"this needs {OPENSTACK.variable('keystone_url')}")
    if is_named and not has_secret:
        password = OPENSTACK.variable("password")
        _refuse(account, who, f"this needs {password} or {password}_FILE")
    for field in ("keystone_url", "password", "password_file"):
        if getattr(account, field) and not is_named:
            _refuse(account, field, f"this needs {OPENSTACK.variable('user')}")


def _refuse(account: OpenStackSettings, field: str, why: str) -> NoReturn:
    key = f"{OPENSTACK.name}.{field}"
    raise BadSetting(key, getattr(account, field), OPENSTACK.variable(field), why)


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
        account: OpenStackSettings,
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
        except (TimeoutError, httpx.HTTPError, ssl.SSLError) as problem:
            why = self._account.tls.explained(problem) or f"it does not answer: {problem!r}"
            raise Unavailable(f"{name}: {why}") from problem
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
        except UNREADABLE as problem:
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


def _asked_for(account: OpenStackSettings) -> Mapping[str, Any]:
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
