"""Which small changes of the product no test notices: `make mutants SEED=1`.

It draws so many mutants (mutants.py), and runs for each the tests that run its place: those of the nearest kind first, then of the next
one. Those that live are read: each is a test that is missing, code that can go, or a line in equals.txt, which says why nobody can
notice it.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from tests.judge.asking import Judges, judges
from tests.judge.forking import Job
from tests.judge.kinds import NOTES, SEEDS, SIMULATION, kinds, tests_of, unwatched, watch
from tests.judge.mutants import Mutant, drawn
from tests.judge.places import ROOMS
from tests.planting import MUTANT

# The nearest kind of test first. Of those that take long, the next one is tried only where no nearer kind runs the place.
NEAREST = ("unit", "properties", "contracts", "api", "libvirt", SIMULATION, "stories")
KINDS_TRIED = 2
SECONDS = 20.0
# The quickest tests run first: one that has run for so long when the time is over hangs.
HANGS_S = 12.0
# What runs in the simulation.
SIMULATED = ("engine", "bus", "placement_worker", "scheduler_worker", "cell_conductor", "ironic_sync")
SIMULATED_S, SIMULATED_SEEDS = 60.0, 6
STRICT, STRICT_MAX, MAX = ("engine", "placement_worker", "cell_conductor", "bus"), 8, 15
EQUALS = Path(__file__).with_name("equals.txt")
LIVES, KILLED, NOT_MADE = "lives", "killed", "cannot be made"


def kinds_of(mutant: Mutant) -> list[str]:
    """The kinds that try it."""
    running = [kind for kind in NEAREST if kind in kinds() and _tests(kind, mutant)]
    return running[:KINDS_TRIED]


def _tests(kind: str, mutant: Mutant) -> list[str]:
    if kind == SIMULATION:
        is_there = mutant.place.file.partition("/")[0] in SIMULATED
        return [*SEEDS[:SIMULATED_SEEDS], SEEDS[-1]] if is_there else []
    return tests_of(kind, mutant.place)


def try_all(mutants: Sequence[Mutant]) -> dict[Mutant, str]:
    """What became of each."""
    found = dict.fromkeys(mutants, LIVES)
    tried = {each: kinds_of(each) for each in mutants}
    for kind in NEAREST:
        asked = [each for each in found if found[each] == LIVES and kind in tried[each]]
        if not asked:
            continue
        with judges(kind) as these:
            for mutant, verdict in these.ask_about(asked, partial(_try, these, kind)):
                found[mutant] = verdict
                print(f"{kind}: {verdict}: {mutant}", flush=True)
    return found


def _try(these: Judges, kind: str, mutant: Mutant) -> str:
    change = {MUTANT: msgspec.json.encode(mutant).decode()}
    tests = _tests(kind, mutant)
    seconds = SIMULATED_S if kind == SIMULATION else SECONDS
    while tests:
        answer = these.ask(Job(change, tuple(tests), seconds))
        if answer.problem:
            # A change by which a process cannot go on is noticed; one that cannot be made is none.
            return NOT_MADE if "CannotChangeError" in answer.problem else KILLED
        if answer.under_way_s > HANGS_S:
            return KILLED
        if not answer.failed:
            return LIVES
        test = next(each for each in tests if answer.failed.startswith(each))
        if not these.ask(Job({}, (test,), seconds)).failed:
            return KILLED
        tests = tests[tests.index(test) + 1 :]
    return LIVES


def equals() -> set[tuple[str, str]]:
    """Changes that nobody can notice: the place, what is changed, and the reason."""
    lines = EQUALS.read_text().splitlines() if EQUALS.exists() else []
    return {(place, what) for place, what, _reason in (line.split("\t") for line in lines)}


def table(found: Mapping[Mutant, str]) -> Iterator[str]:
    """How many live in each room."""
    known = equals()
    made = [each for each in found if found[each] != NOT_MADE and (str(each.place), each.what) not in known]
    tried = Counter(each.place.file.partition("/")[0] for each in made)
    living = Counter(each.place.file.partition("/")[0] for each in made if found[each] == LIVES)
    for room in sorted(tried):
        yield f"{room}: {living[room]} of {tried[room]} live"
    for name, rooms in (("of these", STRICT), ("elsewhere", tuple({*ROOMS} - {*STRICT}))):
        lived, all_ = sum(living[each] for each in rooms), sum(tried[each] for each in rooms)
        yield f"{name} ({', '.join(sorted(rooms))}): {lived} of {all_} live, {100 * lived / max(all_, 1):.0f} of 100"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.judge.living", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--rooms", nargs="+", default=[*ROOMS], choices=ROOMS, metavar="ROOM")
    asked = parser.parse_args()
    watch(unwatched(kind for kind in NEAREST if kind in kinds()))
    found = try_all([*dict.fromkeys(drawn(asked.seed, asked.count, tuple(asked.rooms)))])
    lines = [
        *(f"LIVES: {each}" for each in sorted(found, key=str) if found[each] == LIVES),
        *table(found),
    ]
    (NOTES / f"mutants-{asked.seed}.txt").write_text("\n".join(lines))
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
