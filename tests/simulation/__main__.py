"""`python -m tests.simulation`: one seed with its timeline, or many seeds on all cores.

python -m tests.simulation --seed 7               print the timeline and the coverage; the output is always the same.
python -m tests.simulation --seed 7 --about 4b9d  print only the lines about one instance, and the faults.
python -m tests.simulation --seeds 100000         a long run: failing seeds are printed, and their plans are made small and kept.
python -m tests.simulation --seeds 5000 --from 6000000   begin at this seed.
python -m tests.simulation --kept 3               a plan that was kept, as one seed.
python -m tests.simulation --nodes --seeds 1000   bare metal: nodes, their Ironic, and the daemons of the ring.
python -m tests.simulation --moves --seeds 3000   only seeds in which instances move: one seed in eight is one.
"""

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence

from tests.simulation.bug_search import find_and_shrink
from tests.simulation.drawing import WORLDS
from tests.simulation.drawing_nodes import NODE_SEEDS
from tests.simulation.kept import KeptPlan, keep, kept, plan_of
from tests.simulation.many_seeds import FIXED_HASH_SEED, HASH_SEED_VARIABLE, pool_with_fixed_hashes, run_many
from tests.simulation.report import covered, flips_and_claims, lines_of, summary_of
from tests.simulation.seeds import run

SHRINKING_RUNS_MAX = 200
# A fault that breaks many seeds is seen in a few of their plans.
KEPT_AT_ONCE_MAX = 5


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    wanted = parser.parse_args(arguments)
    least = NODE_SEEDS if wanted.nodes else 0
    if wanted.kept is not None:
        if not 1 <= wanted.kept <= len(kept()):
            parser.error(f"--kept is {wanted.kept}: the plans that were kept are 1 to {len(kept())}")
        return _run_one(f"kept {wanted.kept}", wanted.about)
    if wanted.seed is not None:
        return _run_one(least + wanted.seed, wanted.about)
    numbers: Iterator[int] = itertools.count(least + wanted.first)
    if wanted.moves:
        moving = WORLDS["moves"], WORLDS["moves of groups"]
        numbers = (seed for seed in numbers if any(world.has(seed) for world in moving))
    return _run_all([*itertools.islice(numbers, wanted.seeds)])


def _run_one(seed: int | str, about: str) -> int:
    outcome = run(plan_of(seed))
    for line in (*lines_of(outcome, about), *covered(outcome.seen), *summary_of(outcome)):
        print(line)
    if outcome.plan.nodes:
        print(flips_and_claims(outcome.seen))
    return 0 if outcome.broken is None else 1


def _run_all(seeds: Sequence[int]) -> int:
    done, left, began_s = 0, KEPT_AT_ONCE_MAX, time.monotonic()

    def is_done(count: int) -> None:
        nonlocal done
        done += count
        print(
            f"{done} of {len(seeds)} seeds, {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True
        )

    def is_broken(seed: int | str, how: str) -> None:
        nonlocal left
        print(f"seed {seed}: {how}", flush=True)
        left -= 1
        if left >= 0 and (found := find_and_shrink("", [int(seed)], SHRINKING_RUNS_MAX)) is not None:
            keep(KeptPlan(how, found.plan))
            print(
                f"its plan is kept, with {found.needed} of {found.size} elements: --kept {len(kept())}",
                flush=True,
            )

    with pool_with_fixed_hashes() as pool:
        result = run_many(pool, seeds, on_broken=is_broken, on_done=is_done)
    for line in (*covered(result.seen), flips_and_claims(result.seen)):
        print(line)
    print(
        f"{len(seeds)} seeds in {time.monotonic() - began_s:.0f} s and {result.cpu_s:.0f} s of CPU; {len(result.broken)} broken"
    )
    return 1 if result.broken else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description="The whole cloud, simulated."
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="run one seed and print its timeline")
    which.add_argument("--kept", type=int, metavar="N", help="run this one of the plans that were kept")
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
