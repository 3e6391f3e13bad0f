"""Requests with granular groups, and requests with preferences: which host, and which of its providers."""

from msgspec import structs

from engine.choosing.choosing import Chosen, choose, hosts_among
from engine.inventories import AggregateId, ProviderState
from engine.requests import InstanceSpec
from engine.requests.spec import GranularGroup
from tests.contracts.placement_orders import aggregate, provider
from tests.plugins import standard_plugins
from tests.refusals import why_not
from tests.unit.choosing.scheduler_worlds import a_picture, a_spec, a_state, vcpus
from tests.unit.choosing.test_scheduler_compounds import (
    a_cloud,
    a_diskless_host,
    a_nested_host,
    a_pool,
    chosen,
    in_words,
    refusal,
    some,
)

PLUGINS = standard_plugins()


def a_granular_spec(
    *groups: GranularGroup,
    outside: dict[str, int] | None = None,
    isolates: bool = False,
    same_subtree: tuple[tuple[str, ...], ...] = (),
) -> InstanceSpec:
    amounts = dict(outside or {})
    for group in groups:
        for resource, amount in group.amounts:
            amounts[resource] = amounts.get(resource, 0) + amount
    return InstanceSpec(
        amounts=tuple(sorted(amounts.items())), groups=groups, isolates=isolates, same_subtree=same_subtree
    )


def of_vcpus(suffix: str, amount: int, *required: str) -> GranularGroup:
    return GranularGroup(suffix, (("VCPU", amount),), required)


def the_reason(*states: ProviderState, spec: InstanceSpec) -> str:
    (found,) = choose(a_cloud(*states), [spec], PLUGINS, salt=0)
    (step,) = refusal(found).steps
    assert refusal(found).nearest[0].reason == step.example.removeprefix("h: ")
    return f"{step.step}: {step.example}"


def test_groups_share_a_cell_or_each_has_its_own() -> None:
    groups = (of_vcpus("1", 2), of_vcpus("2", 2))

    together = choose(a_cloud(*a_nested_host("h")), [a_granular_spec(*groups)], PLUGINS, salt=0)
    apart = choose(a_cloud(*a_nested_host("h")), [a_granular_spec(*groups, isolates=True)], PLUGINS, salt=0)

    assert chosen(together) == ["VCPU:4@h-n0"]
    assert chosen(apart) == ["VCPU:2@h-n0 VCPU:2@h-n1"]


def test_a_host_without_children_serves_groups_too_unless_they_must_differ() -> None:
    groups = (of_vcpus("1", 2), of_vcpus("2", 2))
    flat = a_state("h", some(VCPU=4))

    assert chosen(choose(a_cloud(flat), [a_granular_spec(*groups)] * 2, PLUGINS, salt=0)) == ["VCPU:4@h"]
    assert the_reason(flat, spec=a_granular_spec(*groups, isolates=True)) == (
        "capacity: h: group 1, group 2 have room together, but not each group at a provider of its own "
        "(group_policy isolate)"
    )


def test_a_group_may_come_whole_from_a_pool_if_the_rest_does_not() -> None:
    disk = GranularGroup("_DISK", (("DISK_GB", 5),))

    found = choose(
        a_cloud(a_diskless_host("h"), a_pool(9)),
        [a_granular_spec(disk, outside={"VCPU": 1})] * 2,
        PLUGINS,
        salt=0,
    )

    assert chosen(found) == ["VCPU:1@h DISK_GB:5@pool"]
    assert refusal(found[1]).steps[0].example == "h: group _DISK: DISK_GB asked 5, free 4 of 9 at pool"


def test_groups_of_one_subtree_come_from_one_cell() -> None:
    """Each NUMA cell has a device below it, and only the first device is fast."""
    states = [
        *a_nested_host("h"),
        *(
            a_state(
                f"g-n{number}",
                some(VGPU=1),
                internal=10**14 + number,
                parent=provider(f"h-n{number}"),
                root=provider("h"),
                shape=3,
                traits=("CUSTOM_FAST",) if number else (),
            )
            for number in range(2)
        ),
    ]
    fast = GranularGroup("_GPU", (("VGPU", 1),), ("CUSTOM_FAST",))
    spec = a_granular_spec(of_vcpus("_CPU", 2), fast, same_subtree=(("_CPU", "_GPU"),))

    assert chosen(choose(a_cloud(*states), [spec], PLUGINS, salt=0)) == ["VCPU:2@h-n1 VGPU:1@g-n1"]
    alone = structs.replace(spec, same_subtree=())
    assert chosen(choose(a_cloud(*states), [alone], PLUGINS, salt=0)) == ["VCPU:2@h-n0 VGPU:1@g-n1"]


def test_who_is_refused_is_told_which_group_found_no_room() -> None:
    spec = a_granular_spec(of_vcpus("1", 2), of_vcpus("_BIG", 5))

    assert the_reason(*a_nested_host("h"), spec=spec) == (
        "capacity: h: group _BIG: VCPU asked 5, free 4 of 4 at h-n0, the nearest of 2"
    )
    gpu = GranularGroup("_GPU", (("VGPU", 1),))
    assert the_reason(*a_nested_host("h"), spec=a_granular_spec(gpu)) == (
        "capacity: h: group _GPU: no provider has VGPU"
    )
    disk = a_granular_spec(of_vcpus("1", 2), outside={"DISK_GB": 500})
    assert (
        the_reason(*a_nested_host("h"), spec=disk) == "capacity: h: DISK_GB asked 500, free 100 of 100 at h"
    )


def test_who_is_refused_is_told_which_port_found_no_provider() -> None:
    port = GranularGroup("port p-1", (("CUSTOM_BANDWIDTH", 5),), ("CUSTOM_PHYSNET_NORTH",))
    card = a_state(
        "g-n0",
        some(CUSTOM_BANDWIDTH=9),
        parent=provider("h"),
        root=provider("h"),
        shape=3,
        traits=("CUSTOM_PHYSNET_SOUTH",),
    )

    assert the_reason(*a_nested_host("h"), card, spec=a_granular_spec(port, outside={"VCPU": 1})) == (
        "traits: h: port p-1: lacks CUSTOM_PHYSNET_NORTH"
    )


# Aggregates


def test_a_host_is_in_one_aggregate_of_each_list_and_in_none_that_is_forbidden() -> None:
    a, b, c, nowhere = (aggregate(name) for name in ("a", "b", "c", "nowhere"))
    picture = a_picture(
        a_state("ab", aggregates=(a, b)),
        a_state("ac", aggregates=(a, c)),
        a_state("b", aggregates=(b,)),
        a_state("none"),
    )

    def hosts(*member_of: tuple[AggregateId, ...], forbidden: tuple[AggregateId, ...] = ()) -> set[str]:
        spec = structs.replace(a_spec(), member_of=member_of, forbidden_aggregates=forbidden)
        return {"ab", "ac", "b", "none"} - {miss.host for miss in why_not(picture, spec, PLUGINS)}

    assert hosts() == {"ab", "ac", "b", "none"}
    assert hosts((a,)) == {"ab", "ac"}
    assert hosts((b, c)) == {"ab", "ac", "b"}
    assert hosts((a,), (b,)) == {"ab"}
    assert hosts(forbidden=(c, b)) == {"none"}
    assert hosts((a,), forbidden=(c,)) == {"ab"}
    assert hosts((nowhere,)) == set()
    (none,) = choose(
        picture, [structs.replace(a_spec(), member_of=((b,),), forbidden_aggregates=(a, b))], PLUGINS, salt=0
    )
    examples = [step.example for step in refusal(none).steps]
    assert [example.partition(": ")[2] for example in examples] == [
        f"is in forbidden aggregate {a}; is in forbidden aggregate {b}"
    ]


def test_who_is_refused_is_told_of_groups_that_only_fail_together() -> None:
    spec = a_granular_spec(of_vcpus("1", 3), of_vcpus("2", 3), of_vcpus("3", 3))

    assert the_reason(*a_nested_host("h"), spec=spec) == (
        "capacity: h: each of group 1, group 2, group 3 has room alone, but not all together"
    )


# Ways


def test_of_the_ways_of_a_host_the_one_with_the_fewest_fragments_is_taken() -> None:
    """Cell 0 has more room, and comes first in the tree; cell 1 has just enough."""
    root, roomy, tight = a_nested_host("h", vcpu=8)
    tight = structs.replace(tight, inventories=some(VCPU=4))
    picture = a_cloud(root, roomy, tight)

    granular = choose(picture, [a_granular_spec(of_vcpus("1", 3))] * 3, PLUGINS, salt=0)
    plain = choose(picture, [a_spec(3)], PLUGINS, salt=0)

    assert chosen(granular) == ["VCPU:3@h-n1", "VCPU:3@h-n0", "VCPU:3@h-n0"]
    assert chosen(plain) == ["VCPU:3@h-n0"]


def test_an_alternate_of_a_request_with_groups_carries_a_second_way() -> None:
    picture = a_cloud(*a_nested_host("h"), *a_nested_host("g"))

    (one,) = choose(picture, [a_granular_spec(of_vcpus("1", 3))], PLUGINS, salt=0)
    (plain,) = choose(picture, [a_spec(3)], PLUGINS, salt=0)

    assert isinstance(one, Chosen)
    assert isinstance(plain, Chosen)
    other = "g" if one.choice.name == "h" else "h"
    assert [in_words(way.share) for way in one.alternates] == [f"VCPU:3@{other}-n0", f"VCPU:3@{other}-n1"]
    assert hosts_among(one.alternates) == 1
    assert len(plain.alternates) == 1


# Preferences


def test_a_preferred_trait_counts_before_free_amounts_and_its_weight_before_a_lesser_one() -> None:
    picture = a_picture(
        a_state("roomy", vcpus(64)),
        a_state("fast", vcpus(16), traits=("CUSTOM_FAST",)),
        a_state("quiet", vcpus(8), traits=("CUSTOM_QUIET",)),
    )

    def name_of(**preferred: float) -> str:
        spec = structs.replace(a_spec(), preferred=tuple(preferred.items()))
        (one,) = choose(picture, [spec], PLUGINS, salt=0)
        assert isinstance(one, Chosen)
        return one.choice.name

    assert name_of() == "roomy"
    assert name_of(CUSTOM_FAST=1.0) == "fast"
    assert name_of(CUSTOM_FAST=1.0, CUSTOM_QUIET=2.0) == "quiet"
    assert name_of(CUSTOM_FAST=-1.0, CUSTOM_NOWHERE=9.0) == "roomy"


def test_a_preferred_class_draws_to_hosts_that_have_it_and_takes_nothing() -> None:
    spec = structs.replace(a_spec(), preferred_classes=(("VGPU", 1.0),))
    picture = a_picture(a_state("roomy", vcpus(64)), a_state("gpu", {**vcpus(8), **some(VGPU=1)}))

    (one,) = choose(picture, [spec], PLUGINS, salt=0)

    assert isinstance(one, Chosen)
    assert one.choice.name == "gpu"
    assert [each.resource for each in one.choice.share.amounts] == ["VCPU"]
