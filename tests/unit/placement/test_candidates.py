"""The rules for candidates, case by case."""

from msgspec import structs

from engine.candidates.query import Group, Preferred
from engine.inventories import InventoryState
from tests.contracts.placement_orders import aggregate
from tests.unit.placement.candidate_worlds import SHARES, World, asking

ONE_CPU = asking(VCPU=1)


def a_numa_host(world: World, name: str = "host") -> None:
    world.has(name, DISK_GB=100)
    for cell in ("n0", "n1"):
        world.has(f"{name}.{cell}", under=name, VCPU=8, traits=("HW_NUMA_ROOT",))
        world.has(f"{name}.{cell}.nic", under=f"{name}.{cell}", SRIOV_NET_VF=4)


# Capacity and limits


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


# Sharing providers.


def a_pool_for_two_hosts() -> World:
    world = World()
    for name in ("h1", "h2"):
        world.has(name, VCPU=4, aggregates=("rack",))
    world.has("pool", DISK_GB=100, traits=(SHARES,), aggregates=("rack",))
    return world


def test_resources_from_pools_alone_are_one_candidate_for_all_roots() -> None:
    world = a_pool_for_two_hosts()

    assert world.finds(asking(DISK_GB=5)) == {"DISK_GB:5@pool"}
    assert world.finds(asking("1", DISK_GB=5)) == {"DISK_GB:5@pool 1=pool"}


def test_each_root_keeps_its_candidate_where_the_group_without_suffix_takes_from_a_pool() -> None:
    world = a_pool_for_two_hosts()

    assert world.finds(asking(DISK_GB=5), asking("1", VCPU=1)) == {
        "DISK_GB:5@pool VCPU:1@h1 1=h1",
        "DISK_GB:5@pool VCPU:1@h2 1=h2",
    }


# Groups with suffixes


def test_isolate_is_about_groups_with_suffixes_alone() -> None:
    world = World()
    world.has("host", VCPU=4)

    assert world.finds(ONE_CPU, asking("1", VCPU=1), group_policy="isolate") == {"VCPU:2@host 1=host"}
    assert world.finds(asking("1", VCPU=1), asking("2", VCPU=1), group_policy="isolate") == set()
    assert world.finds(asking("1", VCPU=1), asking("2", VCPU=1), group_policy="none") == {
        "VCPU:2@host 1=host 2=host"
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
