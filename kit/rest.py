"""A client of a REST API over HTTP, by httpx.

A request is tried again, a few times with growing pauses, if it surely had no effect: nobody was reached, or 429, 502, 503, 504. A
question (GET) is tried again as well if its answer was lost, but not after it took too long.

With Keystone, each request carries a token. A request that is refused with 401 is sent once more with a new token: the old one was
revoked.

The operational failures that are raised (kit/errors.py):

    Unavailable          nobody answers, or 502, 503, 504, or too many requests.
    TookTooLong          no answer within the limit.
    CredentialsRefused   401 or 403.
    VersionNotOffered    the API is older than what is needed.
    WrongAnswer          an answer that is no JSON, too large, or has not the form it must have.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import httpx
import msgspec
from msgspec import Struct

from kit.errors import (
    UNREADABLE,
    CredentialsRefused,
    TookTooLong,
    Transient,
    Unavailable,
    VersionNotOffered,
    WrongAnswer,
)
from kit.keystone import OPENSTACK, KeystoneRefused, KeystoneTokens, OpenStackSettings, Token, check_account
from kit.login import CATALOGUE, ERRORS, RestAnswer, RestService, basic_of, has_user, tls_of
from kit.parts import Pauses, Retrying
from kit.settings import BadSetting

T = TypeVar("T")

# At its default level, httpx logs each request.
logging.getLogger("httpx").setLevel(logging.WARNING)

_UNAUTHORIZED, _FORBIDDEN, _NOT_ACCEPTABLE = 401, 403, 406
_AWAY = frozenset({429, 502, 503, 504})
_REDIRECTS = 300
_SERVER_ERRORS = 500
_JSON = "application/json"
# Before anything was sent.
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class RequestNotDone(Transient):
    """The request failed and surely had no effect; `error` is what the caller gets if no further try succeeds."""

    def __init__(self, error: Transient) -> None:
        super().__init__(str(error))
        self.error = error


VERSION_HEADER = "OpenStack-API-Version"


class Microversion:
    """The version of an API that each request names. If the service does not take it, no other will do, unless a subclass says so."""

    def __init__(self, service: str, version: str) -> None:
        self.headers: Mapping[str, str] = {VERSION_HEADER: f"{service} {version}"}
        self._version = version

    def refused(self, answer: RestAnswer, name: str) -> str:
        """Returns why the request is sent again with another version; or raises VersionNotOffered."""
        raise VersionNotOffered(f"{name} does not take version {self._version}: {answer.message}")


class RestLimits(Struct, frozen=True, kw_only=True):
    """Limits of a client: the usual ones suit a busy service on a slow network, and tests shorten them."""

    connect_s_max: float = 5.0
    answer_s_max: float = 30.0
    # A page of nodes has a few megabytes.
    answer_bytes_max: int = 64 * 1024 * 1024
    connections_max: int = 10
    # How often a request is made before its error counts, and the pauses between.
    tries_max: int = 5
    pauses: Pauses = Pauses(first_s=0.2, max_s=5.0, least=0.0)


USUAL = RestLimits()


class _Request(Struct, frozen=True):
    method: str
    path: str
    query: Mapping[str, str]
    body: bytes
    # The headers that name the version.
    version: Mapping[str, str]


class RestClient:
    """A client of the service at this URL, with or without its version. If the URL is `keystone`, it is read from Keystone's catalogue.

    A user in the URL signs in by HTTP's basic authentication; otherwise the account does. `transport` is httpx's way to the servers, for
    tests. Raises BadSetting or ValueError if it cannot sign in like this.
    """

    def __init__(
        self,
        service: RestService,
        url: str,
        account: OpenStackSettings,
        version: Microversion,
        *,
        limits: RestLimits | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._service = service
        self._url = url
        self._account = account
        self._version = version
        self._limits = limits or USUAL
        check_account(account)
        self._has_catalogue = url == CATALOGUE
        if self._has_catalogue and not account.keystone_url:
            variable = OPENSTACK.variable("keystone_url")
            raise BadSetting(service.url_key, url, service.url_variable, f"this needs {variable}")
        # Empty until it was found in Keystone's catalogue.
        self._base = "" if self._has_catalogue else service.without_user(url)
        self._client = httpx.AsyncClient(
            auth=basic_of(url, account),
            transport=transport,
            verify=tls_of(account),
            timeout=httpx.Timeout(self._limits.answer_s_max, connect=self._limits.connect_s_max),
            limits=httpx.Limits(max_connections=self._limits.connections_max),
        )
        self._tokens = (
            KeystoneTokens(account, self._client, with_catalogue=self._has_catalogue)
            if account.keystone_url and not has_user(url)
            else None
        )

    @property
    def name(self) -> str:
        """The service, and where it is, for messages."""
        return f"{self._service.name} at {self._base}" if self._base else self._service.name

    async def close(self) -> None:
        await self._client.aclose()

    async def ask(
        self,
        path: str,
        query: Callable[[], Mapping[str, str]] = dict,
        headers: Mapping[str, str] | None = None,
    ) -> RestAnswer:
        """Send a GET request. It may be repeated after any failure, since it changes nothing. The query is made for each try: it may
        depend on the version. `headers` replace those of the version.
        """

        async def once() -> RestAnswer:
            return await self.send("GET", path, query(), headers=headers)

        return await self.again_while(Unavailable, once)

    async def again_while(
        self, kind: type[Transient], once: Callable[[], Awaitable[RestAnswer]]
    ) -> RestAnswer:
        """The answer of `once`, which is tried again a few times after an error of this kind, and after `RequestNotDone`."""
        retrying = Retrying(self._limits.tries_max, self._limits.pauses, (kind, RequestNotDone))
        try:
            return await retrying(once)
        except RequestNotDone as not_done:
            raise not_done.error from not_done

    def granted(self, answer: RestAnswer) -> RestAnswer:
        """The answer itself, if it is no error; otherwise raise WrongAnswer. For questions that are answered in whatever state a
        thing is.
        """
        if answer.status >= ERRORS:
            raise WrongAnswer(f"{self.name} answers {answer.status}: {answer.message}")
        return answer

    def read(self, answer: RestAnswer, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(answer.body, type=kind)
        except UNREADABLE as problem:
            raise WrongAnswer(f"{self.name}: an answer that is not as it must be: {problem}") from problem

    async def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
    ) -> RestAnswer:
        """Send one request. Raises if the service is away, or refuses user or version."""

        async def sent(token: Token | None) -> RestAnswer:
            request = _Request(method, path, query, body, headers or self._version.headers)
            return await self._sent(request, token)

        token = await self._token()
        answer = await sent(token)
        if answer.status == _UNAUTHORIZED and self._tokens is not None and token is not None:
            self._tokens.forget(token)
            answer = await sent(await self._token())
        if answer.status in (_UNAUTHORIZED, _FORBIDDEN):
            raise CredentialsRefused(
                f"{self.name} refuses {method} {path} with {answer.status}: {answer.message}; check "
                f"{self._service.settings_that_sign_in(self._url, self._account)} and the roles of this user"
            )
        if answer.status == _NOT_ACCEPTABLE:
            raise RequestNotDone(Unavailable(self._version.refused(answer, self.name)))
        if answer.status in _AWAY:
            raise RequestNotDone(Unavailable(f"{self.name} answers {answer.status}: {answer.message}"))
        if _REDIRECTS <= answer.status < ERRORS:
            raise WrongAnswer(
                f"{self.name} answers {answer.status}: it is at {answer.headers.get('Location', 'another address')}"
            )
        if answer.status >= _SERVER_ERRORS:
            raise Unavailable(f"{self.name} answers {answer.status} to {method} {path}: {answer.message}")
        return answer

    async def _token(self) -> Token | None:
        """A token of Keystone; None if the service is used without. Raises if Keystone is away or refuses."""
        if self._tokens is None:
            return None
        try:
            token = await self._tokens.current()
        except Unavailable as problem:
            raise RequestNotDone(problem) from problem
        except KeystoneRefused as problem:
            check = self._service.settings_that_sign_in(self._url, self._account)
            raise CredentialsRefused(f"{problem}; check {check}") from problem
        if self._has_catalogue:
            self._base = self._service.endpoint_of(token, self._account)
        return token

    async def _sent(self, request: _Request, token: Token | None) -> RestAnswer:
        method, path, body = request.method, request.path, request.body
        headers = {
            **({"X-Auth-Token": token.text} if token else {}),
            **request.version,
            "Accept": _JSON,
            **({"Content-Type": _JSON} if body else {}),
        }
        try:
            async with (
                asyncio.timeout(self._limits.answer_s_max),
                self._client.stream(
                    method, f"{self._base}{path}", params=request.query, headers=headers, content=body
                ) as response,
            ):
                return RestAnswer(response.status_code, await self._bounded(response), response.headers)
        except _NEVER_SENT as problem:
            why = self._account.tls.explained(problem) or f"it cannot be reached: {problem!r}"
            raise RequestNotDone(Unavailable(f"{self.name}: {why}")) from problem
        except (TimeoutError, httpx.TimeoutException) as problem:
            raise TookTooLong(
                f"{self.name} did not answer {method} {path} within {self._limits.answer_s_max:g} s"
            ) from problem
        except (httpx.HTTPError, ssl.SSLError) as problem:
            # Under TLS 1.3, a server refuses a certificate only after the handshake, and httpx lets the TLS library's error through.
            why = self._account.tls.explained(problem) or f"no answer to {method} {path}: {problem!r}"
            raise Unavailable(f"{self.name}: {why}") from problem

    async def _bounded(self, response: httpx.Response) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in response.aiter_bytes():
            size += len(part)
            if size > self._limits.answer_bytes_max:
                raise WrongAnswer(
                    f"{self.name}: an answer of more than {self._limits.answer_bytes_max} bytes to {response.url.path}"
                )
            parts.append(part)
        return b"".join(parts)
