"""Hosts whose tree has children, and hosts that others share with: the share of each instance is a candidate."""

from collections import Counter
from collections.abc import Mapping
from random import Random

from msgspec import structs

from bus.messages.build import FunnelStep, NoValidHost
from bus.messages.placement import InventoryState, ProviderGone, ProviderState, Share
from placement_worker.core.candidates.budget import SharedBudget
from placement_worker.core.candidates.fitting import Scope
from placement_worker.core.candidates.search import CutInTrees, InTrees, find_ways_in_each_tree
from scheduler_worker.core.choosing.choosing import Chosen, choose, more_alternates
from scheduler_worker.core.choosing.compounds import (
    BYTES_PER_TREE,
    STEPS_PER_BATCH,
    STEPS_PER_TREE,
)
from scheduler_worker.core.choosing.needs import needs_of, query_of
from scheduler_worker.core.choosing.standard import standard_plugins
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.core.requests import InstanceSpec
from tests.contracts.placement_orders import DB, WEB, aggregate, provider
from tests.unit.scheduler_worlds import a_host, a_picture, a_spec, a_state, usage_of

PLUGINS = standard_plugins()
RACK = (aggregate("rack"),)
SHARES = "MISC_SHARES_VIA_AGGREGATE"
NAMES = {
    provider(name): name
    for host in ("h", "g", "k", "pool", "near", "far", "flat1", "flat2")
    for name in (host, f"{host}-n0", f"{host}-n1")
}


def some(**totals: int) -> dict[str, InventoryState]:
    return {resource: InventoryState(total=total) for resource, total in totals.items()}


def a_nested_host(name: str, vcpu: int = 4, traits: Mapping[int, str] | None = None) -> list[ProviderState]:
    """Its VCPUs are in two NUMA cells, its disk is its own."""
    root = a_state(name, some(DISK_GB=100), shape=3)
    return [root] + [
        a_state(
            f"{name}-n{number}",
            some(VCPU=vcpu),
            # Siblings are tried by age.
            internal=root.internal + 1 + number,
            parent=root.id,
            root=root.id,
            shape=3,
            traits=(traits[number],) if traits and number in traits else (),
        )
        for number in range(2)
    ]


def a_diskless_host(name: str, vcpu: int = 8, cell: str = "c1") -> ProviderState:
    return a_state(name, some(VCPU=vcpu), aggregates=RACK, cell=cell)


def a_pool(disk: int, name: str = "pool", cell: str = "") -> ProviderState:
    return a_state(name, some(DISK_GB=disk), traits=(SHARES,), aggregates=RACK, shape=7, cell=cell)


def a_cloud(*states: ProviderState) -> Picture:
    """Pools are no hosts: the registry does not know them."""
    roots = [state for state in states if state.id == state.root and SHARES not in state.traits]
    return a_picture(*states, hosts=tuple(a_host(root.name, cell=root.cell) for root in roots))


def in_words(share: Share) -> str:
    return " ".join(f"{each.resource}:{each.amount}@{NAMES[each.provider]}" for each in share.amounts)


def chosen(found: list[Chosen | NoValidHost]) -> list[str]:
    return [in_words(one.choice.share) for one in found if isinstance(one, Chosen)]


def refusal(found: Chosen | NoValidHost) -> NoValidHost:
    assert isinstance(found, NoValidHost)
    return found


def test_a_boot_takes_its_vcpus_from_one_cell_and_equal_boots_fill_both() -> None:
    picture = a_cloud(*a_nested_host("h"))

    found = choose(picture, [a_spec(3, DISK_GB=10)] * 3, PLUGINS, salt=0)

    assert chosen(found) == ["DISK_GB:10@h VCPU:3@h-n0", "DISK_GB:10@h VCPU:3@h-n1"]
    assert refusal(found[2]).steps == (
        FunnelStep(
            step="capacity",
            removed=1,
            example="h: VCPU asked 3, free 1 of 4 at h-n0, the most of 2",
        ),
    )


def test_a_share_names_the_host_and_the_shape_of_its_tree_once() -> None:
    (one,) = choose(a_cloud(*a_nested_host("h")), [a_spec(3, DISK_GB=10)], PLUGINS, salt=0)

    assert isinstance(one, Chosen)
    share = one.choice.share
    assert share.host == provider("h")
    assert [(seen.root, seen.shape) for seen in share.shapes] == [(provider("h"), 3)]


def test_what_no_cell_has_by_itself_is_refused_though_both_together_have_it() -> None:
    (found,) = choose(a_cloud(*a_nested_host("h")), [a_spec(5)], PLUGINS, salt=0)

    assert [(step.step, step.example) for step in refusal(found).steps] == [
        ("capacity", "h: VCPU asked 5, free 4 of 4 at h-n0, the most of 2")
    ]
    assert refusal(found).nearest[0].reason == "VCPU asked 5, free 4 of 4 at h-n0, the most of 2"


def test_what_is_used_of_a_cell_counts_there() -> None:
    states = a_nested_host("h")
    picture = a_cloud(*states)

    picture.use([usage_of(states[1], 2, 2)])

    assert chosen(choose(picture, [a_spec(3)] * 2, PLUGINS, salt=0)) == ["VCPU:3@h-n1"]


def test_a_choice_that_is_held_counts_at_the_provider_it_takes_from_until_it_is_dropped() -> None:
    picture = a_cloud(*a_nested_host("h"))
    for holder, place in ((WEB, "h-n0"), (DB, "h-n1")):
        (one,) = choose(picture, [a_spec(3)], PLUGINS, salt=0)
        assert chosen([one]) == [f"VCPU:3@{place}"]
        assert isinstance(one, Chosen)
        picture.hold([(holder, 1, one.choice.share)])

    assert chosen(choose(picture, [a_spec(3)], PLUGINS, salt=0)) == []
    picture.drop([(WEB, 1)])

    assert chosen(choose(picture, [a_spec(3)] * 2, PLUGINS, salt=0)) == ["VCPU:3@h-n0"]


def test_specs_of_one_batch_that_differ_count_against_each_other_in_a_cell() -> None:
    found = choose(
        a_cloud(*a_nested_host("h")), [a_spec(3), a_spec(4), a_spec(1), a_spec(2)], PLUGINS, salt=0
    )

    assert chosen(found) == ["VCPU:3@h-n0", "VCPU:4@h-n1", "VCPU:1@h-n0"]


def test_a_trait_of_one_cell_is_had_there_and_without_room_there_not_at_all() -> None:
    spec = structs.replace(a_spec(3), required=("CUSTOM_FAST",))
    picture = a_cloud(*a_nested_host("h", traits={1: "CUSTOM_FAST"}), *a_nested_host("g"))

    found = choose(picture, [spec, spec], PLUGINS, salt=0)

    assert chosen(found) == ["VCPU:3@h-n1"]
    assert [(step.step, step.removed, step.example) for step in refusal(found[1]).steps] == [
        ("traits", 2, "h: has room, but not at providers that together are CUSTOM_FAST")
    ]
    assert [miss.reason for miss in refusal(found[1]).nearest if miss.host == "g"] == ["lacks CUSTOM_FAST"]


def test_a_forbidden_trait_keeps_off_the_cell_that_has_it_and_not_off_the_host() -> None:
    spec = structs.replace(a_spec(3), forbidden=("CUSTOM_SLOW",))

    found = choose(a_cloud(*a_nested_host("h", traits={0: "CUSTOM_SLOW"})), [spec, spec], PLUGINS, salt=0)

    assert chosen(found) == ["VCPU:3@h-n1"]


def test_disk_of_a_pool_is_named_with_the_shape_of_the_pool() -> None:
    picture = a_cloud(a_diskless_host("h"), a_pool(10))

    (one,) = choose(picture, [a_spec(1, DISK_GB=5)], PLUGINS, salt=0)

    assert chosen([one]) == ["DISK_GB:5@pool VCPU:1@h"]
    assert isinstance(one, Chosen)
    assert [(seen.root, seen.shape) for seen in one.choice.share.shapes] == [
        (provider("h"), 1),
        (provider("pool"), 7),
    ]
    picture.remove([ProviderGone(internal=a_pool(10).internal, id=provider("pool"), revision=9)])
    (found,) = choose(picture, [a_spec(1, DISK_GB=5)], PLUGINS, salt=0)
    assert refusal(found).steps[0].example == "h: DISK_GB asked 5, has none"


def test_who_finds_a_pool_used_up_is_told_of_the_pool_and_not_of_a_host_outside_it() -> None:
    outside = [a_state(name, some(VCPU=8)) for name in ("flat1", "flat2", "k")]
    picture = a_cloud(*outside, a_diskless_host("h"), a_diskless_host("g"), a_pool(14))

    found = choose(picture, [a_spec(1, DISK_GB=5)] * 3, PLUGINS, salt=0)

    used_up = "DISK_GB asked 5, free 4 of 14 at pool"
    none = refusal(found[2])
    assert [(step.step, step.removed, step.example) for step in none.steps] == [
        ("capacity", 5, f"h: {used_up}")
    ]
    assert [(miss.host, miss.reason) for miss in none.nearest] == [
        ("h", used_up),
        ("g", used_up),
        ("flat1", "DISK_GB asked 5, has none"),
    ]


def test_a_pool_of_another_cell_is_not_near() -> None:
    picture = a_cloud(a_state("flat1", some(VCPU=8)), a_diskless_host("h", cell="c2"), a_pool(4, cell="c1"))

    (found,) = choose(picture, [a_spec(1, DISK_GB=5)], PLUGINS, salt=0)

    assert {miss.reason for miss in refusal(found).nearest} == {"DISK_GB asked 5, has none"}


def test_what_one_host_takes_of_a_pool_another_cannot_take() -> None:
    picture = a_cloud(a_diskless_host("h"), a_diskless_host("g"), a_pool(14))
    spec = a_spec(1, DISK_GB=5)

    found = choose(picture, [spec] * 3, PLUGINS, salt=0)

    assert sorted(chosen(found)) == ["DISK_GB:5@pool VCPU:1@g", "DISK_GB:5@pool VCPU:1@h"]
    assert refusal(found[2]).steps == (
        FunnelStep(step="capacity", removed=2, example="h: DISK_GB asked 5, free 4 of 14 at pool"),
    )
    assert isinstance(found[0], Chosen)
    picture.hold([(WEB, 1, found[0].choice.share)])
    assert len(chosen(choose(picture, [spec] * 3, PLUGINS, salt=0))) == 1


def test_a_host_that_has_disk_itself_gives_that_before_any_pool_does() -> None:
    own = a_state("h", some(VCPU=8, DISK_GB=8), aggregates=RACK)

    found = choose(a_cloud(own, a_pool(50)), [a_spec(1, DISK_GB=5)] * 2, PLUGINS, salt=0)

    assert chosen(found) == ["DISK_GB:5@h VCPU:1@h", "DISK_GB:5@pool VCPU:1@h"]


def test_nobody_lives_on_a_host_that_gives_nothing() -> None:
    """All of it could be had from the pool, as a candidate of Placement's; a claim of it would be refused."""
    (found,) = choose(a_cloud(a_diskless_host("h"), a_pool(10)), [a_spec(9, DISK_GB=5)], PLUGINS, salt=0)
    assert refusal(found).steps[0].example == "h: VCPU asked 9, free 8 of 8 at h"

    disk_alone = structs.replace(a_spec(), amounts=(("DISK_GB", 5),))
    (found,) = choose(a_cloud(a_diskless_host("h"), a_pool(10)), [disk_alone], PLUGINS, salt=0)
    assert refusal(found).steps[0].example == "h: all of it would be shared with it, and nothing its own"


def test_a_pool_of_another_cell_is_not_taken_from() -> None:
    states = [a_diskless_host("near", cell="c1"), a_diskless_host("far", cell="c2")]

    found = choose(a_cloud(*states, a_pool(50, cell="c2")), [a_spec(1, DISK_GB=5)] * 2, PLUGINS, salt=0)

    assert chosen(found) == ["DISK_GB:5@pool VCPU:1@far"] * 2
    found = choose(a_cloud(*states, a_pool(50)), [a_spec(6, DISK_GB=5)] * 2, PLUGINS, salt=0)
    assert sorted(chosen(found)) == ["DISK_GB:5@pool VCPU:6@far", "DISK_GB:5@pool VCPU:6@near"]


def test_where_a_pool_runs_out_hosts_that_need_none_take_the_rest() -> None:
    """The best three all need the pool, for their own disks are too small: none of them is left after the first."""
    picture = a_cloud(
        *(a_state(name, some(VCPU=64, DISK_GB=4), aggregates=RACK) for name in ("h", "g", "k")),
        *(a_state(name, some(VCPU=8, DISK_GB=8)) for name in ("flat1", "flat2")),
        a_pool(9),
    )

    found = choose(picture, [a_spec(1, DISK_GB=5)] * 4, PLUGINS, salt=0, alternates=0)

    assert Counter(words.split()[0] for words in chosen(found)) == {
        "DISK_GB:5@pool": 1,
        "DISK_GB:5@flat1": 1,
        "DISK_GB:5@flat2": 1,
    }
    assert refusal(found[3]).hosts == 5


def test_alternates_have_shares_of_their_own_and_only_where_there_is_room() -> None:
    picture = a_cloud(*a_nested_host("h"), *a_nested_host("g"), *a_nested_host("k", vcpu=2))

    one, other = choose(picture, [a_spec(3)] * 2, PLUGINS, salt=0)

    assert isinstance(one, Chosen)
    assert isinstance(other, Chosen)
    assert {in_words(each.choice.share) for each in (one, other)} == {"VCPU:3@h-n0", "VCPU:3@g-n0"}
    for each in (one, other):
        (alternate,) = each.alternates
        assert in_words(alternate.share) == ("VCPU:3@g-n1" if each.choice.name == "h" else "VCPU:3@h-n1")


def test_more_alternates_are_given_the_shares_that_they_could_take() -> None:
    picture = a_cloud(*a_nested_host("h"), a_state("flat1", some(VCPU=3)))

    found = more_alternates(picture, a_spec(3), PLUGINS, cell="c1", salt=0, count=2, start=0)

    assert sorted(in_words(each.share) for each in found) == ["VCPU:3@flat1", "VCPU:3@h-n0"]


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


def a_hard_spec(amount: int = 1, classes: int = 7) -> InstanceSpec:
    return InstanceSpec(
        amounts=tuple((f"CUSTOM_R{number}", amount) for number in range(classes)),
        required=tuple(f"CUSTOM_T{number}" for number in range(24)),
    )


def test_a_host_whose_search_is_cut_is_removed_with_that_reason_and_others_are_chosen() -> None:
    picture = a_cloud(*a_host_of_many_traits("hard"), *a_nested_host("h"))

    hard, plain = choose(picture, [a_hard_spec(), a_spec(3)], PLUGINS, salt=0)

    refused = refusal(hard)
    (cut,) = [step for step in refused.steps if step.step == "search"]
    assert cut.removed == 1
    assert "its search was cut after" in cut.example
    assert "it may have what is asked" in cut.example
    assert isinstance(plain, Chosen)


def test_all_searches_of_a_batch_together_have_a_budget() -> None:
    """However many hard questions there are, and however many trees to ask them of."""
    shared = SharedBudget(STEPS_PER_TREE, STEPS_PER_BATCH, BYTES_PER_TREE)
    index = a_cloud(*a_host_of_many_traits("hard")).index
    spent = questions = 0
    for number in range(40):
        spec = a_hard_spec(1 + number)
        for cut in find_ways_in_each_tree(index, query_of(needs_of(spec)), Scope(), shared):
            assert isinstance(cut, CutInTrees)
            spent += cut.steps
            questions += 1

    assert questions == 40
    assert spent < STEPS_PER_BATCH + 40 * (STEPS_PER_TREE + 16 * 7 * 7 + 1_000)


def test_trees_where_nothing_is_hard_are_found_when_all_is_spent_that_is_shared() -> None:
    shared = SharedBudget(STEPS_PER_TREE, 0, BYTES_PER_TREE)
    index = a_cloud(*[state for number in range(50) for state in a_nested_host_of_its_own(number)]).index

    found = list(find_ways_in_each_tree(index, query_of(needs_of(a_spec(3))), Scope(), shared))

    assert sum(len(trees.roots) for trees in found if isinstance(trees, InTrees)) == 50


def a_nested_host_of_its_own(number: int) -> list[ProviderState]:
    """No other is quite the same."""
    return [
        structs.replace(state, internal=10_000 + 10 * number + place)
        for place, state in enumerate(a_nested_host(f"own{number}", vcpu=3 + number))
    ]
