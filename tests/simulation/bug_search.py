"""Finds the first seed that shows a planted bug, and removes from its plan everything that is not needed to show it."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any

from msgspec import Struct, structs

from tests.planted import BUGS
from tests.simulation.drawing import draw
from tests.simulation.drawing_cloud import ADMINS
from tests.simulation.faults import Fault, Hostile
from tests.simulation.findings import Broken
from tests.simulation.plan import Plan
from tests.simulation.report import lines_of, plan_lines
from tests.simulation.seeds import Outcome, run

# The parts of a plan whose elements can be removed.
PARTS = (
    *("faults", "boots", "flips", "admin_ops", "deletes", "rebuilds", "moves", "switches", "evacuations"),
    *(
        "disabled_hosts",
        "invalid_requests",
        "aggregate_orders",
        "quota_orders",
        "budgets",
        "campaigns",
        "policies",
        "host_orders",
        "script",
        "ironic",
    ),
)
# Parts that are scripts: their faults are the elements that can be removed.
SCRIPTS = ("script", "ironic")
LINES_MAX = 60
# With most plans everything has settled so long after the faults, and after the end of the last wait.
SETTLES_S, LOOKS_S = 30.0, 15.0
PIECES_MAX = 128
EXTRA_S = 3.0
# A guess that removes less than this is not worth its run.
GUESS_LEAVES_MAX = 0.9
# A plan with so few elements is small enough to read completely.
SMALL_ENOUGH = 60
# Some seeds show a bug in a way that needs most of their plan. Then the search goes on, but not for ever: shrinking is dear.
SHRUNK_SEEDS_MAX = 3


class FoundBug(Struct, frozen=True):
    """The seed that shows the bug, the size of its plan before and after shrinking, and the story of the last failing
    run.
    """

    bug: str
    seed: int
    promise: str
    size: int
    needed: int
    story: tuple[str, ...]
    plan: Plan

    @property
    def is_small(self) -> bool:
        return self.needed <= self.size // 2


def find_and_shrink(
    bug: str,
    seeds: Iterable[int],
    runs_max: int,
    *,
    small_enough: int = SMALL_ENOUGH,
) -> FoundBug | None:
    """Find the first seed that shows the bug and whose plan can be shrunk to half; after a few that cannot, the one
    that was shrunk most; None if no seed shows the bug. Without a bug's name nothing is planted: the search is for a
    real bug.
    """
    shrunk: list[FoundBug] = []
    for outcome, broken in _showing(bug, seeds):
        shrunk.append(_shrunk(bug, outcome, broken, runs_max, small_enough))
        if shrunk[-1].is_small or len(shrunk) == SHRUNK_SEEDS_MAX:
            break
    return min(shrunk, key=lambda found: found.needed / found.size, default=None)


def broken_in(seed: int) -> str:
    """The promise that this seed breaks with what is planted in this process; empty if all are kept."""
    broken = run(_given_up_sooner(draw(seed))).broken
    return "" if broken is None else broken.promise


def _showing(bug: str, seeds: Iterable[int]) -> Iterator[tuple[Outcome, Broken]]:
    for seed in seeds:
        plan = _given_up_sooner(draw(seed)) if bug else draw(seed)
        outcome = _run(bug, plan)
        # A plan that fails without the planted bug as well says nothing about the bug.
        if outcome.broken is not None and (not bug or run(plan).broken is None):
            yield outcome, outcome.broken


def _shrunk(bug: str, outcome: Outcome, broken: Broken, runs_max: int, small_enough: int) -> FoundBug:
    plan, breaks = outcome.plan, _StillBreaks(bug, broken.promise, outcome)
    small_enough = small_enough or size_of(plan) // 2
    # What may not be needed to show it.
    guesses: tuple[Callable[[Plan], Plan], ...] = (
        lambda plan: _until(plan, outcome.ended_s),
        lambda plan: _only_named(plan, broken.how),
        # The administrators' operations alone show the failure.
        lambda plan: _consistent(
            structs.replace(plan, boots=(), faults=(), disabled_hosts=(), host_orders=())
        ),
        # It needs no faults, no changes of nodes and no administrators.
        lambda plan: structs.replace(plan, faults=(), flips=(), admin_ops=()),
        lambda plan: _with_faults(plan, lambda fault: fault.process not in ADMINS, admin_ops=()),
        # With nodes, it needs no boots.
        lambda plan: _consistent(structs.replace(plan, boots=())) if plan.nodes else plan,
        lambda plan: structs.replace(plan, flips=()),
        lambda plan: _with_faults(plan, lambda fault: not isinstance(fault, Hostile)),
        lambda plan: structs.replace(plan, deletes=(), rebuilds=(), disabled_hosts=(), invalid_requests=()),
    )
    smaller = plan
    for guess in guesses:
        less = guess(smaller)
        if size_of(smaller) > small_enough and _is_worth_a_run(less, smaller) and breaks(less):
            smaller = less
    small = shrink(smaller, breaks, runs_max, small_enough)
    story = tuple(_story_of(breaks.latest))
    return FoundBug(bug, plan.seed, broken.promise, size_of(plan), size_of(small), story, small)


def _given_up_sooner(plan: Plan) -> Plan:
    """The plan, with less time to settle: a run that never settles ends sooner. What waits for room has its whole time."""
    waits_end_s = max((boot.at_s + boot.wait_s for boot in plan.boots if boot.wait_s), default=0.0)
    return structs.replace(plan, settle_s_max=max(SETTLES_S, waits_end_s + LOOKS_S - plan.faults_end_s))


def _is_worth_a_run(less: Plan, than: Plan) -> bool:
    return size_of(less) <= GUESS_LEAVES_MAX * size_of(than)


def _run(bug: str, plan: Plan, end_s: float | None = None) -> Outcome:
    with BUGS[bug]() if bug else nullcontext():
        return run(plan, end_s)


def shrink(
    plan: Plan, breaks: Callable[[Plan], bool], runs_max: int, small_enough: int = SMALL_ENOUGH
) -> Plan:
    """Remove whole parts first, then halves of each part, then quarters, while the rest still breaks the promise. Stop
    when the plan is small enough to read.
    """
    runs = 0
    pieces = 1
    while pieces <= PIECES_MAX:
        for part in PARTS:
            at = 0
            size = -(-len(_elements(plan, part)) // pieces)
            while at < len(_elements(plan, part)):
                if runs == runs_max or size_of(plan) <= small_enough:
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
    """A guess: the plan up to the failure, since later events cannot have caused it. Policies are there from the beginning."""
    early = {
        part: tuple(each for each in getattr(plan, part) if each.at_s <= end_s)
        for part in PARTS
        if part not in (*SCRIPTS, "policies")
    }
    return _consistent(structs.replace(plan, **early))


def _with_faults(plan: Plan, stays: Callable[[Fault], bool], **changes: Any) -> Plan:
    return structs.replace(plan, faults=tuple(each for each in plan.faults if stays(each)), **changes)


def _only_named(plan: Plan, how: str) -> Plan:
    """A guess: of all requests, the failure needs only those that its text names."""
    named = set(re.findall(r"\bb\d+\b", how))
    return _consistent(structs.replace(plan, boots=tuple(boot for boot in plan.boots if boot.name in named)))


def size_of(plan: Plan) -> int:
    return sum(len(_elements(plan, part)) for part in PARTS)


def _end_s(outcome: Outcome) -> float | None:
    """When the runs of smaller plans end: soon after the time of the first failure, since a smaller plan that still
    fails does so by then. None, which is the plan's own end, if the first run failed after its faults, such as one
    that never settles.
    """
    is_late = outcome.ended_s > outcome.plan.faults_end_s
    return None if is_late else outcome.ended_s + EXTRA_S


class _StillBreaks:
    """Does a plan still break the promise? Another promise counts too, if the plan keeps it without the bug.

    `latest` is the outcome of the last plan that failed; shrinking continues from that plan.
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


def _elements(plan: Plan, part: str) -> tuple[Any, ...]:
    things: tuple[Any, ...] = getattr(plan, part).faults if part in SCRIPTS else getattr(plan, part)
    return things


def _without(plan: Plan, part: str, start: int, end: int) -> Plan:
    things = _elements(plan, part)
    left = (*things[:start], *things[end:])
    if part in SCRIPTS:
        return structs.replace(plan, **{part: structs.replace(getattr(plan, part), faults=left)})
    return _consistent(structs.replace(plan, **{part: left}))


def _consistent(plan: Plan) -> Plan:
    """Remove deletes, rebuilds and moves of requests that were removed from the plan: without their requests they may
    mean something else.
    """
    ids = {boot.id for boot in plan.boots}
    return structs.replace(
        plan,
        deletes=tuple(each for each in plan.deletes if each.request in ids),
        rebuilds=tuple(each for each in plan.rebuilds if each.request in ids),
        moves=tuple(each for each in plan.moves if each.request in ids),
        switches=tuple(each for each in plan.switches if each.request in ids),
        invalid_requests=tuple(
            each for each in plan.invalid_requests if each.id_of is None or each.id_of in ids
        ),
    )


def _story_of(outcome: Outcome) -> Iterator[str]:
    yield from plan_lines(outcome.plan)
    lines = [line for line in lines_of(outcome) if "starts" not in line]
    yield from lines[-LINES_MAX:]
