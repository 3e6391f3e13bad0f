"""The plan of a seed that shows a planted bug is shrunk to half or less, one plan of each world.

`tests/planted/seen_by.txt` names the seed that shows each bug. `make planted` and `make proof` judge its lines.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor

import pytest
from msgspec import structs

from tests.planted import OF_NODES, OF_WORLDS, SIMULATED
from tests.planted.matrix import seeds_that_show
from tests.simulation.bug_search import PARTS, SCRIPTS, FoundBug, find_and_shrink
from tests.simulation.drawing import WORLDS
from tests.simulation.plan import Plan
from tests.simulation.test_simulation import SEEDS, SEEDS_OF_NODES, TIMEOUT_S

SHRINKING_RUNS_MAX = 96
HALF = 0


# To shrink a plan takes some forty runs, and the bugs of a world have much the same plans. So one bug of each is enough.
SHRUNK = [next(iter(bugs)) for bugs in (SIMULATED, *OF_WORLDS.values(), OF_NODES)]

Shrunk = dict[str, Future[FoundBug | None]]


@pytest.fixture(scope="module")
def planted_bugs_shrunk(request: pytest.FixtureRequest, pool: ProcessPoolExecutor) -> Shrunk:
    """The searches for all bugs whose tests run."""
    wanted = [
        str(item.callspec.params["bug"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and "planted_bugs_shrunk" in item.fixturenames
    ]
    return {
        bug: pool.submit(find_and_shrink, bug, seeds_of(bug), SHRINKING_RUNS_MAX, small_enough=HALF)
        for bug in wanted
    }


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("bug", SHRUNK)
def test_the_trace_of_a_planted_bug_is_shrunk(bug: str, planted_bugs_shrunk: Shrunk) -> None:
    found = planted_bugs_shrunk[bug].result()

    assert found is not None
    print(f"{bug}: seed {found.seed}, {found.needed} of {found.size} elements needed")
    print("\n".join(found.story))
    assert found.is_small


def test_each_planted_bug_has_a_seed_that_shows_it() -> None:
    assert not SIMULATED.keys() - seeds_that_show().keys()
    assert {*seeds_that_show().values()} <= {*SEEDS, *SEEDS_OF_NODES}


def test_whatever_a_plan_has_can_be_left_out_when_it_is_shrunk() -> None:
    # The rest of a plan is about these.
    stay = {"pools", "groups", "nodes"}
    several = {field.name for field in structs.fields(Plan) if field.default == ()}

    assert several - stay == {*PARTS} - {*SCRIPTS}


def seeds_of(bug: str) -> tuple[int, ...]:
    shown = seeds_that_show()
    return (*([shown[bug]] if bug in shown else []), *_searched_seeds(bug))


def _searched_seeds(bug: str) -> Sequence[int]:
    if bug in OF_NODES:
        return SEEDS_OF_NODES
    for world, bugs in OF_WORLDS.items():
        if bug in bugs:
            return [seed for seed in SEEDS if WORLDS[world].has(seed)]
    return SEEDS
