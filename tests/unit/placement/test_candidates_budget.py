"""The cost of a search is counted in steps, the same on every machine; impossible searches are recognised in few steps."""

import pytest
from msgspec import structs

from engine.candidates import budget as budgets
from engine.candidates.budget import Budget, CutError, SearchLimits
from engine.candidates.query import CandidatesQuery, Group
from engine.candidates.search import find_candidates
from engine.refusals import TooCostly
from placement_worker.api.candidates import Summaries, requests_text
from tests.unit.placement.candidate_worlds import World, asking
from tests.unit.placement.hard_questions import (
    Asked,
    a_tight_packing,
    eleven_over_half_of_ten_nodes,
    pairs_on_a_chain,
    uneven_trees,
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


def test_large_groups_with_too_few_nodes_are_recognised_though_other_nodes_have_room() -> None:
    """Five of eight large groups fit only on one of four nodes. Small groups, which have fewer places to choose from,
    are tried first.
    """
    world = World()
    world.has("host")
    for number in range(9):
        traits = ("CUSTOM_FAST",) * (number < 4) + ("CUSTOM_NEAR",) * (number < 3)
        world.has(f"n{number}", under="host", PGPU=1_000 + number, traits=traits)
    groups = [
        *[wanting(asking(f"_L{number}", PGPU=510 + number), "CUSTOM_FAST") for number in range(5)],
        *[asking(f"_M{number}", PGPU=520 + number) for number in range(3)],
        *[wanting(asking(f"_S{number}", PGPU=30 + 2**number), "CUSTOM_NEAR") for number in range(8)],
    ]
    query = CandidatesQuery(groups=tuple(groups), group_policy="none", limit=1)

    found, budget = spent((world, query), SearchLimits())

    assert found == 0
    assert budget.steps < FEW_STEPS // 10


def wanting(group: Group, trait: str) -> Group:
    return structs.replace(group, required=((trait,),))


def test_in_a_chain_of_providers_no_subtree_is_split() -> None:
    found, budget = spent(pairs_on_a_chain(), SearchLimits())

    assert found == 1
    assert budget.steps < FEW_STEPS // 2


def test_more_subtrees_than_calls_may_be_nested() -> None:
    world = World()
    world.has("host", PGPU=5_000)
    world.has("left", under="host", PGPU=5_000)
    world.has("right", under="host", PGPU=5_000)
    query = some_groups(1_051)
    pairs = tuple((f"_{number}", f"_{number + 1}") for number in range(1_050))

    # More than the default limit allows.
    limits = SearchLimits(steps_max=100_000_000)
    found, _ = spent((world, structs.replace(query, same_subtree=pairs, limit=1)), limits)

    assert found == 1


def test_a_search_that_is_too_costly_is_cut_and_names_the_limit() -> None:
    cut, budget = spent(a_tight_packing(), SearchLimits(steps_max=FEW_STEPS))

    assert isinstance(cut, TooCostly)
    assert (cut.what, cut.budget) == ("steps", FEW_STEPS)
    assert FEW_STEPS < cut.spent == budget.steps < FEW_STEPS + 1_000


def test_forty_uneven_trees_without_a_candidate_are_refused_after_two_fifths_of_the_steps() -> None:
    limits = SearchLimits()
    cut, budget = spent(uneven_trees(), limits)

    assert isinstance(cut, TooCostly)
    assert (cut.what, cut.budget) == ("steps", limits.barren_steps_max)
    assert budget.steps < limits.steps_max // 2


def test_the_same_question_spends_the_same_steps() -> None:
    world, query = pairs_on_a_chain(20, 12)
    everything = structs.replace(query, limit=300)

    first, second = (spent((world, everything), SearchLimits()) for _ in range(2))

    assert first[0] == second[0] == 300
    assert (first[1].steps, first[1].held_most) == (second[1].steps, second[1].held_most)


def test_the_exact_number_of_steps_is_enough_and_one_less_is_not() -> None:
    asked = devices(6, 2), some_groups(4)
    found, budget = spent(asked, SearchLimits())

    assert spent(asked, SearchLimits(steps_max=budget.steps))[0] == found
    assert isinstance(spent(asked, SearchLimits(steps_max=budget.steps - 1))[0], TooCostly)


def test_each_candidate_lets_the_search_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = devices(6, 2), some_groups(4)
    found, budget = spent(asked, SearchLimits())
    monkeypatch.setattr(budgets, "_BARREN_STEPS_MAX", budget.steps // 2)

    assert spent(asked, SearchLimits(steps_max=budget.steps))[0] == found


def test_marks_change_neither_the_result_nor_the_steps() -> None:
    world, query = devices(6, 2), some_groups(4)
    marks: list[int] = []
    marked = Budget(at_mark=lambda: marks.append(marked.steps), mark_every=1_000)

    found = find_candidates(world.index, query, budget=marked)
    plain, budget = spent((world, query), SearchLimits())

    assert len(found) == plain
    assert marked.steps == budget.steps
    assert len(marks) >= budget.steps // 1_000 - 20
    assert marks == sorted(marks)


def test_the_memory_of_a_search_is_bounded() -> None:
    cut, _ = spent((devices(9, 9), some_groups(6)), SearchLimits(bytes_max=1_000_000))

    assert isinstance(cut, TooCostly)
    assert cut.what == "bytes"
    assert 1_000_000 < cut.spent < 1_100_000


def test_released_memory_counts_no_more() -> None:
    """A thousand hosts that are all different are searched one after another."""
    world = World()
    for number in range(1_000):
        world.has(f"host-{number}", PGPU=number + 1)
    query = structs.replace(some_groups(2, 600), limit=None)

    _, budget = spent((world, query), SearchLimits())

    assert budget.held < budget.held_most


def test_a_full_memo_of_dead_ends_takes_no_more_and_the_search_goes_on() -> None:
    limits = SearchLimits(steps_max=5_000_000, bytes_max=2_000_000)

    cut, budget = spent(a_tight_packing(), limits)

    assert isinstance(cut, TooCostly)
    assert cut.what == "steps"
    assert budget.held_most < limits.memo_bytes_max + 200_000


@pytest.mark.parametrize("slots", [1, 40])
def test_an_answer_is_measured_before_it_is_written(slots: int) -> None:
    world, query = devices(400, 50), structs.replace(some_groups(slots), limit=300)
    found = find_candidates(world.index, query)
    whole = Budget()
    texts = list(requests_text(found, world.index, (1, 39), whole))
    told = whole.answer_bytes

    assert abs(sum(map(len, texts)) - told) <= len(found)
    with pytest.raises(CutError) as cut:
        next(
            iter(requests_text(found, world.index, (1, 39), Budget(SearchLimits(answer_bytes_max=told - 1))))
        )
    assert cut.value.verdict == TooCostly(what="answer_bytes", spent=told, budget=told - 1)


def test_summaries_are_measured_too() -> None:
    world = devices(50, 5)
    found = find_candidates(world.index, some_groups(1))
    whole = Budget()
    list(Summaries().texts(found.giving, world.index, (1, 39), (), whole))

    limited = Budget(SearchLimits(answer_bytes_max=whole.answer_bytes - 1))
    with pytest.raises(CutError):
        list(Summaries().texts(found.giving, world.index, (1, 39), (), limited))
