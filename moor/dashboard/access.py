"""Who reads a page or sends a form: by a session's cookie, or by the headers that placement's HTTP API takes.

Forms count only within a session. So a browser that is made to send something by another site does nothing: it has no cookie
then, and the site does not know the session's token.
"""

import asyncio
import base64
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from kit.errors import Failure
from kit.keystone import KeystoneRefused
from moor.dashboard.rendering import FormField, Reader
from placement_worker.api.auth import (
    ADMIN,
    MEMBER,
    Authentication,
    BasicAuthentication,
    KeystoneAuthentication,
)
from placement_worker.api.values import ApiError, Caller

# Sessions of browsers: the user who has logged in, until when, and which forms were sent.
#
# They know nothing of HTTP: `Access` reads and sets the cookies. Sessions are in memory only, so the end of the process ends all of them.

SESSION_S: Final = 8 * 3600.0
# A session that is not used for so long ends before its time.
IDLE_S_MAX: Final = 3600.0
SESSIONS_MAX: Final = 1_000
# Beyond these, the session of the same user that was used last longest ago ends.
SESSIONS_PER_USER_MAX: Final = 10
# Forms that a session remembers to have sent.
FORMS_MAX: Final = 1_000


class DashboardSession(Struct, eq=False):
    """One browser in which a user has logged in.

    `form_token` is in each of its forms: another site can make the browser send a form, and cannot know it. `credentials` are the
    headers by which the user is asked about again; empty if the login counts until the session ends.
    """

    caller: Caller
    credentials: Mapping[str, str]
    form_token: str
    ends_at_s: float
    used_at_s: float
    # The ids of the forms that were sent, the last one at the end.
    sent_forms: OrderedDict[str, None]

    def takes(self, form_token: str) -> bool:
        return hmac.compare_digest(self.form_token.encode(), form_token.encode())

    def note_form(self, id_: str) -> None:
        """Note that this form was sent."""
        self.sent_forms[id_] = None
        if len(self.sent_forms) > FORMS_MAX:
            self.sent_forms.popitem(last=False)


class SessionStore:
    """The sessions of one dashboard. Their secrets are kept as digests: a dump of the memory opens none."""

    def __init__(self, lasts_s: float = SESSION_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.lasts_s = lasts_s
        self._clock = clock
        # The one that was used last is at the end.
        self._sessions: OrderedDict[bytes, DashboardSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, caller: Caller, credentials: Mapping[str, str] = MappingProxyType({})) -> str:
        """A new session. Returns its secret, which only the browser has."""
        secret, now_s = secrets.token_urlsafe(32), self._clock()
        self._make_room(caller)
        self._sessions[_digest(secret)] = DashboardSession(
            caller=caller,
            credentials=credentials,
            form_token=secrets.token_urlsafe(32),
            ends_at_s=now_s + self.lasts_s,
            used_at_s=now_s,
            sent_forms=OrderedDict(),
        )
        return secret

    def find(self, secret: str) -> DashboardSession | None:
        """The session with this secret, which counts as used now. None if there is none or it has ended."""
        digest = _digest(secret)
        session = self._sessions.get(digest)
        if session is None:
            return None
        if not self._goes_on(session):
            del self._sessions[digest]
            return None
        session.used_at_s = self._clock()
        self._sessions.move_to_end(digest)
        return session

    def peek(self, secret: str) -> DashboardSession | None:
        """As `find`, but it does not count as use: an open page alone does not keep a session."""
        session = self._sessions.get(_digest(secret))
        return session if session is not None and self._goes_on(session) else None

    def end(self, secret: str) -> None:
        self._sessions.pop(_digest(secret), None)

    def _goes_on(self, session: DashboardSession) -> bool:
        now_s = self._clock()
        return now_s < session.ends_at_s and now_s < session.used_at_s + IDLE_S_MAX

    def _make_room(self, caller: Caller) -> None:
        for digest in [digest for digest, each in self._sessions.items() if not self._goes_on(each)]:
            del self._sessions[digest]
        own = [digest for digest, each in self._sessions.items() if each.caller.user == caller.user]
        for digest in own[: max(len(own) - SESSIONS_PER_USER_MAX + 1, 0)]:
            del self._sessions[digest]
        while len(self._sessions) >= SESSIONS_MAX:
            self._sessions.popitem(last=False)


class OpeningToken:
    """A secret that its reader exchanges for a session, once. Where nobody proves who they are, it proves that a browser belongs
    to the person who sees the output of this process.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        """`show` is called with each token: with the first one now, and with the next one when the last one was used."""
        self._show = show
        self._digest = b""
        self.renew()

    def renew(self) -> None:
        token = secrets.token_urlsafe(32)
        self._digest = _digest(token)
        self._show(token)

    def take(self, token: str) -> bool:
        """Is this the token? Then it is void from now on."""
        if not hmac.compare_digest(self._digest, _digest(token)):
            return False
        self.renew()
        return True


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()


# Forms that browsers send: read within limits, and only from pages of this dashboard.

FORM_BYTES_MAX = 16_384
FIELDS_MAX = 20
FORM_S_MAX = 10.0
FORM_TYPE = "application/x-www-form-urlencoded"
FORM_TOKEN = "form_token"  # noqa: S105 - the name of a field
AGAIN = "Open the page again, and send its form."


class FormRefused(Exception):  # noqa: N818 - named for what happened
    """A form that does not count. Nothing was done."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


async def form_of(request: Request) -> Mapping[str, str]:
    """The fields of the form. Raises FormRefused if it is of another site, too large, or no form."""
    check_origin(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM_TYPE:
        raise FormRefused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"A form is sent as {FORM_TYPE}, and not as {kind!r}."
        )
    try:
        async with asyncio.timeout(FORM_S_MAX):
            return fields_in(await _body(request))
    except TimeoutError:
        why = f"The form did not arrive within {FORM_S_MAX:.0f} s."
        raise FormRefused(HTTPStatus.REQUEST_TIMEOUT, why) from None
    except ClientDisconnect:
        raise FormRefused(HTTPStatus.BAD_REQUEST, "The form did not arrive whole.") from None


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > FORM_BYTES_MAX:
            why = f"The form has more than {FORM_BYTES_MAX} bytes."
            raise FormRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why)
    return body


def fields_in(body: bytes) -> Mapping[str, str]:
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX
        )
    except ValueError as problem:
        raise FormRefused(
            HTTPStatus.BAD_REQUEST,
            f"The form cannot be read, or has more than {FIELDS_MAX} fields: {problem}.",
        ) from None
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise FormRefused(HTTPStatus.BAD_REQUEST, "The form has a field twice.")
    return fields


def check_origin(request: Request) -> None:
    """Only pages of this dashboard may send forms. Browsers say which page it was in Origin, for every form.

    A proxy that ends TLS may not say so. A page of the same name by https is then one of this dashboard, too.
    """
    origin = request.headers.get("origin", "")
    name = request.headers.get("host", "")
    if origin not in (f"{request.url.scheme}://{name}", f"https://{name}"):
        told = origin or "none"
        raise FormRefused(
            HTTPStatus.FORBIDDEN,
            f"The form was sent by a page of another site (Origin: {told}), and this is {request.url.scheme}://{name}. "
            "A proxy before the dashboard must leave the header Host as it is.",
        )


def local_path(text: str) -> str:
    """This path on the dashboard; the first page if it would lead anywhere else."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return "/"
    is_plain = text.isascii() and text.isprintable() and "\\" not in text
    is_local = text.startswith("/") and not text.startswith("//") and not (parts.scheme or parts.netloc)
    return text if is_plain and is_local else "/"


ADMIN_ROLE: Final = "admin"


USER = FormField("user", "User", completes="username")
PASSWORD = FormField("password", "Password", is_secret=True, completes="current-password")
PROJECT = FormField("project", "Project")
DOMAIN = FormField("domain", "Domain, if it is another than the default")
TOKEN = FormField("token", "Or a token of Keystone, in place of all that", is_secret=True)


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
    def fields(self) -> tuple[FormField, ...]:
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
