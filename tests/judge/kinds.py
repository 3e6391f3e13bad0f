"""The kinds of tests, which are the folders below tests/; and what the tests of each run, as watching.py has noted it."""

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from tests.judge.places import ROOT, Place
from tests.judge.watching import WATCHED

TESTS = ROOT / "tests"
# A file for each kind. `make clean` removes it.
NOTES = ROOT / "build" / "judge"
SIMULATION = "simulation"
# The simulation has no tests of single places: a change is judged by these seeds, of which the last two are of bare metal.
SEEDS = tuple(f"seed {number}" for number in (*range(1, 17), 1_000_000_001, 1_000_000_002))
# A test that takes longer judges nothing: it would be cut off.
TEST_S_MAX = 60.0


class Notes(Struct, frozen=True):
    """The seconds that each test takes; and which of them run a place, by its name."""

    seconds: dict[str, float]
    ran: dict[str, list[str]]


def kinds() -> list[str]:
    return sorted(each.name for each in TESTS.iterdir() if each.is_dir() and any(each.rglob("test_*.py")))


def tests_of(kind: str, place: Place) -> list[str]:
    """The tests of this kind that run the place, the quickest first; for a place without a name, those that run anything of its file."""
    if kind == SIMULATION:
        return [*SEEDS]
    notes = notes_of(kind)
    if place.name:
        running = {*notes.ran.get(str(place), ())}
    else:
        running = {test for each, tests in notes.ran.items() if each.startswith(str(place)) for test in tests}
    short = {
        test: notes.seconds[test] for test in running if notes.seconds.get(test, TEST_S_MAX) < TEST_S_MAX
    }
    return sorted(short, key=lambda each: (short[each], each))


@cache
def notes_of(kind: str) -> Notes:
    return msgspec.json.decode((NOTES / f"{kind}.json").read_bytes(), type=Notes)


def watch(wanted: Iterable[str]) -> None:
    """Run all tests of these kinds, and note what they run."""
    for kind in wanted:
        if kind == SIMULATION:
            continue
        folder = NOTES / kind
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        command = (
            "-q",
            "-p",
            "no:cacheprovider",
            "-n",
            "auto",
            "--dist",
            "loadfile",
            "--no-loadscope-reorder",
            f"tests/{kind}",
        )
        subprocess.run(
            (sys.executable, "-m", "pytest", *command),
            cwd=ROOT,
            env={**os.environ, WATCHED: str(folder)},
            check=False,
        )
        (NOTES / f"{kind}.json").write_bytes(msgspec.json.encode(_read(folder)))
        notes_of.cache_clear()


def unwatched(wanted: Iterable[str]) -> list[str]:
    return [kind for kind in wanted if kind != SIMULATION and not (NOTES / f"{kind}.json").exists()]


def _read(folder: Path) -> Notes:
    seconds: dict[str, float] = {}
    ran: defaultdict[str, set[str]] = defaultdict(set)
    for file in folder.iterdir():
        lines = file.read_text().splitlines()
        if file.name.startswith("took-"):
            seconds |= {test: float(took) for test, _, took in (line.rpartition("\t") for line in lines)}
            continue
        test = ""
        for line in lines:
            if line.startswith("\t"):
                ran[line[1:]].add(test)
            else:
                test = line
    return Notes(seconds, {place: sorted(tests) for place, tests in sorted(ran.items())})
