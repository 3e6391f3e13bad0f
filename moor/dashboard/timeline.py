"""What has happened to an instance, in the order in which it happened: who ordered it, and how it ended. Pure."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from operator import itemgetter

from msgspec import Struct

from bus.messages.build import InstanceDetails, InstanceState
from bus.messages.moves import Change
from bus.messages.planning import Explanation
from moor.showing import size_in_words

BOOT = "boot"


class Step(Struct, frozen=True):
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
) -> list[Step]:
    steps = [*_boot(state, details, changes), *_moves(changes, explanations)]
    if state.changed_at:
        because = f": {state.reason}" if state.reason else ""
        steps.append(Step(f"{state.state} since then{because}", state.changed_at, kind=_kind(state.state)))
    return _in_order(steps)


def _boot(state: InstanceState, details: InstanceDetails | None, changes: Sequence[Change]) -> Iterator[Step]:
    ordered = next((each for each in changes if each.what == BOOT), None)
    size = ordered.size if ordered and ordered.size else details.size if details else None
    asked_at = ordered.asked_at if ordered else details.accepted_at if details else None
    if asked_at or size:
        words = f": {size_in_words(size)}" if size else ""
        yield Step(f"boot requested{words}", asked_at, by=ordered.by if ordered else "")
    for refused in state.refusals:
        yield Step(f"the claim on {refused.host} was refused: {refused.reason}", kind="note")
    if details and details.placed_at:
        where = f": {ordered.destination}" if ordered and ordered.destination else ""
        yield Step(f"a host was chosen{where}", details.placed_at)
    for failed in state.failures:
        said = "was refused" if failed.is_refused else "failed"
        yield Step(
            f"attempt {failed.attempt} on {failed.host} {said}: {failed.reason}",
            kind="note" if failed.is_refused else "trouble",
        )
    if ordered and ordered.ended_at and ordered.outcome != state.state:
        yield _end(ordered)


def _moves(changes: Sequence[Change], explanations: Sequence[Explanation]) -> Iterator[Step]:
    chosen = {each.request_id: each for each in explanations if each.what != BOOT and each.request_id}
    for change in changes:
        if change.what == BOOT:
            continue
        way = " → ".join(filter(None, (change.source, change.destination)))
        facts = ", ".join(filter(None, (way, size_in_words(change.size) if change.size else "")))
        yield Step(f"{change.what} requested{': ' if facts else ''}{facts}", change.asked_at, by=change.by)
        choice = chosen.get(change.request_id) if change.request_id else None
        if choice and choice.chosen and choice.chosen_at:
            yield Step(f"a host was chosen for it: {choice.chosen}", choice.chosen_at)
        yield _end(change) if change.outcome else Step(f"the {change.what} goes on")


def _end(change: Change) -> Step:
    why = f": {change.failure}" if change.failure else ""
    text = f"{change.what}: {change.outcome}{why}"
    return Step(text, change.ended_at, by=change.ended_by, kind=_kind(change.outcome))


def _in_order(steps: Sequence[Step]) -> list[Step]:
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
