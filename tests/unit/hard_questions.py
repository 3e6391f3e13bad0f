"""Questions that are hard: by how many ways there are to be wrong, or by how well they hide that there is no way at all."""

from random import Random

from msgspec import structs

from placement_worker.core.candidates.query import CandidatesQuery
from tests.unit.candidate_worlds import World, asking

Asked = tuple[World, CandidatesQuery]


def eleven_over_half_of_ten_nodes() -> Asked:
    """No node holds two of the large groups, and there is a node too few; small groups hide it from sums."""
    chance = Random(0)
    world = World()
    world.has("host")
    for number in range(10):
        world.has(f"node-{number}", under="host", MEMORY_MB=1_000 + chance.randrange(90))
    large = [asking(f"_L{number}", MEMORY_MB=560 + chance.randrange(100)) for number in range(11)]
    small = [asking(f"_S{number}", MEMORY_MB=chance.randrange(20, 90)) for number in range(4)]
    return world, CandidatesQuery(groups=(*large, *small), group_policy="none", limit=1)


def pairs_on_a_chain(providers: int = 60, groups: int = 40) -> Asked:
    """Groups with traits, each in one subtree with the next; and all providers stand under one another."""
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
    """Thirty-six amounts for twelve nodes, which together have 30 more than is asked: nothing known is quick at this."""
    chance = Random(1)
    world = World()
    world.has("host")
    rooms = [1_000 + chance.randrange(-30, 30) for _ in range(12)]
    for number, room in enumerate(rooms):
        world.has(f"node-{number}", under="host", MEMORY_MB=room)
    amounts = [chance.randrange(261, 420) for _ in range(35)]
    amounts.append(sum(rooms) - 30 - sum(amounts))
    groups = tuple(asking(f"_{number}", MEMORY_MB=amount) for number, amount in enumerate(amounts))
    return world, CandidatesQuery(groups=groups, group_policy="none", limit=1)
