"""The page of one instance with its timeline, and the page that says what would fit, and why not the rest."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from operator import itemgetter

from msgspec import Struct, structs
from starlette.requests import Request
from starlette.responses import Response

from moor.client import (
    BuildInstance,
    Change,
    Client,
    Explanation,
    Flavor,
    InstanceDetails,
    InstanceState,
    NotFound,
    Rejected,
)
from moor.dashboard.rendering import NUMBER_MAX, FormField, PageRefused, PageRenderer, Reader, is_number
from moor.showing import size_in_words

# So many orders for an instance are read at most.
HISTORY_MAX = 1000


SIZES = (
    FormField("vcpus", "VCPUs", is_number=True),
    FormField("ram_mb", "memory (MB)", is_number=True),
    FormField("root_gb", "disk (GB)", is_number=True),
)
TRAITS = FormField("traits", "required traits", hint="HW_CPU_X86_AVX2")
SPECS = FormField("specs", "extra specs", hint="resources:VGPU=1")
FLAVOR = FormField("flavor", "stored flavor", hint="m1.small")
ZONE = FormField("zone", "availability zone")
HOSTS = FormField("hosts", "only on these hosts")
PROJECT = FormField("project", "for the project")
FIELDS = (FLAVOR, *SIZES, TRAITS, SPECS, ZONE, HOSTS)


class InstancePages(PageRenderer):
    def __init__(self, moor: Client) -> None:
        self._moor = moor

    async def instance(self, request: Request, reader: Reader) -> Response:
        """With `now`, also how its request would be decided at this moment."""
        moor = self._moor.of_project(reader.project, for_member=not reader.is_admin)
        id_ = request.path_params["id"]
        try:
            found = await moor.look(id_)
        except NotFound:
            found = None
        if found is None or len(found.instances) != 1:
            return self.refusal(request, reader, HTTPStatus.NOT_FOUND, f"There is no instance {id_}.")
        (state,), details = found.instances, next(iter(found.details), None)
        changes = await moor.history(state.id).first(HISTORY_MAX + 1)
        plans_now = bool(request.query_params.get("now", ""))
        explained = await moor.explain(state.id, plan_now=plans_now)
        return self._page(
            request,
            reader,
            "instance.html",
            state=state,
            details=details,
            steps=timeline_of(state, details, changes[:HISTORY_MAX], explained.explanations),
            has_more=len(changes) > HISTORY_MAX,
            explanations=explained.explanations,
            plans_now=plans_now,
            plan=explained.plan,
        )

    # What would fit, and why not the rest: for a request that is not built.

    async def why(self, request: Request, reader: Reader) -> Response:
        fields = (*FIELDS, PROJECT) if reader.is_admin else FIELDS
        given = {each.name: request.query_params.get(each.name, "").strip() for each in fields}
        plan, refused = None, ""
        try:
            if any(given.values()):
                moor = self._moor.of_project(reader.project, for_member=not reader.is_admin)
                plan = await moor.plan(_request_of(given, reader))
        except (PageRefused, Rejected) as problem:
            refused = str(problem)
        status = HTTPStatus.BAD_REQUEST if refused else HTTPStatus.OK
        return self._page(
            request, reader, "why.html", status, fields=fields, given=given, plan=plan, refused=refused
        )


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


def _size(field: FormField, text: str) -> int:
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
    if ordered and ordered.ended_at:
        became = "became active" if ordered.outcome == "active" else ""
        yield structs.replace(_end(ordered), what=became) if became else _end(ordered)


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
