"""How a client signs in to a service of OpenStack's: by basic authentication or Keystone's tokens, and with which certificates.

Errors name the settings that are to blame.
"""

import re
import ssl
from collections.abc import Generator, Mapping
from functools import cache
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import httpx
import msgspec
from msgspec import Struct

from kit.errors import UNREADABLE, WrongAnswer
from kit.keystone import OPENSTACK, OpenStackSettings, Token
from kit.settings import BadSetting
from kit.tls import BadCertificate, client_tls
from kit.urls import read_secret

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
        except UNREADABLE:
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


# The address of a service that stands in Keystone's catalogue.
CATALOGUE: Final = "keystone"


class RestService(Struct, frozen=True, kw_only=True):
    """Which program's REST API it is.

    `url_key` is the setting of its address. `types` are its types in Keystone's catalogue, the present one first. `version` is a pattern
    of the end of an address that names the API's version.
    """

    name: str
    url_key: str
    types: tuple[str, ...]
    version: str

    @property
    def url_variable(self) -> str:
        return f"MOOR_{self.url_key.replace('.', '_')}".upper()

    def settings_that_sign_in(self, url: str, settings: OpenStackSettings) -> str:
        """The variables that name the user, for error messages."""
        fields = ["password_file" if settings.password_file else "password"]
        if has_user(url) or not (settings.user or settings.application_credential_id):
            return f"the user and password in {self.url_variable}, or {OPENSTACK.variable('user')},"
        if settings.application_credential_id:
            fields = ["application_credential_id", *fields]
        elif settings.keystone_url:
            fields = ["user", *fields, "user_domain", "project", "project_domain"]
        else:
            fields = ["user", *fields]
        return ", ".join(OPENSTACK.variable(field) for field in fields)

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

    def endpoint_of(self, token: Token, settings: OpenStackSettings) -> str:
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
            f"{OPENSTACK.variable('interface')} and {OPENSTACK.variable('region')}"
        )


# The system's authorities take 30 ms to read. Clients of HTTP share them; others name other protocols in a context.
_tls_of_the_system = cache(client_tls)


def tls_of(settings: OpenStackSettings) -> ssl.SSLContext:
    """The certificates for the services and Keystone. Raises BadSetting if a file of them cannot be used."""
    files = (settings.ca_file, settings.cert_file, settings.key_file)
    try:
        return client_tls(*files) if any(files) else _tls_of_the_system()
    except BadCertificate as wrong:
        key, variable = f"{OPENSTACK.name}.{wrong.argument}", OPENSTACK.variable(wrong.argument)
        raise BadSetting(key, wrong.file, variable, wrong.why) from None


def has_user(url: str) -> bool:
    return urlsplit(url).username is not None


class BasicOfFile(httpx.Auth):
    """HTTP's basic authentication by the password that is in a file now. Raises BadSecretFile with each request, if there is none."""

    def __init__(self, user: str, file: str) -> None:
        self._user = user
        self._file = file

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        yield from httpx.BasicAuth(self._user, read_secret(self._file)).auth_flow(request)


def basic_of(url: str, settings: OpenStackSettings) -> httpx.Auth | None:
    """HTTP's basic authentication, if it is used: by the user in the URL, or else in the settings."""
    if has_user(url):
        parts = urlsplit(url)
        return httpx.BasicAuth(unquote(parts.username or ""), unquote(parts.password or ""))
    if settings.keystone_url or not settings.user:
        return None
    if settings.password_file:
        return BasicOfFile(settings.user, settings.password_file)
    return httpx.BasicAuth(settings.user, settings.password)
