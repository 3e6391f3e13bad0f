"""How a client logs in to a REST API: by basic authentication or Keystone's tokens, and with which certificates.

Errors name the settings that are to blame.
"""

import re
import ssl
from collections.abc import Generator, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import httpx
import msgspec
from msgspec import Struct

from kit.errors import NOT_AS_EXPECTED, WrongAnswer, read_secret
from kit.keystone import KeystoneAccount, KeystoneTokens, Token
from kit.rest_settings import RestSettings
from kit.settings import BadSetting, Section
from kit.tls import BadCertificate, client_tls

# An answer of a REST API, and the error in it.


MESSAGE_MAX = 1_000
ERRORS = 400
NOT_FOUND = 404


class RestAnswer(Struct, frozen=True):
    status: int
    body: bytes
    headers: httpx.Headers

    @property
    def message(self) -> str:
        """The text of the error in the answer. If the answer has none in a form of OpenStack's, the beginning of its body."""
        try:
            text = _message_in(msgspec.json.decode(self.body))
        except NOT_AS_EXPECTED:
            text = self.body[:MESSAGE_MAX].decode(errors="replace")
        # It becomes a reason of instances, and no database text may have a NUL in it.
        return text[:MESSAGE_MAX].replace("\0", "\N{REPLACEMENT CHARACTER}")


def _message_in(body: object) -> str:
    """Ironic's `error_message` is an object, or a text with that object in it. Nova's error has the name of its kind."""
    if not isinstance(body, dict):
        raise TypeError(body)
    if "error_message" in body:
        error = body["error_message"]
        fault = msgspec.json.decode(error) if isinstance(error, str) else error
        return str(fault["faultstring"])
    [fault] = body.values()
    if not isinstance(fault, Mapping):
        raise TypeError(fault)
    return str(fault["message"])


def marker_of(link: str) -> str:
    """The id after which the next page begins, from the link to that page; empty if the link names none."""
    try:
        return dict(parse_qsl(urlsplit(link).query)).get("marker", "")
    except ValueError:
        return ""


# The settings that may be in files, each named by the setting with `_file` at the end.
_SECRETS = ("password", "application_credential_secret")


class RestService(Struct, frozen=True, kw_only=True):
    """Which program's REST API it is, and where its settings stand.

    `section` has its `RestSettings`, and `url_key` is the setting of its address. `types` are its types in Keystone's catalogue, the
    present one first. `version` is a pattern of the end of an address that names the API's version.
    """

    name: str
    section: Section[Any]
    url_key: str
    types: tuple[str, ...]
    version: str

    @property
    def url_variable(self) -> str:
        return f"MOOR_{self.url_key.replace('.', '_')}".upper()

    def settings_that_log_in(self, settings: RestSettings) -> str:
        """The variables that name the user, for error messages."""
        if settings.auth == "none":
            return f"{self.section.variable('auth')}, or the user and password in {self.url_variable},"
        if settings.application_credential_id:
            fields = ["application_credential_id", _stated(settings, "application_credential_secret")]
        elif settings.auth == "basic":
            fields = ["user", _stated(settings, "password")]
        else:
            fields = ["user", _stated(settings, "password"), "user_domain", "project", "project_domain"]
        return ", ".join(self.section.variable(field) for field in fields)

    def check_login(self, url: str, settings: RestSettings) -> None:
        """Raise BadSetting, which names the settings, if the client could not log in to the service at this URL like this."""
        auth = settings.auth
        needed: list[str] = []
        if auth == "basic":
            needed = ["user", "password"]
        elif auth == "keystone" and settings.application_credential_id:
            needed = ["keystone_url", "application_credential_secret"]
        elif auth == "keystone":
            needed = ["keystone_url", "user", "password"]
        for secret in _SECRETS:
            if getattr(settings, secret) and (file := getattr(settings, f"{secret}_file")):
                raise self._bad(f"{secret}_file", file, f"{secret} is set too: leave one of them out")
        missing = [
            self._alternatives(name) for name in needed if not getattr(settings, _stated(settings, name))
        ]
        if missing:
            raise self._bad("auth", auth, f"this needs {', '.join(missing)}")
        if auth != "keystone" and settings.keystone_url:
            raise self._bad("keystone_url", settings.keystone_url, f"auth is {auth}, and must be keystone")
        if settings.application_credential_id and settings.user:
            raise self._bad(
                "user", settings.user, "application_credential_id is set too: one of them logs in"
            )
        if auth == "keystone" and urlsplit(url).username is not None:
            why = f"it names a user, but {self.section.name}.auth is keystone: leave one out"
            raise BadSetting(self.url_key, url, self.url_variable, why)

    def without_user(self, url: str) -> str:
        """The URL without its credentials and its version, so that it may be shown, and paths be added."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"the address of {self.name} must be http://host:port or https://host, not {parts.scheme!r}"
            )
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        place = host if parts.port is None else f"{host}:{parts.port}"
        path = re.sub(rf"{self.version}\Z", "", parts.path.rstrip("/"))
        return urlunsplit((parts.scheme, place, path, "", ""))

    def tls_of(self, settings: RestSettings) -> ssl.SSLContext:
        """The certificates for the service and Keystone. Raises BadSetting if a file of them cannot be used."""
        try:
            return client_tls(settings.ca_file, settings.cert_file, settings.key_file)
        except BadCertificate as wrong:
            raise self._bad(wrong.argument, wrong.file, wrong.why) from None

    def endpoint_of(self, token: Token, settings: RestSettings) -> str:
        """The service's URL in Keystone's catalogue. Raises WrongAnswer if it is not there."""
        own = [each for each in token.endpoints if each.service in self.types]
        for each in own:
            if each.interface == settings.interface and settings.region in ("", each.region):
                try:
                    return self.without_user(each.url)
                except ValueError as problem:
                    raise WrongAnswer(f"Keystone's catalogue says {each.url!r}: {problem}") from None
        has = ", ".join(f"{each.interface} in {each.region or '(no region)'}" for each in own) or "none"
        raise WrongAnswer(
            f"Keystone's catalogue has no address of a service of type {self.types[0]} with interface {settings.interface}"
            f"{f' in region {settings.region}' if settings.region else ''} (it has: {has}): set {self.url_variable}, or correct "
            f"{self.section.variable('interface')} and {self.section.variable('region')}"
        )

    def _alternatives(self, field: str) -> str:
        variable = self.section.variable(field)
        return f"{variable} or {variable}_FILE" if field in _SECRETS else variable

    def _bad(self, field: str, value: str, why: str) -> BadSetting:
        return BadSetting(f"{self.section.name}.{field}", value, self.section.variable(field), why)


class BasicOfFile(httpx.Auth):
    """HTTP's basic authentication by the password that is in a file now. Raises BadSecretFile with each request, if there is none."""

    def __init__(self, user: str, file: str) -> None:
        self._user = user
        self._file = file

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        yield from httpx.BasicAuth(self._user, read_secret(self._file)).auth_flow(request)


def basic_of(url: str, settings: RestSettings) -> httpx.Auth | None:
    """The user and password of HTTP's basic authentication, from the settings or else from the URL."""
    if settings.auth == "basic" and settings.password_file:
        return BasicOfFile(settings.user, settings.password_file)
    if settings.auth == "basic":
        return httpx.BasicAuth(settings.user, settings.password)
    parts = urlsplit(url)
    if parts.username is None:
        return None
    return httpx.BasicAuth(unquote(parts.username), unquote(parts.password or ""))


def tokens_of(settings: RestSettings, client: httpx.AsyncClient, *, with_catalogue: bool) -> KeystoneTokens:
    account = KeystoneAccount(
        url=settings.keystone_url,
        user=settings.user,
        password=settings.password,
        user_domain=settings.user_domain,
        scope=settings.scope,
        project=settings.project,
        project_domain=settings.project_domain,
        application_credential_id=settings.application_credential_id,
        application_credential_secret=settings.application_credential_secret,
        secret_file=settings.application_credential_secret_file
        if settings.application_credential_id
        else settings.password_file,
        cert_file=settings.cert_file,
    )
    return KeystoneTokens(account, client, with_catalogue=with_catalogue)


def _stated(settings: RestSettings, secret: str) -> str:
    """The setting that has this secret: itself, or the one that names its file."""
    return f"{secret}_file" if getattr(settings, f"{secret}_file", "") else secret
