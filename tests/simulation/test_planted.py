"""Bugs made on purpose are found within the seeds of the test command, each told with what shrinking has left of its plan:
at most half. A file keeps the seed that showed each of them last, which is tried first.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.hunting import Hunted, hunt
from tests.simulation.many import pool_with_fixed_hashes
from tests.simulation.planted import BUGS, OF_NODES
from tests.simulation.test_simulation import PATIENCE_S, SEEDS, SEEDS_OF_NODES

SHRINKING_RUNS_MAX = 96
HALF = 0
# A bug that none of so many seeds shows is not found: all of them would take as long as all other bugs together.
HUNTED_IN, NODES_HUNTED_IN = SEEDS[:30], SEEDS_OF_NODES[:15]
SHOWN_BY = Path(__file__).with_name("planted") / "shown_by.txt"


@pytest.fixture(scope="module")
def hunted() -> Iterator[dict[str, Hunted | None]]:
    shown_by = _shown_by()
    with pool_with_fixed_hashes() as pool:
        hunts = {
            bug: pool.submit(
                hunt,
                bug,
                (*shown_by.get(bug, ()), *_hunted_in(bug)),
                SHRINKING_RUNS_MAX,
                enough=HALF,
                sound=(*SEEDS, *SEEDS_OF_NODES),
            )
            for bug in BUGS
        }
        yield {bug: each.result() for bug, each in hunts.items()}


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_and_its_trace_shrunk(bug: str, hunted: dict[str, Hunted | None]) -> None:
    found = hunted[bug]
    assert found is not None, f"neither the seed in {SHOWN_BY.name} nor one of {_hunted_in(bug)} shows it"
    print(
        f"{bug}: seed {found.seed} breaks {found.promise!r}; {found.needed} of {found.things} things needed"
    )
    print("\n".join(found.told))
    assert found.needed <= found.things // 2


def test_each_planted_bug_has_a_seed_that_shows_it() -> None:
    assert _shown_by().keys() == BUGS.keys()
    assert {seed for seeds in _shown_by().values() for seed in seeds} <= {*SEEDS, *SEEDS_OF_NODES}


def _hunted_in(bug: str) -> range:
    return NODES_HUNTED_IN if bug in OF_NODES else HUNTED_IN


def _shown_by() -> dict[str, tuple[int, ...]]:
    """A bug a line: the seed, and the bug's name."""
    lines = [line.partition(" ") for line in SHOWN_BY.read_text().splitlines() if line]
    return {name: (int(seed),) for seed, _, name in lines}
