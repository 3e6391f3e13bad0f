"""`python -m tests.simulation`: one seed told in full, or many seeds on all cores.

python -m tests.simulation --seed 7               what happened, and what was covered; the same, byte for byte, each time
python -m tests.simulation --seed 7 --about 4b9d  of it what is about one instance
python -m tests.simulation --seeds 100000         a long run; what fails is told, and kept in failing_seeds.txt
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence

from tests.simulation.drawing import draw
from tests.simulation.many import FIXED_HASHES, HASHES, KEPT, keep, run_many
from tests.simulation.seeds import run
from tests.simulation.telling import covered, lines_of, summary_of


def main(arguments: Sequence[str] | None = None) -> int:
    wanted = _parser().parse_args(arguments)
    if wanted.seed is not None:
        return _tell_one(wanted.seed, wanted.about)
    return _run_all(range(wanted.first, wanted.first + wanted.seeds))


def _tell_one(seed: int, about: str) -> int:
    outcome = run(draw(seed))
    for line in (*lines_of(outcome, about), *covered(outcome.seen), *summary_of(outcome)):
        print(line)
    return 0 if outcome.broken is None else 1


def _run_all(seeds: range) -> int:
    began_s = time.monotonic()
    result = run_many(seeds, on_broken=_report)
    for line in covered(result.seen):
        print(line)
    print(
        f"{len(seeds)} seeds in {time.monotonic() - began_s:.0f} s, {result.cpu_s:.0f} s of CPU; {len(result.broken)} broken"
    )
    return 1 if result.broken else 0


def _report(seed: int, how: str) -> None:
    print(f"seed {seed}: {how}", flush=True)
    keep(seed, KEPT)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description="The whole cloud, simulated."
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="tell one seed in full")
    which.add_argument("--seeds", type=int, help="run so many seeds")
    parser.add_argument("--first", type=int, default=1, help="the first of many")
    parser.add_argument("--about", default="", help="of a seed, only lines with this in them, and faults")
    return parser


def _with_fixed_hashes() -> None:
    """As many.py has it for its processes: this one is replaced by itself."""
    if os.environ.get(HASHES) != FIXED_HASHES:
        environment = {**os.environ, HASHES: FIXED_HASHES}
        again = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execve(sys.executable, again, environment)  # noqa: S606 - itself, and there is no shell to want


if __name__ == "__main__":
    _with_fixed_hashes()
    sys.exit(main())
