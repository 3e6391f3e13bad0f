"""The whole cloud under two hundred seeds, each with every kind of fault; and that a seed is what it was."""

import subprocess
import sys

import pytest

from tests.simulation.expected import EVERYTHING, IN_EACH_SEED
from tests.simulation.many import Ran, kept, run_many

SEEDS = range(1, 201)
# All seeds are run for the first of the tests that look at them.
PATIENCE_S = 1800


@pytest.fixture(scope="module")
def ran() -> Ran:
    return run_many(sorted({*SEEDS, *kept()}))


@pytest.mark.timeout(PATIENCE_S)
def test_every_promise_is_kept_and_everything_settles_in_every_seed(ran: Ran) -> None:
    told = [f"python -m tests.simulation --seed {seed}: {how}" for seed, how in sorted(ran.broken.items())]
    assert not told, "\n".join(told)


@pytest.mark.timeout(PATIENCE_S)
def test_together_the_seeds_have_seen_everything_that_can_happen(ran: Ran) -> None:
    missing = [each for each in EVERYTHING if not ran.seen[each]]
    assert not missing


@pytest.mark.timeout(PATIENCE_S)
def test_no_seed_is_a_toy(ran: Ran) -> None:
    count = len({*SEEDS, *kept()})
    missing = {each: count - ran.seeds_with[each] for each in IN_EACH_SEED if ran.seeds_with[each] < count}
    assert not missing


@pytest.mark.timeout(PATIENCE_S)
def test_a_seed_is_the_same_byte_for_byte_each_time() -> None:
    first, second = (
        subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seed", "7"], capture_output=True, check=True
        ).stdout
        for _ in range(2)
    )
    assert first == second
    assert b"settled after" in first
