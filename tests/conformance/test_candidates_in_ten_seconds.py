"""Our server refuses no search as too costly that the real openstack-placement answers within ten seconds.

The real one builds the product of all places of each group in a tree, and works on every element of it. On the machine
on which our limits were chosen that takes at least 17 microseconds each, so ten seconds allow at most 600,000 elements
(isolate costs ten times as much). Our search visits each beginning of an element at most once, and prunes most of them.
The worst kind for it has two places for each group and no solution that sums could rule out. 524,288 elements (19
groups, 9.2 seconds of the real one) took five million steps. The limit is four times that.
"""

from random import Random

from msgspec import structs

from engine.candidates.budget import DEFAULT_LIMITS, Budget
from engine.candidates.query import CandidatesQuery
from engine.candidates.search import find_candidates
from tests.properties.test_candidates_properties import told_of
from tests.unit.placement.candidate_worlds import World, asking

ELEMENTS_IN_TEN_SECONDS = 600_000


def test_the_hardest_kind_of_the_size_that_takes_the_real_one_ten_seconds_is_answered() -> None:
    """Even amounts, odd capacities, and one unit to spare: no sum decides what fits."""
    chance = Random(5)
    amounts = [2 * chance.randrange(1_000, 9_000) for _ in range(19)]
    half = sum(amounts) // 2
    left = half - half % 2 - 1
    world = World()
    world.has("host")
    world.has("n0", under="host", MEMORY_MB=left)
    world.has("n1", under="host", MEMORY_MB=sum(amounts) - left + 1)
    asked = tuple(asking(f"_{number:02}", MEMORY_MB=amount) for number, amount in enumerate(amounts))
    budget = Budget()

    found = find_candidates(
        world.index,
        structs.replace(CandidatesQuery(groups=asked, group_policy="none"), limit=None),
        budget=budget,
    )

    assert 2 ** len(amounts) > 0.85 * ELEMENTS_IN_TEN_SECONDS
    assert len(list(told_of(world.index, found))) == 11
    # Even without any candidate it would not be refused.
    assert budget.steps < DEFAULT_LIMITS.barren_steps_max * 2 // 3
