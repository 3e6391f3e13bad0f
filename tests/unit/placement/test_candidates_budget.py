"""The cost of a search is counted in steps, the same on every machine; impossible searches are recognised in few steps."""

import pytest
from msgspec import structs

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


@pytest.mark.parametrize(
    ("asked", "found", "steps"),
    [
        (eleven_over_half_of_ten_nodes(), 0, FEW_STEPS),
        (pairs_on_a_chain(), 1, FEW_STEPS // 2),
        # One group more than devices; a sum that fits and cannot be packed; and more groups than calls may be nested.
        ((devices(30, 1), some_groups(31)), 0, FEW_STEPS),
        ((devices(30, 1), structs.replace(some_groups(31), group_policy="isolate")), 0, FEW_STEPS),
        ((devices(16, 10), some_groups(19, 6)), 0, FEW_STEPS),
        ((devices(2, 2_000), structs.replace(some_groups(1_100), limit=2)), 2, 100 * FEW_STEPS),
    ],
    ids=["halves", "chain", "devices", "isolated", "packing", "nested"],
)
def test_what_is_found_and_what_cannot_be_is_seen_in_few_steps(asked: Asked, found: int, steps: int) -> None:
    told, budget = spent(asked, SearchLimits())

    assert told == found
    assert budget.steps < steps


@pytest.mark.parametrize(
    ("asked", "limits", "what"),
    [
        (a_tight_packing(), SearchLimits(steps_max=FEW_STEPS), "steps"),
        ((devices(9, 9), some_groups(6)), SearchLimits(bytes_max=1_000_000), "bytes"),
    ],
    ids=["steps", "bytes"],
)
def test_a_search_that_is_too_costly_is_cut_and_names_the_limit(
    asked: Asked, limits: SearchLimits, what: str
) -> None:
    cut, _ = spent(asked, limits)

    assert isinstance(cut, TooCostly)
    assert cut.what == what
    assert cut.budget < cut.spent < 1.1 * cut.budget


def test_the_exact_number_of_steps_is_enough_and_one_less_is_not() -> None:
    asked = devices(6, 2), some_groups(4)
    found, budget = spent(asked, SearchLimits())

    assert spent(asked, SearchLimits(steps_max=budget.steps))[0] == found
    assert isinstance(spent(asked, SearchLimits(steps_max=budget.steps - 1))[0], TooCostly)
