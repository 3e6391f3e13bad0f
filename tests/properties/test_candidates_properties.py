"""Any query over any providers: the search finds exactly what the slow reference finds, each candidate once."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from engine.candidates.provider_index import ProviderIndex
from engine.candidates.query import CandidatesQuery, FoundCandidate, FoundCandidates, Preferred
from engine.candidates.search import find_candidates
from engine.inventories import ProviderState
from tests.properties.bounds import BOUNDED, THOROUGH
from tests.properties.random_forests import SHARES, TRAITS, index_of, queries, random_forests
from tests.properties.reference_candidates import Told, reference_candidates

# Each of these tests one more property of the same search.
FEWER = settings(BOUNDED, max_examples=50)


def telling(candidate: FoundCandidate) -> Told:
    return (
        frozenset((each.provider, each.resource, each.amount) for each in candidate.amounts),
        frozenset((suffix, frozenset(providers)) for suffix, providers in candidate.mappings.items()),
    )


def told_of(index: ProviderIndex, found: FoundCandidates) -> list[Told]:
    return [telling(candidate) for candidate in found.written_out(index)]


@THOROUGH
@given(random_forests(), queries())
def test_without_a_limit_exactly_what_the_reference_finds_each_once(
    states: list[ProviderState], query: CandidatesQuery
) -> None:
    index = index_of(states)

    found = told_of(index, find_candidates(index, query))

    assert max(Counter(found).values(), default=1) == 1
    assert set(found) == reference_candidates(states, query)


@FEWER
@given(random_forests(), queries(), st.integers(1, 12))
def test_with_a_limit_no_tree_has_two_more_than_another_that_could_have_more(
    states: list[ProviderState], query: CandidatesQuery, limit: int
) -> None:
    alone = [without_sharing(state) for state in states]
    index = index_of(alone)
    could_have = by_tree(alone, told_of(index, find_candidates(index, query)))

    has = by_tree(alone, told_of(index, find_candidates(index, structs.replace(query, limit=limit))))

    assert has.total() == min(limit, could_have.total())
    most = max(has.values(), default=0)
    assert all(has[root] >= min(could_have[root], most - 1) for root in could_have)


@FEWER
@given(random_forests(), random_forests(), st.randoms(use_true_random=False), queries())
def test_an_index_that_changed_is_like_one_that_was_always_so(
    before: list[ProviderState], after: list[ProviderState], chance: Random, query: CandidatesQuery
) -> None:
    original = index_of(before)
    find_candidates(original, query)
    index = original.copy()
    # Some are the same providers in other places; others are new ones with the same ids.
    after = [
        structs.replace(state, internal=state.internal + 100 * (state.internal % 3 == 0)) for state in after
    ]
    stay = {state.internal for state in after}
    steps = [
        *(partial(index.put, state) for state in after),
        *(partial(index.drop, state.internal) for state in before if state.internal not in stay),
    ]
    chance.shuffle(steps)

    for step in steps:
        step()
        if chance.random() < 0.5:
            # Its answers are kept for the rows that do not change any more.
            find_candidates(index, query)

    assert set(told_of(index, find_candidates(index, query))) == reference_candidates(after, query)
    assert set(told_of(original, find_candidates(original, query))) == reference_candidates(before, query)


@FEWER
@given(random_forests(), queries(), st.sampled_from([2.0, -1.0]))
def test_what_is_preferred_decides_about_the_order_and_about_nothing_else(
    states: list[ProviderState], query: CandidatesQuery, weight: float
) -> None:
    index = index_of(states)
    preferred = (Preferred(TRAITS[0], weight), Preferred(TRAITS[1]))
    choosy = structs.replace(
        query, groups=tuple(structs.replace(group, preferred=preferred) for group in query.groups)
    )

    answer = find_candidates(index, choosy)
    found = told_of(index, answer)

    assert Counter(found) == Counter(told_of(index, find_candidates(index, query)))
    worth = [block.preference for block in answer.blocks]
    assert worth == sorted(worth, reverse=True)


def without_sharing(state: ProviderState) -> ProviderState:
    return structs.replace(state, traits=tuple(trait for trait in state.traits if trait != SHARES))


def by_tree(states: Sequence[ProviderState], candidates: Iterable[Told]) -> Counter[object]:
    roots = {state.id: state.root for state in states}
    return Counter(roots[next(iter(amounts))[0]] for amounts, _ in candidates)
