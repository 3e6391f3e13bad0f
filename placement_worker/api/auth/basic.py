"""`basic`: user and password, checked against a file as `htpasswd -B` writes it. A user of the file is an administrator,
or a reader of one project if the line names one after the password, or its member if the line says `member` after the project.

Only bcrypt is supported. A check takes tens of milliseconds of CPU on purpose. So it runs in a thread, few at a time, and a
successful one is remembered for a while by a digest that no other process can compute.
"""

import asyncio
import base64
import binascii
import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Final

import bcrypt
from msgspec import Struct

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

_BCRYPT: Final = re.compile(r"\$2[aby]\$[0-9]{2}\$[./A-Za-z0-9]{53}")
# Checked for unknown users, so that their refusal takes as long as that of a wrong password.
_NOBODYS: Final = b"$2b$10$b0DTVUCs62SfcWiIzqADuupeXkR4IuVMA/2DnudTd269ZxmRMVpqu"


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
        self._checking = asyncio.Semaphore(CHECKED_AT_ONCE)

    async def caller(self, headers: Headers) -> Caller:
        header = headers.get("authorization", "")
        digest = hmac.digest(self._key, header.encode("latin-1"), sha256)
        known = self._passed.get(digest)
        if known is not None and self._clock() < known[1]:
            return known[0]
        name, password = _credentials(header)
        user = self._users.get(name)
        async with self._checking:
            is_theirs = await asyncio.to_thread(_matches, user.hashed if user else None, password)
        if user is None or not is_theirs:
            raise _refused("The user is not known, or the password is wrong")
        caller = _caller(name, user)
        self._passed[digest] = (caller, self._clock() + REMEMBERED_S)
        if len(self._passed) > REMEMBERED_MAX:
            self._passed.popitem(last=False)
        return caller

    async def close(self) -> None:
        pass


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
        raise _refused("The user is not known, or the password is wrong")
    return name, password


def _matches(hashed: bytes | None, password: bytes) -> bool:
    return bcrypt.checkpw(password, hashed or _NOBODYS) and hashed is not None


def _refused(detail: str) -> ApiError:
    return ApiError(
        HTTPStatus.UNAUTHORIZED,
        detail,
        headers={"www-authenticate": 'Basic realm="placement", charset="UTF-8"'},
    )
