"""The pages that write: to log in and out, to confirm an order, and to see what became of it; and all orders.

An order is shown by GET, which does nothing, and sent by POST, by a form of the user's own session. The form has an id of its
own: sent twice, it is done once.
"""

import asyncio
import hmac
import logging
import re
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from http import HTTPStatus
from typing import Final, get_args
from urllib.parse import quote
from uuid import UUID, uuid4

from msgspec import Struct, field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from engine.hosts import NODE
from kit.clock import now
from kit.errors import ConnectionLost, Failure, Refusal
from kit.logs import InstanceLine, InstanceLog
from moor.client import CampaignWork, Client, ClientError, HostMode, HostState, NotFound, host_in_cell
from moor.client.finding import id_in
from moor.client.keeping import EVACUATION_WAIT_S, goes_on
from moor.dashboard.access import AGAIN, FORM_TOKEN, Access, FormRefused, form_of, local_path, reader_of
from moor.dashboard.letters import LetterReader, no_letter
from moor.dashboard.rendering import NOBODY, PageRefused, PageRenderer, Reader
from moor.showing import time_in_words
from placement_worker.api.values import ApiError

# What users have ordered by the dashboard: each order is a job, which goes on whatever its browser does.
#
# A job that ends leaves what became of it for a while. The end of the process ends the jobs.

log = logging.getLogger(__name__)
lines = InstanceLog(__name__)

# Beyond these, the oldest that has ended is forgotten.
JOBS_MAX: Final = 500
UNDER_WAY_MAX: Final = 20
# A page waits so long, before it says that the job goes on.
SOON_S: Final = 1.5


class TooManyJobs(Exception):  # noqa: N818 - named for what happened
    """So many jobs go on that no other may begin."""


class DashboardJob(Struct, eq=False):
    """`about` is what it acts on: at most one job about it goes on. `by` is the user, and `project` theirs; empty for an
    administrator.
    """

    id: str
    title: str
    about: str
    by: str
    project: str
    # The page to which its reader returns.
    back: str
    begun_at: datetime
    state: str = "going on"
    said: list[str] = field(default_factory=list)
    back_words: str = "Back"
    ended_at: datetime | None = None
    task: asyncio.Task[None] | None = None

    @property
    def goes_on(self) -> bool:
        return self.ended_at is None


class JobList:
    def __init__(self) -> None:
        self._jobs: OrderedDict[str, DashboardJob] = OrderedDict()

    def find(self, id_: str) -> DashboardJob | None:
        return self._jobs.get(id_)

    def about(self, what: str) -> DashboardJob | None:
        """The job about this that goes on."""
        return next((each for each in self._jobs.values() if each.goes_on and each.about == what), None)

    def begin(self, job: DashboardJob, work: Callable[[], Awaitable[None]]) -> None:
        """Raises TooManyJobs."""
        if sum(each.goes_on for each in self._jobs.values()) >= UNDER_WAY_MAX:
            raise TooManyJobs(f"{UNDER_WAY_MAX} orders go on; wait until one has ended")
        while len(self._jobs) >= JOBS_MAX:
            del self._jobs[next(id_ for id_, each in self._jobs.items() if not each.goes_on)]
        self._jobs[job.id] = job
        job.task = asyncio.create_task(_run(job, work))

    async def soon(self, job: DashboardJob) -> None:
        """Return when the job has ended, or after a short while."""
        if job.task is not None:
            await asyncio.wait((job.task,), timeout=SOON_S)

    async def close(self) -> None:
        for each in self._jobs.values():
            if each.task is not None and each.goes_on:
                each.task.cancel()
                await asyncio.wait((each.task,))


async def _run(job: DashboardJob, work: Callable[[], Awaitable[None]]) -> None:
    _log_line("order of the dashboard", job, job.about)
    try:
        await work()
        job.state = "done"
    except asyncio.CancelledError:
        job.state = "stopped"
        job.said.append("The dashboard has ended; what was ordered before goes on.")
    except (ClientError, Failure, ConnectionLost, Refusal, PageRefused) as problem:
        job.state = "failed"
        job.said.append(str(problem))
    except BaseException:
        job.state = "failed"
        job.said.append("An error of the dashboard has ended it; its log has the details.")
        log.exception("order %s of the dashboard has failed", job.id)
        raise
    finally:
        job.ended_at = now()
        _log_line(f"order of the dashboard {job.state}", job, "; ".join(job.said))


def _log_line(what: str, job: DashboardJob, reason: str) -> None:
    """Names of hosts and instances are chosen by strangers; these lines escape them."""
    lines.write((InstanceLine(what, project=job.project, name=job.title, by=job.by, reason=reason),))


# What an order is: it says first what it will do, and is sent when its user confirms it.

REASON_LENGTH_MAX: Final = 255
SURE: Final = "sure"

Given = Mapping[str, str]


class OrderQuestion(Struct, frozen=True, kw_only=True):
    """What an order will do: what its page says before it is sent.

    `about` is what it acts on, and `given` the fields that name that. `sure` is a statement that the user has to confirm;
    empty if there is none.
    """

    title: str
    button: str
    sentences: Sequence[str]
    instances: int
    about: str
    given: Given
    back: str
    sure: str = ""
    asks_reason: bool = False
    # It cannot be taken back.
    is_harmful: bool = False


class Clouds(Struct, frozen=True):
    """The cloud, for orders: `moor` asks for pages, `ordering` connects each order anew, as a user who may send it."""

    moor: Client
    letters: LetterReader
    ordering: Callable[[], AbstractAsyncContextManager[Client]]


class DashboardOrder(Struct, frozen=True):
    """`question` says what the order would do; it raises PageRefused if that cannot be done."""

    question: Callable[[Clouds, Given, Reader], Awaitable[OrderQuestion]]
    carry_out: Callable[[Clouds, Given, DashboardJob], Awaitable[None]]
    # May members order it for what is of their project?
    for_members: bool = False


# Orders about hosts: their modes, and how they are emptied, by campaigns of one host. Sent as `moor host set` and `moor campaign start`
# send them.

CAMPAIGN_GOES_ON: Final = "It is a campaign, which goes on by itself; it can be paused and cancelled."
MOVES_AT_ONCE: Final = 10
EVACUATIONS_AT_ONCE: Final = 50


def whole_name(host: HostState) -> str:
    return host_in_cell(host.cell, host.name)


def page_of(host: HostState) -> str:
    return f"/hosts/{quote(host.cell)}/{quote(host.name)}"


def counted(number: int) -> str:
    return "1 instance" if number == 1 else f"{number:,} instances"


_MODES: Final[Mapping[str, tuple[str, str]]] = {
    "up": ("Set {} up", "It may be used again: new instances are built there, if it sends heartbeats."),
    "draining": (
        "Set {} draining",
        "Nothing new is built there. Its instances stay: to move them away, drain the host.",
    ),
    "down": (
        "Set {} down",
        "It counts as if its heartbeats had stopped: nothing new is built there, and its instances may be evacuated. They go on.",
    ),
    "dead": (
        "Set {} dead",
        "It counts as down, and nobody waits for it to clean up: what it holds for instances that have left it is released at once.",
    ),
}


async def _ask_mode(clouds: Clouds, given: Given, _reader: Reader) -> OrderQuestion:
    mode = given.get("mode", "")
    if mode not in _MODES:
        raise PageRefused(f"mode is {mode!r}: it must be one of {', '.join(get_args(HostMode))}.")
    host = await clouds.moor.show_host(given.get("host", ""))
    if mode == "dead" and host.kind == NODE:
        raise PageRefused(f"{host.name} is a bare-metal node, which cannot be dead.")
    there = await clouds.moor.instances_on(whole_name(host))
    title, meaning = _MODES[mode]
    now = f"It is {host.setting.mode} now" + (f": {host.setting.reason}" if host.setting.reason else "")
    heard = f". It was heard at {time_in_words(host.heard_at)}" if mode == "dead" and host.heard_at else ""
    return OrderQuestion(
        title=title.format(whole_name(host)),
        button=f"Set it {mode}",
        sentences=(f"{now}{heard}.", meaning),
        instances=len(there),
        about=f"mode of {whole_name(host)}",
        given={"host": whole_name(host), "mode": mode},
        back=page_of(host),
        sure="Nothing runs on this host, and nothing will: it is off, or its disks are gone."
        if mode == "dead"
        else "",
        asks_reason=mode != "up",
        is_harmful=mode == "dead",
    )


async def _set_mode(clouds: Clouds, given: Given, job: DashboardJob) -> None:
    mode: HostMode = given["mode"]  # type: ignore[assignment]  # the question has checked it
    async with clouds.ordering() as moor:
        host = await moor.set_host(
            given["host"],
            mode,
            reason=given.get("reason", "").strip(),
            # A user who sets a host dead has confirmed that nothing runs there (`OrderQuestion.sure`).
            sure=mode == "dead",
            for_user=job.by,
        )
    job.said.append(f"{whole_name(host)} is set {host.setting.mode}, by {host.setting.by}.")


async def _ask_delete_host(clouds: Clouds, given: Given, _reader: Reader) -> OrderQuestion:
    host = await clouds.moor.show_host(given.get("host", ""))
    return OrderQuestion(
        title=f"Delete {whole_name(host)}",
        button="Delete it",
        sentences=(
            "The host is forgotten, with what placement has of it.",
            "It is refused while the host is heard, has instances, or anybody holds something of it.",
            "If it comes back, it is a new host.",
        ),
        instances=len(await clouds.moor.instances_on(whole_name(host))),
        about=f"mode of {whole_name(host)}",
        given={"host": whole_name(host)},
        back="/hosts",
        is_harmful=True,
    )


async def _delete_host(clouds: Clouds, given: Given, job: DashboardJob) -> None:
    async with clouds.ordering() as moor:
        host = await moor.delete_host(given["host"], for_user=job.by)
    job.said.append(f"{whole_name(host)} is deleted.")


async def _ask_drain(clouds: Clouds, given: Given, _reader: Reader) -> OrderQuestion:
    host = await clouds.moor.show_host(given.get("host", ""))
    there = await clouds.moor.instances_on(whole_name(host))
    return OrderQuestion(
        title=f"Drain {whole_name(host)}",
        button=f"Drain it: move {counted(len(there))}",
        sentences=(
            "It is set draining: nothing new is built there until it is set up again.",
            f"Its instances move to other hosts of cell {host.cell}, at most {MOVES_AT_ONCE} at a time: live, or else stopped meanwhile.",
            "Those for which no host has room stay.",
            CAMPAIGN_GOES_ON,
        ),
        instances=len(there),
        about=f"instances of {whole_name(host)}",
        given={"host": whole_name(host)},
        back=page_of(host),
        asks_reason=True,
    )


async def _drain(clouds: Clouds, given: Given, job: DashboardJob) -> None:
    reason = given.get("reason", "").strip()
    await _begin(
        clouds, job, CampaignWork(hosts=(given["host"],), guests_at_once=MOVES_AT_ONCE, reason=reason)
    )


async def _begin(clouds: Clouds, job: DashboardJob, work: CampaignWork) -> None:
    async with clouds.ordering() as moor:
        campaign = await moor.start_campaign(work, campaign_id=UUID(job.id), for_user=job.by)
    job.back, job.back_words = f"/campaigns/{campaign.id}", "How far it is"
    job.said.append(f"The campaign {campaign.name} has begun.")


async def _ask_evacuate(clouds: Clouds, given: Given, _reader: Reader) -> OrderQuestion:
    host = await clouds.moor.show_host(given.get("host", ""))
    if host.up:
        raise PageRefused(f"{whole_name(host)} is up, so nothing can be evacuated: set it down first.")
    there = await clouds.moor.instances_on(whole_name(host))
    return OrderQuestion(
        title=f"Evacuate {whole_name(host)}",
        button=f"Evacuate it: build {counted(len(there))} anew",
        sentences=(
            f"Its instances are built anew on other hosts of cell {host.cell}, at most {EVACUATIONS_AT_ONCE} at a time.",
            f"They keep their ids. What is only on the disks of {host.name} is lost to them.",
            "Those for which no host has room wait for it, and stay if the host is up again before.",
            CAMPAIGN_GOES_ON,
        ),
        instances=len(there),
        about=f"instances of {whole_name(host)}",
        given={"host": whole_name(host)},
        back=page_of(host),
        is_harmful=True,
        sure="I have made sure that this host is off. If it still runs, its instances would run twice.",
    )


async def _evacuate(clouds: Clouds, given: Given, job: DashboardJob) -> None:
    work = CampaignWork(
        kind="evacuate",
        hosts=(given["host"],),
        guests_at_once=EVACUATIONS_AT_ONCE,
        wait_s=EVACUATION_WAIT_S,
    )
    await _begin(clouds, job, work)


_OF_CAMPAIGNS: Final[Mapping[str, tuple[str, str]]] = {
    "pause": ("Pause", "Nothing more begins until it is resumed."),
    "resume": ("Resume", "What waited for its turn begins again."),
    "cancel": ("Cancel", "It ends. Hosts that it has emptied stay draining or down, and others as they are."),
}


async def _ask_campaign(clouds: Clouds, given: Given, _reader: Reader) -> OrderQuestion:
    to = given.get("to", "")
    if to not in _OF_CAMPAIGNS:
        raise PageRefused(f"to is {to!r}: it must be one of {', '.join(_OF_CAMPAIGNS)}.")
    found = (await clouds.moor.show_campaign(given.get("campaign", ""))).campaign
    if not goes_on(found):
        raise PageRefused(f"The campaign {found.name} is {found.life} already.")
    verb, meaning = _OF_CAMPAIGNS[to]
    return OrderQuestion(
        title=f"{verb} the campaign {found.name}",
        button=f"{verb} it",
        sentences=(f"It is {found.life} now. What moves goes on.", meaning),
        instances=sum(found.movements.get(life, 0) for life in ("planned", "granted", "moving")),
        about=f"campaign {found.id}",
        given={"campaign": str(found.id), "to": to},
        back=f"/campaigns/{found.id}",
        is_harmful=to == "cancel",
    )


async def _set_campaign(clouds: Clouds, given: Given, job: DashboardJob) -> None:
    async with clouds.ordering() as moor:
        change = {
            "pause": moor.pause_campaign,
            "resume": moor.resume_campaign,
            "cancel": moor.cancel_campaign,
        }
        campaign = await change[given["to"]](given["campaign"], for_user=job.by)
    job.said.append(f"The campaign {campaign.name} is {campaign.life}.")


async def _ask_answer(clouds: Clouds, given: Given, _reader: Reader) -> OrderQuestion:
    found = await clouds.moor.show_question(given.get("question", ""))
    if found.life != "open":
        raise PageRefused(f"The question is {found.life} already. {found.reason or found.answer}")
    does = {each.answer: each.does for each in found.choices}
    answer = given.get("answer", "")
    if answer not in does:
        raise PageRefused(f"answer is {answer!r}: it must be one of {', '.join(does)}.")
    return OrderQuestion(
        title=f"Answer {answer}",
        button=f"Answer {answer}",
        sentences=(found.text, f"{answer}: {does[answer]}"),
        instances=0,
        about=f"question {found.id}",
        given={"question": str(found.id), "answer": answer},
        back=f"/questions/{found.id}",
        is_harmful=True,
    )


async def _answer(clouds: Clouds, given: Given, job: DashboardJob) -> None:
    async with clouds.ordering() as moor:
        question = await moor.answer_question(given["question"], given["answer"], for_user=job.by)
    job.said.append(f"The question about host {question.host} is {question.life}: {question.answer}.")


async def _ask_delete(clouds: Clouds, given: Given, reader: Reader) -> OrderQuestion:
    id_ = _instance_id(given.get("instance", ""))
    state = await clouds.moor.of_project(reader.project, for_member=not reader.is_admin).show(id_)
    id_ = state.id
    if state.state in ("deleting", "deleted"):
        raise PageRefused(f"Instance {id_} is {state.state} already.")
    name = state.name or str(id_)
    where = f" on {state.host} in {state.cell}" if state.host else ""
    return OrderQuestion(
        title=f"Delete {name}",
        button="Delete it",
        sentences=(
            f"The instance {id_}"
            + (f" of project {state.project}" if state.project else "")
            + f" is {state.state}{where}.",
            "It ends, and what is on its disks is lost. A deleted instance stays deleted.",
        ),
        instances=1,
        about=f"instance {id_}",
        given={"instance": str(id_)},
        back=f"/instances/{id_}",
        is_harmful=True,
    )


async def _delete(clouds: Clouds, given: Given, job: DashboardJob) -> None:
    async with clouds.ordering() as moor:
        sent = await moor.of_project(job.project).delete(_instance_id(given["instance"]), for_user=job.by)
    job.said.append(f"The instance is {sent.states[0].state}.")


def _instance_id(text: str) -> UUID:
    if (id_ := id_in(text)) is None:
        raise PageRefused(f"instance is {text!r}: it is no id of an instance.")
    return id_


async def _ask_replay(clouds: Clouds, given: Given, _reader: Reader) -> OrderQuestion:
    broker, handle = given.get("broker", ""), given.get("letter", "")
    found = await clouds.letters.letter(broker, handle)
    if found is None:
        raise PageRefused(no_letter(broker, handle))
    letter = found.letter
    return OrderQuestion(
        title=f"Replay the dead letter {handle}",
        button="Replay it",
        sentences=(
            f"The message ({letter.type}) goes back into the queue {letter.queue}, with no attempts counted.",
            f"It is a dead letter since: {letter.reason}",
        ),
        instances=0,
        about=f"dead letter {broker} {handle}",
        given={"broker": broker, "letter": handle},
        back="/dead",
    )


async def _replay(clouds: Clouds, given: Given, job: DashboardJob) -> None:
    broker, handle = given["broker"], given["letter"]
    try:
        letter = await clouds.letters.replay(broker, handle)
    except NotFound:
        raise PageRefused(no_letter(broker, handle)) from None
    job.said.append(f"The dead letter {handle} is back in the queue {letter.queue}.")


ORDERS: Final[Mapping[str, DashboardOrder]] = {
    "set-host": DashboardOrder(_ask_mode, _set_mode),
    "drain": DashboardOrder(_ask_drain, _drain),
    "evacuate": DashboardOrder(_ask_evacuate, _evacuate),
    "campaign": DashboardOrder(_ask_campaign, _set_campaign),
    "answer": DashboardOrder(_ask_answer, _answer),
    "delete-host": DashboardOrder(_ask_delete_host, _delete_host),
    "delete": DashboardOrder(_ask_delete, _delete, for_members=True),
    "replay": DashboardOrder(_ask_replay, _replay),
}


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
            status,
            fields=self.access.fields,
            then=then,
            refused=refused,
            form_token=token,
        )
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
        return self._page(
            request,
            reader,
            "order.html",
            HTTPStatus.BAD_REQUEST if wrong else HTTPStatus.OK,
            question=question,
            form_id=str(uuid4()),
            wrong=wrong,
            reason=reason,
            reason_max=REASON_LENGTH_MAX,
        )

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
        """What became of an order: for the user who has sent it, and for administrators."""
        job = self.jobs.find(str(request.path_params["id"]))
        if job is None or not (reader.is_admin or (job.by, job.project) == (reader.name, reader.project)):
            raise FormRefused(HTTPStatus.NOT_FOUND, "There is no such order, or it is forgotten by now.")
        status = HTTPStatus.CONFLICT if job.state == "failed" else HTTPStatus.OK
        return self._page(request, reader, "job.html", status, job=job)


def _to_job(id_: str) -> Response:
    return RedirectResponse(f"/jobs/{id_}", HTTPStatus.SEE_OTHER)


def _given(fields: Mapping[str, str]) -> Mapping[str, str]:
    return {
        name: fields[name]
        for name in ("host", "mode", "instance", "campaign", "to", "question", "answer", "broker", "letter")
        if name in fields
    }


def _form_id(fields: Mapping[str, str]) -> str:
    if (id_ := id_in(fields.get(FORM_ID, ""))) is None:
        raise FormRefused(
            HTTPStatus.BAD_REQUEST, f"{FORM_ID} is {fields.get(FORM_ID, '')!r}: it is no id. {AGAIN}"
        )
    return str(id_)


def _what_is_wrong(question: OrderQuestion, fields: Mapping[str, str]) -> str:
    reason = fields.get("reason", "")
    if len(reason) > REASON_LENGTH_MAX:
        return f"The reason has {len(reason)} characters, and may have {REASON_LENGTH_MAX}. Nothing was done."
    if not reason.isprintable():
        return "The reason has control characters. Nothing was done."
    if question.sure and fields.get(SURE) != "yes":
        return "Nothing was done: the statement is not confirmed."
    return ""
