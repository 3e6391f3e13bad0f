"""The cost of a search is counted in steps, the same on every machine; impossible searches are recognised in few steps."""

from engine.candidates.budget import Budget, CutError, SearchLimits
from engine.candidates.query import CandidatesQuery
from engine.candidates.search import find_candidates
from engine.refusals import TooCostly
from tests.unit.placement.candidate_worlds import World, asking
from tests.unit.placement.hard_questions import (
    Asked,
    a_tight_packing,
    eleven_over_half_of_ten_nodes,
    pairs_on_a_chain,
)

FEW_STEPS = 100_000


def spent(asked: Asked, limits: SearchLimits) -> tuple[int | TooCostly, Budget]:
    """The number of candidates, or the reason why the search was cut."""
    world, query = asked
    budget = Budget(limits)
    try:
        return len(find_candidates(world.index, query, budget=budget)), budget
    except CutError as cut:
        return cut.verdict, budget


def devices(count: int, total: int) -> World:
    world = World()
    world.has("host")
    for number in range(count):
        world.has(f"d{number}", under="host", PGPU=total)
    return world


def some_groups(count: int, amount: int = 1) -> CandidatesQuery:
    groups = tuple(asking(f"_{number}", PGPU=amount) for number in range(count))
    return CandidatesQuery(groups=groups, group_policy="none", limit=100_000)


def test_more_large_groups_than_nodes_are_counted_apart_from_the_small_ones() -> None:
    found, budget = spent(eleven_over_half_of_ten_nodes(), SearchLimits())

    assert found == 0
    assert budget.steps < FEW_STEPS


def test_in_a_chain_of_providers_no_subtree_is_split() -> None:
    found, budget = spent(pairs_on_a_chain(), SearchLimits())

    assert found == 1
    assert budget.steps < FEW_STEPS // 2


def test_a_search_that_is_too_costly_is_cut_and_names_the_limit() -> None:
    cut, budget = spent(a_tight_packing(), SearchLimits(steps_max=FEW_STEPS))

    assert isinstance(cut, TooCostly)
    assert (cut.what, cut.budget) == ("steps", FEW_STEPS)
    assert FEW_STEPS < cut.spent == budget.steps < FEW_STEPS + 1_000


def test_the_exact_number_of_steps_is_enough_and_one_less_is_not() -> None:
    asked = devices(6, 2), some_groups(4)
    found, budget = spent(asked, SearchLimits())

    assert spent(asked, SearchLimits(steps_max=budget.steps))[0] == found
    assert isinstance(spent(asked, SearchLimits(steps_max=budget.steps - 1))[0], TooCostly)


def test_the_memory_of_a_search_is_bounded() -> None:
    cut, _ = spent((devices(9, 9), some_groups(6)), SearchLimits(bytes_max=1_000_000))

    assert isinstance(cut, TooCostly)
    assert cut.what == "bytes"
    assert 1_000_000 < cut.spent < 1_100_000
