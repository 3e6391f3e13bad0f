"""Bugs made on purpose are found within the seeds of the test command, each told with what shrinking has left of its plan: at most half."""

from collections.abc import Iterator

import pytest

from tests.simulation.hunting import Hunted, hunt
from tests.simulation.many import pool_with_fixed_hashes
from tests.simulation.planted import BUGS
from tests.simulation.test_simulation import PATIENCE_S, SEEDS

SHRINKING_RUNS_MAX = 64


@pytest.fixture(scope="module")
def hunted() -> Iterator[dict[str, Hunted | None]]:
    with pool_with_fixed_hashes() as pool:
        hunts = {bug: pool.submit(hunt, bug, SEEDS, SHRINKING_RUNS_MAX) for bug in BUGS}
        yield {bug: each.result() for bug, each in hunts.items()}


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_and_its_trace_shrunk(bug: str, hunted: dict[str, Hunted | None]) -> None:
    found = hunted[bug]
    assert found is not None, f"no seed of {SEEDS} shows it"
    print(
        f"{bug}: seed {found.seed} breaks {found.promise!r}; {found.needed} of {found.things} things needed"
    )
    print("\n".join(found.told))
    assert found.needed <= found.things // 2
