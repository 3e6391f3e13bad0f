"""`python -m tests.simulation`: one seed told in full, or many seeds on all cores.

python -m tests.simulation --seed 7               what happened, and what was covered; the same, byte for byte, each time
python -m tests.simulation --seed 7 --about 4b9d  of it what is about one instance
python -m tests.simulation --seeds 100000         a long run; what fails is told, and kept in failing_seeds.txt
python -m tests.simulation --seeds 5000 --from 6000000 --done done.txt
                                                  the same, from this seed on; run again, it goes on where it was
python -m tests.simulation --nodes --seeds 1000   worlds of bare-metal nodes, their Ironic, and the daemons of its ring
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.simulation.done import DoneSeeds
from tests.simulation.drawing import draw
from tests.simulation.drawing_nodes import NODE_SEEDS
from tests.simulation.many import FIXED_HASHES, HASHES, KEPT, NOTHING_RAN, Ran, keep, run_many
from tests.simulation.seeds import run
from tests.simulation.telling import covered, flips_and_claims, lines_of, summary_of


def main(arguments: Sequence[str] | None = None) -> int:
    wanted = _parser().parse_args(arguments)
    least = NODE_SEEDS if wanted.nodes else 0
    if wanted.seed is not None:
        return _tell_one(least + wanted.seed, wanted.about)
    first = least + wanted.first
    return _run_all(range(first, first + wanted.seeds), DoneSeeds(wanted.done))


def _tell_one(seed: int, about: str) -> int:
    outcome = run(draw(seed))
    for line in (*lines_of(outcome, about), *covered(outcome.seen), *summary_of(outcome)):
        print(line)
    if outcome.plan.nodes:
        print(flips_and_claims(outcome.seen))
    return 0 if outcome.broken is None else 1


def _run_all(seeds: range, done: DoneSeeds) -> int:
    left = done.left_of(seeds)
    for seed, how in done.broken_of(seeds).items():
        print(f"seed {seed}: {how}")
    last_s = began_s = time.monotonic()

    def is_done(some: list[int], ran: Ran) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        done.add(some, ran.broken, now_s - last_s)
        last_s = now_s
        count = len(seeds) - len(done.left_of(seeds))
        print(
            f"{count} of {len(seeds)} seeds, {len(done.broken_of(seeds))} broken, {done.took_s:.0f} s",
            file=sys.stderr,
            flush=True,
        )

    result = run_many(left, on_broken=_report, on_done=is_done) if left else NOTHING_RAN
    for line in (*covered(result.seen), flips_and_claims(result.seen)):
        print(line)
    broken = done.broken_of(seeds)
    print(
        f"{len(seeds)} seeds done, {len(left)} of them now in {time.monotonic() - began_s:.0f} s and {result.cpu_s:.0f} s of "
        f"CPU; all in {done.took_s:.0f} s; {len(broken)} broken"
    )
    return 1 if broken else 0


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
    parser.add_argument(
        "--from", "--first", type=int, default=1, dest="first", metavar="N", help="the first of many"
    )
    parser.add_argument(
        "--done", type=Path, help="keep in this file which seeds are done, and run the others"
    )
    parser.add_argument(
        "--nodes", action="store_true", help=f"of bare metal: seeds are counted from {NODE_SEEDS} on"
    )
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
