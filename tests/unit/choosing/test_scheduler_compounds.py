"""Hosts whose tree has children, and hosts that others share with: the share of each instance is a candidate."""

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random

import pytest
from msgspec import structs

from engine.candidates.budget import SharedBudget
from engine.candidates.suitable import SearchScope
from engine.candidates.ways import CutInTrees, ways_of_trees
from engine.choosing.choosing import (
    Chosen,
    choose,
)
from engine.choosing.compounds import BYTES_PER_TREE, STEPS_PER_BATCH, STEPS_PER_TREE, Compounds, Found, Parts
from engine.choosing.hosts import Leaving
from engine.inventories import InventoryState, ProviderState, ResourceAmount, Share
from engine.picture.picture import Picture
from engine.refusals import FunnelStep, NoValidHost
from engine.requests import InstanceSpec
from engine.requests.spec import GranularGroup, Needs, needs_of, query_of
from tests.contracts.placement_orders import DB, WEB, aggregate, provider
from tests.plugins import standard_plugins
from tests.unit.choosing.scheduler_worlds import a_host, a_picture, a_spec, a_state

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


def test_a_trait_of_one_cell_is_had_there_and_without_room_there_not_at_all() -> None:
    spec = structs.replace(a_spec(3), required=("CUSTOM_FAST",))
    picture = a_cloud(*a_nested_host("h", traits={1: "CUSTOM_FAST"}), *a_nested_host("g"))

    found = choose(picture, [spec, spec], PLUGINS, salt=0)

    assert chosen(found) == ["VCPU:3@h-n1"]
    assert [(step.step, step.removed, step.example) for step in refusal(found[1]).steps] == [
        ("traits", 2, "h: has room, but not at providers that together are CUSTOM_FAST")
    ]
    assert [miss.reason for miss in refusal(found[1]).nearest if miss.host == "g"] == ["lacks CUSTOM_FAST"]


def test_a_group_that_only_has_to_be_above_others_is_no_reason_to_refuse_a_host() -> None:
    root, *cells = a_nested_host("h")
    picture = a_cloud(structs.replace(root, traits=("CUSTOM_TOP",)), *cells)
    spec = InstanceSpec(
        amounts=(("VCPU", 6),),
        groups=(
            GranularGroup("_A", (("VCPU", 3),)),
            GranularGroup("_B", (("VCPU", 3),)),
            GranularGroup("_TOP", required=("CUSTOM_TOP",)),
        ),
        same_subtree=(("_A", "_B", "_TOP"),),
    )

    assert chosen(choose(picture, [spec], PLUGINS, salt=0)) == ["VCPU:3@h-n0 VCPU:3@h-n1"]


def test_disk_of_a_pool_is_named_with_the_shape_of_the_pool() -> None:
    picture = a_cloud(a_diskless_host("h"), a_pool(10))

    (one,) = choose(picture, [a_spec(1, DISK_GB=5)], PLUGINS, salt=0)

    assert chosen([one]) == ["DISK_GB:5@pool VCPU:1@h"]
    assert isinstance(one, Chosen)
    assert [(seen.root, seen.shape) for seen in one.choice.share.shapes] == [
        (provider("h"), 1),
        (provider("pool"), 7),
    ]
    picture.prune([a_pool(10).internal])
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


def held(**amounts: tuple[str, int]) -> tuple[ResourceAmount, ...]:
    return tuple(
        ResourceAmount(provider=provider(where.replace("_", "-")), resource=resource, amount=amount)
        for where, (resource, amount) in amounts.items()
    )


def in_use(state: ProviderState, **used: int) -> ProviderState:
    inventories = {
        resource: structs.replace(each, used=used.get(resource, 0))
        for resource, each in state.inventories.items()
    }
    return structs.replace(state, inventories=inventories)


def test_an_instance_that_stays_gives_back_what_each_cell_and_each_pool_gave_it() -> None:
    root, first, second = a_nested_host("h")
    root = structs.replace(root, inventories={}, aggregates=RACK)
    picture = a_cloud(root, in_use(first, VCPU=4), in_use(second, VCPU=4), in_use(a_pool(50), DISK_GB=48))
    here = picture.row_of(provider("h"))
    leaving = Leaving(here, held(h_n1=("VCPU", 3), pool=("DISK_GB", 10)))

    def resized(vcpu: int, disk: int, before: tuple[Leaving, ...] = (leaving,)) -> Chosen | NoValidHost:
        return choose(picture, [a_spec(vcpu, DISK_GB=disk)], PLUGINS, salt=0, leaving=before)[0]

    assert chosen([resized(3, 12)]) == ["DISK_GB:12@pool VCPU:3@h-n1"]
    assert chosen([resized(3, 10, ())]) == []
    (too_wide,) = refusal(resized(4, 10)).steps
    assert too_wide.example == "h: VCPU asked 4, free 3 of 4 at h-n1, the most of 2"
    (too_large,) = refusal(resized(3, 13)).steps
    assert too_large.example == "h: DISK_GB asked 13, free 12 of 50 at pool"
    assert chosen([resized(3, 12)]) == ["DISK_GB:12@pool VCPU:3@h-n1"], "the picture is as it was"


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


# Hosts are searched after they are ranked


def numbered(states: list[ProviderState], number: int) -> list[ProviderState]:
    return [
        structs.replace(state, internal=10_000 + 10 * number + place) for place, state in enumerate(states)
    ]


def a_host_in_small_parts(number: int) -> list[ProviderState]:
    """It has eight VCPUs, and at most four at once."""
    return numbered(a_nested_host(f"parts{number}"), number)


def a_host_with_a_large_part() -> list[ProviderState]:
    """It has six VCPUs, and five of them at once: all in all less than those in small parts have."""
    root, large, small = numbered(a_nested_host("whole", vcpu=5), 9_000)
    return [root, large, structs.replace(small, inventories=some(VCPU=1))]


def test_a_host_that_has_room_is_found_behind_many_that_only_seem_to_have_it() -> None:
    # So many that neither the first pool nor the second reaches it.
    in_parts = [state for number in range(150) for state in a_host_in_small_parts(number)]
    picture = a_cloud(*in_parts, *a_host_with_a_large_part())

    one, other = choose(picture, [a_spec(5)] * 2, PLUGINS, salt=0)

    assert isinstance(one, Chosen)
    assert one.choice.name == "whole"
    assert one.alternates == ()
    assert refusal(other).hosts == 151
    assert sum(step.removed for step in refusal(other).steps) == 151


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The hosts that are searched, one after another. A search of all is an error."""
    hosts: list[int] = []
    search = Compounds.search

    def counted(compounds: Compounds, need: Needs, **how: bool) -> Callable[[int], list[Parts]]:
        ways = search(compounds, need, **how)

        def of_host(host: int) -> list[Parts]:
            hosts.append(host)
            return ways(host)

        return of_host

    def not_all(_: Compounds, need: Needs) -> Found:
        raise AssertionError(f"all hosts are searched for {need}")

    monkeypatch.setattr(Compounds, "search", counted)
    monkeypatch.setattr(Compounds, "found", not_all)
    return hosts


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
        for cut in ways_of_trees(index, query_of(needs_of(spec)), SearchScope(), shared):
            assert isinstance(cut, CutInTrees)
            spent += cut.steps
            questions += 1

    assert questions == 40
    assert spent < STEPS_PER_BATCH + 40 * (STEPS_PER_TREE + 16 * 7 * 7 + 1_000)
