"""The pages that write: to log in and out, to confirm an order, and to see what became of it.

An order is shown by GET, which does nothing, and sent by POST, by a form of the user's own session. The form has an id of its
own: sent twice, it is done once.
"""

import hmac
import re
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final
from uuid import UUID, uuid4

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from kit.errors import Failure
from kit.times import now
from moor.dashboard.access import AGAIN, FORM_TOKEN, Access, FormRefused, form_of, local_path, reader_of
from moor.dashboard.orders import (
    ORDERS,
    REASON_LENGTH_MAX,
    SURE,
    Clouds,
    DashboardJob,
    DashboardOrder,
    JobList,
    OrderQuestion,
)
from moor.dashboard.rendering import NOBODY, PageRefused, PageRenderer, Reader
from placement_worker.api.values import ApiError

FORM_ID: Final = "form_id"
LOGIN_COOKIE_S: Final = 3600
LOGIN_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{43}")


class Actions(PageRenderer):
    def __init__(self, access: Access, clouds: Clouds) -> None:
        self.access = access
        self._clouds = clouds
        self.jobs = JobList()

    # Logging in and out.

    async def login_page(self, request: Request) -> Response:
        return self._login(request, local_path(request.query_params.get("next", "/")))

    async def log_in(self, request: Request) -> Response:
        fields = await form_of(request)
        then = local_path(fields.get("next", "/"))
        known = request.cookies.get(self.access.login_cookie, "")
        if not known or not hmac.compare_digest(known.encode(), fields.get(FORM_TOKEN, "").encode()):
            raise FormRefused(HTTPStatus.FORBIDDEN, f"This form was not made for your browser. {AGAIN}")
        try:
            caller, kept = await self.access.proved(request, fields)
        except ApiError as refused:
            return self._login(request, then, refused.detail, HTTPStatus(refused.status))
        except Failure as problem:
            return self._login(request, then, str(problem), HTTPStatus.SERVICE_UNAVAILABLE)
        first = then if then != "/" or reader_of(caller).is_admin else "/instances"
        answer = RedirectResponse(first, HTTPStatus.SEE_OTHER)
        self.access.begin(request, caller, kept, answer)
        return answer

    def _login(
        self, request: Request, then: str, refused: str = "", status: HTTPStatus = HTTPStatus.OK
    ) -> Response:
        if not self.access.fields:
            why = "Nobody logs in here: the dashboard asks nobody who they are."
            return self.refusal(request, NOBODY, HTTPStatus.NOT_FOUND, why)
        known = request.cookies.get(self.access.login_cookie, "")
        # Other programs of the machine may have set the cookie, to anything.
        token = known if LOGIN_TOKEN.fullmatch(known) else secrets.token_urlsafe(32)
        page = self._page(
            request,
            NOBODY,
            "login.html",
            fields=self.access.fields,
            then=then,
            refused=refused,
            form_token=token,
        )
        page.status_code = status
        self.access.keep_login_token(request, token, LOGIN_COOKIE_S, page)
        return page

    async def open(self, request: Request) -> Response:
        """The address that was printed: a session for the browser that opens it first."""
        if request.method != "GET":
            # A program that only looks at the address must not use it up.
            return PlainTextResponse("", HTTPStatus.METHOD_NOT_ALLOWED)
        answer = RedirectResponse("/", HTTPStatus.SEE_OTHER)
        if self.access.open(request, request.query_params.get("token", ""), answer):
            return answer
        why = "This address is void: it was opened before, or the dashboard was started again. A new one was printed then."
        return self.refusal(request, NOBODY, HTTPStatus.FORBIDDEN, why)

    async def log_out(self, request: Request) -> Response:
        await self.access.form(request)
        answer = RedirectResponse("/login" if self.access.fields else "/", HTTPStatus.SEE_OTHER)
        self.access.log_out(request, answer)
        return answer

    # Orders.

    async def confirm(self, request: Request, reader: Reader) -> Response:
        order = self._order(request, reader)
        question = await order.question(self._clouds, _given(request.query_params), reader)
        return self._confirmation(request, reader, question)

    def _confirmation(
        self, request: Request, reader: Reader, question: OrderQuestion, wrong: str = "", reason: str = ""
    ) -> Response:
        page = self._page(
            request,
            reader,
            "order.html",
            question=question,
            form_id=str(uuid4()),
            wrong=wrong,
            reason=reason,
            reason_max=REASON_LENGTH_MAX,
        )
        page.status_code = HTTPStatus.BAD_REQUEST if wrong else HTTPStatus.OK
        return page

    async def send(self, request: Request, reader: Reader) -> Response:
        fields, session = await self.access.form(request)
        order = self._order(request, reader)
        id_ = _form_id(fields)
        if id_ in session.sent_forms:
            return _to_job(id_)
        question = await order.question(self._clouds, _given(fields), reader)
        reason = fields.get("reason", "")
        if wrong := _what_is_wrong(question, fields):
            return self._confirmation(request, reader, question, wrong, reason)
        if id_ in session.sent_forms or self.jobs.find(id_) is not None:
            # It came twice at the same time; or the id is that of another session's form.
            return _to_job(id_)
        if (going := self.jobs.about(question.about)) is not None:
            raise PageRefused(f"{going.by} has ordered this already: {going.title}. It goes on.")
        job = DashboardJob(
            id=id_,
            title=question.title,
            about=question.about,
            by=reader.name,
            project=reader.project,
            back=question.back,
            begun_at=now(),
        )
        given = {**question.given, "reason": reason}
        self.jobs.begin(job, lambda: order.carry_out(self._clouds, given, job))
        session.note_form(id_)
        await self.jobs.soon(job)
        return _to_job(id_)

    def _order(self, request: Request, reader: Reader) -> DashboardOrder:
        order = ORDERS.get(request.path_params["what"])
        if order is None:
            raise FormRefused(HTTPStatus.NOT_FOUND, "There is no such order.")
        if not (reader.operates or (order.for_members and reader.deletes)):
            why = (
                "You have no right to order this."
                if reader.form_token
                else "You only read here: to order something, log in, or open the address that the dashboard has printed."
            )
            raise FormRefused(HTTPStatus.FORBIDDEN, why)
        return order

    async def job(self, request: Request, reader: Reader) -> Response:
        job = self._job(request, reader)
        page = self._page(
            request, reader, "job.html", job=job, stops=reader.name == job.by or reader.operates
        )
        if job.state == "failed":
            page.status_code = HTTPStatus.CONFLICT
        return page

    async def stop(self, request: Request, reader: Reader) -> Response:
        await self.access.form(request)
        job = self._job(request, reader)
        await self.jobs.stop(job)
        return _to_job(job.id)

    def _job(self, request: Request, reader: Reader) -> DashboardJob:
        """The job, if this reader may see it: it is theirs, or they are an administrator."""
        job = self.jobs.find(str(request.path_params["id"]))
        if job is None or not (reader.is_admin or (job.by, job.project) == (reader.name, reader.project)):
            raise FormRefused(HTTPStatus.NOT_FOUND, "There is no such order, or it is forgotten by now.")
        return job


def _to_job(id_: str) -> Response:
    return RedirectResponse(f"/jobs/{id_}", HTTPStatus.SEE_OTHER)


def _given(fields: Mapping[str, str]) -> Mapping[str, str]:
    return {name: fields[name] for name in ("host", "mode", "instance", "broker", "letter") if name in fields}


def _form_id(fields: Mapping[str, str]) -> str:
    text = fields.get(FORM_ID, "")
    try:
        return str(UUID(text))
    except ValueError:
        raise FormRefused(HTTPStatus.BAD_REQUEST, f"{FORM_ID} is {text!r}: it is no id. {AGAIN}") from None


def _what_is_wrong(question: OrderQuestion, fields: Mapping[str, str]) -> str:
    reason = fields.get("reason", "")
    if len(reason) > REASON_LENGTH_MAX:
        return f"The reason has {len(reason)} characters, and may have {REASON_LENGTH_MAX}. Nothing was done."
    if not reason.isprintable():
        return "The reason has control characters. Nothing was done."
    if question.sure and fields.get(SURE) != "yes":
        return "Nothing was done: the statement is not confirmed."
    return ""
