"""Planted bugs in the dashboard's access: logins, sessions, forms, and what a member may see and order."""

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from msgspec import structs

from moor.dashboard import access, actions, service
from moor.dashboard.access import Access, DashboardSession, OpeningToken, SessionStore
from moor.dashboard.actions import Actions
from moor.dashboard.cloud_pages import CloudPages
from moor.dashboard.instance_pages import InstancePages
from moor.dashboard.rendering import Reader
from placement_worker.api.auth import LoginTurns, RememberedChecks
from tests.planted.replacing import PlantedBug, replaced, replaced_in


def revoked_login_goes_on() -> AbstractContextManager[None]:
    """A session does not keep by what its user is asked about again."""

    def planted(real: Any) -> Any:
        return lambda self, caller, *_credentials: real(self, caller)

    return replaced(SessionStore, "begin", planted)


def revoked_token_remembered() -> AbstractContextManager[None]:
    """What was right once is never checked again."""

    def planted(real: Any) -> Any:
        known: dict[bytes, Any] = {}

        async def caller(self: Any, digest: bytes, check: Any) -> Any:
            if digest not in known:
                known[digest] = await real(self, digest, check)
            return known[digest]

        return caller

    return replaced(RememberedChecks, "caller", planted)


def open_page_of_revoked_login_goes_on() -> AbstractContextManager[None]:
    """Of an open page only the session is looked at, and not whether its user still has the right to read."""

    def planted(real: Any) -> Any:
        async def goes_on(self: Any, request: Any) -> bool:
            has_session = self.sessions.peek(self.secret_of(request)) is not None
            return has_session or bool(await real(self, request))

        return goes_on

    return replaced(Access, "goes_on", planted)


def open_page_counts_as_use() -> AbstractContextManager[None]:
    """A page that is only left open keeps its session."""
    return replaced(SessionStore, "peek", lambda _real: SessionStore.find)


def session_in_use_without_end() -> AbstractContextManager[None]:
    """Each use of a session gives it its whole time again."""

    def planted(real: Any) -> Any:
        def find(self: Any, secret: str) -> Any:
            session = real(self, secret)
            if session is not None:
                session.ends_at_s = session.used_at_s + self.lasts_s
            return session

        return find

    return replaced(SessionStore, "find", planted)


def logout_forgets_only_the_cookie() -> AbstractContextManager[None]:
    """The browser drops its cookie, whose session goes on."""

    def log_out(_self: Any, _request: Any, answer: Any) -> None:
        answer.headers["clear-site-data"] = '"cookies"'

    return replaced(Access, "log_out", lambda _real: log_out)


def planted_session_outlives_login() -> AbstractContextManager[None]:
    """A login leaves the session that the browser had before."""

    def planted(real: Any) -> Any:
        def begin(self: Any, request: Any, *others: Any) -> None:
            request.cookies.clear()
            real(self, request, *others)

        return begin

    return replaced(Access, "begin", planted)


def cookie_shown_to_scripts() -> AbstractContextManager[None]:
    """Scripts may read the cookie of a session."""

    def planted(real: Any) -> Any:
        def begin(self: Any, request: Any, caller: Any, kept: Any, answer: Any) -> None:
            real(self, request, caller, kept, answer)
            answer.headers["set-cookie"] = answer.headers["set-cookie"].replace("HttpOnly; ", "")

        return begin

    return replaced(Access, "begin", planted)


def opening_token_taken_again() -> AbstractContextManager[None]:
    """The address that was printed stays valid after its first use."""

    def planted(real: Any) -> Any:
        taken = set()

        def take(self: Any, token: str) -> bool:
            if token not in taken and not real(self, token):
                return False
            taken.add(token)
            return True

        return take

    return replaced(OpeningToken, "take", planted)


def origin_compared_by_its_beginning() -> AbstractContextManager[None]:
    """A site whose name begins like that of the dashboard may send forms."""

    def planted(real: Any) -> Any:
        def check_origin(request: Any) -> None:
            own = f"{request.url.scheme}://{request.headers.get('host', '')}"
            if not request.headers.get("origin", "").startswith(own):
                real(request)

        return check_origin

    return replaced(access, "check_origin", planted)


def missing_origin_accepted() -> AbstractContextManager[None]:
    """A form that does not say from which page it comes is accepted."""

    def planted(real: Any) -> Any:
        return lambda request: real(request) if "origin" in request.headers else None

    return replaced(access, "check_origin", planted)


def any_form_token_taken() -> AbstractContextManager[None]:
    """A form counts with the token of any session."""
    return replaced(DashboardSession, "takes", lambda _real: lambda _self, form_token: bool(form_token))


def repeated_field_overwritten() -> AbstractContextManager[None]:
    """Of a field that a form has twice, the first value is passed over: a proxy may have judged that one."""

    def planted(real: Any) -> Any:
        def fields_in(body: bytes) -> Any:
            last = {part.partition(b"=")[0]: part for part in body.split(b"&")}
            return real(b"&".join(last.values()))

        return fields_in

    return replaced(access, "fields_in", planted)


def login_leads_elsewhere() -> AbstractContextManager[None]:
    """The page after the login may begin with a backslash behind its slash, which browsers read as another site."""

    def planted(real: Any) -> Any:
        return lambda text: text if text.startswith("/\\") else real(text)

    return replaced_in((access, actions), "local_path", planted)


def wanted_page_without_its_question() -> AbstractContextManager[None]:
    """After the login the reader sees the whole list, and not the part of it that was asked for."""

    def planted(real: Any) -> Any:
        return lambda text: real(text).partition("?")[0]

    return replaced_in((access, actions), "local_path", planted)


def any_name_of_server() -> AbstractContextManager[None]:
    """The dashboard answers under every host name that leads to it."""

    def planted(real: Any) -> Any:
        return lambda *pages, hosts: real(*pages, hosts=[*hosts, "*"])

    return replaced(service, "dashboard_app", planted)


def flood_from_one_address() -> AbstractContextManager[None]:
    """The logins of one address have no limit but that of each name."""

    def planted(real: Any) -> Any:
        def of(self: Any, name: str, _address: str) -> AbstractAsyncContextManager[None]:
            turn: AbstractAsyncContextManager[None] = real(self, name, "")
            return turn

        return of

    return replaced(LoginTurns, "of", planted)


def user_without_project_reads_all() -> AbstractContextManager[None]:
    """A user who acts for no project is let in, and no project means all."""

    def planted(real: Any) -> Any:
        def reader_of(caller: Any, form_token: str = "") -> Any:
            reader = real(structs.replace(caller, project=caller.project or "none"), form_token)
            return structs.replace(reader, project="" if not caller.project else reader.project)

        return reader_of

    return replaced_in((access, actions), "reader_of", planted)


def member_operates() -> AbstractContextManager[None]:
    """A member may order what only administrators may."""
    return replaced(Reader, "operates", lambda _real: Reader.deletes)


def reader_deletes() -> AbstractContextManager[None]:
    """Whoever has logged in may delete instances of their project."""
    return replaced(Reader, "deletes", lambda _real: property(lambda reader: bool(reader.form_token)))


def _for_any_project(owner: Any, page: str) -> AbstractContextManager[None]:
    """This page asks as if its reader had no project."""

    def planted(real: Any) -> Any:
        async def shown(self: Any, request: Any, reader: Reader) -> Any:
            return await real(self, request, structs.replace(reader, project=""))

        return shown

    return replaced(owner, page, planted)


def foreign_instance_deleted() -> AbstractContextManager[None]:
    return _for_any_project(Actions, "send")


def live_list_of_all() -> AbstractContextManager[None]:
    return _for_any_project(InstancePages, "live_instances")


def foreign_group_shown() -> AbstractContextManager[None]:
    return _for_any_project(CloudPages, "group")


def plan_for_any_project() -> AbstractContextManager[None]:
    return _for_any_project(InstancePages, "why")


def _of_any_user(what: str) -> AbstractContextManager[None]:
    """Everybody may do this with an order, as administrators may."""

    def planted(real: Any) -> Any:
        async def shown(self: Any, request: Any, reader: Reader) -> Any:
            return await real(self, request, structs.replace(reader, is_admin=True))

        return shown

    return replaced(Actions, what, planted)


def foreign_order_shown() -> AbstractContextManager[None]:
    return _of_any_user("job")


def foreign_order_stopped() -> AbstractContextManager[None]:
    return _of_any_user("stop")


BUGS: dict[str, PlantedBug] = {
    "a revoked login goes on": revoked_login_goes_on,
    "a revoked token is remembered without end": revoked_token_remembered,
    "an open page of a revoked login goes on": open_page_of_revoked_login_goes_on,
    "a page that is left open keeps its login": open_page_counts_as_use,
    "a login in use has no end": session_in_use_without_end,
    "a logout forgets only the cookie": logout_forgets_only_the_cookie,
    "a session planted in a browser outlives its login": planted_session_outlives_login,
    "scripts may read the cookie of a login": cookie_shown_to_scripts,
    "the printed address opens every browser": opening_token_taken_again,
    "a site of a similar name sends forms": origin_compared_by_its_beginning,
    "a form without an origin counts": missing_origin_accepted,
    "a form of another session counts": any_form_token_taken,
    "a field sent twice counts": repeated_field_overwritten,
    "a login leads to another site": login_leads_elsewhere,
    "a login forgets which list was wanted": wanted_page_without_its_question,
    "the dashboard answers under any name": any_name_of_server,
    "a flood of logins from one address not held up": flood_from_one_address,
    "a user without a project sees all projects": user_without_project_reads_all,
    "a member sets hosts": member_operates,
    "a reader of a project deletes its instances": reader_deletes,
    "a member deletes an instance of another project": foreign_instance_deleted,
    "the live list of a member has all projects": live_list_of_all,
    "a member sees the server group of another project": foreign_group_shown,
    "a member asks what would fit for all projects": plan_for_any_project,
    "a member sees the order of another user": foreign_order_shown,
    "a member stops the order of another user": foreign_order_stopped,
}
