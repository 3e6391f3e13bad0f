"""Finds the first seed that shows a bug, and takes out of its plan whatever is not needed for it."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import nullcontext
from typing import Any

from msgspec import Struct, structs

from tests.simulation.drawing import CLERKS, draw
from tests.simulation.faults import Hostile
from tests.simulation.findings import Broken
from tests.simulation.plan import Plan
from tests.simulation.planted import BUGS
from tests.simulation.seeds import Outcome, run
from tests.simulation.telling import lines_of, plan_lines

# What of a plan can be left out.
PARTS = (
    *("faults", "boots", "flips", "errands", "deletes", "rebuilds", "switches", "nonsense"),
    *("script", "ironic"),
)
# Those whose faults are the things that can be left out.
SCRIPTS = ("script", "ironic")
LINES_MAX = 60
PIECES_MAX = 128
LONGER_S = 3.0
# A plan of so many things is read from end to end.
ENOUGH = 60


class Hunted(Struct, frozen=True):
    """The seed that showed it, how many things it had and still needs, and what is told of that."""

    bug: str
    seed: int
    promise: str
    things: int
    needed: int
    told: tuple[str, ...]


def hunt(
    bug: str, seeds: Iterable[int], runs_max: int, *, enough: int = ENOUGH, sound: Collection[int] = ()
) -> Hunted | None:
    """None if no seed shows it. Without a bug's name, nothing is planted: what is real is hunted.

    Of seeds that are known to be `sound`, it need not be seen that they hold without the bug.
    """
    for seed in seeds:
        plan = structs.replace(draw(seed), patience_s=30.0) if bug else draw(seed)
        outcome = _run(bug, plan)
        # What breaks without the bug, too, is none of its doing.
        if outcome.broken is not None and (not bug or seed in sound or run(plan).broken is None):
            return _shrunk(bug, outcome, outcome.broken, runs_max, enough)
    return None


def _shrunk(bug: str, outcome: Outcome, broken: Broken, runs_max: int, enough: int) -> Hunted:
    plan, breaks = outcome.plan, _Breaks(bug, broken.promise, outcome)
    enough = enough or things_in(plan) // 2
    guesses: tuple[Callable[[Plan], Plan], ...] = (
        lambda plan: _until(plan, outcome.ended_s),
        lambda plan: _only_named(plan, broken.how),
        _without_errands,
        _without_boots,
        _without_flips,
        _without_intruders,
        _without_deletes,
        _only_errands,
    )
    likely = plan
    for guess in guesses:
        less = guess(likely)
        if things_in(likely) > enough and things_in(less) < things_in(likely) and breaks(less):
            likely = less
    small = shrink(likely, breaks, runs_max, enough)
    told = tuple(_story_of(breaks.latest))
    return Hunted(bug, plan.seed, broken.promise, things_in(plan), things_in(small), told)


def _run(bug: str, plan: Plan, end_s: float | None = None) -> Outcome:
    with BUGS[bug]() if bug else nullcontext():
        return run(plan, end_s)


def shrink(plan: Plan, breaks: Callable[[Plan], bool], runs_max: int, enough: int = ENOUGH) -> Plan:
    """All of a part first, then halves of every part, then quarters, as long as what is left still breaks the promise, and
    until that is so little that a person can read it.
    """
    runs = 0
    pieces = 1
    while pieces <= PIECES_MAX:
        for part in PARTS:
            at = 0
            size = -(-len(_things(plan, part)) // pieces)
            while at < len(_things(plan, part)):
                if runs == runs_max or things_in(plan) <= enough:
                    return plan
                less = _without(plan, part, at, at + size)
                runs += 1
                if breaks(less):
                    plan = less
                else:
                    at += size
        pieces *= 2
    return plan


def _until(plan: Plan, end_s: float) -> Plan:
    """What comes after the break has no part in it."""
    early = {
        part: tuple(each for each in getattr(plan, part) if each.at_s <= end_s)
        for part in ("boots", "flips", "errands", "deletes", "rebuilds", "faults", "nonsense")
    }
    return _sound(structs.replace(plan, **early))


def _only_errands(plan: Plan) -> Plan:
    """What clerks do may need nobody else."""
    return _sound(structs.replace(plan, boots=(), faults=(), switches=()))


def _without_errands(plan: Plan) -> Plan:
    """Requests may need nobody who writes by name."""
    faults = tuple(each for each in plan.faults if each.process not in CLERKS)
    return structs.replace(plan, errands=(), faults=faults)


def _without_boots(plan: Plan) -> Plan:
    """What becomes of nodes may need nobody who boots."""
    return _sound(structs.replace(plan, boots=())) if plan.nodes else plan


def _without_flips(plan: Plan) -> Plan:
    return structs.replace(plan, flips=())


def _without_deletes(plan: Plan) -> Plan:
    return structs.replace(plan, deletes=(), rebuilds=(), switches=(), nonsense=())


def _without_intruders(plan: Plan) -> Plan:
    return structs.replace(plan, faults=tuple(each for each in plan.faults if not isinstance(each, Hostile)))


def _only_named(plan: Plan, how: str) -> Plan:
    """The requests that are spoken of may be enough."""
    named = set(re.findall(r"\bb\d+\b", how))
    return _sound(structs.replace(plan, boots=tuple(boot for boot in plan.boots if boot.name in named)))


def things_in(plan: Plan) -> int:
    return sum(len(_things(plan, part)) for part in PARTS)


def _end_s(outcome: Outcome) -> float | None:
    """Who needs less to break the same does not need much longer; what never settles shows at the end."""
    is_late = outcome.ended_s > outcome.plan.calm_s
    return None if is_late else outcome.ended_s + LONGER_S


class _Breaks:
    """Does a plan break the promise? Another promise will do as well, if it is the bug that breaks it.

    `latest` is the outcome of the latest plan that did: who shrinks goes on from that plan.
    """

    def __init__(self, bug: str, promise: str, first: Outcome) -> None:
        self.latest = first
        self._bug = bug
        self._promise = promise
        self._end_s = _end_s(first)

    def __call__(self, plan: Plan) -> bool:
        outcome = _run(self._bug, plan, self._end_s)
        broken = outcome.broken
        does = broken is not None and (
            not self._bug or broken.promise == self._promise or run(plan, self._end_s).broken is None
        )
        if does:
            self.latest = outcome
        return does


def _things(plan: Plan, part: str) -> tuple[Any, ...]:
    things: tuple[Any, ...] = getattr(plan, part).faults if part in SCRIPTS else getattr(plan, part)
    return things


def _without(plan: Plan, part: str, start: int, end: int) -> Plan:
    things = _things(plan, part)
    left = (*things[:start], *things[end:])
    if part in SCRIPTS:
        return structs.replace(plan, **{part: structs.replace(getattr(plan, part), faults=left)})
    return _sound(structs.replace(plan, **{part: left}))


def _sound(plan: Plan) -> Plan:
    """Without what is said of requests that are left out: it may be no nonsense without them."""
    ids = {boot.id for boot in plan.boots}
    return structs.replace(
        plan,
        deletes=tuple(each for each in plan.deletes if each.request in ids),
        rebuilds=tuple(each for each in plan.rebuilds if each.request in ids),
        nonsense=tuple(each for each in plan.nonsense if each.like is None or each.like in ids),
    )


def _story_of(outcome: Outcome) -> Iterator[str]:
    yield from plan_lines(outcome.plan)
    lines = [line for line in lines_of(outcome) if "starts" not in line]
    yield from lines[-LINES_MAX:]
