"""The pages of instances: lists, also live, one instance with its timeline, what waits, moves, and what would fit."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from operator import itemgetter

from msgspec import Struct, structs
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from bus.messages.build import AskInstances, BuildInstance, InstanceDetails, InstancesFound, InstanceState
from bus.messages.moves import AskHistory, AskMoves, Change, HistoryFound, MovePlace, MovesFound
from bus.messages.planning import AskExplanation, AskPlan, Explanation, ExplanationsFound, PlanFound
from engine.flavors import Flavor, InstanceId
from kit.errors import ConnectionLost, Failure, Refusal
from moor.asking import CommandClient
from moor.dashboard.rendering import NUMBER_MAX, PAGE, AskingPages, PageRefused, Reader, id_of, is_number
from moor.instances.move_commands import how_it_ended
from moor.showing import COLOURS, size_in_words

HISTORY_PAGES_MAX = 10
# All who look at the same list within this time see one answer, so that many readers ask no more than one.
LOOK_S = 5.0


class SeenTable(Struct, frozen=True):
    until_s: float
    page: str


class Field(Struct, frozen=True):
    """A field of the form. `hint` is an example."""

    name: str
    label: str
    hint: str = ""
    is_number: bool = False


SIZES = (
    Field("vcpus", "VCPUs", is_number=True),
    Field("ram_mb", "memory (MB)", is_number=True),
    Field("root_gb", "disk (GB)", is_number=True),
)
TRAITS = Field("traits", "required traits", "HW_CPU_X86_AVX2")
SPECS = Field("specs", "extra specs", "resources:VGPU=1")
FLAVOR = Field("flavor", "stored flavor", "m1.small")
ZONE = Field("zone", "availability zone")
HOSTS = Field("hosts", "only on these hosts")
PROJECT = Field("project", "for the project")
FIELDS = (FLAVOR, *SIZES, TRAITS, SPECS, ZONE, HOSTS)


class InstancePages(AskingPages):
    def __init__(self, asking: CommandClient) -> None:
        super().__init__(asking)
        # The lists that were rendered last, and until when they count.
        self._seen_tables: dict[AskInstances, SeenTable] = {}

    async def instances(self, request: Request, reader: Reader) -> Response:
        question = _instances_asked(request, reader)
        found = await self._ask(question, InstancesFound)
        return self._page(
            request,
            reader,
            "instances.html",
            found=found,
            state=question.state,
            name=question.name,
            states=[*COLOURS],
            after=question.after or "",
            query=request.url.query,
        )

    async def instance(self, request: Request, reader: Reader) -> Response:
        """With `now`, also how its request would be decided at this moment."""
        id_ = InstanceId(request.path_params["id"])
        found = await self._ask(AskInstances(instances=(id_,), project=reader.project), InstancesFound)
        if not found.instances:
            return self.refusal(request, reader, HTTPStatus.NOT_FOUND, f"There is no instance {id_}.")
        (state,), details = found.instances, next(iter(found.details), None)
        changes, has_more = await self._history(id_, reader)
        plans_now = bool(request.query_params.get("now", ""))
        question = AskExplanation(instance=id_, plan_now=plans_now, project=reader.project)
        explained = await self._ask(question, ExplanationsFound)
        return self._page(
            request,
            reader,
            "instance.html",
            state=state,
            details=details,
            steps=timeline_of(state, details, changes, explained.explanations),
            has_more=has_more,
            explanations=explained.explanations,
            plans_now=plans_now,
            plan=explained.plan,
        )

    async def _history(self, id_: InstanceId, reader: Reader) -> tuple[Sequence[Change], bool]:
        """The orders for an instance, the oldest first, and whether there are more than are read here."""
        changes: list[Change] = []
        question = AskHistory(instance=id_, project=reader.project)
        for _ in range(HISTORY_PAGES_MAX):
            page = await self._ask(question, HistoryFound)
            changes += page.changes
            if not page.next:
                return changes, False
            question = structs.replace(question, after=page.next)
        return changes, True

    async def waiting(self, request: Request, reader: Reader) -> Response:
        after = request.query_params.get("after", "")
        question = AskInstances(state="waiting", after=id_of(after), limit=PAGE)
        found = await self._ask(question, InstancesFound)
        return self._page(request, reader, "waiting.html", found=found, after=after)

    async def moves(self, request: Request, reader: Reader) -> Response:
        """Moves under way, or with `ended` all of them, the newest first."""
        asked = request.query_params
        ended, after = bool(asked.get("ended", "")), _place_of(asked)
        found = await self._ask(AskMoves(ended=ended, after=after, limit=PAGE), MovesFound)
        return self._page(
            request,
            reader,
            "moves.html",
            found=found,
            ended=ended,
            after=after,
            how_it_ended=how_it_ended,
        )

    # The list as a stream: the table again whenever it has changed. A member gets that of their project, as on the page.

    async def live_instances(self, request: Request, reader: Reader) -> Response:
        question = _instances_asked(request, reader)
        headers = {"cache-control": "no-store"}
        return StreamingResponse(self._tables_of(question), media_type="text/event-stream", headers=headers)

    async def _tables_of(self, question: AskInstances) -> AsyncIterator[str]:
        last = ""
        while True:
            event = await self._event(question)
            yield event if event != last else ": quiet\n\n"
            last = event
            await asyncio.sleep(LOOK_S)

    async def _event(self, question: AskInstances) -> str:
        try:
            kind, page = "instances", await self._table(question)
        except (PageRefused, Failure, ConnectionLost, Refusal) as problem:
            kind, page = "trouble", str(problem)
        lines = "".join(f"data: {line}\n" for line in page.splitlines())
        return f"event: {kind}\n{lines}\n"

    async def _table(self, question: AskInstances) -> str:
        now_s = asyncio.get_running_loop().time()
        for asked in [asked for asked, seen in self._seen_tables.items() if seen.until_s <= now_s]:
            del self._seen_tables[asked]
        if question not in self._seen_tables:
            found = await self._ask(question, InstancesFound)
            page = self._render("instance_table.html", found=found, after=question.after)
            self._seen_tables[question] = SeenTable(now_s + LOOK_S / 2, page)
        return self._seen_tables[question].page

    # What would fit, and why not the rest: for a request that is not built.

    async def why(self, request: Request, reader: Reader) -> Response:
        fields = (*FIELDS, PROJECT) if reader.is_admin else FIELDS
        given = {each.name: request.query_params.get(each.name, "").strip() for each in fields}
        plan, refused = None, ""
        try:
            if any(given.values()):
                build = _request_of(given, reader)
                plan = await self._ask(AskPlan(request=build, project=build.project), PlanFound)
        except PageRefused as problem:
            refused = str(problem)
        status = HTTPStatus.BAD_REQUEST if refused else HTTPStatus.OK
        return self._page(
            request, reader, "why.html", status, fields=fields, given=given, plan=plan, refused=refused
        )


def _instances_asked(request: Request, reader: Reader) -> AskInstances:
    """The question behind a list of instances: only those of the reader's project, if they are no administrator."""
    asked = request.query_params
    state = asked.get("state", "")
    if state not in ("", *COLOURS):
        raise PageRefused(f"state is {state!r}: there is none.")
    return AskInstances(
        state=state,
        name=asked.get("name", "").strip(),
        after=id_of(asked.get("after", "")),
        limit=PAGE,
        project=reader.project,
    )


def _place_of(asked: Mapping[str, str]) -> MovePlace | None:
    """The move after which a page begins: its instance, and when it was asked for."""
    instance = id_of(asked.get("after", ""))
    if instance is None:
        return None
    text = asked.get("at", "")
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise PageRefused(f"at is {text!r}: it must be a time with a zone, in ISO 8601.")
    return MovePlace(asked_at=at, instance=instance)


def _request_of(given: Mapping[str, str], reader: Reader) -> BuildInstance:
    sizes = {each.name: _size(each, given[each.name]) for each in SIZES}
    specs = {f"trait:{trait}": "required" for trait in _words(given["traits"])}
    for text in _words(given["specs"]):
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise PageRefused(f"{SPECS.label} is {text!r}: each must be KEY=VALUE.")
        if key in specs:
            raise PageRefused(f"{SPECS.label} gives {key} twice, as {specs[key]!r} and as {value!r}.")
        specs[key] = value
    flavor = given["flavor"]
    if flavor and (specs or any(sizes.values())):
        raise PageRefused(
            f"{FLAVOR.label} is {flavor!r}: it has sizes and extra specs of its own, so give no others."
        )
    return BuildInstance(
        flavor=None if flavor else structs.replace(Flavor(extra_specs=specs), **sizes),
        flavor_names=(flavor,) if flavor else (),
        availability_zone=given["zone"],
        hosts=tuple(_words(given["hosts"])),
        project=reader.project or given.get("project", ""),
    )


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _size(field: Field, text: str) -> int:
    if not text:
        return 0
    if not is_number(text):
        raise PageRefused(f"{field.label} is {text!r}: it must be a whole number, at most {NUMBER_MAX}.")
    return int(text)


# The timeline: what has happened to an instance, in the order in which it happened. Pure.

BOOT = "boot"


class TimelineStep(Struct, frozen=True):
    """`at` is unknown for what the cell did: it stands between what is known. `kind` is the style of the line."""

    what: str
    at: datetime | None = None
    by: str = ""
    kind: str = ""


def timeline_of(
    state: InstanceState,
    details: InstanceDetails | None,
    changes: Sequence[Change],
    explanations: Sequence[Explanation],
) -> list[TimelineStep]:
    steps = [*_boot(state, details, changes), *_moves(changes, explanations)]
    if state.changed_at:
        because = f": {state.reason}" if state.reason else ""
        steps.append(
            TimelineStep(f"{state.state} since then{because}", state.changed_at, kind=_kind(state.state))
        )
    return _in_order(steps)


def _boot(
    state: InstanceState, details: InstanceDetails | None, changes: Sequence[Change]
) -> Iterator[TimelineStep]:
    ordered = next((each for each in changes if each.what == BOOT), None)
    size = ordered.size if ordered and ordered.size else details.size if details else None
    asked_at = ordered.asked_at if ordered else details.accepted_at if details else None
    if asked_at or size:
        words = f": {size_in_words(size)}" if size else ""
        yield TimelineStep(f"boot requested{words}", asked_at, by=ordered.by if ordered else "")
    for refused in state.refusals:
        yield TimelineStep(f"the claim on {refused.host} was refused: {refused.reason}", kind="note")
    if details and details.placed_at:
        where = f": {ordered.destination}" if ordered and ordered.destination else ""
        yield TimelineStep(f"a host was chosen{where}", details.placed_at)
    for failed in state.failures:
        said = "was refused" if failed.is_refused else "failed"
        yield TimelineStep(
            f"attempt {failed.attempt} on {failed.host} {said}: {failed.reason}",
            kind="note" if failed.is_refused else "trouble",
        )
    if ordered and ordered.ended_at and ordered.outcome != state.state:
        yield _end(ordered)


def _moves(changes: Sequence[Change], explanations: Sequence[Explanation]) -> Iterator[TimelineStep]:
    chosen = {each.request_id: each for each in explanations if each.what != BOOT and each.request_id}
    for change in changes:
        if change.what == BOOT:
            continue
        way = " → ".join(filter(None, (change.source, change.destination)))
        facts = ", ".join(filter(None, (way, size_in_words(change.size) if change.size else "")))
        yield TimelineStep(
            f"{change.what} requested{': ' if facts else ''}{facts}", change.asked_at, by=change.by
        )
        choice = chosen.get(change.request_id) if change.request_id else None
        if choice and choice.chosen and choice.chosen_at:
            yield TimelineStep(f"a host was chosen for it: {choice.chosen}", choice.chosen_at)
        yield _end(change) if change.outcome else TimelineStep(f"the {change.what} goes on")


def _end(change: Change) -> TimelineStep:
    why = f": {change.failure}" if change.failure else ""
    text = f"{change.what}: {change.outcome}{why}"
    return TimelineStep(text, change.ended_at, by=change.ended_by, kind=_kind(change.outcome))


def _in_order(steps: Sequence[TimelineStep]) -> list[TimelineStep]:
    """By time. A step of unknown time stays behind the one before it."""
    known = [each.at for each in steps if each.at]
    if not known:
        return [*steps]
    placed, last = [], min(known)
    for step in steps:
        last = step.at or last
        placed.append((last, step))
    return [step for _, step in sorted(placed, key=itemgetter(0))]


def _kind(outcome: str) -> str:
    return "trouble" if outcome in ("error", "failed") else ""
