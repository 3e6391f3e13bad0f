"""choose by itself: spread, alternates, reasons and plugins, where an example says more than a property."""

import sys
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from engine.choosing.choosing import Chosen, choose, choose_together
from engine.choosing.plugins import Plugins
from engine.hosts import Aggregate
from engine.inventories import AggregateId, InventoryState, ProviderState
from engine.picture.picture import Picture
from engine.refusals import FunnelStep, Miss, NoValidHost
from engine.requests import InstanceSpec
from tests.contracts.placement_orders import consumer, provider
from tests.plugins import standard_plugins
from tests.refusals import why_not
from tests.unit.choosing.scheduler_worlds import a_host, a_picture, a_spec, a_state, vcpus

PLUGINS = standard_plugins()


def chosen(
    picture: Picture, *specs: InstanceSpec, plugins: Plugins = PLUGINS, salt: int = 0, alternates: int = 2
) -> list[Chosen]:
    found = choose(picture, specs, plugins, salt, alternates)
    assert all(isinstance(one, Chosen) for one in found), found
    return [one for one in found if isinstance(one, Chosen)]


def refusal(picture: Picture, spec: InstanceSpec, plugins: Plugins = PLUGINS) -> NoValidHost:
    (found,) = choose(picture, [spec], plugins, salt=0)
    assert isinstance(found, NoValidHost)
    return found


def names(found: Sequence[Chosen]) -> list[str]:
    return [one.choice.name for one in found]


def equals(count: int, total: int = 16, cells: int = 1) -> Picture:
    return a_picture(
        *(a_state(f"h{number}", vcpus(total), cell=f"c{number % cells}") for number in range(count))
    )


def test_the_host_with_the_most_room_is_chosen_and_the_next_best_are_its_alternates() -> None:
    picture = a_picture(*(a_state(f"h{used}", vcpus(16, used=used)) for used in (9, 3, 6, 0)))

    (only,) = chosen(picture, a_spec())

    assert only.cell == "c1"
    assert only.choice.name == "h0"
    assert [other.name for other in only.alternates] == ["h3", "h6"]


@pytest.mark.parametrize(("hosts", "alternates"), [(4, 2), (4, 3), (5, 1), (7, 3)])
def test_several_instances_take_turns_with_alternates_and_none_has_its_own_host_among_them(
    hosts: int, alternates: int
) -> None:
    found = chosen(equals(hosts), *[a_spec()] * 3 * hosts, alternates=alternates)
    others = [[each.name for each in one.alternates] for one in found]

    for names, one in zip(others, found, strict=True):
        assert len(names) == len({*names} - {one.choice.name}) == alternates
    assert len({*map(tuple, others)}) > 1


def test_a_batch_does_not_herd_onto_one_host() -> None:
    found = chosen(equals(20), *[a_spec()] * 20)

    assert len(set(names(found))) == 20


def test_more_instances_than_were_looked_up_at_once_fit_on_one_large_host() -> None:
    picture = a_picture(
        a_state("huge", vcpus(10_000)), *(a_state(f"h{number}", vcpus(1)) for number in range(200))
    )
    plugins = standard_plugins(io_ops_max=1000, instances_max=1000)

    assert names(chosen(picture, *[a_spec()] * 200, plugins=plugins)) == ["huge"] * 200


def test_choosing_leaves_the_picture_as_it_is_and_holding_changes_it() -> None:
    picture = equals(1, total=4)
    first, again = chosen(picture, a_spec(4)), chosen(picture, a_spec(4))
    assert first == again

    picture.hold([(consumer("web"), 1, first[0].choice.share)])

    assert refusal(picture, a_spec(4)).steps[0].step == "capacity"


def test_two_workers_prefer_different_ones_among_equals_and_each_is_constant() -> None:
    picture = equals(50)
    ours, theirs = (names(chosen(picture, *[a_spec()] * 10, salt=salt)) for salt in (1, 2))

    assert len(set(ours) & set(theirs)) < 8
    assert names(chosen(picture, *[a_spec()] * 10, salt=1)) == ours


def test_what_differs_by_less_than_a_band_is_equal_and_by_more_is_not() -> None:
    """1 of 10,000 free is nothing; a tenth of it is all."""
    close = a_picture(a_state("h0", vcpus(10_000)), a_state("h1", vcpus(10_000, used=1)))
    far = a_picture(a_state("h0", vcpus(10_000)), a_state("h1", vcpus(10_000, used=1_000)))

    assert {names(chosen(close, a_spec(), salt=salt))[0] for salt in range(20)} == {"h0", "h1"}
    assert {names(chosen(far, a_spec(), salt=salt))[0] for salt in range(20)} == {"h0"}


def test_each_step_of_the_funnel_says_how_many_it_removed_and_why_the_first() -> None:
    ssd = "STORAGE_DISK_SSD"
    states = [
        a_state("down", traits=(ssd,)),
        a_state("off", traits=(ssd,)),
        a_state("stray", traits=(ssd,), cell="c2"),
        a_state("far", traits=(ssd,)),
        a_state("spinning"),
        a_state("old", traits=(ssd, "CUSTOM_OLD")),
        a_state("busy", traits=(ssd,)),
        a_state("crowded", traits=(ssd,), consumers=50),
        a_state("full", vcpus(4, used=3), traits=(ssd,)),
        a_state("small", {"VCPU": InventoryState(total=16, max_unit=1)}, traits=(ssd,)),
        a_state("unheard", traits=(ssd,)),
        a_state("ignored", traits=(ssd,)),
    ]
    zoned = {"availability_zone": "z1"}
    told: dict[str, dict[str, Any]] = {
        "down": {"up": False},
        "off": {"mode": "draining", "mode_reason": "new disks"},
        "far": {"availability_zone": "z2"},
        "busy": {"io_ops": 8},
        "bare": {},
    }
    registry = tuple(
        a_host(name, **zoned | told.get(name, {}))
        for name in [*(state.name for state in states if state.name != "unheard"), "bare"]
    )
    spec = InstanceSpec(
        amounts=(("VCPU", 2),),
        required=(ssd,),
        forbidden=("CUSTOM_OLD",),
        availability_zone="z1",
        ignore_hosts=("ignored",),
    )
    picture = a_picture(*states, hosts=registry)

    found = refusal(picture, spec)

    assert found.hosts == 13
    assert found.steps == (
        FunnelStep(
            step="registered", removed=1, example="unheard: no report of it has reached the registry yet"
        ),
        FunnelStep(step="up", removed=1, example="down: is down: its heartbeats have stopped"),
        FunnelStep(step="enabled", removed=1, example="off: is draining: new disks"),
        FunnelStep(step="inventory", removed=1, example="bare: placement has no provider of it"),
        FunnelStep(
            step="cell",
            removed=1,
            example="stray: placement has it in cell 'c2', the registry in another one",
        ),
        FunnelStep(step="availability zone", removed=1, example="far: asked 'z1', is in 'z2'"),
        FunnelStep(step="asked hosts", removed=1, example="ignored: is to be ignored"),
        FunnelStep(step="traits", removed=2, example="spinning: lacks STORAGE_DISK_SSD"),
        FunnelStep(step="io ops", removed=1, example="busy: has 8 builds and the like under way, at most 8"),
        FunnelStep(step="instances", removed=1, example="crowded: has 50 instances, at most 50"),
        FunnelStep(step="capacity", removed=2, example="full: VCPU asked 2, free 1 of 4"),
    )
    reasons = {miss.host: miss.reason for miss in why_not(picture, spec, PLUGINS)}
    assert len(reasons) == 13
    assert reasons["old"] == "traits: has forbidden CUSTOM_OLD"
    assert reasons["small"] == "capacity: VCPU asked 2, gives at most 1"


def test_a_host_that_never_reported_is_told_a_reason_by_each_filter_that_removes_it() -> None:
    picture = a_picture(a_state("unheard"), hosts=())

    (miss,) = refusal(picture, a_spec()).nearest

    assert miss.reason == (
        "no report of it has reached the registry yet; is down: its heartbeats have stopped; its mode is not known yet"
    )


def test_the_nearest_misses_lack_one_thing_and_little_of_it() -> None:
    picture = a_picture(
        *(a_state(f"h{used}", vcpus(8, used=used)) for used in (7, 5, 6)),
        a_state("off", vcpus(8, used=5)),
    )
    picture.put_hosts([a_host("off", mode="draining")])

    found = refusal(picture, a_spec(4))

    assert found.nearest == (
        Miss(host="h5", reason="VCPU asked 4, free 3 of 8"),
        Miss(host="h6", reason="VCPU asked 4, free 2 of 8"),
        Miss(host="h7", reason="VCPU asked 4, free 1 of 8"),
    )


def test_an_empty_cloud_refuses_with_an_empty_funnel() -> None:
    assert refusal(Picture(), a_spec()) == NoValidHost(hosts=0, steps=())
    assert choose(Picture(), [], PLUGINS, salt=0) == []


def test_who_asks_for_hosts_by_name_is_told_of_these_and_of_no_others() -> None:
    picture = a_picture(a_state("off"), a_state("Small", vcpus(2)), a_state("roomy"))
    picture.put_hosts([a_host("off", mode="draining", mode_reason="broken fan", sequence=2)])
    spec = structs.replace(a_spec(4), hosts=("off", "small", "unheard-of"))

    found = refusal(picture, spec)

    assert found.nearest == (
        Miss(host="off", reason="is draining: broken fan"),
        Miss(host="Small", reason="VCPU asked 4, gives at most 2"),
        Miss(host="unheard-of", reason="no host of this name is known"),
    )


def test_a_zone_a_trait_and_a_host_that_do_not_exist_are_told_with_those_near_them() -> None:
    picture = a_picture(
        *[a_state(f"Harbour-{number:05}", traits=("HW_CPU_X86_AVX2",)) for number in range(300)]
    )
    picture.put_hosts([a_host("Harbour-00001", availability_zone="north", sequence=2)])
    plain = a_spec()

    def unknown(**asked: Any) -> tuple[str, ...]:
        return refusal(picture, structs.replace(plain, **asked)).unknown

    assert unknown(availability_zone="nort") == ("no host is in zone nort; near it: north",)
    assert unknown(required=("HW_CPU_X86_AVX512F",)) == (
        "no host has HW_CPU_X86_AVX512F; near it: HW_CPU_X86_AVX2",
    )
    named = refusal(picture, structs.replace(plain, hosts=("harbour-0o287", "c2/harbour-00001", "nowhere")))
    assert [miss.reason.partition(", ")[0] for miss in named.nearest] == [
        "no host of this name is known; near it: Harbour-00287",
        "no host of this name is known",
        "no host of this name is known",
    ]
    # Hosts may be named in projects' sight: `nearest` is not told to these, and `unknown` is.
    assert named.unknown == ()
    assert "near it: c1/harbour-00001" in picture.no_host("c2/harbour-00001")
    picture.put_hosts([a_host("new-1", sequence=2)])
    assert picture.no_host("new-2").endswith("near it: new-1")


def test_claims_name_how_many_instances_a_host_may_have() -> None:
    plugins = standard_plugins(instances_max=2)

    (one,) = chosen(equals(3), a_spec(), plugins=plugins)

    shares = [one.choice.share, *[other.share for other in one.alternates]]
    assert [share.instances_max for share in shares] == [2, 2, 2]


def test_a_name_in_two_cells_means_a_host_only_with_its_cell() -> None:
    true = structs.replace(a_host("h1"), cell="c2")
    false = structs.replace(a_host("new"), name="H1", cell="c1")
    picture = a_picture(
        a_state("h1", cell="c2"), a_state("new"), a_state("free"), hosts=(true, false, a_host("free"))
    )

    def hosts_of(**asked: object) -> set[str]:
        found = choose(picture, [structs.replace(a_spec(), **asked)] * 3, PLUGINS, salt=0)
        return {f"{one.cell}/{one.choice.name}" for one in found if isinstance(one, Chosen)}

    assert hosts_of(hosts=("h1",)) == set()
    reasons = [miss.reason for miss in why_not(picture, structs.replace(a_spec(), hosts=("h1",)), PLUGINS)]
    both = "asked hosts: hosts of cells c1 and c2 have this name: give one as c1/h1 or c2/h1"
    assert reasons.count(both) == 2
    assert hosts_of(hosts=("c2/h1",)) == {"c2/h1"}
    assert hosts_of(hosts=("h1",), cell="c2") == {"c2/h1"}
    assert hosts_of(hosts=("c2/h1", "c1/h1"), ignore_hosts=("c1/h1",)) == {"c2/h1"}
    assert hosts_of(ignore_hosts=("h1",)) == {"c1/free"}
    assert hosts_of(same_hosts=("c2/h1",)) == {"c2/h1"}
    assert "c1/H1" in hosts_of(different_hosts=("c2/h1", "c1/free"))


def test_metadata_of_another_cloud_that_is_no_number_counts_as_none() -> None:
    metadata = {"max_instances_per_host": "many", "cpu_weight_multiplier": "much"}
    aggregate = Aggregate(id=AggregateId(UUID(int=1)), name="odd", metadata=metadata)
    picture = a_picture(a_state("h0", aggregates=(aggregate.id,)), a_state("h1"))
    picture.put_aggregates([aggregate])

    assert sorted(names(chosen(picture, a_spec(), a_spec()))) == ["h0", "h1"]


# Instances that move together


def in_one_place(picture: Picture, *specs: InstanceSpec, plugins: Plugins = PLUGINS) -> list[Chosen]:
    of_cell = [structs.replace(each, cell="c1") for each in specs]
    found = choose_together(picture, of_cell, plugins, 0, 2)
    assert not isinstance(found, NoValidHost), found
    return found


def test_instances_that_move_together_get_the_one_host_with_room_however_many_are_better_for_the_first() -> (
    None
):
    fast = ("CUSTOM_FAST",)
    better = [a_state(f"h{number}", vcpus(64)) for number in range(250)]
    picture = a_picture(*better, a_state("last", vcpus(8), traits=fast))

    found = in_one_place(picture, a_spec(2), structs.replace(a_spec(2), required=fast))

    assert names(found) == ["last", "last"]


def test_trees_with_room_for_the_sum_and_not_for_each_do_not_hide_the_one_that_has_it() -> None:
    def a_tree(name: str, *used: int) -> list[ProviderState]:
        cells = [
            a_state(f"{name}-{number}", vcpus(4, used=each), root=provider(name), parent=provider(name))
            for number, each in enumerate(used)
        ]
        return [a_state(name, {}), *cells]

    # Three free processors and one are no room for two instances of two, and neither is the sum of more such cells.
    cramped = [state for number in range(250) for state in a_tree(f"h{number}", 1, 3, 3, 3)]
    picture = a_picture(*cramped, *a_tree("last", 2, 2))

    found = in_one_place(picture, a_spec(2), a_spec(2))

    assert names(found) == ["last", "last"]
    assert len({amount.provider for each in found for amount in each.choice.share.amounts}) == 2


def test_the_limit_of_instances_counts_all_that_move_together() -> None:
    picture = a_picture(a_state("full", vcpus(64), consumers=2), a_state("roomy", vcpus(16), consumers=1))

    found = in_one_place(picture, a_spec(), a_spec(), plugins=standard_plugins(instances_max=3))

    assert names(found) == ["roomy", "roomy"]
    assert not found[0].alternates


def test_the_choice_for_several_that_move_together_costs_no_more_python_in_a_larger_cloud() -> None:
    def calls(hosts: int) -> int:
        picture, counted = a_picture(*(a_state(f"h{number}") for number in range(hosts))), 0
        in_one_place(picture, a_spec(), a_spec())

        def count(_frame: object, event: str, _what: object) -> None:
            nonlocal counted
            counted += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            in_one_place(picture, *[a_spec()] * 5)
        finally:
            sys.setprofile(None)
        return counted

    assert calls(2_000) < 1.1 * calls(200)
