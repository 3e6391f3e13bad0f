"""Hosts whose tree has children, and hosts that others share with: the share of each instance is a candidate."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from random import Random

import pytest
from msgspec import structs

from engine.candidates import ways as ways_module
from engine.candidates.budget import Budget, SharedBudget
from engine.candidates.slot_solver import SlotProblem, solutions
from engine.candidates.suitable import SearchScope
from engine.candidates.ways import CutInTrees, InTrees, ways_of_trees
from engine.choosing.choosing import (
    SEARCHED_FIRST,
    Chosen,
    choose,
    hosts_with_room,
    more_alternates,
    room_for,
)
from engine.choosing.compounds import BYTES_PER_TREE, STEPS_PER_BATCH, STEPS_PER_TREE, Compounds, Found, Parts
from engine.choosing.hosts import Draft, Leaving
from engine.inventories import InventoryState, ProviderState, ResourceAmount, Share
from engine.picture.picture import Picture
from engine.refusals import FunnelStep, NoValidHost
from engine.requests import InstanceSpec
from engine.requests.spec import GranularGroup, Needs, needs_of, query_of
from tests.contracts.placement_orders import DB, WEB, aggregate, provider
from tests.plugins import standard_plugins
from tests.unit.choosing.scheduler_worlds import a_host, a_picture, a_spec, a_state, usage_of

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


def test_an_instance_with_groups_that_stays_on_a_host_without_children_gives_back_its_share() -> None:
    picture = a_cloud(in_use(a_state("h", some(VCPU=8)), VCPU=8))
    leaving = Leaving(picture.row_of(provider("h")), held(h=("VCPU", 4)))

    def resized(vcpu: int) -> Chosen | NoValidHost:
        needs = (("VCPU", vcpu),)
        spec = InstanceSpec(amounts=needs, groups=(GranularGroup("1", needs),))
        return choose(picture, [spec], PLUGINS, salt=0, leaving=(leaving,))[0]

    assert chosen([resized(4)]) == ["VCPU:4@h"]
    assert isinstance(resized(5), NoValidHost)


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


def test_a_host_that_was_searched_in_vain_is_not_searched_again_for_the_same_need() -> None:
    in_parts = [state for number in range(8) for state in a_host_in_small_parts(number)]
    picture = a_cloud(*in_parts, *a_host_with_a_large_part())
    compounds = Draft(picture).compounds
    assert compounds is not None
    need = needs_of(a_spec(5))
    rows = [picture.row_of(provider(f"parts{number}")) for number in range(3)]

    search = compounds.search(need)
    found = [search(row) for row in (*rows, picture.row_of(provider("whole")))]

    assert [len(ways) for ways in found] == [0, 0, 0, 1]
    assert compounds.known_full(need) == rows
    assert compounds.known_full(needs_of(a_spec(4))) == ()


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


def test_one_boot_searches_its_host_and_its_alternates_once(searched: list[int]) -> None:
    many = [state for number in range(60) for state in a_host_in_small_parts(number)]
    picture = a_cloud(*many)

    (one,) = choose(picture, [a_spec(3)], PLUGINS, salt=0)

    assert isinstance(one, Chosen)
    assert len(one.alternates) == 2
    used = [picture.row_of(each.share.host) for each in (one.choice, *one.alternates)]
    assert searched == used


def test_equal_boots_search_a_host_again_only_when_its_ways_are_used_up(searched: list[int]) -> None:
    """Two cells, each with room for two."""
    picture = a_cloud(*a_nested_host("h"))

    found = choose(picture, [a_spec(2)] * 4, PLUGINS, salt=0)

    assert chosen(found) == ["VCPU:2@h-n0", "VCPU:2@h-n0", "VCPU:2@h-n1", "VCPU:2@h-n1"]
    # At first, when the first cell is full, and in vain for an alternate when all is full.
    assert searched == [picture.row_of(provider("h"))] * 3


def test_room_for_what_waits_is_looked_for_where_most_is_free(searched: list[int]) -> None:
    many = [state for number in range(100) for state in a_host_in_small_parts(number)]
    picture = a_cloud(*many, *a_host_with_a_large_part())

    (may_have,) = hosts_with_room(picture, [a_spec(4)], PLUGINS, None)
    assert len(may_have) == 101
    assert searched == []

    # At least two in each of those that are searched.
    assert room_for(picture, a_spec(4), PLUGINS, may_have) == 2 * SEARCHED_FIRST
    assert len(set(searched)) == SEARCHED_FIRST


def test_trees_of_one_kind_are_one_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = []

    def counted(problem: SlotProblem, budget: Budget) -> Iterator[tuple[int, ...]]:
        solved.append(problem)
        return solutions(problem, budget)

    monkeypatch.setattr(ways_module, "solutions", counted)
    many = [state for number in range(30) for state in a_host_in_small_parts(number)]

    found = choose(a_cloud(*many), [a_spec(3), a_spec(2), a_spec(4)], PLUGINS, salt=0)

    assert all(isinstance(one, Chosen) for one in found)
    # All are about two places that have room: once both, and once a cell is full the other one alone.
    assert len(solved) <= 2


def test_hosts_whose_pools_have_what_they_lack_are_searched_early(searched: list[int]) -> None:
    fast = structs.replace(a_pool(50), traits=(SHARES, "STORAGE_DISK_SSD"))
    small = [a_state(f"flat{number}", some(VCPU=4, DISK_GB=9)) for number in range(30)]
    # The largest pool counts, whichever comes first.
    pools = (a_pool(9, "near"), fast, a_pool(9, "far"))
    picture = a_cloud(*(a_diskless_host(name) for name in ("h", "g", "k")), *pools, *small)
    on_fast = InstanceSpec(
        amounts=(("DISK_GB", 20), ("VCPU", 1)),
        groups=(GranularGroup("_D", (("DISK_GB", 20),), required=("STORAGE_DISK_SSD",)),),
    )

    plain, grouped = choose(picture, [a_spec(1, DISK_GB=20), on_fast], PLUGINS, salt=0)

    for one in (plain, grouped):
        assert isinstance(one, Chosen)
        assert one.choice.name in ("h", "g", "k")
        assert {each.name for each in one.alternates} < {"h", "g", "k"}
    assert len(searched) == 2 * 3


def test_specs_of_one_batch_with_other_traits_search_other_hosts(searched: list[int]) -> None:
    traits = ("CUSTOM_A",) * 30 + ("CUSTOM_B",) * 3
    hosts = [a_state(f"h{number}", some(VCPU=8), traits=(trait,)) for number, trait in enumerate(traits)]

    found = choose(a_cloud(*hosts), [_of_trait("CUSTOM_A"), _of_trait("CUSTOM_B")], PLUGINS, salt=0)

    of_b = {f"h{number}" for number in range(30, 33)}
    assert [isinstance(one, Chosen) and one.choice.name in of_b for one in found] == [False, True]
    assert len(searched) == 2 * 3


def _of_trait(trait: str) -> InstanceSpec:
    group = GranularGroup("1", (("VCPU", 1),), required=(trait,))
    return InstanceSpec(amounts=(("VCPU", 1),), groups=(group,))


def test_what_is_taken_and_what_is_barred_count_where_one_host_is_searched_apart() -> None:
    many = [state for number in range(9) for state in a_host_in_small_parts(number)]
    far = a_pool(50, "far", cell="c2")
    picture = a_cloud(a_diskless_host("h"), a_pool(9), far, *many)
    compounds = Draft(picture).compounds
    assert compounds is not None
    need = needs_of(a_spec(1, DISK_GB=5))
    row = picture.row_of(provider("h"))

    search = compounds.search(need)
    (first,) = search(row)
    compounds.take(first)

    assert {NAMES[picture.index.state(each[0]).id] for each in first} == {"h", "pool"}
    assert search(row) == []


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


def test_trees_where_nothing_is_hard_are_found_when_all_is_spent_that_is_shared() -> None:
    shared = SharedBudget(STEPS_PER_TREE, 0, BYTES_PER_TREE)
    index = a_cloud(*[state for number in range(50) for state in a_nested_host_of_its_own(number)]).index

    found = list(ways_of_trees(index, query_of(needs_of(a_spec(3))), SearchScope(), shared))

    assert sum(len(trees.roots) for trees in found if isinstance(trees, InTrees)) == 50


def test_trees_that_differ_in_their_pools_alone_are_one_problem_and_each_takes_from_its_own_pool() -> None:
    states = [
        structs.replace(state, aggregates=(aggregate(of_pool),))
        for host, of_pool in (("h", "near"), ("g", "far"))
        for state in (a_diskless_host(host), a_pool(50, of_pool))
    ]
    shared = SharedBudget(STEPS_PER_TREE, STEPS_PER_BATCH, BYTES_PER_TREE)
    index = a_cloud(*states).index
    query = query_of(needs_of(InstanceSpec(amounts=(("DISK_GB", 5), ("VCPU", 1)))))

    (found,) = ways_of_trees(index, query, SearchScope(), shared)

    assert isinstance(found, InTrees)
    lines = [[NAMES[index.state(row).id] for row in line] for line in found.block.rows.tolist()]
    assert sorted(sorted(line) for line in lines) == [["far", "g"], ["h", "near"]]
    assert [NAMES[index.state(root).id] for root in found.roots.tolist()] == [
        next(name for name in line if name in ("g", "h")) for line in lines
    ]


def test_trees_in_reach_of_other_pools_are_of_other_classes() -> None:
    """Each pool reaches one more tree than the one before, and the last one a tree of its own."""
    x, y, z = (aggregate(name) for name in "xyz")
    hosts = {"h": (x,), "g": (x, y), "k": (y,), "flat1": (z,)}
    pools = {"pool": (x,), "near": (y,), "far": (z,)}
    states = [
        *(structs.replace(a_diskless_host(name), aggregates=each) for name, each in hosts.items()),
        *(structs.replace(a_pool(50, name), aggregates=each) for name, each in pools.items()),
    ]
    shared = SharedBudget(STEPS_PER_TREE, STEPS_PER_BATCH, BYTES_PER_TREE)
    index = a_cloud(*states).index
    query = query_of(needs_of(InstanceSpec(amounts=(("DISK_GB", 5), ("VCPU", 1)))))

    found = [
        {NAMES[index.state(row).id] for row in line}
        for trees in ways_of_trees(index, query, SearchScope(), shared, ways=2)
        if isinstance(trees, InTrees)
        for line in trees.block.rows.tolist()
    ]

    expected = [
        {host, pool}
        for host, near in hosts.items()
        for pool, reached in pools.items()
        if set(near) & set(reached)
    ]
    assert sorted(map(sorted, found)) == sorted(map(sorted, expected))


def a_nested_host_of_its_own(number: int) -> list[ProviderState]:
    """No other is quite the same."""
    return [
        structs.replace(state, internal=10_000 + 10 * number + place)
        for place, state in enumerate(a_nested_host(f"own{number}", vcpu=3 + number))
    ]
