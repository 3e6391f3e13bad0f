"""choose by itself: spread, alternates, reasons and plugins, where an example says more than a property."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from engine.candidates.columns import Flags, Floats
from engine.choosing.choosing import Chosen, choose
from engine.choosing.hosts import Hosts, OneHost
from engine.choosing.plugins import HostChange, Plugins
from engine.choosing.weighers import FreeAmount
from engine.inventories import InventoryState
from engine.picture.picture import Picture
from engine.refusals import FunnelStep, Miss, NoValidHost
from engine.requests import InstanceSpec
from tests.contracts.placement_orders import an_id, consumer, provider
from tests.plugins import standard_plugins
from tests.refusals import why_not
from tests.unit.choosing.scheduler_worlds import ROOMY, a_host, a_picture, a_spec, a_state, usage_of, vcpus

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


def test_only_hosts_of_the_best_band_are_equal_whatever_the_salt() -> None:
    """One hundredth of the most room is a band."""
    large = [a_state(f"large{number}", vcpus(1000)) for number in range(4)]
    small = [a_state(f"small{number}", vcpus(985)) for number in range(12)]
    picture = a_picture(*small, *large)

    for salt in range(8):
        (four,) = chosen(picture, a_spec(), salt=salt, alternates=3)
        (six,) = chosen(picture, a_spec(), salt=salt, alternates=5)
        found = [[one.choice.name, *(each.name for each in one.alternates)] for one in (four, six)]

        assert set(found[0]) == {"large0", "large1", "large2", "large3"}
        assert found[1][:4] == found[0]
        assert all(name.startswith("small") for name in found[1][4:])


def test_the_host_with_the_most_room_is_chosen_and_the_next_best_are_its_alternates() -> None:
    picture = a_picture(*(a_state(f"h{used}", vcpus(16, used=used)) for used in (9, 3, 6, 0)))

    (only,) = chosen(picture, a_spec())

    assert only.cell == "c1"
    assert only.choice.name == "h0"
    assert [other.name for other in only.alternates] == ["h3", "h6"]


def test_a_batch_does_not_herd_onto_one_host() -> None:
    found = chosen(equals(20), *[a_spec()] * 20)

    assert len(set(names(found))) == 20


def test_unequal_hosts_are_filled_until_they_are_equal() -> None:
    picture = a_picture(a_state("roomy", vcpus(16)), a_state("tight", vcpus(16, used=8)))

    found = names(chosen(picture, *[a_spec()] * 12, plugins=standard_plugins(io_ops_max=100)))

    assert found[:8] == ["roomy"] * 8
    assert Counter(found) == {"roomy": 10, "tight": 2}


def test_a_batch_of_many_shapes_counts_them_against_each_other() -> None:
    picture = equals(1, total=10)

    found = choose(picture, [a_spec(4), a_spec(3), a_spec(4), a_spec(3)], PLUGINS, salt=0)

    assert [isinstance(one, Chosen) for one in found] == [True, False, True, False]
    assert isinstance(found[1], NoValidHost)
    assert found[1].steps[0].example == "h0: VCPU asked 3, free 2 of 10"


def test_a_batch_takes_the_last_of_what_there_is_and_no_more() -> None:
    found = choose(equals(3, total=4), [a_spec(1)] * 20, PLUGINS, salt=0)

    assert Counter(one.choice.name for one in found if isinstance(one, Chosen)) == {"h0": 4, "h1": 4, "h2": 4}
    assert sum(isinstance(one, NoValidHost) for one in found) == 8


def test_more_instances_than_were_looked_up_at_once_fit_on_one_large_host() -> None:
    picture = a_picture(
        a_state("huge", vcpus(10_000)), *(a_state(f"h{number}", vcpus(1)) for number in range(200))
    )
    plugins = standard_plugins(io_ops_max=1000, instances_max=1000)

    assert names(chosen(picture, *[a_spec()] * 200, plugins=plugins)) == ["huge"] * 200


def test_limits_of_builds_and_instances_hold_inside_a_batch() -> None:
    picture = a_picture(a_state("h", consumers=1), hosts=(a_host("h", io_ops=5),))

    assert (
        len([one for one in choose(picture, [a_spec()] * 9, PLUGINS, salt=0) if isinstance(one, Chosen)]) == 3
    )

    plugins = standard_plugins(io_ops_max=100, instances_max=3)
    assert (
        len([one for one in choose(picture, [a_spec()] * 9, plugins, salt=0) if isinstance(one, Chosen)]) == 2
    )


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


def test_alternates_are_of_the_same_cell_even_if_the_best_are_elsewhere() -> None:
    best = [a_state(f"b{number}", vcpus(64), cell="c1") for number in range(1)]
    mine = [a_state(f"m{number}", vcpus(8), cell="c1") for number in range(3)]
    others = [a_state(f"o{number}", vcpus(32), cell="c2") for number in range(30)]

    (only,) = chosen(a_picture(*best, *mine, *others), a_spec())

    assert only.choice.name == "b0"
    assert {other.name for other in only.alternates} < {"m0", "m1", "m2"}
    assert len(only.alternates) == 2


def test_a_host_alone_in_its_cell_has_no_alternates() -> None:
    picture = a_picture(a_state("h0", vcpus(64), cell="c1"), a_state("h1", cell="c2"))

    assert chosen(picture, a_spec())[0].alternates == ()


def test_alternates_of_a_batch_are_spread_over_the_cell() -> None:
    found = chosen(equals(40), *[a_spec()] * 20)

    named = Counter(other.name for one in found for other in one.alternates)
    assert len(named) >= 20
    assert max(named.values()) <= 3
    assert all(one.choice not in one.alternates for one in found)


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


def test_a_class_that_nobody_has_is_a_reason_for_every_host() -> None:
    found = refusal(equals(3), a_spec(VGPU=1))

    assert [(step.step, step.removed) for step in found.steps] == [("capacity", 3)]
    assert found.nearest[0].reason == "VGPU asked 1, has none"


def test_asked_hosts_are_matched_without_regard_to_case() -> None:
    picture = a_picture(a_state("Rack-A"), a_state("rack-b"))

    spec = structs.replace(a_spec(), hosts=("rack-a",))

    assert names(chosen(picture, spec)) == ["Rack-A"]


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


def test_of_hosts_that_are_asked_by_name_each_is_told_of_and_no_more_than_ten() -> None:
    """Two cells may have a host of one name."""
    cells = ("c1", "c2")
    states = [structs.replace(a_state(cell, vcpus(2), cell=cell), name="twin") for cell in cells]
    picture = a_picture(*states, hosts=())
    picture.put_hosts([structs.replace(a_host(cell, cell=cell), name="twin") for cell in cells])

    found = refusal(picture, structs.replace(a_spec(4), hosts=("twin", *(f"x{n}" for n in range(20)))))

    assert [miss.host for miss in found.nearest] == ["twin", "twin", *(f"x{n}" for n in range(8))]


def test_a_host_without_a_class_is_farther_away_than_one_where_it_ran_out() -> None:
    spent = {"VCPU": ROOMY, "VGPU": InventoryState(total=1, used=1)}
    picture = a_picture(a_state("bare"), a_state("spent", spent))

    found = refusal(picture, a_spec(VGPU=1))

    assert [miss.host for miss in found.nearest] == ["spent", "bare"]


def test_claims_name_how_many_instances_a_host_may_have() -> None:
    plugins = standard_plugins(instances_max=2)

    (one,) = chosen(equals(3), a_spec(), plugins=plugins)

    shares = [one.choice.share, *[other.share for other in one.alternates]]
    assert [share.instances_max for share in shares] == [2, 2, 2]


def test_a_host_has_the_instances_that_placement_counts_and_not_those_of_its_last_report() -> None:
    """The report is late: after a delete, a host would count as full until its next report."""
    plugins = standard_plugins(instances_max=3)
    crowded, free = a_state("crowded", consumers=3), a_state("free")
    picture = a_picture(crowded, free, hosts=(a_host("crowded"), a_host("free", instances=3)))

    (one,) = chosen(picture, a_spec(), plugins=plugins)
    assert (one.choice.name, one.alternates) == ("free", ())
    only_crowded = structs.replace(a_spec(), hosts=("crowded",))
    reasons = {miss.host: miss.reason for miss in why_not(picture, only_crowded, plugins)}
    assert reasons["crowded"] == "instances: has 3 instances, at most 3"

    # Claims come and go without anything else of the host being told.
    picture.use([structs.replace(usage_of(free, 1, 2), consumers=3), usage_of(crowded, 0, 2)])
    (one,) = chosen(picture, a_spec(), plugins=plugins)
    assert one.choice.name == "crowded"


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


class OddOnesOnly:
    """A filter of somebody else's."""

    name = "odd ones only"
    is_per_instance = False
    reads: tuple[str, ...] = ()
    woken_by: tuple[HostChange, ...] = (HostChange.FACTS,)
    scopes: tuple[str, ...] = ()
    image_keys: tuple[str, ...] = ()

    def problem_with(self, _key: str, _value: str) -> str:
        return ""

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        return np.array([OneHost(hosts, at).name.endswith(("1", "3")) for at in range(len(hosts))])

    def reason(self, _host: OneHost, _spec: InstanceSpec) -> str:
        return "is even"


class ByName:
    """A weigher of somebody else's, from the least that there is to the most."""

    name = "by name"
    minimum: float | None = None
    reads: tuple[str, ...] = ()
    woken_by: tuple[HostChange, ...] = (HostChange.FACTS,)

    def __init__(self, multiplier: float) -> None:
        self.multiplier = multiplier

    def weigh(self, hosts: Hosts, _spec: InstanceSpec) -> Floats:
        return np.array([float(OneHost(hosts, at).name[1:]) for at in range(len(hosts))])


def test_filters_and_weighers_of_others_have_their_say() -> None:
    plugins = Plugins(filters=(*PLUGINS.filters, OddOnesOnly()), weighers=(*PLUGINS.weighers, ByName(100.0)))

    (only,) = chosen(equals(5), a_spec(), plugins=plugins)

    assert only.choice.name == "h3"
    assert [other.name for other in only.alternates] == ["h1"]
    assert refusal(equals(1), a_spec(), plugins).steps[0] == FunnelStep(
        step="odd ones only", removed=1, example="h0: is even"
    )


def test_a_negative_multiplier_turns_the_order_around() -> None:
    weighers = (ByName(-1.0),)

    assert names(chosen(equals(5), a_spec(), plugins=structs.replace(PLUGINS, weighers=weighers))) == ["h0"]


def test_a_packing_weigher_fills_one_host_before_the_next() -> None:
    plugins = structs.replace(PLUGINS, weighers=(FreeAmount("cpu", "VCPU", -1.0),))

    found = names(chosen(equals(5, total=4), *[a_spec()] * 8, plugins=plugins))

    assert sorted(Counter(found).values()) == [4, 4]


def test_multipliers_that_would_not_fit_are_refused_at_once() -> None:
    with pytest.raises(AssertionError, match="multipliers add up to"):
        Plugins(filters=(), weighers=(ByName(-1e9),))


def test_a_share_names_the_root_and_its_shape() -> None:
    (only,) = chosen(a_picture(a_state("h", shape=7)), a_spec(2))

    share = only.choice.share
    assert share.host == provider("h") == an_id("h")
    assert [(seen.root, seen.shape) for seen in share.shapes] == [(provider("h"), 7)]
