"""Which kind of test sees which planted bug: seen_by.txt, a line for each bug and kind with the tree of git at which it was judged.

Each kind of test that runs the place of a bug judges it, the quickest test first, until one fails; and that one must pass without the bug.
A kind has a bounded time for a bug. A test that saw a bug before is tried first. A verdict holds until the place of the bug or one of
the tests has changed, so a run that was interrupted goes on, also at a later commit.
"""

import random
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from msgspec import Struct

from tests.judge.asking import Judge, Judges, judges
from tests.judge.forking import SEED, Answer, Job
from tests.judge.kinds import SIMULATION, kinds, tests_of
from tests.judge.places import ROOT, Place, digest_of
from tests.planted import BUGS, HARM_OF
from tests.planted.replacing import HARMS, places_of
from tests.planting import PLANTED

KEPT = Path(__file__).with_name("seen_by.txt")
# Bugs that do harm, and that only one kind of test can see: each with its reason.
ONE_KIND = Path(__file__).with_name("one_kind.txt")
KIND_S_MAX = 30.0
# In the simulation a bug often shows late, or by what never settles.
SIMULATION_S_MAX = 90.0
SEEN = "seen by "
# The place of a bug that was judged before places were kept.
UNKNOWN = "-"


class Verdict(Struct, frozen=True):
    """What one kind of test says of a bug: `seen by TEST`, or that none of so many did, or that the time was over."""

    bug: str
    kind: str
    # What the function did that the bug replaces.
    place: str
    tree: str
    says: str

    @property
    def by(self) -> str:
        return self.says.removeprefix(SEEN) if self.says.startswith(SEEN) else ""

    @property
    def line(self) -> str:
        return f"{self.bug}\t{self.kind}\t{self.place}\t{self.tree}\t{self.says}"


Verdicts = dict[tuple[str, str], Verdict]


def kept() -> Verdicts:
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    verdicts = [Verdict(*line.split("\t")) for line in lines]
    return {(each.bug, each.kind): each for each in verdicts}


def keep(verdicts: Verdicts) -> None:
    KEPT.write_text("".join(f"{verdicts[key].line}\n" for key in sorted(verdicts)))


def seeds_that_show() -> dict[str, int]:
    """The seed of the simulation that last showed each bug."""
    seen = [each for each in kept().values() if each.kind == SIMULATION and each.by]
    return {each.bug: int(each.by.removeprefix(SEED).partition(":")[0]) for each in seen}


def tree() -> str:
    """The tree of git that is checked out."""
    asked = subprocess.run(
        ("git", "rev-parse", "HEAD^{tree}"), cwd=ROOT, capture_output=True, text=True, check=True
    )
    return asked.stdout.strip()[:12]


@cache
def places(bug: str) -> list[Place]:
    return places_of(BUGS[bug])


def digest(bug: str) -> str:
    return "+".join(digest_of(each) if each.name else "file" for each in places(bug))


def tests_for(bug: str, kind: str) -> list[str]:
    return [*dict.fromkeys(test for each in places(bug) for test in tests_of(kind, each))]


def misfits() -> list[str]:
    """The bugs that do not fit the product any more, and why."""
    found = []
    for name, bug in BUGS.items():
        try:
            with bug():
                pass
        except Exception as problem:  # noqa: BLE001 - whatever it is, the bug does not fit
            found.append(f"{name}: {problem}")
    return found


def moved(verdicts: Verdicts) -> list[str]:
    """The bugs whose place does something else now than when they were judged: look whether they are still what they say."""
    judged = [each for each in verdicts.values() if each.bug in BUGS]
    return sorted({each.bug for each in judged if each.place not in (digest(each.bug), UNKNOWN)})


def judge(bugs: Sequence[str], wanted: Sequence[str]) -> None:
    """Judge what was not judged at this tree."""
    verdicts = {key: each for key, each in kept().items() if each.bug in BUGS}
    now = tree()
    for kind in wanted:
        _forget_what_is_not_run(verdicts, bugs, kind)
        hold = {bug for bug in bugs if (known := verdicts.get((bug, kind))) and holds_still(known, now)}
        asked = [bug for bug in bugs if tests_for(bug, kind) and bug not in hold]
        if not asked:
            continue
        with judges(kind) as these:
            judged = these.ask_about(asked, partial(_judge_one, these, kind, verdicts))
            for number, (bug, says) in enumerate(judged, 1):
                if says.startswith("NOT JUDGED"):
                    verdicts.pop((bug, kind), None)
                else:
                    verdicts[bug, kind] = Verdict(bug, kind, digest(bug), now, says)
                keep(verdicts)
                print(f"{kind}, {number} of {len(asked)}: {bug}: {says}", flush=True)
    keep(verdicts)


def _forget_what_is_not_run(verdicts: Verdicts, bugs: Iterable[str], kind: str) -> None:
    for bug in bugs:
        if (bug, kind) in verdicts and not tests_for(bug, kind):
            del verdicts[bug, kind]


def holds_still(verdict: Verdict, now: str) -> bool:
    if verdict.place != digest(verdict.bug):
        return False
    return verdict.tree == now or not _have_tests_changed(verdict)


def _have_tests_changed(verdict: Verdict) -> bool:
    changed = changed_since(verdict.tree)
    if changed is None:
        return True
    if verdict.kind == SIMULATION:
        return any(each.startswith(f"tests/{SIMULATION}/") for each in changed)
    return any(each.partition("::")[0] in changed for each in tests_for(verdict.bug, verdict.kind))


@cache
def changed_since(tree: str) -> frozenset[str] | None:
    """The files that have changed, or None if this tree is not in the history."""
    command = ("git", "diff", "--name-only", tree, "HEAD")
    asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return None if asked.returncode else frozenset(asked.stdout.split())


def _judge_one(these: Judges, kind: str, verdicts: Verdicts, bug: str) -> str:
    before = verdicts.get((bug, kind))
    known = before.by if before else ""
    first = known.partition(":")[0] if kind == SIMULATION else known
    tests = [*dict.fromkeys((*([first] if first else []), *tests_for(bug, kind)))]
    seconds = SIMULATION_S_MAX if kind == SIMULATION else KIND_S_MAX
    return says(partial(_ask, these, {PLANTED: bug}), partial(_ask, these, {}), tests, seconds)


def _ask(these: Judges, environment: dict[str, str], tests: Sequence[str], seconds: float) -> Answer:
    return these.ask(Job(environment, tuple(tests), seconds))


Ask = Callable[[Sequence[str], float], Answer]


def says(with_change: Ask, without: Ask, tests: Sequence[str], seconds: float) -> str:
    """The verdict of these tests. One that fails without the change as well says nothing."""
    left, passed = [*tests], 0
    while left:
        answer = with_change(left, seconds)
        passed += answer.passed
        if answer.problem:
            return f"NOT JUDGED: {answer.problem}"
        if answer.cut_off:
            return f"cut off after {seconds:g} s, not seen by {passed} of {len(tests)} tests"
        if not answer.failed:
            break
        test = next(each for each in left if answer.failed.startswith(each))
        if not without([test], seconds).failed:
            return f"{SEEN}{answer.failed}"
        left = left[left.index(test) + 1 :]
    return f"not seen by {passed} tests"


def slice_of(tree: str, count: int) -> list[Verdict]:
    """Other lines of the file at each commit: those that say that a test sees a bug."""
    seen = [each for each in kept().values() if each.by and each.kind != SIMULATION and each.bug in BUGS]
    return random.Random(tree).sample(seen, min(count, len(seen)))


def untrue(wanted: Sequence[str]) -> list[str]:
    """The lines of the file whose test does not see the bug any more, and the bugs that no line says are seen."""
    seen = [each for each in kept().values() if each.by and each.bug in BUGS]
    found = [f"nothing sees {bug!r}" for bug in sorted(BUGS.keys() - {each.bug for each in seen})]
    for kind in wanted:
        lines = [each for each in seen if each.kind == kind]
        if not lines:
            continue
        with judges(kind) as these:
            for number, (verdict, wrong) in enumerate(these.ask_about(lines, partial(again, these)), 1):
                found += [wrong] if wrong else []
                print(f"{kind}, {number} of {len(lines)}: {verdict.bug}: {wrong or verdict.says}", flush=True)
    return found


def again(these: Judges | Judge, verdict: Verdict) -> str:
    """What is wrong with a line that says that a test sees a bug. A test that hangs by it does not pass."""
    by = verdict.by.partition(":")[0] if verdict.kind == SIMULATION else verdict.by
    answer = these.ask(Job({PLANTED: verdict.bug}, (by,), KIND_S_MAX))
    if answer.failed or answer.under_way_s:
        return ""
    how = "it did not begin in time" if answer.cut_off else "it passes with the bug"
    return f"{verdict.line}: {answer.problem or how}"


def table() -> Iterator[str]:
    """The bugs by the kinds that see them, the fewest first."""
    verdicts, seen = kept(), seen_by()
    for bug in sorted(BUGS, key=lambda each: (len(seen[each]), each)):
        cut = [
            kind
            for kind in kinds()
            if (found := verdicts.get((bug, kind))) and found.says.startswith("cut off")
        ]
        more = f" (cut off: {', '.join(cut)})" if cut else ""
        yield f"{bug}: {', '.join(seen[bug]) or 'NOTHING'}{more}"


def seen_by() -> dict[str, list[str]]:
    """The kinds that see each bug."""
    verdicts = kept()
    return {
        bug: [kind for kind in kinds() if (found := verdicts.get((bug, kind))) and found.by] for bug in BUGS
    }


def sums(seen: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """How many bugs so many kinds see; and how many of those that do each harm."""
    excused = of_one_kind()
    counted = Counter(len(each) for each in seen.values())
    yield f"{len(BUGS)} bugs: " + ", ".join(
        f"{counted[count]} seen by {count} kinds" for count in sorted(counted)
    )
    for harm in HARMS:
        its = sorted(bug for bug, each in HARM_OF.items() if each == harm)
        few = Counter(min(len(seen[bug]), 2) for bug in its)
        yield (
            f"{harm}: {len(its)} bugs, {few[2]} seen by two kinds or more, {few[1]} by one, {few[0]} by none; "
            f"of {len(excused.keys() & {*its})} one_kind.txt says why one must do"
        )


def harmful(seen: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The bugs that do harm, that fewer than two kinds see, and of which one_kind.txt does not say why."""
    excused = of_one_kind()
    for harm in HARMS:
        for bug in sorted(bug for bug, each in HARM_OF.items() if each == harm):
            if len(seen[bug]) < 2 and bug not in excused:
                yield f"{harm}: {bug}: {', '.join(seen[bug]) or 'NOTHING'}"


def of_one_kind() -> dict[str, str]:
    lines = ONE_KIND.read_text().splitlines()
    return {bug: reason for bug, _, reason in (line.partition("\t") for line in lines)}
