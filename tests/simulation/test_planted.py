"""Each planted bug is found within the seeds of the test command, and its plan is shrunk to half or less.

A file keeps the seed that last showed each bug; the search tries that seed first.
"""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest

from tests.simulation.bug_search import FoundBug, find_and_shrink
from tests.simulation.drawing_demands import DEMANDS_AT, DEMANDS_EVERY
from tests.simulation.drawing_feeds import FEEDS_AT, FEEDS_EVERY
from tests.simulation.drawing_flavors import FLAVORS_AT, FLAVORS_EVERY
from tests.simulation.drawing_group_moves import GROUP_MOVES_AT, GROUP_MOVES_EVERY
from tests.simulation.drawing_hosts import HOSTS_AT, HOSTS_EVERY
from tests.simulation.drawing_moves import has_moves
from tests.simulation.drawing_waiting_moves import WAITING_MOVES_AT, WAITING_MOVES_EVERY
from tests.simulation.many_seeds import pool_with_fixed_hashes
from tests.simulation.planted import (
    BUGS,
    OF_DEMANDS,
    OF_FLAVORS,
    OF_GROUP_MOVES,
    OF_HOST_MODES,
    OF_LOST_FEEDS,
    OF_MOVES,
    OF_NODES,
    OF_WAITING_MOVES,
)
from tests.simulation.test_simulation import SEEDS, SEEDS_OF_NODES, TIMEOUT_S

SHRINKING_RUNS_MAX = 96
HALF = 0
# A bug that none of these seeds shows counts as not found. To try all seeds would take as long as all other bugs
# together.
SEARCHED_SEEDS, SEARCHED_NODE_SEEDS = SEEDS[:30], SEEDS_OF_NODES[:15]
SEARCHED_DEMAND_SEEDS = range(DEMANDS_AT, SEEDS.stop, DEMANDS_EVERY)
SEARCHED_FEED_SEEDS = range(FEEDS_AT, SEEDS.stop, FEEDS_EVERY)
SEARCHED_FLAVOR_SEEDS = range(FLAVORS_AT, SEEDS.stop, FLAVORS_EVERY)
SEARCHED_MODE_SEEDS = range(HOSTS_AT, SEEDS.stop, HOSTS_EVERY)
SEARCHED_MOVE_SEEDS = tuple(seed for seed in SEEDS if has_moves(seed))
SEARCHED_WAITING_MOVE_SEEDS = range(WAITING_MOVES_AT, SEEDS.stop, WAITING_MOVES_EVERY)
SEARCHED_GROUP_MOVE_SEEDS = range(GROUP_MOVES_AT, SEEDS.stop, GROUP_MOVES_EVERY)
SEARCHED_FOR: tuple[tuple[Collection[str], Sequence[int]], ...] = (
    (OF_MOVES, SEARCHED_MOVE_SEEDS),
    (OF_WAITING_MOVES, SEARCHED_WAITING_MOVE_SEEDS),
    (OF_GROUP_MOVES, SEARCHED_GROUP_MOVE_SEEDS),
    (OF_HOST_MODES, SEARCHED_MODE_SEEDS),
    (OF_LOST_FEEDS, SEARCHED_FEED_SEEDS),
    (OF_DEMANDS, SEARCHED_DEMAND_SEEDS),
    (OF_FLAVORS, SEARCHED_FLAVOR_SEEDS),
    (OF_NODES, SEARCHED_NODE_SEEDS),
)
SHOWN_BY = Path(__file__).with_name("planted") / "shown_by.txt"


@pytest.fixture(scope="module")
def found_bugs(request: pytest.FixtureRequest) -> Iterator[dict[str, FoundBug | None]]:
    """All bugs whose tests run: they are searched for at the same time."""
    wanted = [
        str(item.callspec.params["bug"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and "found_bugs" in item.fixturenames
    ]
    shown_by = _shown_by()
    with pool_with_fixed_hashes() as pool:
        searches = {
            bug: pool.submit(
                find_and_shrink,
                bug,
                (*shown_by.get(bug, ()), *_searched_seeds(bug)),
                SHRINKING_RUNS_MAX,
                small_enough=HALF,
            )
            for bug in wanted
        }
        yield {bug: each.result() for bug, each in searches.items()}


@pytest.mark.proof
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_and_its_trace_shrunk(
    bug: str, found_bugs: dict[str, FoundBug | None]
) -> None:
    found = found_bugs[bug]
    assert found is not None, (
        f"no seed shows it: neither the one in {SHOWN_BY.name} nor {_searched_seeds(bug)}"
    )
    print(
        f"{bug}: seed {found.seed} breaks {found.promise!r}; {found.needed} of {found.size} elements needed"
    )
    print("\n".join(found.story))
    assert found.is_small


@pytest.mark.parametrize("bug", BUGS)
def test_what_a_bug_replaces_is_there(bug: str) -> None:
    with BUGS[bug]():
        pass


def test_each_planted_bug_has_a_seed_that_shows_it() -> None:
    assert _shown_by().keys() == BUGS.keys()
    assert {seed for seeds in _shown_by().values() for seed in seeds} <= {*SEEDS, *SEEDS_OF_NODES}


def _searched_seeds(bug: str) -> Sequence[int]:
    return next((seeds for bugs, seeds in SEARCHED_FOR if bug in bugs), SEARCHED_SEEDS)


def _shown_by() -> dict[str, tuple[int, ...]]:
    """The seed that last showed each bug, from a file with one bug a line: the seed, and the bug's name."""
    lines = [line.partition(" ") for line in SHOWN_BY.read_text().splitlines() if line]
    return {name: (int(seed),) for seed, _, name in lines}
