"""Planted bugs in what users may see, ask for and order: the dashboard's logins, sessions, forms and members; projects and their
limits.
"""

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from msgspec import structs

from moor.client.bus_client import BusClient
from moor.dashboard import access, actions, service
from moor.dashboard.access import Access, DashboardSession, OpeningToken, SessionStore
from moor.dashboard.actions import Actions
from moor.dashboard.instance_pages import InstancePages
from moor.dashboard.rendering import Reader
from moor.dashboard.resource_pages import ResourcePages
from placement_worker.api.auth import LoginTurns, RememberedChecks
from scheduler_worker import applications
from scheduler_worker.requests.limits import ProjectLimits
from tests.planted.replacing import planted, planted_as, planted_by, replaced

# A session does not keep by what its user is asked about again.
planted_by("a revoked login goes on", SessionStore, "begin", harm="unauthorised")(
    lambda real: lambda self, caller, *_credentials: real(self, caller)
)


# A login that was right once is never checked again.
@planted_by("a revoked token is remembered without end", RememberedChecks, "caller", harm="unauthorised")
def revoked_token_remembered(real: Any) -> Any:
    known: dict[bytes, Any] = {}

    async def caller(self: Any, digest: bytes, check: Any) -> Any:
        if digest not in known:
            known[digest] = await real(self, digest, check)
        return known[digest]

    return caller


# Of an open page only the session is looked at, and not whether its user still has the right to read.
@planted("an open page of a revoked login goes on", Access, "goes_on", harm="unauthorised")
async def open_page_of_revoked_login_goes_on(real: Any, self: Any, request: Any) -> bool:
    has_session = self.sessions.peek(self.secret_of(request)) is not None
    return has_session or bool(await real(self, request))


# A page that is only left open keeps its session.
planted_by("a page that is left open keeps its login", SessionStore, "peek", harm="unauthorised")(
    lambda _real: SessionStore.find
)


# Each use of a session gives it its whole time again.
@planted("a login in use has no end", SessionStore, "find", harm="unauthorised")
def session_in_use_without_end(real: Any, self: Any, secret: str) -> Any:
    session = real(self, secret)
    if session is not None:
        session.ends_at_s = session.used_at_s + self.lasts_s
    return session


@planted_as("a logout forgets only the cookie", harm="unauthorised")
def logout_forgets_only_the_cookie() -> AbstractContextManager[None]:
    """The browser drops its cookie, whose session goes on."""

    def log_out(_self: Any, _request: Any, answer: Any) -> None:
        answer.headers["clear-site-data"] = '"cookies"'

    return replaced(Access, "log_out", lambda _real: log_out)


# A login leaves the session that the browser had before.
@planted("a session planted in a browser outlives its login", Access, "begin", harm="unauthorised")
def planted_session_outlives_login(real: Any, self: Any, request: Any, *others: Any) -> None:
    request.cookies.clear()
    real(self, request, *others)


# Scripts may read the cookie of a session.
@planted("scripts may read the cookie of a login", Access, "begin", harm="unauthorised")
def cookie_shown_to_scripts(real: Any, self: Any, request: Any, caller: Any, kept: Any, answer: Any) -> None:
    real(self, request, caller, kept, answer)
    answer.headers["set-cookie"] = answer.headers["set-cookie"].replace("HttpOnly; ", "")


# The address that was printed stays valid after its first use.
@planted_by("the printed address opens every browser", OpeningToken, "take", harm="unauthorised")
def opening_token_taken_again(real: Any) -> Any:
    taken = set()

    def take(self: Any, token: str) -> bool:
        if token not in taken and not real(self, token):
            return False
        taken.add(token)
        return True

    return take


# A site whose name begins like that of the dashboard may send forms.
@planted("a site of a similar name sends forms", access, "check_origin", harm="unauthorised")
def origin_compared_by_its_beginning(real: Any, request: Any) -> None:
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    if not request.headers.get("origin", "").startswith(own):
        real(request)


# A form that does not say from which page it comes is accepted.
planted_by("a form without an origin counts", access, "check_origin", harm="unauthorised")(
    lambda real: lambda request: real(request) if "origin" in request.headers else None
)


# A form counts with the token of any session.
planted_by("a form of another session counts", DashboardSession, "takes", harm="unauthorised")(
    lambda _real: lambda _self, form_token: bool(form_token)
)


# Of a field that a form has twice, the first value is passed over: a proxy may have judged that one.
@planted("a field sent twice counts", access, "fields_in", harm="unauthorised")
def repeated_field_overwritten(real: Any, body: bytes) -> Any:
    last = {part.partition(b"=")[0]: part for part in body.split(b"&")}
    return real(b"&".join(last.values()))


# The page after the login may begin with a backslash behind its slash, which browsers read as another site.
planted_by("a login leads to another site", (access, actions), "local_path", harm="unauthorised")(
    lambda real: lambda text: text if text.startswith("/\\") else real(text)
)


# After the login the reader sees the whole list, and not the part of it that was asked for.
planted_by("a login forgets which list was wanted", (access, actions), "local_path")(
    lambda real: lambda text: real(text).partition("?")[0]
)


# The dashboard answers under every host name that leads to it.
planted_by("the dashboard answers under any name", service, "dashboard_app", harm="unauthorised")(
    lambda real: lambda *pages, hosts, **more: real(*pages, hosts=[*hosts, "*"], **more)
)


# The logins of one address have no limit but that of each name.
@planted("a flood of logins from one address not held up", LoginTurns, "of", harm="unauthorised")
def flood_from_one_address(
    real: Any, self: Any, name: str, _address: str
) -> AbstractAsyncContextManager[None]:
    turn: AbstractAsyncContextManager[None] = real(self, name, "")
    return turn


# The answers to applications of projects, those for members, and the feeds of projects say everything of all hosts.
planted_by("a project sees hosts", applications, "seen_by_project", harm="unauthorised")(
    lambda _real: lambda message, _is_host: message
)


# The dashboard asks for a member as it does for administrators.
planted_by("a member sees hosts", BusClient, "for_member", harm="unauthorised")(
    lambda _real: lambda self: self
)


# What a project has open or in error has no limit.
planted_by("the limit of a project's records not counted", ProjectLimits, "_over_count", harm="overbooked")(
    lambda _real: lambda *_, **__: ""
)


# A project may ask for as much at once as it likes.
planted_by("the rate of a project not counted", ProjectLimits, "_over_rate", harm="overbooked")(
    lambda _real: lambda *_: ""
)


# A user who acts for no project is let in, and no project means all.
@planted("a user without a project sees all projects", (access, actions), "reader_of", harm="unauthorised")
def user_without_project_reads_all(real: Any, caller: Any, form_token: str = "") -> Any:
    reader = real(structs.replace(caller, project=caller.project or "none"), form_token)
    return structs.replace(reader, project="" if not caller.project else reader.project)


# A member may order what only administrators may.
planted_by("a member sets hosts", Reader, "operates", harm="unauthorised")(lambda _real: Reader.deletes)


# Whoever has logged in may delete instances of their project.
planted_by("a reader of a project deletes its instances", Reader, "deletes", harm="unauthorised")(
    lambda _real: property(lambda reader: bool(reader.form_token))
)


def _for_any_project(owner: Any, page: str) -> AbstractContextManager[None]:
    """This page asks as if its reader had no project."""

    def planted(real: Any) -> Any:
        async def shown(self: Any, request: Any, reader: Reader) -> Any:
            return await real(self, request, structs.replace(reader, project=""))

        return shown

    return replaced(owner, page, planted)


planted_as("a member deletes an instance of another project", harm="unauthorised")(
    lambda: _for_any_project(Actions, "send")
)


planted_as("the live list of a member has all projects", harm="unauthorised")(
    lambda: _for_any_project(ResourcePages, "live_instances")
)


planted_as("a member sees the server group of another project", harm="unauthorised")(
    lambda: _for_any_project(ResourcePages, "group")
)


planted_as("a member asks what would fit for all projects", harm="unauthorised")(
    lambda: _for_any_project(InstancePages, "why")
)


def _of_any_user(what: str) -> AbstractContextManager[None]:
    """Everybody may do this with an order, as administrators may."""

    def planted(real: Any) -> Any:
        async def shown(self: Any, request: Any, reader: Reader) -> Any:
            return await real(self, request, structs.replace(reader, is_admin=True))

        return shown

    return replaced(Actions, what, planted)


planted_as("a member sees the order of another user", harm="unauthorised")(lambda: _of_any_user("job"))


# Orders that go on for long are campaigns.
planted_by("a member stops the order of another user", actions, "ORDERS", harm="unauthorised")(
    lambda real: {**real, "campaign": structs.replace(real["campaign"], for_members=True)}
)
