"""Which kind of test sees which planted bug.

A kind is a folder of tests. First `watch` notes which tests run the place of each bug, and how long they take. Then `judge` runs, for
each bug, only these tests, the quickest first, until one fails. What it finds is kept in seen_by.txt with the commit, so it may be
interrupted, and goes on. A bug is judged again when its room has changed since; and if a test that saw it is gone or changed.
"""

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from queue import SimpleQueue

from msgspec import Struct

from tests.planted import BUGS, SIMULATED
from tests.planted.replacing import ANY, rooms_of
from tests.planting import PLANTED, WATCHED
from tests.servers.own_broker import brokers_in, take_broker

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
KEPT = Path(__file__).with_name("seen_by.txt")
# What each test of a kind runs, and how long it takes: a file for each kind.
PLACES = ROOT / "build" / "planted"
SIMULATION = "simulation"
# No test runs with a bug for longer than this.
TEST_S_MAX = 120
# Tests of one kind that take longer than this together are not all run for one bug.
KIND_S_MAX = 600
# A bug that the simulation is not known to find is tried with these seeds; those of bare metal are the last.
SEEDS = (*range(1, 17), 1_000_000_001, 1_000_000_002)
PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout", str(TEST_S_MAX))
FAILED, PASSED = 1, 0
# A traceback whose last step is in a planted bug: it does not fit the product any more.
_BROKEN_BUG = re.compile(
    r"File \"\S*(tests/planted/\w+_bugs\.py)\", line \d+, in .*\n.*\n(?: +\^+\n)?(?:Type|Attribute|Name|Key|Index)Error: .*"
    r"|tests/planted/\w+_bugs\.py:\d+: (?:Type|Attribute|Name|Key|Index)Error"
)


class NotJudgedError(Exception):
    """A bug does not fit the product any more, or its tests cannot be run. It is never seen by that."""


class Verdict(Struct, frozen=True):
    """What one kind of test says of a bug: `by` is the test that saw it, or empty."""

    bug: str
    kind: str
    commit: str
    by: str

    @property
    def line(self) -> str:
        return f"{self.bug}\t{self.kind}\t{self.commit}\t{self.by}"


Verdicts = dict[tuple[str, str], Verdict]


def kinds() -> list[str]:
    """The folders of tests."""
    return sorted(each.name for each in TESTS.iterdir() if any(each.rglob("test_*.py")))


def kept() -> Verdicts:
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    verdicts = [Verdict(*line.split("\t")) for line in lines]
    return {(each.bug, each.kind): each for each in verdicts}


def keep(verdicts: Verdicts) -> None:
    KEPT.write_text("".join(f"{verdicts[key].line}\n" for key in sorted(verdicts)))


def watch(wanted: Iterable[str]) -> None:
    """Run all tests of these kinds, and note what they run."""
    for kind in wanted:
        if kind == SIMULATION:
            continue
        notes = PLACES / f"{kind}.notes"
        notes.mkdir(parents=True, exist_ok=True)
        for old in notes.iterdir():
            old.unlink()
        command = (sys.executable, "-m", "pytest", "-q", "-n", "auto", "--dist", "loadfile", f"tests/{kind}")
        subprocess.run(command, cwd=ROOT, env={**os.environ, WATCHED: str(notes)}, check=False)
        lines = {line for each in notes.iterdir() for line in each.read_text().splitlines()}
        (PLACES / f"{kind}.tsv").write_text("\n".join(sorted(lines)))


@cache
def _notes_of(kind: str) -> tuple[Mapping[str, set[str]], Mapping[str, float]]:
    """The tests of this kind that run the place of each bug, and the seconds that each takes."""
    file = PLACES / f"{kind}.tsv"
    if not file.exists():
        raise SystemExit(
            f"nothing is noted of the tests in tests/{kind}: python -m tests.planted --watch {kind}"
        )
    tests: defaultdict[str, set[str]] = defaultdict(set)
    took_s: dict[str, float] = {}
    for line in file.read_text().splitlines():
        bug, test, *seconds = line.split("\t")
        if seconds:
            took_s[test] = float(seconds[0])
        else:
            tests[bug].add(test)
    return tests, took_s


def tests_of(bug: str, kind: str) -> list[str]:
    """The tests of this kind that run the place of the bug, the quickest first. If that cannot be watched, those of the bugs beside it."""
    tests, took_s = _notes_of(kind)
    running = tests.get(bug, set())
    if ANY in running:
        beside = [each for each in BUGS if BUGS[each].__module__ == BUGS[bug].__module__]
        running = set().union(*(tests.get(each, set()) for each in beside))
    chosen: list[str] = []
    left_s = float(KIND_S_MAX)
    for test in sorted(running & took_s.keys(), key=lambda each: (took_s[each], each)):
        left_s -= took_s[test]
        if left_s < 0:
            break
        chosen.append(test)
    return chosen


def is_stale(verdict: Verdict) -> bool:
    """Has what this verdict rests on changed since? The rooms of the bug; the test that saw it; or all tests of a kind that did not."""
    rests_on = [*rooms_of(BUGS[verdict.bug])]
    rests_on.append(verdict.by.partition("::")[0] or f"tests/{verdict.kind}")
    return not {*rests_on}.isdisjoint(_changed_since(verdict.commit))


@cache
def _changed_since(commit: str) -> frozenset[str]:
    """The files that differ from those of the commit, and all folders above them."""
    asked = subprocess.run(
        ("git", "diff", "--name-only", commit), cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = [Path(each) for each in asked.stdout.splitlines()]
    return frozenset({str(part) for each in files for part in (each, *each.parents)})


def judge(bugs: Sequence[str], wanted: Sequence[str], *, once: bool) -> None:
    """Judge what is not judged yet, so many bugs at once as there are brokers. `once`: only until one kind has seen a bug."""
    verdicts = kept()
    stale = {key for key, found in verdicts.items() if is_stale(found)}
    open_ones = [
        (bug, kind) for kind in wanted for bug in bugs if (bug, kind) not in verdicts or (bug, kind) in stale
    ]
    commit = _commit()
    places: SimpleQueue[str] = SimpleQueue()
    for number in range(brokers_in(os.environ)):
        places.put(f"gw{number}")

    def one(asked: tuple[str, str]) -> Verdict | str:
        if once and any(
            each.by and each.bug == asked[0] for key, each in [*verdicts.items()] if key not in stale
        ):
            return f"{asked[1]}: {asked[0]}: seen by another kind"
        place = places.get()
        try:
            return Verdict(*asked, commit, _seen_by(*asked, place))
        except NotJudgedError as problem:
            return f"{asked[1]}: {asked[0]} IS NOT JUDGED: {problem}"
        finally:
            places.put(place)

    with ThreadPoolExecutor(places.qsize()) as pool:
        for number, judged in enumerate(pool.map(one, open_ones), 1):
            if isinstance(judged, Verdict):
                verdicts[judged.bug, judged.kind] = judged
                stale.discard((judged.bug, judged.kind))
                keep(verdicts)
                said = f"{judged.kind}: {judged.bug}: {judged.by or '-'}"
            else:
                said = judged
            print(f"{number} of {len(open_ones)}  {said}", flush=True)


def _commit() -> str:
    asked = subprocess.run(("git", "rev-parse", "HEAD"), cwd=ROOT, capture_output=True, text=True, check=True)
    return asked.stdout.strip()[:12]


def _seen_by(bug: str, kind: str, place: str) -> str:
    environment = dict(os.environ)
    take_broker(environment, place)
    if kind == SIMULATION:
        return _seen_by_a_seed(bug, environment)
    tests = tests_of(bug, kind)
    while tests:
        code, first = _run(tests, {**environment, PLANTED: bug})
        if code == PASSED:
            return ""
        if code != FAILED or not first:
            raise NotJudgedError(f"pytest ended with {code}")
        if _run([first], environment)[0] == PASSED:
            return first
        # It fails without the bug, too.
        tests = tests[tests.index(first) + 1 :] if first in tests else []
    return ""


def _run(tests: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """The exit code of pytest, and the first test that failed."""
    ran = subprocess.run(
        (*PYTEST, *tests), cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if broken := _BROKEN_BUG.search(ran.stdout):
        raise NotJudgedError(f"the planted bug fails itself, and not the product: {broken[0]}")
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED tests", "ERROR tests"))]
    found = failed[0].partition(" ")[2] if failed else ""
    return ran.returncode, next((each for each in tests if found.startswith(each)), "")


def _seen_by_a_seed(bug: str, environment: Mapping[str, str]) -> str:
    code = (
        "from tests.simulation.bug_search import find\n"
        "from tests.simulation.test_planted import seeds_of\n"
        f"bug, seeds = {bug!r}, {SEEDS!r}\n"
        f"found = find(bug, seeds_of(bug) if {bug in SIMULATED} else seeds)\n"
        "print('' if found is None else f'seed {found.seed}: {found.promise}')\n"
    )
    ran = subprocess.run(
        (sys.executable, "-c", code),
        cwd=ROOT,
        env={**environment, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.splitlines()[-1].strip()


def table() -> Iterator[str]:
    """The bugs by the kinds that see them, the fewest first."""
    verdicts = kept()
    seen = {
        bug: [kind for kind in kinds() if (found := verdicts.get((bug, kind))) and found.by] for bug in BUGS
    }
    unjudged = {bug: sum((bug, kind) not in verdicts for kind in kinds()) for bug in BUGS}
    for bug in sorted(BUGS, key=lambda each: (len(seen[each]), each)):
        more = f" ({unjudged[bug]} kinds are not judged)" if unjudged[bug] else ""
        yield f"{bug}: {', '.join(seen[bug]) or 'NOTHING'}{more}"
