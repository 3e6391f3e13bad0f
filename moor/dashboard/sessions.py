"""Sessions of browsers: who has logged in, until when, and which forms they have sent.

Pure of HTTP: `access.py` reads and sets the cookies. Sessions are in memory only, so the end of the process ends all of them.
"""

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from placement_worker.api.values import Caller

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
