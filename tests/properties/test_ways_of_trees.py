"""A search of one tree alone finds the ways that a search of all trees finds there, in the same order."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from engine.candidates.budget import SharedBudget
from engine.candidates.provider_index import ProviderIndex
from engine.candidates.query import CandidatePattern, CandidatesQuery, Preferred
from engine.candidates.suitable import SearchScope
from engine.candidates.ways import InTrees, TreeSearch, ways_of_trees
from engine.choosing.compounds import BYTES_PER_TREE, STEPS_PER_BATCH, STEPS_PER_TREE
from engine.inventories import ProviderState
from tests.properties.bounds import BOUNDED
from tests.properties.random_forests import CLASSES, SHARING, SOME_AGGREGATES, TRAITS, queries, random_forests
from tests.properties.test_scheduler_compounds import index_of

# The worth of a way, and the names and amounts of its providers.
WayInWords = tuple[float, list[tuple[str, tuple[tuple[str, int], ...]]]]
Taken = dict[str, dict[int, int]]


def in_words(
    index: ProviderIndex, pattern: CandidatePattern, rows: Sequence[int], worth: float
) -> WayInWords:
    amounts = [tuple(sorted(each.items())) for each in pattern.amounts]
    return worth, [*zip([index.state(row).name for row in rows], amounts, strict=True)]


def ways_of_all(
    index: ProviderIndex, query: CandidatesQuery, ways: int, barred: frozenset[int], taken: Taken
) -> dict[int, list[WayInWords]]:
    """By the row of the root."""
    found: dict[int, list[WayInWords]] = {}
    shared = SharedBudget(STEPS_PER_TREE, STEPS_PER_BATCH, BYTES_PER_TREE)
    for trees in ways_of_trees(index, query, SearchScope(barred=barred, taken=taken), shared, ways=ways):
        assert isinstance(trees, InTrees)
        block = trees.block
        for root, line in zip(trees.roots.tolist(), block.rows.tolist(), strict=True):
            found.setdefault(root, []).append(in_words(index, block.pattern, line, block.preference))
    return found


@st.composite
def preferring(draw: st.DrawFn) -> CandidatesQuery:
    """A query, half of them with a preference in one group."""
    query = draw(queries())
    if draw(st.booleans()):
        return query
    preferred = (Preferred(draw(st.sampled_from(TRAITS)), draw(st.sampled_from((-1.0, 1.0, 2.0)))),)
    first = structs.replace(query.groups[0], preferred=preferred)
    return structs.replace(query, groups=(first, *query.groups[1:]))


def without_conditions(query: CandidatesQuery) -> CandidatesQuery:
    """It differs in all that is remembered of the groups."""
    groups = [
        structs.replace(group, forbidden=(), forbidden_aggregates=(), member_of=()) for group in query.groups
    ]
    return structs.replace(query, groups=tuple(groups), root_required=(), root_forbidden=())


@BOUNDED
@given(random_forests(), preferring(), st.data())
def test_one_tree_after_another_has_the_ways_that_all_at_once_have(
    forest: list[ProviderState], query: CandidatesQuery, data: st.DataObject
) -> None:
    index = index_of(forest)
    index.attach_trees()
    roots = [row for row in range(index.rows) if index.attached[row] and index.parent[row] < 0]
    barred = (
        frozenset(data.draw(st.sets(st.sampled_from(sorted(index.sharing)))))
        if index.sharing
        else frozenset()
    )
    taken: Taken = {}
    search = TreeSearch(index, taken, SharedBudget(STEPS_PER_TREE, STEPS_PER_BATCH, BYTES_PER_TREE))
    asked = [(each, ways) for each in (query, without_conditions(query)) for ways in (1, 4)]
    searches = [(each, ways, search.ways_of(each, ways)) for each, ways in asked]

    # Amounts that are taken later count, too.
    for _ in range(2):
        for each, ways, ways_of in searches:
            found = {
                root: [
                    in_words(index, way.pattern, way.rows, way.preference) for way in ways_of(root, barred)
                ]
                for root in roots
            }
            assert {root: ways for root, ways in found.items() if ways} == ways_of_all(
                index, each, ways, barred, taken
            )
        for resource in CLASSES:
            amounts = data.draw(st.lists(st.sampled_from((0, 0, 1, 5)), max_size=index.rows))
            # Most of it leaves room for one slot, and not for two.
            taken.setdefault(resource, {}).update({row: less for row, less in enumerate(amounts) if less})


@settings(BOUNDED, max_examples=60)
@given(random_forests(), st.data())
def test_the_pools_of_a_tree_are_those_that_reach_its_root_now(
    forest: list[ProviderState], data: st.DataObject
) -> None:
    index = index_of(forest)
    for _ in range(3):
        index.attach_trees()
        for root in [row for row in range(index.rows) if index.attached[row] and index.parent[row] < 0]:
            reaching = [
                pool
                for pool in sorted(index.sharing)
                if index.attached[pool] and index.root[pool] != root and root in index.reached_from(pool)
            ]
            assert list(index.pools_of(root)) == reaching
        state = data.draw(st.sampled_from(forest))
        if data.draw(st.booleans()):
            index.put(structs.replace(state, aggregates=data.draw(st.sampled_from(((), *SOME_AGGREGATES)))))
        elif data.draw(st.booleans()):
            index.put(structs.replace(state, traits=data.draw(st.sampled_from(((), *SHARING)))))
        else:
            index.drop(state.internal)
