"""The rules for candidates, case by case."""

from msgspec import structs

from engine.candidates.query import Group, Preferred
from engine.inventories import InventoryState
from tests.contracts.placement_orders import aggregate, provider
from tests.unit.placement.candidate_worlds import SHARES, World, asking

ONE_CPU = asking(VCPU=1)


def a_numa_host(world: World, name: str = "host") -> None:
    world.has(name, DISK_GB=100)
    for cell in ("n0", "n1"):
        world.has(f"{name}.{cell}", under=name, VCPU=8, traits=("HW_NUMA_ROOT",))
        world.has(f"{name}.{cell}.nic", under=f"{name}.{cell}", SRIOV_NET_VF=4)


# Capacity and limits


def test_an_exact_fit_is_found_and_one_more_is_not() -> None:
    world = World()
    world.has("host", VCPU=InventoryState(total=4, reserved=1, allocation_ratio=2.0, used=2))

    assert world.finds(asking(VCPU=4)) == {"VCPU:4@host"}
    assert world.finds(asking(VCPU=5)) == set()


def test_min_unit_max_unit_and_step_size_are_about_the_amount_of_a_group() -> None:
    world = World()
    world.has("host", VCPU=InventoryState(total=100, min_unit=4, max_unit=8, step_size=2))

    assert [amount for amount in range(1, 12) if world.finds(asking(VCPU=amount))] == [4, 6, 8]


def test_max_unit_is_about_the_sum_of_groups_too_and_min_unit_and_step_size_are_not() -> None:
    world = World()
    world.has("host", VCPU=InventoryState(total=100, max_unit=8, step_size=4))

    assert world.finds(asking("1", VCPU=4), asking("2", VCPU=4)) == {"VCPU:8@host 1=host 2=host"}
    assert world.finds(*(asking(suffix, VCPU=4) for suffix in ("1", "2", "3"))) == set()


# The group without a suffix


def test_without_a_suffix_resources_may_come_from_anywhere_in_the_tree() -> None:
    world = World()
    a_numa_host(world)

    assert world.finds(asking(VCPU=1, DISK_GB=10)) == {
        "DISK_GB:10@host VCPU:1@host.n0",
        "DISK_GB:10@host VCPU:1@host.n1",
    }


def test_one_class_is_not_gathered_from_several_providers() -> None:
    world = World()
    a_numa_host(world)

    assert world.finds(asking(VCPU=9)) == set()


def test_without_a_suffix_the_chosen_providers_have_the_required_traits_together() -> None:
    world = World()
    world.has("host", VCPU=4, traits=("CUSTOM_A",))
    world.has("disk", under="host", DISK_GB=10, traits=("CUSTOM_B",))
    world.has("idle", under="host", traits=("CUSTOM_C",))
    both = structs.replace(asking(VCPU=1, DISK_GB=1), required=(("CUSTOM_A",), ("CUSTOM_B", "CUSTOM_X")))

    assert world.finds(both) == {"DISK_GB:1@disk VCPU:1@host"}
    assert world.finds(structs.replace(both, required=(("CUSTOM_C",),))) == set()
    assert world.finds(structs.replace(both, forbidden=("CUSTOM_B",))) == set()
    assert world.finds(structs.replace(both, forbidden=("CUSTOM_C",))) == {"DISK_GB:1@disk VCPU:1@host"}


def test_an_aggregate_of_the_root_is_one_of_the_whole_tree() -> None:
    world = World()
    world.has("host", aggregates=("rack",))
    world.has("child", under="host", VCPU=4)
    member = structs.replace(ONE_CPU, member_of=((aggregate("rack"), aggregate("unknown")),))

    assert world.finds(member) == {"VCPU:1@child"}
    assert world.finds(structs.replace(member, suffix="1")) == set()
    assert world.finds(structs.replace(ONE_CPU, forbidden_aggregates=(aggregate("rack"),))) == set()


def test_one_provider_must_be_in_all_aggregates_not_it_and_its_root_together() -> None:
    world = World()
    world.has("host", VCPU=1, aggregates=("rack",))
    world.has("child", under="host", VCPU=2, aggregates=("fast",))
    both = structs.replace(ONE_CPU, member_of=((aggregate("rack"),), (aggregate("fast"),)))
    assert world.finds(both) == set()

    world.has("child", under="host", VCPU=2, aggregates=("fast", "rack"))
    assert world.finds(both) == {"VCPU:1@child"}

    world.has("host", VCPU=1, aggregates=("rack", "fast"))
    world.has("child", under="host", VCPU=2)
    assert world.finds(both) == {"VCPU:1@host", "VCPU:1@child"}


def test_an_aggregate_without_members_excludes_nothing_and_includes_nothing() -> None:
    world = World()
    world.has("host", VCPU=4)

    assert world.finds(structs.replace(ONE_CPU, member_of=((aggregate("unknown"),),))) == set()
    assert world.finds(structs.replace(ONE_CPU, forbidden_aggregates=(aggregate("unknown"),))) == {
        "VCPU:1@host"
    }


def test_in_tree_of_a_child_means_its_whole_tree_and_of_an_unknown_provider_nothing() -> None:
    world = World()
    a_numa_host(world)
    world.has("other", VCPU=8)

    assert world.finds(structs.replace(ONE_CPU, in_tree=provider("host.n0.nic"))) == {
        "VCPU:1@host.n0",
        "VCPU:1@host.n1",
    }
    assert world.finds(structs.replace(ONE_CPU, in_tree=provider("stranger"))) == set()


# Sharing providers.


def a_pool_for_two_hosts() -> World:
    world = World()
    for name in ("h1", "h2"):
        world.has(name, VCPU=4, aggregates=("rack",))
    world.has("pool", DISK_GB=100, traits=(SHARES,), aggregates=("rack",))
    return world


def test_a_sharing_provider_serves_trees_with_a_common_aggregate() -> None:
    world = a_pool_for_two_hosts()
    world.has("far", VCPU=4, aggregates=("elsewhere",))

    assert world.finds(asking(VCPU=1, DISK_GB=5)) == {
        "DISK_GB:5@pool VCPU:1@h1",
        "DISK_GB:5@pool VCPU:1@h2",
    }


def test_a_sharing_provider_serves_a_tree_with_a_child_in_the_aggregate() -> None:
    world = a_pool_for_two_hosts()
    world.has("far", VCPU=4)
    world.has("far.child", under="far", aggregates=("rack",))

    assert "DISK_GB:5@pool VCPU:1@far" in world.finds(asking(VCPU=1, DISK_GB=5))


def test_resources_from_pools_alone_are_one_candidate_for_all_roots() -> None:
    world = a_pool_for_two_hosts()

    assert world.finds(asking(DISK_GB=5)) == {"DISK_GB:5@pool"}
    assert world.finds(asking("1", DISK_GB=5)) == {"DISK_GB:5@pool 1=pool"}


def test_in_tree_excludes_sharing_providers_of_another_tree() -> None:
    world = a_pool_for_two_hosts()

    assert world.finds(structs.replace(asking(VCPU=1, DISK_GB=5), in_tree=provider("h1"))) == set()


def test_a_sharing_provider_must_be_in_the_aggregate_itself() -> None:
    world = a_pool_for_two_hosts()
    world.has("h1", VCPU=4, aggregates=("rack", "fast"))
    member = structs.replace(asking(VCPU=1, DISK_GB=5), member_of=((aggregate("fast"),),))

    assert world.finds(member) == set()


def test_each_root_keeps_its_candidate_where_the_group_without_suffix_takes_from_a_pool() -> None:
    world = a_pool_for_two_hosts()

    assert world.finds(asking(DISK_GB=5), asking("1", VCPU=1)) == {
        "DISK_GB:5@pool VCPU:1@h1 1=h1",
        "DISK_GB:5@pool VCPU:1@h2 1=h2",
    }


# Groups with suffixes


def test_with_a_suffix_one_provider_has_everything_by_itself() -> None:
    world = World()
    world.has("host", VCPU=4, traits=("CUSTOM_A",))
    world.has("child", under="host", VCPU=4, MEMORY_MB=10, traits=("CUSTOM_B",))
    both = structs.replace(asking("1", VCPU=1, MEMORY_MB=1), required=(("CUSTOM_B",),))

    assert world.finds(both) == {"MEMORY_MB:1@child VCPU:1@child 1=child"}
    assert world.finds(structs.replace(both, required=(("CUSTOM_A",), ("CUSTOM_B",)))) == set()


def test_isolate_is_about_groups_with_suffixes_alone() -> None:
    world = World()
    world.has("host", VCPU=4)

    assert world.finds(ONE_CPU, asking("1", VCPU=1), group_policy="isolate") == {"VCPU:2@host 1=host"}
    assert world.finds(asking("1", VCPU=1), asking("2", VCPU=1), group_policy="isolate") == set()
    assert world.finds(asking("1", VCPU=1), asking("2", VCPU=1), group_policy="none") == {
        "VCPU:2@host 1=host 2=host"
    }


def test_amounts_of_several_groups_must_fit_together() -> None:
    world = World()
    world.has("host", VCPU=3)

    assert world.finds(ONE_CPU, asking("1", VCPU=2)) == {"VCPU:3@host 1=host"}
    assert world.finds(ONE_CPU, asking("1", VCPU=3)) == set()


def test_groups_that_are_alike_are_told_apart() -> None:
    world = World()
    world.has("host")
    for name in ("d1", "d2"):
        world.has(name, under="host", PGPU=1)

    assert world.finds(asking("1", PGPU=1), asking("2", PGPU=1), group_policy="isolate") == {
        "PGPU:1@d1 PGPU:1@d2 1=d1 2=d2",
        "PGPU:1@d1 PGPU:1@d2 1=d2 2=d1",
    }


# Trees


def test_a_same_subtree_stands_under_one_of_its_own_providers() -> None:
    world = World()
    a_numa_host(world)
    groups = (asking("cpu", VCPU=2), asking("nic", SRIOV_NET_VF=1))

    assert len(world.finds(*groups, group_policy="none")) == 4
    assert world.finds(*groups, group_policy="none", same_subtree=(("cpu", "nic"),)) == {
        "SRIOV_NET_VF:1@host.n0.nic VCPU:2@host.n0 cpu=host.n0 nic=host.n0.nic",
        "SRIOV_NET_VF:1@host.n1.nic VCPU:2@host.n1 cpu=host.n1 nic=host.n1.nic",
    }


def test_that_siblings_have_a_parent_is_no_subtree_unless_a_group_is_given_the_parent() -> None:
    world = World()
    world.has("host")
    world.has("numa", under="host", traits=("HW_NUMA_ROOT",))
    for name in ("d1", "d2"):
        world.has(name, under="numa", PGPU=1)
    devices = (asking("1", PGPU=1), asking("2", PGPU=1))
    top = Group(suffix="top", required=(("HW_NUMA_ROOT",),))

    assert world.finds(*devices, group_policy="isolate", same_subtree=(("1", "2"),)) == set()
    assert world.finds(*devices, top, group_policy="isolate", same_subtree=(("1", "2", "top"),)) == {
        "PGPU:1@d1 PGPU:1@d2 1=d1 2=d2 top=numa",
        "PGPU:1@d1 PGPU:1@d2 1=d2 2=d1 top=numa",
    }


def test_a_group_without_resources_and_requirements_has_no_candidate() -> None:
    world = World()
    world.has("host", VCPU=4, traits=("CUSTOM_A",))
    empty = Group(suffix="2", forbidden=("CUSTOM_B",))

    assert world.finds(asking("1", VCPU=1), empty, group_policy="none", same_subtree=(("1", "2"),)) == set()


def test_root_traits_are_about_the_root_whichever_provider_serves() -> None:
    world = World()
    a_numa_host(world)
    world.has("special", traits=("CUSTOM_A",))
    world.has("special.cpu", under="special", VCPU=4)

    assert world.finds(ONE_CPU, root_required=("CUSTOM_A",)) == {"VCPU:1@special.cpu"}
    assert world.finds(ONE_CPU, root_forbidden=("CUSTOM_A",)) == {"VCPU:1@host.n0", "VCPU:1@host.n1"}


def test_before_trees_were_known_no_candidate_takes_from_two_providers_of_one() -> None:
    world = a_pool_for_two_hosts()
    world.has("disk", under="h1", DISK_GB=50)

    assert world.finds(asking(VCPU=1, DISK_GB=5), one_provider_per_tree=True) == {
        "DISK_GB:5@pool VCPU:1@h1",
        "DISK_GB:5@pool VCPU:1@h2",
    }


# Limit and order


def test_a_limit_gives_every_host_one_before_any_has_two() -> None:
    world = World()
    for name in ("h1", "h2", "h3"):
        a_numa_host(world, name)

    hosts = [told.split("@")[1][:2] for told in world.ask(ONE_CPU, limit=5)]

    assert sorted(hosts[:3]) == ["h1", "h2", "h3"]
    assert len(hosts) == 5


def test_a_limit_cuts_the_same_order() -> None:
    world = World()
    for name in ("h1", "h2", "h3"):
        a_numa_host(world, name)

    everything = world.ask(ONE_CPU)

    assert len(everything) == 6
    assert all(world.ask(ONE_CPU, limit=limit) == everything[:limit] for limit in range(1, 8))


def test_preferred_candidates_come_first_and_avoided_ones_last() -> None:
    world = World()
    world.has("plain", VCPU=4)
    world.has("old", VCPU=4, traits=("CUSTOM_OLD",))
    world.has("fast", VCPU=4, traits=("CUSTOM_FAST",))
    choosy = structs.replace(
        ONE_CPU, preferred=(Preferred("CUSTOM_FAST", 2.0), Preferred("CUSTOM_OLD", -1.0))
    )

    assert world.ask(choosy) == ["VCPU:1@fast", "VCPU:1@plain", "VCPU:1@old"]
    assert world.ask(choosy, limit=1) == ["VCPU:1@fast"]


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


def test_in_one_tree_the_preferred_provider_comes_first() -> None:
    world = World()
    world.has("host")
    for name, traits in (("d1", ()), ("d2", ("CUSTOM_FAST",)), ("d3", ())):
        world.has(name, under="host", PGPU=1, traits=traits)

    fast = structs.replace(asking("1", PGPU=1), preferred=(Preferred("CUSTOM_FAST"),))

    assert world.ask(fast)[0] == "PGPU:1@d2 1=d2"
