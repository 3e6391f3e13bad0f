"""`python -m tests.simulation`: one seed with its timeline, or many seeds on all cores.

python -m tests.simulation --seed 7               print the timeline and the coverage; the output is always the same.
python -m tests.simulation --seed 7 --about 4b9d  print only the lines about one instance, and the faults.
python -m tests.simulation --seeds 100000         a long run: failing seeds are printed, and kept in failing_seeds.txt.
python -m tests.simulation --seeds 5000 --from 6000000 --done done.txt
                                                  begin at this seed; an interrupted run continues where it stopped.
python -m tests.simulation --nodes --seeds 1000   bare metal: nodes, their Ironic, and the daemons of the ring.
python -m tests.simulation --moves --seeds 3000   only seeds in which instances move: one seed in eight is one.
"""

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.simulation.done_seeds import DoneSeeds
from tests.simulation.drawing import WORLDS, draw
from tests.simulation.drawing_nodes import NODE_SEEDS
from tests.simulation.many_seeds import (
    FAILING_SEEDS,
    FIXED_HASH_SEED,
    HASH_SEED_VARIABLE,
    NO_RESULT,
    SeedsResult,
    keep_failing_seed,
    run_many,
)
from tests.simulation.report import covered, flips_and_claims, lines_of, summary_of
from tests.simulation.seeds import run


def main(arguments: Sequence[str] | None = None) -> int:
    wanted = _parser().parse_args(arguments)
    least = NODE_SEEDS if wanted.nodes else 0
    if wanted.seed is not None:
        return _run_one(least + wanted.seed, wanted.about)
    numbers: Iterator[int] = itertools.count(least + wanted.first)
    if wanted.moves:
        moving = WORLDS["moves"], WORLDS["moves of groups"]
        numbers = (seed for seed in numbers if any(world.has(seed) for world in moving))
    return _run_all([*itertools.islice(numbers, wanted.seeds)], DoneSeeds(wanted.done))


def _run_one(seed: int, about: str) -> int:
    outcome = run(draw(seed))
    for line in (*lines_of(outcome, about), *covered(outcome.seen), *summary_of(outcome)):
        print(line)
    if outcome.plan.nodes:
        print(flips_and_claims(outcome.seen))
    return 0 if outcome.broken is None else 1


def _run_all(seeds: Sequence[int], done: DoneSeeds) -> int:
    left = done.left_of(seeds)
    for seed, how in done.broken_of(seeds).items():
        print(f"seed {seed}: {how}")
    last_s = began_s = time.monotonic()

    def is_done(some: list[int], ran: SeedsResult) -> None:
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

    result = run_many(left, on_broken=_report, on_done=is_done) if left else NO_RESULT
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
    keep_failing_seed(seed, FAILING_SEEDS)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description="The whole cloud, simulated."
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="run one seed and print its timeline")
    which.add_argument("--seeds", type=int, help="run this many seeds")
    parser.add_argument(
        "--from",
        "--first",
        type=int,
        default=1,
        dest="first",
        metavar="N",
        help="the first seed of --seeds (default 1)",
    )
    parser.add_argument(
        "--done", type=Path, help="record the results in this file, and skip the seeds that it has"
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument(
        "--nodes", action="store_true", help=f"seeds of bare metal: {NODE_SEEDS} is added to each"
    )
    only.add_argument("--moves", action="store_true", help="with --seeds: only seeds in which instances move")
    parser.add_argument(
        "--about", default="", help="with --seed: print only faults, and lines that contain this text"
    )
    return parser


def _with_fixed_hashes() -> None:
    """Re-execute this process with a fixed hash seed; many_seeds.py does the same for its worker processes."""
    if os.environ.get(HASH_SEED_VARIABLE) != FIXED_HASH_SEED:
        environment = {**os.environ, HASH_SEED_VARIABLE: FIXED_HASH_SEED}
        again = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execve(sys.executable, again, environment)  # noqa: S606 - itself, and there is no shell to want


if __name__ == "__main__":
    _with_fixed_hashes()
    sys.exit(main())
