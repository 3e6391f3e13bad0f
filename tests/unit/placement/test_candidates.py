"""Candidates for a request, and what a search for them may cost."""

import itertools

import pytest
from msgspec import structs

from engine.candidates.budget import Budget, CutError, SearchLimits
from engine.candidates.query import CandidatesQuery, Group, Preferred
from engine.candidates.search import find_candidates
from engine.inventories import InventoryState
from engine.refusals import TooCostly
from tests.contracts.placement_orders import aggregate
from tests.unit.placement.candidate_worlds import SHARES, World, asking
from tests.unit.placement.hard_questions import (
    Asked,
    a_tight_packing,
    eleven_over_half_of_ten_nodes,
    pairs_on_a_chain,
)

ONE_CPU = asking(VCPU=1)
Provider = dict[str, object]


def a_provider(name: str, under: str = "", **more: object) -> Provider:
    return {"name": name, "under": under, **more}


def a_numa_host(name: str = "host") -> list[Provider]:
    return [
        a_provider(name, DISK_GB=100),
        *(
            each
            for cell in ("n0", "n1")
            for each in (
                a_provider(f"{name}.{cell}", name, VCPU=8, traits=("HW_NUMA_ROOT",)),
                a_provider(f"{name}.{cell}.nic", f"{name}.{cell}", SRIOV_NET_VF=4),
            )
        ),
    ]


def a_world(*providers: Provider) -> World:
    world = World()
    for each in providers:
        world.has(**each)  # type: ignore[arg-type]
    return world


POOLED = [
    *(a_provider(name, VCPU=4, aggregates=("rack",)) for name in ("h1", "h2")),
    a_provider("pool", DISK_GB=100, traits=(SHARES,), aggregates=("rack",)),
]
BY_FOUR = [a_provider("host", VCPU=InventoryState(total=100, min_unit=4, max_unit=8, step_size=4))]
TRAITED = [
    a_provider("host", VCPU=4, traits=("CUSTOM_A",)),
    a_provider("disk", "host", DISK_GB=10, traits=("CUSTOM_B",)),
    a_provider("idle", "host", traits=("CUSTOM_C",)),
]
BOTH = structs.replace(asking(VCPU=1, DISK_GB=1), required=(("CUSTOM_A",), ("CUSTOM_B", "CUSTOM_X")))
IN_TWO = structs.replace(ONE_CPU, member_of=((aggregate("rack"),), (aggregate("fast"),)))
SIBLINGS = [
    a_provider("host"),
    a_provider("numa", "host", traits=("HW_NUMA_ROOT",)),
    *(a_provider(name, "numa", PGPU=1) for name in ("d1", "d2")),
]
DEVICES = [asking(each, PGPU=1) for each in ("1", "2")]
TOP = Group(suffix="top", required=(("HW_NUMA_ROOT",),))
CPU_AND_NIC = [asking("cpu", VCPU=2), asking("nic", SRIOV_NET_VF=1)]
CPUS = [asking(each, VCPU=1) for each in ("1", "2")]
FLAT = [a_provider("host", VCPU=4)]


@pytest.mark.parametrize(
    ("providers", "groups", "of_query", "found"),
    [
        # The bounds are about the amount of a group; max_unit is about the sum of groups, too.
        (BY_FOUR, [asking(VCPU=8)], {}, {"VCPU:8@host"}),
        *[(BY_FOUR, [asking(VCPU=each)], {}, set()) for each in (2, 6, 12)],
        (BY_FOUR, [asking(each, VCPU=4) for each in "12"], {}, {"VCPU:8@host 1=host 2=host"}),
        (BY_FOUR, [asking(each, VCPU=4) for each in "123"], {}, set()),
        # Without a suffix the chosen providers have the required traits together.
        (TRAITED, [BOTH], {}, {"DISK_GB:1@disk VCPU:1@host"}),
        (TRAITED, [structs.replace(BOTH, required=(("CUSTOM_C",),))], {}, set()),
        (TRAITED, [structs.replace(BOTH, forbidden=("CUSTOM_B",))], {}, set()),
        (TRAITED, [structs.replace(BOTH, forbidden=("CUSTOM_C",))], {}, {"DISK_GB:1@disk VCPU:1@host"}),
        # One provider must be in all aggregates, and not it and its root together.
        *[
            (
                [
                    a_provider("host", VCPU=1, aggregates=root),
                    a_provider("child", "host", VCPU=2, aggregates=child),
                ],
                [IN_TWO],
                {},
                found,
            )
            for root, child, found in (
                (("rack",), ("fast",), set()),
                (("rack",), ("fast", "rack"), {"VCPU:1@child"}),
                (("rack", "fast"), (), {"VCPU:1@host", "VCPU:1@child"}),
            )
        ],
        # What pools alone give is one candidate for all roots; a root that gives something keeps its own.
        (POOLED, [asking(DISK_GB=5)], {}, {"DISK_GB:5@pool"}),
        (POOLED, [asking("1", DISK_GB=5)], {}, {"DISK_GB:5@pool 1=pool"}),
        (
            POOLED,
            [asking(DISK_GB=5), asking("1", VCPU=1)],
            {},
            {f"DISK_GB:5@pool VCPU:1@{each} 1={each}" for each in ("h1", "h2")},
        ),
        # Before trees were known no candidate takes from two providers of one.
        (
            [*POOLED, a_provider("disk", "h1", DISK_GB=50)],
            [asking(VCPU=1, DISK_GB=5)],
            {"one_provider_per_tree": True},
            {f"DISK_GB:5@pool VCPU:1@{each}" for each in ("h1", "h2")},
        ),
        # To isolate is about groups with suffixes alone.
        (FLAT, [ONE_CPU, CPUS[0]], {"group_policy": "isolate"}, {"VCPU:2@host 1=host"}),
        (FLAT, CPUS, {"group_policy": "isolate"}, set()),
        (FLAT, CPUS, {"group_policy": "none"}, {"VCPU:2@host 1=host 2=host"}),
        # A same subtree stands under one of its own providers: siblings are none, unless a group is given the parent.
        (
            a_numa_host(),
            CPU_AND_NIC,
            {"group_policy": "none", "same_subtree": (("cpu", "nic"),)},
            {
                f"SRIOV_NET_VF:1@host.{cell}.nic VCPU:2@host.{cell} cpu=host.{cell} nic=host.{cell}.nic"
                for cell in ("n0", "n1")
            },
        ),
        (SIBLINGS, DEVICES, {"group_policy": "isolate", "same_subtree": (("1", "2"),)}, set()),
        (
            SIBLINGS,
            [*DEVICES, TOP],
            {"group_policy": "isolate", "same_subtree": (("1", "2", "top"),)},
            {"PGPU:1@d1 PGPU:1@d2 1=d1 2=d2 top=numa", "PGPU:1@d1 PGPU:1@d2 1=d2 2=d1 top=numa"},
        ),
    ],
    ids=itertools.count(),
)
def test_these_candidates_are_found_and_no_others(
    providers: list[Provider], groups: list[Group], of_query: dict[str, object], found: set[str]
) -> None:
    assert a_world(*providers).finds(*groups, **of_query) == found


def test_a_limit_gives_every_host_one_before_any_has_two() -> None:
    world = a_world(*(each for name in ("h1", "h2", "h3") for each in a_numa_host(name)))

    hosts = [told.split("@")[1][:2] for told in world.ask(ONE_CPU, limit=5)]

    assert sorted(hosts[:3]) == ["h1", "h2", "h3"]
    assert len(hosts) == 5


def test_a_limit_keeps_the_best_trees_and_no_second_candidate_before_them() -> None:
    """`crowded` would be best, if its only fast device could serve both groups."""
    world = World()
    for host, devices in (
        ("crowded", {"c1": ("CUSTOM_FAST", "CUSTOM_NEW"), "c2": ("CUSTOM_OLD",)}),
        ("even", {"e1": ("CUSTOM_FAST",), "e2": ("CUSTOM_FAST",)}),
        ("plain", {"p1": (), "p2": ()}),
    ):
        world.has(host)
        for name, traits in devices.items():
            world.has(name, under=host, PGPU=1, traits=traits)
    wanted = (Preferred("CUSTOM_FAST", 2.0), Preferred("CUSTOM_NEW"), Preferred("CUSTOM_OLD", -5.0))
    groups = [structs.replace(asking(suffix, PGPU=1), preferred=wanted) for suffix in ("1", "2")]

    def hosts(limit: int | None = None) -> list[str]:
        found = world.ask(*groups, group_policy="isolate", limit=limit)
        return [told.partition("@")[2][0] for told in found]

    assert hosts() == [*"eeppcc"]
    assert [hosts(limit) for limit in (1, 2, 3)] == [["e"], ["e", "p"], ["e", "p", "c"]]
    # A fourth one is the second candidate of the best tree.
    assert hosts(4) == [*"eepc"]


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
