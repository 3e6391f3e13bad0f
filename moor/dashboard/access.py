"""Who reads a page or sends a form: by a session's cookie, or by the headers that placement's HTTP API takes.

Forms count only within a session. So a browser that is made to send something by another site does nothing: it has no cookie
then, and the site does not know the session's token.
"""

import base64
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from kit.errors import Failure
from kit.keystone import KeystoneRefused
from moor.dashboard.forms import AGAIN, FORM_TOKEN, FormRefused, form_of
from moor.dashboard.rendering import Reader
from moor.dashboard.sessions import DashboardSession, OpeningToken, SessionStore
from placement_worker.api.auth import (
    ADMIN,
    MEMBER,
    Authentication,
    BasicAuthentication,
    KeystoneAuthentication,
)
from placement_worker.api.values import ApiError, Caller

ADMIN_ROLE: Final = "admin"


class LoginField(Struct, frozen=True):
    name: str
    label: str
    is_secret: bool = False
    completes: str = "off"


USER = LoginField("user", "User", completes="username")
PASSWORD = LoginField("password", "Password", is_secret=True, completes="current-password")
PROJECT = LoginField("project", "Project")
DOMAIN = LoginField("domain", "Domain, if it is another than the default")
TOKEN = LoginField("token", "Or a token of Keystone, in place of all that", is_secret=True)


class Access:
    """Finds the reader of each request, and begins and ends sessions.

    `cookie` is its name, which holds the port: browsers send the cookies of one dashboard of a machine to all others there.
    """

    def __init__(
        self,
        auth: Authentication,
        sessions: SessionStore,
        *,
        port: int,
        opening: OpeningToken | None = None,
    ) -> None:
        self.sessions = sessions
        self._auth = auth
        self._opening = opening
        self._cookie = f"moorage-{port}"

    @property
    def login_cookie(self) -> str:
        """The name of the cookie that ties the form to log in to a browser."""
        return f"{self._cookie}-form"

    def keep_login_token(self, request: Request, token: str, age_s: int, answer: Response) -> None:
        _set_cookie(request, answer, self.login_cookie, token, age_s)

    @property
    def fields(self) -> tuple[LoginField, ...]:
        """What the form to log in asks for; empty if there is none."""
        match self._auth:
            case BasicAuthentication():
                return (USER, PASSWORD)
            case KeystoneAuthentication():
                return (USER, PASSWORD, PROJECT, DOMAIN, TOKEN)
        return ()

    async def reader(self, request: Request) -> Reader:
        """Who reads. Raises ApiError if nobody proves it, or if this user may read nothing."""
        secret = self.secret_of(request)
        session = self.sessions.find(secret)
        if session is not None:
            return reader_of(await self._caller(secret, session), session.form_token)
        return reader_of(await self._auth.caller(request.headers, _address(request)))

    async def _caller(self, secret: str, session: DashboardSession) -> Caller:
        """Ask again about the user of a session whose rights may end before it does."""
        if not session.credentials:
            return session.caller
        try:
            return await self._auth.caller(session.credentials)
        except ApiError:
            self.sessions.end(secret)
            raise

    async def goes_on(self, request: Request) -> bool:
        """May the sender of this request, which is answered for long, still read? To ask does not prolong the session."""
        secret = self.secret_of(request)
        session = self.sessions.peek(secret)
        try:
            if session is not None:
                await self._caller(secret, session)
            else:
                await self._auth.caller(request.headers, _address(request))
        except (ApiError, Failure):
            return False
        return True

    def secret_of(self, request: Request) -> str:
        return request.cookies.get(self._name(request), "")

    async def form(self, request: Request) -> tuple[Mapping[str, str], DashboardSession]:
        """The fields of a form, and the session to which it belongs. Raises FormRefused."""
        fields = await form_of(request)
        session = self.sessions.find(self.secret_of(request))
        if session is None:
            raise FormRefused(HTTPStatus.FORBIDDEN, "You are not logged in, or your session has ended.")
        if not session.takes(fields.get(FORM_TOKEN, "")):
            raise FormRefused(HTTPStatus.FORBIDDEN, f"This form is not of your session. {AGAIN}")
        return fields, session

    async def proved(self, request: Request, fields: Mapping[str, str]) -> tuple[Caller, Mapping[str, str]]:
        """The user of these fields, which the request sends, and the headers by which to ask about them again. Raises ApiError or Failure."""
        address = _address(request)
        credentials = await self._credentials(fields, address)
        caller = await self._auth.caller(credentials, address)
        reader_of(caller)
        # A token of Keystone may be revoked. Passwords are not kept: users of a file are those of the start.
        return caller, credentials if "x-auth-token" in credentials else {}

    async def _credentials(self, fields: Mapping[str, str], address: str) -> Mapping[str, str]:
        if isinstance(self._auth, KeystoneAuthentication):
            token = fields.get("token", "").strip()
            if not token.isprintable():
                raise ApiError(HTTPStatus.UNAUTHORIZED, "The token has control characters; no token has any")
            return {"x-auth-token": token or await _new_token(self._auth, fields, address)}
        encoded = base64.b64encode(f"{fields.get('user', '')}:{fields.get('password', '')}".encode()).decode()
        return {"authorization": f"Basic {encoded}"}

    def open(self, request: Request, token: str, answer: Response) -> bool:
        """Exchange the token that was printed for a session; False if it is void."""
        if self._opening is None or not self._opening.take(token):
            return False
        self.begin(request, ADMIN, {}, answer)
        return True

    def log_out(self, request: Request, answer: Response) -> None:
        self.sessions.end(self.secret_of(request))
        _set_cookie(request, answer, self._name(request), "", 0)

    def begin(self, request: Request, caller: Caller, kept: Mapping[str, str], answer: Response) -> None:
        """Begin a session, and have the answer set its cookie.

        A session that the browser had before ends: its secret may have been planted there.
        """
        self.sessions.end(self.secret_of(request))
        secret = self.sessions.begin(caller, kept)
        _set_cookie(request, answer, self._name(request), secret, int(self.sessions.lasts_s))

    def _name(self, request: Request) -> str:
        return f"__Host-{self._cookie}" if _is_secure(request) else self._cookie


def reader_of(caller: Caller, form_token: str = "") -> Reader:
    """Raises ApiError if this user may read nothing."""
    is_admin = ADMIN_ROLE in caller.roles
    if not (is_admin or caller.project):
        # In a question, no project means all.
        raise ApiError(
            HTTPStatus.FORBIDDEN, f"{caller.user} acts for no project here, and is no administrator"
        )
    return Reader(
        name=caller.user,
        project="" if is_admin else caller.project,
        is_admin=is_admin,
        may_delete=is_admin or MEMBER in caller.roles,
        form_token=form_token,
    )


async def _new_token(auth: KeystoneAuthentication, fields: Mapping[str, str], address: str) -> str:
    given = {name: fields.get(name, "") for name in ("user", "password", "project", "domain")}
    try:
        return await auth.token_by_password(**given, address=address)
    except KeystoneRefused as refused:
        raise ApiError(HTTPStatus.UNAUTHORIZED, str(refused)) from None


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _is_secure(request: Request) -> bool:
    return request.url.scheme == "https"


def _set_cookie(request: Request, answer: Response, name: str, value: str, age_s: int) -> None:
    answer.set_cookie(
        name,
        value,
        max_age=age_s,
        path="/",
        secure=_is_secure(request),
        httponly=True,
        samesite="strict",
    )
