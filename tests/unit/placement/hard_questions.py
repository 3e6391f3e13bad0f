"""Costly questions: there are many wrong combinations to try, or it is hard to see that no combination fits."""

from random import Random

from msgspec import structs

from engine.candidates.query import CandidatesQuery
from tests.unit.placement.candidate_worlds import World, asking

Asked = tuple[World, CandidatesQuery]


def eleven_over_half_of_ten_nodes() -> Asked:
    """No node has room for two of the large groups, and there is one node too few. Small groups hide this from sums."""
    chance = Random(0)
    world = World()
    world.has("host")
    for number in range(10):
        world.has(f"node-{number}", under="host", PGPU=1_000 + chance.randrange(90))
    large = [asking(f"_L{number}", PGPU=560 + chance.randrange(100)) for number in range(11)]
    small = [asking(f"_S{number}", PGPU=chance.randrange(20, 90)) for number in range(4)]
    return world, CandidatesQuery(groups=(*large, *small), group_policy="none", limit=1)


def pairs_on_a_chain(providers: int = 60, groups: int = 40) -> Asked:
    """Groups with traits, each in one subtree with the next one; and all providers form one chain."""
    world = World()
    world.has("p0", VCPU=100)
    for number in range(1, providers):
        world.has(f"p{number}", under=f"p{number - 1}", VCPU=7, traits=(f"CUSTOM_T{number % 5}",))
    asked = [
        structs.replace(asking(f"_{number}", VCPU=2 + number % 5), required=((f"CUSTOM_T{number % 5}",),))
        for number in range(groups)
    ]
    pairs = tuple((f"_{number}", f"_{number + 1}") for number in range(groups - 1))
    return world, CandidatesQuery(groups=tuple(asked), group_policy="none", same_subtree=pairs, limit=1)


def a_tight_packing() -> Asked:
    """Thirty-six amounts for twelve nodes. All amounts are even and all capacities odd, so each node wastes one;
    therefore no packing fits. No fast algorithm for this is known.
    """
    chance = Random(2)
    world = World()
    world.has("host")
    rooms = [2 * chance.randrange(485, 515) + 1 for _ in range(12)]
    for number, room in enumerate(rooms):
        world.has(f"node-{number}", under="host", PGPU=room)
    amounts = [2 * chance.randrange(124, 208) for _ in range(35)]
    amounts.append(sum(rooms) - len(rooms) + 2 - sum(amounts))
    assert 248 < amounts[-1] < 420, amounts[-1]
    groups = tuple(asking(f"_{number}", PGPU=amount) for number, amount in enumerate(amounts))
    return world, CandidatesQuery(groups=groups, group_policy="none", limit=1)
