"""Authentication finds the sender of a request. An operator chooses one of the four kinds when the service starts."""

import asyncio
import base64
import binascii
import hmac
import math
import re
import secrets
import ssl
import time
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

import bcrypt
import httpx
from msgspec import Struct

from kit.errors import Unavailable
from kit.keystone import KeystoneRefused, KeystoneTokens, OpenStackSettings
from placement_worker.api.values import ApiError, Caller, Headers


class Authentication(ABC):
    @abstractmethod
    async def caller(self, headers: Headers, address: str = "") -> Caller:
        """Find out who sent a request with these headers, from this address.

        Raises ApiError 401 if the headers do not prove it, 429 if too many logins of the user or of the address are being checked,
        and Unavailable if it cannot be found out now.
        """

    async def close(self) -> None:
        return


REMEMBERED_S: Final = 300.0
REMEMBERED_MAX: Final = 10_000
# A check of a credential: the caller, and until when its answer holds at most.
Check = Callable[[], Coroutine[Any, Any, tuple[Caller, float]]]


class RememberedChecks:
    """Checks each credential once for all requests that have it, and remembers for a while that it was right.

    Credentials are known by digests: a dump of this process's memory must not contain any.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[Caller, float]] = OrderedDict()
        self._under_way: dict[bytes, asyncio.Task[tuple[Caller, float]]] = {}

    async def caller(self, digest: bytes, check: Check) -> Caller:
        known = self._known.get(digest)
        if known is not None and self._clock() < known[1]:
            return known[0]
        checking = self._under_way.get(digest)
        if checking is None:
            checking = self._under_way[digest] = asyncio.create_task(check())
            checking.add_done_callback(partial(self._checked, digest))
        # Shielded: a caller that disconnects must not cancel the check for the others.
        return (await asyncio.shield(checking))[0]

    def _checked(self, digest: bytes, checking: asyncio.Task[tuple[Caller, float]]) -> None:
        del self._under_way[digest]
        if checking.cancelled() or checking.exception() is not None:
            return
        caller, until = checking.result()
        self._known[digest] = (caller, min(until, self._clock() + REMEMBERED_S))
        if len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)

    def close(self) -> None:
        for checking in tuple(self._under_way.values()):
            checking.cancel()


# How many passwords are checked at once: a flood of logins must not make a right one wait.
#
# A check costs much CPU, or a question to Keystone. The checks of one name run one after the other, and only few checks of one name or
# of one address may wait. So a login waits for few checks of others, and a client that sends many is told to try again later. The
# address is that of the client, as a trusted proxy says it. Addresses of this machine have no limit: a proxy may use them that
# does not name its clients.
#
# Nobody locks a user out by trying the user's name from elsewhere. Where the name has logged in before, others of its checks do not
# count; from any other place one check may wait, however many there are.


NAME_MAX: Final = 16
ADDRESS_MAX: Final = 8
RIGHT_MAX: Final = 10_000
_ANYWHERE: Final = "anywhere"


class LoginTurns:
    def __init__(self) -> None:
        # By what is limited, such as ("address", "203.0.113.7", "").
        self._under_way: Counter[tuple[str, str, str]] = Counter()
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        # The names and senders of logins that were right, the last at the end.
        self._right: OrderedDict[tuple[str, str], None] = OrderedDict()

    @asynccontextmanager
    async def of(self, name: str, address: str) -> AsyncIterator[None]:
        """The turn of a check. A login that is wrong ends it by an exception. Whether the name exists must not be seen from outside:
        ask for a turn of any. Raises ApiError 429.
        """
        sender = _sender(address)
        place = sender if (name, sender) in self._right else _ANYWHERE
        alone = "name and address", name, sender
        limits = {("user", name, place): NAME_MAX, alone: NAME_MAX}
        if sender:
            limits["address", sender, ""] = ADDRESS_MAX
        for each, limit in limits.items():
            is_first = each[0] == "user" and not self._under_way[alone]
            if self._under_way[each] >= limit and not is_first:
                raise _too_many(each[0], limit)
        self._under_way.update(limits.keys())
        turn = self._turns.setdefault((name, place), asyncio.Lock())
        try:
            async with turn:
                yield
            self._right[name, sender] = None
            self._right.move_to_end((name, sender))
            if len(self._right) > RIGHT_MAX:
                self._right.popitem(last=False)
        finally:
            for each in limits:
                self._under_way[each] -= 1
                if not self._under_way[each]:
                    del self._under_way[each]


def _sender(address: str) -> str:
    """What has the limit of an address: of IPv6 a whole network of 64 bits, which one client has. Empty for this machine."""
    host = address.removeprefix("[").partition("]")[0]
    # Some proxies add the port.
    host = host.partition(":")[0] if host.count(":") == 1 else host
    try:
        parsed = ip_address(host)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        parsed = parsed.ipv4_mapped or parsed
    if parsed.is_loopback:
        return ""
    return f"{int(parsed) >> 64:x}" if isinstance(parsed, IPv6Address) else str(parsed)


def _too_many(what: str, limit: int) -> ApiError:
    return ApiError(
        HTTPStatus.TOO_MANY_REQUESTS,
        f"{limit} logins of this {what} are being checked, which is the most at once: try again in a second",
        headers={"retry-after": "1"},
    )


# `keystone`: Keystone checks each token and names its user.
#
# This service asks with a token of its own, which it gets by a service user's password, and gets anew when Keystone refuses
# it. Keystone's answers are remembered for a while, and never longer than the token is valid. So a revoked token may be accepted
# for up to that while. Many requests with one unknown token cause a single question.


class KeystoneAuthentication(Authentication):
    def __init__(
        self,
        account: OpenStackSettings,
        client: httpx.AsyncClient,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._account = account
        self._client = client
        self._checks = RememberedChecks(now)
        self._tokens = KeystoneTokens(account, client)
        self._turns = LoginTurns()

    async def caller(self, headers: Headers, address: str = "") -> Caller:
        del address
        token = headers.get("x-auth-token", "")
        if not token:
            raise self._refused("The header X-Auth-Token is missing")
        if not token.isascii():
            raise self._refused("X-Auth-Token has characters that are not ASCII; no token has any")
        return await self._checks.caller(sha256(token.encode("ascii")).digest(), partial(self._ask, token))

    async def token_by_password(
        self, user: str, password: str, project: str, domain: str, address: str = ""
    ) -> str:
        """A token of this user for a project. A user or a project of another domain than the service user's is named with
        `domain`. Raises KeystoneRefused, Unavailable, or ApiError 429 if too many logins of the user or of the address wait.
        """
        account = OpenStackSettings(
            keystone_url=self._account.keystone_url,
            user=user,
            password=password,
            project=project,
            user_domain=domain or self._account.user_domain,
            project_domain=domain or self._account.project_domain,
        )
        async with self._turns.of(user, address):
            return (await KeystoneTokens(account, self._client).current()).text

    async def close(self) -> None:
        self._checks.close()
        await self._client.aclose()

    async def _ask(self, token: str) -> tuple[Caller, float]:
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
        return _read(answer)

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
                f"Keystone at {self._account.keystone_url} does not answer: {type(problem).__name__} {problem}"
            ) from problem
        if answer.status_code == HTTPStatus.UNAUTHORIZED:
            self._tokens.forget(own)
        return answer

    def _refused(self, detail: str) -> ApiError:
        return ApiError(
            HTTPStatus.UNAUTHORIZED,
            detail,
            headers={"www-authenticate": f"Keystone uri='{self._account.keystone_url}'"},
        )


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


# `none`: every client that reaches the service is an administrator. Tokens are ignored.


# All roles that default rules require: an administrator may also do what is reserved for services.
ALL_ROLES: Final = frozenset(("admin", "service", "member", "reader"))
ADMIN: Final = Caller(user="admin", project="admin", roles=ALL_ROLES)


class NoAuthentication(Authentication):
    async def caller(self, headers: Headers, address: str = "") -> Caller:
        del headers, address
        return ADMIN


# `basic`: user and password, checked against a file as `htpasswd -B` writes it. A user of the file is an administrator,
# or a reader of one project if the line names one after the password, or its member if the line says `member` after the project.
#
# Only bcrypt is supported. A check takes tens of milliseconds of CPU on purpose. So it runs in a thread, few at a time, and a
# successful one is remembered for a while by a digest that no other process can compute. Requests with the same name and password
# share one check, few others may wait, and a name that is not in the file costs no check.


READER, MEMBER = "reader", "member"
# Roles of a user that is bound to a project: by all default policies it may read the project's usage, and nothing else.
READER_ROLES: Final = frozenset((READER,))
# What a member may do beyond that, the program decides that has such users: the web dashboard lets it delete instances.
MEMBER_ROLES: Final = READER_ROLES | {MEMBER}
CHECKED_AT_ONCE: Final = 2
# bcrypt ignores all bytes after these; longer passwords are refused, not cut.
PASSWORD_BYTES_MAX: Final = 72

_WRONG: Final = "The user is not known, or the password is wrong"
_BCRYPT: Final = re.compile(r"\$2[aby]\$[0-9]{2}\$[./A-Za-z0-9]{53}")
# How many of the last checks say how long the refusal of an unknown user takes.
TIMED: Final = 32


class BadPasswordFileError(ValueError):
    """An invalid file of users; says which line, and why."""


class User(Struct, frozen=True):
    hashed: bytes
    # Empty for an administrator.
    project: str = ""
    roles: frozenset[str] = READER_ROLES


class BasicAuthentication(Authentication):
    def __init__(self, users: Mapping[str, User], clock: Callable[[], float] = time.monotonic) -> None:
        self._users = users
        self._key = secrets.token_bytes(32)
        self._checks = RememberedChecks(clock)
        self._turns = LoginTurns()
        self._checking = asyncio.Semaphore(CHECKED_AT_ONCE)
        began_s = time.perf_counter()
        _matches(next(iter(users.values())), b"")
        # How long each of the last checks took.
        self._took_s = deque((time.perf_counter() - began_s,), TIMED)

    async def caller(self, headers: Headers, address: str = "") -> Caller:
        header = headers.get("authorization", "")
        digest = hmac.digest(self._key, header.encode("latin-1"), sha256)
        return await self._checks.caller(digest, partial(self._check, header, address))

    async def _check(self, header: str, address: str) -> tuple[Caller, float]:
        name, password = _credentials(header)
        async with self._turns.of(name, address):
            user = self._users.get(name)
            if user is None:
                # As long as a wrong password takes, so that names cannot be found out; but it holds up nobody.
                async with self._checking:
                    pass
                await asyncio.sleep(secrets.choice(self._took_s))
                raise _refused(_WRONG)
            async with self._checking:
                began_s = time.perf_counter()
                is_theirs = await asyncio.to_thread(_matches, user, password)
                self._took_s.append(time.perf_counter() - began_s)
            if not is_theirs:
                raise _refused(_WRONG)
        return _caller(name, user), math.inf

    async def close(self) -> None:
        self._checks.close()


def users_in(path: Path) -> Mapping[str, User]:
    """The users of an htpasswd file. Raises BadPasswordFileError if it cannot be read or has an invalid line."""
    users: dict[str, User] = {}
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise BadPasswordFileError(f"the file of users, {path}, cannot be read: {problem}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, rest = line.strip().partition(":")
        hashed, bound, project = rest.partition(":")
        if not colon or not user:
            raise BadPasswordFileError(f"{path}, line {number}: write user:hash, as `htpasswd -B` does")
        project, _, role = project.partition(":")
        if role not in ("", READER, MEMBER):
            raise BadPasswordFileError(
                f"{path}, line {number}: the role of {user!r} is {role!r}; after the project, write reader (what it is without a "
                "role) or member"
            )
        if bound and not project:
            raise BadPasswordFileError(
                f"{path}, line {number}: the second colon is not followed by a project; write user:hash:project, or user:hash for "
                "an administrator"
            )
        if not _BCRYPT.fullmatch(hashed):
            raise BadPasswordFileError(
                f"{path}, line {number}: the password of {user!r} is not hashed by bcrypt; `htpasswd -B` does that"
            )
        users[user] = User(hashed.encode(), project, MEMBER_ROLES if role == MEMBER else READER_ROLES)
    if not users:
        raise BadPasswordFileError(
            f"{path} has no users, so every request would be refused; add one by `htpasswd -B`"
        )
    return users


def _caller(name: str, user: User) -> Caller:
    if user.project:
        return Caller(user=name, project=user.project, roles=user.roles)
    return Caller(user=name, project=name, roles=ALL_ROLES)


def _credentials(header: str) -> tuple[str, bytes]:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        raise _refused("The header Authorization: Basic is missing")
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        name = user.decode()
    except (binascii.Error, ValueError):
        raise _refused("Authorization: Basic is not base64 of user:password") from None
    if not colon or len(password) > PASSWORD_BYTES_MAX or b"\0" in password:
        raise _refused(_WRONG)
    return name, password


def _matches(user: User, password: bytes) -> bool:
    return bcrypt.checkpw(password, user.hashed)


def _refused(detail: str) -> ApiError:
    return ApiError(
        HTTPStatus.UNAUTHORIZED,
        detail,
        headers={"www-authenticate": 'Basic realm="placement", charset="UTF-8"'},
    )


# `noauth2`: believes the user that the token names. For tests only; upstream's test suite uses it.
#
# The token is `user` or `user:project`. Roles come from X-Roles; without it, the user admin is an administrator and all
# others have no roles.


class BelievedToken(Authentication):
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
