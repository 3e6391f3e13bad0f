"""`basic`: user and password, checked against a file as `htpasswd -B` writes it. A user of the file is an administrator,
or a reader of one project if the line names one after the password, or its member if the line says `member` after the project.

Only bcrypt is supported. A check takes tens of milliseconds of CPU on purpose. So it runs in a thread, few at a time, and a
successful one is remembered for a while by a digest that no other process can compute. Requests with the same name and password
share one check, few others may wait (logins.py), and a name that is not in the file costs no check.
"""

import asyncio
import base64
import binascii
import hmac
import re
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Final

import bcrypt
from msgspec import Struct

from placement_worker.api.auth.logins import LoginTurns
from placement_worker.api.auth.no_authentication import ALL_ROLES
from placement_worker.api.values.problems import ApiError
from placement_worker.api.values.request import Caller
from placement_worker.api.values.request_parts import Headers

READER, MEMBER = "reader", "member"
# Roles of a user that is bound to a project: by all default policies it may read the project's usage, and nothing else.
READER_ROLES: Final = frozenset((READER,))
# What a member may do beyond that, the program decides that has such users: the web dashboard lets it delete instances.
MEMBER_ROLES: Final = READER_ROLES | {MEMBER}
REMEMBERED_S: Final = 300.0
REMEMBERED_MAX: Final = 10_000
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


class BasicAuthentication:
    def __init__(self, users: Mapping[str, User], clock: Callable[[], float] = time.monotonic) -> None:
        self._users = users
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._passed: OrderedDict[bytes, tuple[Caller, float]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Caller]] = {}
        self._turns = LoginTurns()
        self._checking = asyncio.Semaphore(CHECKED_AT_ONCE)
        began_s = time.perf_counter()
        _matches(next(iter(users.values())), b"")
        # How long each of the last checks took.
        self._took_s = deque((time.perf_counter() - began_s,), TIMED)

    async def caller(self, headers: Headers, address: str = "") -> Caller:
        header = headers.get("authorization", "")
        digest = hmac.digest(self._key, header.encode("latin-1"), sha256)
        known = self._passed.get(digest)
        if known is not None and self._clock() < known[1]:
            return known[0]
        asking = self._asking.get(digest)
        if asking is None:
            name, password = _credentials(header)
            asking = self._asking[digest] = asyncio.create_task(self._check(name, password, address))
            asking.add_done_callback(partial(self._checked, digest))
        # Shielded: a caller that disconnects must not cancel the check for the others.
        return await asyncio.shield(asking)

    async def _check(self, name: str, password: bytes, address: str) -> Caller:
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
        return _caller(name, user)

    def _checked(self, digest: bytes, asking: asyncio.Task[Caller]) -> None:
        del self._asking[digest]
        if asking.cancelled() or asking.exception() is not None:
            return
        self._passed[digest] = (asking.result(), self._clock() + REMEMBERED_S)
        if len(self._passed) > REMEMBERED_MAX:
            self._passed.popitem(last=False)

    async def close(self) -> None:
        for task in tuple(self._asking.values()):
            task.cancel()


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
