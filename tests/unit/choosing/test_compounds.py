"""Hosts whose tree has children, hosts that others share with, and requests with groups: the share of each instance is a candidate."""

from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest
from msgspec import structs

from engine.choosing.choosing import Chosen, choose, hosts_among, more_alternates
from engine.inventories import InventoryState, ProviderState, Share
from engine.picture.picture import Picture
from engine.refusals import NoValidHost
from engine.requests import InstanceSpec
from engine.requests.spec import GranularGroup
from tests.contracts.placement_orders import DB, WEB, aggregate, provider
from tests.narrowing import must_be
from tests.plugins import standard_plugins
from tests.unit.choosing.scheduler_worlds import a_host, a_picture, a_spec, a_state, usage_of, vcpus

PLUGINS = standard_plugins()
RACK = (aggregate("rack"),)
SHARES = "MISC_SHARES_VIA_AGGREGATE"
A, B, C = (aggregate(name) for name in "abc")
NAMES = {
    provider(name): name
    for host in ("h", "g", "k", "pool", "near", "far", "flat1", "flat2", "ab", "ac", "b", "none", "roomy", "fast", "quiet", "gpu")
    for name in (host, f"{host}-n0", f"{host}-n1")
}  # fmt: skip


def some(**totals: int) -> dict[str, InventoryState]:
    return {resource: InventoryState(total=total) for resource, total in totals.items()}


def nested(
    name: str = "h",
    vcpu: tuple[int, int] = (4, 4),
    traits: Mapping[int, str] | None = None,
) -> list[ProviderState]:
    """Its VCPUs are in two NUMA cells, its disk is its own."""
    root = a_state(name, some(DISK_GB=100), shape=3)
    return [root] + [
        a_state(
            f"{name}-n{number}",
            some(VCPU=vcpu[number]),
            # Siblings are tried by age.
            internal=root.internal + 1 + number,
            parent=root.id,
            root=root.id,
            shape=3,
            traits=(traits[number],) if traits and number in traits else (),
        )
        for number in range(2)
    ]


@pytest.mark.parametrize("is_later", [False, True])
def test_one_cell_that_is_used_beyond_its_size_takes_no_room_from_another(*, is_later: bool) -> None:
    root, first, second = nested()
    if is_later:
        picture = a_picture(root, first, second)
        picture.use([usage_of(first, 8, 2), usage_of(second, 2, 2)])
    else:
        over = structs.replace(first, inventories={"VCPU": InventoryState(total=4, used=8)})
        half = structs.replace(second, inventories={"VCPU": InventoryState(total=4, used=2)})
        picture = a_picture(root, over, half)

    (found,) = choose(picture, [a_spec(2)], PLUGINS, salt=0)

    assert must_be(Chosen, found).choice.share.amounts
    (none,) = choose(picture, [a_spec(3)], PLUGINS, salt=0)
    assert sum(each.removed for each in must_be(NoValidHost, none).steps) == 1, "each host is explained"


def below(name: str, parent: str, trait: str = "", **totals: int) -> ProviderState:
    return a_state(
        name,
        some(**totals),
        internal=10**14 + int(name[-1]),
        parent=provider(parent),
        root=provider("h"),
        shape=3,
        traits=(trait,) * bool(trait),
    )


def diskless(name: str = "h", vcpu: int = 8, cell: str = "c1") -> ProviderState:
    return a_state(name, some(VCPU=vcpu), aggregates=RACK, cell=cell)


def a_pool(disk: int, cell: str = "") -> ProviderState:
    return a_state("pool", some(DISK_GB=disk), traits=(SHARES,), aggregates=RACK, shape=7, cell=cell)


def a_cloud(*states: ProviderState) -> Picture:
    """Pools are no hosts: the registry does not know them."""
    roots = [state for state in states if state.id == state.root and SHARES not in state.traits]
    return a_picture(*states, hosts=tuple(a_host(root.name, cell=root.cell) for root in roots))


def in_words(share: Share) -> str:
    return " ".join(f"{each.resource}:{each.amount}@{NAMES[each.provider]}" for each in share.amounts)


def told(found: Chosen | NoValidHost) -> str:
    if isinstance(found, Chosen):
        return in_words(found.choice.share)
    return "; ".join(f"{step.step} {step.removed}: {step.example}" for step in found.steps)


def outcomes(picture: Picture, *specs: InstanceSpec) -> list[str]:
    return [told(each) for each in choose(picture, specs, PLUGINS, salt=0)]


def of(suffix: str, *required: str, **amounts: int) -> GranularGroup:
    return GranularGroup(suffix, tuple(amounts.items()), required)


def grouped(*groups: GranularGroup, outside: Mapping[str, int] = {}, **more: object) -> InstanceSpec:
    amounts = Counter(outside)
    for group in groups:
        amounts.update(dict(group.amounts))
    return structs.replace(InstanceSpec(amounts=tuple(sorted(amounts.items())), groups=groups), **more)


def asking(**fields: object) -> InstanceSpec:
    return structs.replace(a_spec(), **fields)


TWO = (of("1", VCPU=2), of("2", VCPU=2))
FAST = of("_GPU", "CUSTOM_FAST", VGPU=1)
GPUS = [below("g-n0", "h-n0", VGPU=1), below("g-n1", "h-n1", "CUSTOM_FAST", VGPU=1)]
PORT = of("port p-1", "CUSTOM_PHYSNET_NORTH", CUSTOM_BANDWIDTH=5)
IN_AGGREGATES = [
    a_state("ab", aggregates=(A, B)),
    a_state("ac", vcpus(15), aggregates=(A, C)),
    a_state("b", vcpus(14), aggregates=(B,)),
    a_state("none", vcpus(8)),
]
LIKED = [
    a_state("roomy", vcpus(64)),
    a_state("fast", vcpus(16), traits=("CUSTOM_FAST",)),
    a_state("quiet", vcpus(8), traits=("CUSTOM_QUIET",)),
    a_state("gpu", {**vcpus(4), **some(VGPU=1)}),
]


@pytest.mark.parametrize(
    ("states", "specs", "found"),
    [
        # Equal boots fill both cells. What no cell has by itself is refused though both together have it.
        (
            nested(),
            [a_spec(3, DISK_GB=10)] * 3,
            [
                "DISK_GB:10@h VCPU:3@h-n0",
                "DISK_GB:10@h VCPU:3@h-n1",
                "capacity 1: h: VCPU asked 3, free 1 of 4 at h-n0, the most of 2",
            ],
        ),
        # A trait of one cell is had there, and without room there not at all.
        (
            [*nested(traits={1: "CUSTOM_FAST"}), *nested("g")],
            [structs.replace(a_spec(3), required=("CUSTOM_FAST",))] * 2,
            ["VCPU:3@h-n1", "traits 2: h: has room, but not at providers that together are CUSTOM_FAST"],
        ),
        # What one host takes of a pool another cannot take.
        (
            [diskless(), diskless("g"), a_pool(4)],
            [a_spec(1, DISK_GB=5)],
            ["capacity 2: h: DISK_GB asked 5, free 4 of 4 at pool"],
        ),
        # Nobody lives on a host that gives nothing: a claim of it would be refused.
        (
            [diskless(), a_pool(10)],
            [a_spec(9, DISK_GB=5), asking(amounts=(("DISK_GB", 5),))],
            [
                "capacity 1: h: VCPU asked 9, free 8 of 8 at h",
                "capacity 1: h: all of it would be shared with it, and nothing its own",
            ],
        ),
        # A pool of another cell is not taken from.
        (
            [diskless("near"), diskless("far", cell="c2"), a_pool(50, cell="c2")],
            [a_spec(1, DISK_GB=5)] * 2,
            ["DISK_GB:5@pool VCPU:1@far"] * 2,
        ),
        # Where a pool runs out, a host that needs none takes the rest.
        (
            [a_state("h", some(VCPU=64, DISK_GB=4), aggregates=RACK), a_state("flat1", some(VCPU=8, DISK_GB=8)), a_pool(9)],
            [a_spec(1, DISK_GB=5)] * 2,
            ["DISK_GB:5@pool VCPU:1@h", "DISK_GB:5@flat1 VCPU:1@flat1"],
        ),
        # Groups share a cell, or each has its own; a flat host serves them unless they must differ.
        (nested(), [grouped(*TWO)], ["VCPU:4@h-n0"]),
        (nested(), [grouped(*TWO, isolates=True)], ["VCPU:2@h-n0 VCPU:2@h-n1"]),
        (
            [a_state("h", some(VCPU=4))],
            [grouped(*TWO, isolates=True), grouped(*TWO)],
            [
                "capacity 1: h: group 1, group 2 have room together, but not each group at a provider of its own (group_policy isolate)",
                "VCPU:4@h",
            ],
        ),
        # A group may come whole from a pool if the rest does not.
        (
            [diskless(), a_pool(9)],
            [grouped(of("_DISK", DISK_GB=5), outside={"VCPU": 1})] * 2,
            ["VCPU:1@h DISK_GB:5@pool", "capacity 1: h: group _DISK: DISK_GB asked 5, free 4 of 9 at pool"],
        ),
        # Groups of one subtree come from one cell; one that only has to be above others refuses no host.
        ([*nested(), *GPUS], [grouped(of("_CPU", VCPU=2), FAST, same_subtree=(("_CPU", "_GPU"),))], ["VCPU:2@h-n1 VGPU:1@g-n1"]),
        ([*nested(), *GPUS], [grouped(of("_CPU", VCPU=2), FAST)], ["VCPU:2@h-n0 VGPU:1@g-n1"]),
        (
            [structs.replace(nested()[0], traits=("CUSTOM_TOP",)), *nested()[1:]],
            [grouped(of("_A", VCPU=3), of("_B", VCPU=3), of("_TOP", "CUSTOM_TOP"), same_subtree=(("_A", "_B", "_TOP"),))],
            ["VCPU:3@h-n0 VCPU:3@h-n1"],
        ),
        # Which group found no room.
        (nested(), [grouped(of("1", VCPU=2), of("_BIG", VCPU=5))], ["capacity 1: h: group _BIG: VCPU asked 5, free 4 of 4 at h-n0, the nearest of 2"]),
        (nested(), [grouped(of("_GPU", VGPU=1))], ["capacity 1: h: group _GPU: no provider has VGPU"]),
        (nested(), [grouped(of("1", VCPU=2), outside={"DISK_GB": 500})], ["capacity 1: h: DISK_GB asked 500, free 100 of 100 at h"]),
        (nested(), [grouped(*(of(each, VCPU=3) for each in "123"))], ["capacity 1: h: each of group 1, group 2, group 3 has room alone, but not all together"]),
        ([*nested(), below("g-n0", "h", "CUSTOM_PHYSNET_SOUTH", CUSTOM_BANDWIDTH=9)], [grouped(PORT, outside={"VCPU": 1})], ["traits 1: h: port p-1: lacks CUSTOM_PHYSNET_NORTH"]),
        # Of the ways of a host the one with the fewest fragments is taken.
        (nested(vcpu=(8, 4)), [grouped(of("1", VCPU=3))] * 3, ["VCPU:3@h-n1", "VCPU:3@h-n0", "VCPU:3@h-n0"]),
        (nested(vcpu=(8, 4)), [a_spec(3)], ["VCPU:3@h-n0"]),
        # A host is in one aggregate of each list, and in none that is forbidden.
        (IN_AGGREGATES, [asking(member_of=((B, C),), forbidden_aggregates=(A,))], ["VCPU:1@b"]),
        (IN_AGGREGATES, [asking(member_of=((A,), (C, B)), forbidden_aggregates=(B,))], ["VCPU:1@ac"]),
        (IN_AGGREGATES, [asking(forbidden_aggregates=(C, B))], ["VCPU:1@none"]),
        (
            IN_AGGREGATES[:2],
            [asking(member_of=((B, C),), forbidden_aggregates=(A, B))],
            [f"asked aggregates 2: ab: is in forbidden aggregate {A}; is in forbidden aggregate {B}"],
        ),
        # A preference counts before free amounts, and its weight before a lesser one.
        (LIKED, [asking(preferred=(("CUSTOM_FAST", 1.0),))], ["VCPU:1@fast"]),
        (LIKED, [asking(preferred=(("CUSTOM_FAST", 1.0), ("CUSTOM_QUIET", 2.0)))], ["VCPU:1@quiet"]),
        (LIKED, [asking(preferred=(("CUSTOM_FAST", -1.0), ("CUSTOM_NOWHERE", 9.0)))], ["VCPU:1@roomy"]),
        (LIKED, [asking(preferred_classes=(("VGPU", 1.0),))], ["VCPU:1@gpu"]),
    ],
    ids=lambda each: each[0][:40] if isinstance(each, list) and isinstance(each[0], str) else "",
)  # fmt: skip
def test_each_instance_takes_this_or_is_told_why_not(
    states: list[ProviderState], specs: list[InstanceSpec], found: list[str]
) -> None:
    assert outcomes(a_cloud(*states), *specs) == found


def test_a_choice_that_is_held_counts_at_the_provider_it_takes_from_until_it_is_dropped() -> None:
    picture = a_cloud(*nested())
    for holder, place in ((WEB, "h-n0"), (DB, "h-n1")):
        (one,) = choose(picture, [a_spec(3)], PLUGINS, salt=0)
        assert told(one) == f"VCPU:3@{place}"
        picture.hold([(holder, 1, must_be(Chosen, one).choice.share)])

    assert outcomes(picture, a_spec(3))[0].startswith("capacity 1: ")
    picture.drop([(WEB, 1)])

    assert outcomes(picture, a_spec(3)) == ["VCPU:3@h-n0"]


def test_a_share_names_the_shape_of_its_host_and_of_its_pool() -> None:
    picture = a_cloud(diskless(), a_pool(10))

    (one,) = choose(picture, [a_spec(1, DISK_GB=5)], PLUGINS, salt=0)

    shapes = [(NAMES[seen.root], seen.shape) for seen in must_be(Chosen, one).choice.share.shapes]
    assert shapes == [("h", 1), ("pool", 7)]


def test_an_alternate_of_a_request_with_groups_carries_a_second_way() -> None:
    picture = a_cloud(*nested(), *nested("g"))

    one, plain = (
        choose(picture, [each], PLUGINS, salt=0)[0] for each in (grouped(of("1", VCPU=3)), a_spec(3))
    )

    assert isinstance(one, Chosen)
    assert isinstance(plain, Chosen)
    other = "g" if one.choice.name == "h" else "h"
    assert [in_words(way.share) for way in one.alternates] == [f"VCPU:3@{other}-n0", f"VCPU:3@{other}-n1"]
    assert (hosts_among(one.alternates), len(plain.alternates)) == (1, 1)


# What would cost too much


def a_host_of_many_traits(name: str, parts: int = 30, classes: int = 7) -> list[ProviderState]:
    """Each class may be had at each part, and each part bears a few of many traits: whether some of them bear all that is
    required together is a set cover.
    """
    chance = Random(0)
    root = a_state(name, some(DISK_GB=100), shape=3, internal=1_000)
    given = some(**{f"CUSTOM_R{number}": 100 for number in range(classes)})
    return [root] + [
        a_state(
            f"{name}-p{number}",
            given,
            internal=root.internal + 1 + number,
            parent=root.id,
            root=root.id,
            shape=3,
            traits=tuple(sorted(f"CUSTOM_T{trait}" for trait in chance.sample(range(24), 4))),
        )
        for number in range(parts)
    ]


def test_a_host_whose_search_is_cut_is_removed_with_that_reason_and_others_are_chosen() -> None:
    picture = a_cloud(*a_host_of_many_traits("hard"), *nested())
    hard = [
        InstanceSpec(
            amounts=tuple((f"CUSTOM_R{number}", amount) for number in range(7)),
            required=tuple(f"CUSTOM_T{number}" for number in range(24)),
        )
        for amount in range(1, 21)
    ]

    *cut, plain = outcomes(picture, *hard, a_spec(3))

    # However many there are: together they have a budget, and a test that takes minutes is a batch that has none.
    assert all("its search was cut after" in each and "it may have what is asked" in each for each in cut)
    assert plain == "VCPU:3@h-n0"


def test_a_host_whose_ways_cannot_be_searched_any_more_is_no_alternate_and_no_bug() -> None:
    # Fifteen amounts that fill four NUMA cells of 64 to the last VCPU: that a host has room is found within the budget of the batch,
    # and its ways no longer.
    sizes = (26, 12, 18, 15, 24, 13, 14, 14, 10, 14, 17, 14, 11, 26, 28)
    trees = [
        [(root := a_state(f"host{number}", some(DISK_GB=100), shape=3))]
        + [
            a_state(f"host{number}-n{cell}", some(VCPU=64), internal=root.internal + 1 + cell, parent=root.id, root=root.id, shape=3)
            for cell in range(4)
        ]
        for number in range(40)
    ]  # fmt: skip
    picture = a_cloud(*[state for tree in trees for state in tree])
    spec = grouped(*[of(str(number), VCPU=amount) for number, amount in enumerate(sizes, 1)])

    found = [
        more_alternates(picture, spec, PLUGINS, cell="c1", salt=1, count=count, start=0) for count in (1, 3)
    ]

    assert sum(sizes) == 4 * 64
    assert found == [(), ()]


def test_a_host_that_has_room_is_found_behind_many_that_only_seem_to_have_it() -> None:
    # So many that neither the first pool nor the second reaches it. All in all each has more than the one with room.
    in_parts = [
        structs.replace(state, internal=10_000 + 10 * number + place)
        for number in range(150)
        for place, state in enumerate(nested(f"parts{number}"))
    ]
    picture = a_cloud(*in_parts, *nested(vcpu=(5, 1)))

    one, other = choose(picture, [a_spec(5)] * 2, PLUGINS, salt=0)

    assert isinstance(one, Chosen)
    assert (one.choice.name, one.alternates) == ("h", ())
    assert isinstance(other, NoValidHost)
    assert sum(step.removed for step in other.steps) == other.hosts == 151
