"""The picture: whatever order states come in, it ends as the last of them says."""

from itertools import permutations

import numpy as np
import pytest
from msgspec import structs

from engine.choosing.choosing import Chosen, choose
from engine.choosing.hosts import Draft, Hosts
from engine.hosts import NODE, HostSetting, Supported
from engine.inventories import ProviderState, ProviderUsage, Share, tree_fingerprint
from engine.picture import columns
from engine.picture.members import preferences_of
from engine.picture.picture import Picture
from tests.contracts.placement_orders import DB, WEB, amounts, provider
from tests.plugins import standard_plugins
from tests.unit.choosing.scheduler_worlds import ROOMY, a_host, a_picture, a_spec, a_state, usage_of, vcpus

PLUGINS = standard_plugins()


def free_of(picture: Picture, name: str, resource: str = "VCPU") -> int:
    (row,) = picture.rows_named(name)
    return int(Hosts(Draft(picture)).free(resource)[row])


def a_share_of(name: str, vcpu: int) -> Share:
    return Share(host=provider(name), amounts=amounts(provider(name), VCPU=vcpu))


def test_the_trees_of_a_picture_are_ready_for_a_search_before_the_first_one() -> None:
    """To attach 10,000 trees takes a tenth of a second, in which no boot goes on."""
    index = a_picture(a_state("h", vcpus(16)), a_state("g", vcpus(16), internal=2)).index

    assert index.attached[: index.rows].tolist() == [True, True]


def test_the_higher_revision_counts_in_whatever_order_they_come() -> None:
    states = [a_state("h", vcpus(16, used=used), revision=used) for used in (1, 2, 3)]

    for order in permutations(states):
        assert free_of(a_picture(*order), "h") == 13


def test_what_is_used_and_what_is_there_each_end_as_the_last_word_says_in_whatever_order_they_come() -> None:
    host = a_state("h", vcpus(16))
    grown = a_state("h", vcpus(32, used=2), revision=3, shape=2)
    words: list[ProviderState | ProviderUsage] = [
        *(host, usage_of(host, 2, 2), grown),
        *(usage_of(host, 5, 4, base=3), usage_of(host, 6, 5, base=3)),
    ]

    for order in permutations(words):
        picture = a_picture(hosts=(a_host("h"),))
        for word in order:
            if isinstance(word, ProviderState):
                picture.apply([word])
            else:
                picture.use([word])
        assert free_of(picture, "h") == 26
        assert picture.trees.behind({host.internal: 5}, {host.internal}) == []


def test_what_is_used_of_a_provider_that_was_not_told_as_it_was_before_does_not_stand() -> None:
    host, unknown = a_state("h", vcpus(16)), a_state("unknown")
    picture = a_picture(host)

    assert picture.use([usage_of(host, 1, 2)])
    assert not picture.use([usage_of(unknown, 1, 2)])
    assert not picture.use([usage_of(host, 2, 4, base=3)])
    # It is later than the revision that is missed, and hides it from nobody.
    assert picture.trees.behind({host.internal: 4, unknown.internal: 2}, set()) == [
        host.internal,
        unknown.internal,
    ]

    picture.apply([a_state("h", vcpus(32, used=1), revision=3, shape=2)])

    assert free_of(picture, "h") == 30
    assert picture.trees.behind({host.internal: 4}, set()) == []


def test_what_is_used_of_a_provider_that_is_gone_is_no_news() -> None:
    host = a_state("h")
    picture = a_picture(host, hosts=())
    picture.use([usage_of(host, 1, 2)])

    picture.prune([host.internal])

    assert picture.use([usage_of(host, 2, 3)])
    assert len(picture) == 0


def test_a_class_that_went_before_what_is_used_was_told_is_not_used() -> None:
    host = a_state("h", {"VCPU": ROOMY, "VGPU": structs.replace(ROOMY, used=3)})
    picture = a_picture()

    picture.use([usage_of(host, 1, 3, base=2)])
    picture.apply([host])

    assert (free_of(picture, "h"), free_of(picture, "h", "VGPU")) == (15, 16)


def test_a_change_of_shape_replaces_everything_the_row_says() -> None:
    before = a_state("h", {"VCPU": ROOMY, "VGPU": ROOMY}, traits=("CUSTOM_OLD",))
    after = a_state("h", vcpus(8), revision=2, shape=2, traits=("CUSTOM_NEW",))

    picture = a_picture(before, after)

    hosts = Hosts(Draft(picture))
    assert (free_of(picture, "h"), free_of(picture, "h", "VGPU")) == (8, 0)
    assert not hosts.with_any(("CUSTOM_OLD",))[0]
    assert hosts.with_all(("CUSTOM_NEW",))[0]


def test_a_provider_that_is_gone_stays_gone_when_its_past_comes_late() -> None:
    host = a_state("h")
    picture = a_picture(host, hosts=())

    picture.prune([host.internal])
    picture.apply([structs.replace(host, revision=5)])

    assert len(picture) == 0


def test_an_end_that_comes_before_its_beginning_is_remembered() -> None:
    host = a_state("h")
    picture = Picture()

    picture.prune([host.internal])
    picture.apply([host])

    assert len(picture) == 0


def test_a_host_that_is_made_again_is_another_provider_under_the_same_id() -> None:
    old = a_state("h", vcpus(4), internal=1, revision=70)
    new = a_state("h", vcpus(8), internal=2, revision=1)
    for order in permutations((old, new)):
        picture = a_picture(*order)

        picture.prune([old.internal])

        assert free_of(picture, "h") == 8


def test_what_placement_did_not_find_may_come_back_by_itself() -> None:
    host = a_state("h")
    picture = a_picture(host, hosts=())

    picture.forget([host.id, provider("unknown")])
    assert len(picture) == 0
    picture.apply([host])

    assert len(picture) == 1


def test_what_a_whole_snapshot_does_not_have_is_pruned() -> None:
    kept, lost = a_state("kept"), a_state("lost")
    picture = a_picture(kept, lost, hosts=())

    picture.prune(picture.trees.internals() - {kept.internal})

    assert picture.trees.internals() == {kept.internal}
    assert len(picture) == 1


def test_a_row_that_is_used_again_has_nothing_of_its_last_host() -> None:
    first = a_state("first", {"VCPU": ROOMY, "VGPU": ROOMY}, traits=("CUSTOM_X",))
    picture = a_picture(first, hosts=())
    picture.hold([(WEB, 1, a_share_of("first", 3))])

    picture.prune([first.internal])
    picture.apply([a_state("second", vcpus(5))])
    picture.drop([(WEB, 1)])

    hosts = Hosts(Draft(picture))
    assert (free_of(picture, "second"), free_of(picture, "second", "VGPU")) == (5, 0)
    assert not hosts.with_any(("CUSTOM_X",))[0]
    assert not picture.rows_named("first")
    assert hosts.busy("instances")[0] == 0


def test_a_choice_counts_from_when_it_is_held_until_it_is_dropped() -> None:
    picture = a_picture(a_state("h", vcpus(16, used=4)))

    picture.hold([(WEB, 1, a_share_of("h", 3))])
    picture.hold([(DB, 1, a_share_of("h", 2))])
    assert free_of(picture, "h") == 7
    picture.drop([(WEB, 2)])
    assert free_of(picture, "h") == 7
    picture.drop([(WEB, 1)])
    picture.drop([(WEB, 1)])

    assert free_of(picture, "h") == 10


def test_a_choice_held_again_counts_as_the_later_share() -> None:
    picture = a_picture(a_state("h"))

    picture.hold([(WEB, 1, a_share_of("h", 3))])
    picture.hold([(WEB, 1, a_share_of("h", 5))])
    assert free_of(picture, "h") == 11
    picture.drop([(WEB, 1)])

    assert free_of(picture, "h") == 16


def test_what_is_held_is_kept_apart_from_what_placement_says_is_used() -> None:
    picture = a_picture(a_state("h"))
    picture.hold([(WEB, 1, a_share_of("h", 3))])

    picture.apply([a_state("h", vcpus(16, used=3), revision=2)])
    assert free_of(picture, "h") == 10
    picture.apply([a_state("h", vcpus(8, used=3), revision=3, shape=2)])
    assert free_of(picture, "h") == 2
    picture.drop([(WEB, 1)])

    assert free_of(picture, "h") == 5


def test_a_choice_on_a_host_that_nobody_knows_is_not_counted_anywhere() -> None:
    picture = a_picture(a_state("h"))

    picture.hold([(WEB, 1, a_share_of("elsewhere", 3))])
    picture.drop([(WEB, 1)])

    assert free_of(picture, "h") == 16


def test_what_is_held_counts_as_an_instance_and_as_a_build_under_way() -> None:
    picture = a_picture(a_state("h", consumers=5), hosts=(a_host("h", io_ops=2),))

    picture.hold([(WEB, 1, a_share_of("h", 1))])

    hosts = Hosts(Draft(picture))
    assert (hosts.busy("instances")[0], hosts.busy("io_ops")[0]) == (6, 3)


def test_a_child_gives_what_the_root_has_not_and_the_share_names_it() -> None:
    root = a_state("h", {"MEMORY_MB": ROOMY})
    child = a_state("h-gpu", {"VGPU": ROOMY}, parent=root.id, root=root.id, shape=4, traits=("CUSTOM_GPU",))
    for order in permutations((root, child)):
        picture = a_picture(*order)
        spec = structs.replace(a_spec(), amounts=(("MEMORY_MB", 2), ("VGPU", 3)), required=("CUSTOM_GPU",))

        (chosen,) = choose(picture, [spec], PLUGINS, salt=0)

        assert isinstance(chosen, Chosen)
        share = chosen.choice.share
        assert share.amounts == amounts(root.id, MEMORY_MB=2) + amounts(child.id, VGPU=3)
        assert [(seen.root, seen.shape) for seen in share.shapes] == [(root.id, 4)]
        picture.hold([(WEB, 1, share)])
        assert free_of(picture, "h", "VGPU") == 13
        picture.apply(
            [structs.replace(child, revision=2, inventories={"VGPU": structs.replace(ROOMY, used=3)})]
        )
        picture.drop([(WEB, 1)])
        assert free_of(picture, "h", "VGPU") == 13


def test_what_several_children_have_counts_together() -> None:
    root = a_state("h", {})
    children = [a_state(name, {"VCPU": ROOMY}, parent=root.id, root=root.id) for name in ("n0", "n1")]

    picture = a_picture(root, *children)

    assert free_of(picture, "h") == 32
    picture.use([usage_of(children[0], 3, 2)])
    assert free_of(picture, "h") == 29
    picture.prune([children[0].internal])
    assert free_of(picture, "h") == 16


def test_a_pool_that_shares_is_no_host() -> None:
    pool = a_state("pool", {"DISK_GB": ROOMY}, traits=("MISC_SHARES_VIA_AGGREGATE",))

    assert len(a_picture(pool, a_state("h"), hosts=(a_host("h"),))) == 1


def test_a_root_below_its_own_child_is_a_root_all_the_same() -> None:
    child = a_state("child", vcpus(2), parent=provider("h"), root=provider("h"))

    picture = a_picture(a_state("h", vcpus(4), parent=provider("child")), child, hosts=(a_host("h"),))

    assert free_of(picture, "h") == 6


def test_the_internal_id_of_one_provider_is_never_that_of_another() -> None:
    root, child = a_state("h", vcpus(4), internal=1), a_state("child", vcpus(2), internal=2)
    child = structs.replace(child, parent=root.id, root=root.id)

    picture = a_picture(root, child, structs.replace(root, internal=2, revision=2), hosts=(a_host("h"),))

    assert free_of(picture, "h") == 6


def test_children_without_their_root_are_no_host_until_it_comes() -> None:
    root = a_state("h")
    child = a_state("n0", {"VGPU": ROOMY}, parent=root.id, root=root.id)
    picture = a_picture(child, hosts=())
    assert len(picture) == 0

    picture.apply([root])

    assert (len(picture), free_of(picture, "h", "VGPU")) == (1, 16)


def test_a_host_of_the_registry_is_a_host_before_placement_knows_it() -> None:
    picture = a_picture(hosts=(a_host("h"),))
    assert len(picture) == 1

    picture.apply([a_state("h")])

    assert len(picture) == 1
    assert isinstance(choose(picture, [a_spec()], PLUGINS, salt=0)[0], Chosen)


def test_a_host_that_is_renamed_is_found_by_its_new_name_only() -> None:
    picture = a_picture(a_state("h"))
    renamed = structs.replace(a_host("h", io_ops=7), name="Other", sequence=2)

    picture.put_hosts([renamed, structs.replace(renamed, io_ops=8, sequence=3)])

    assert (list(picture.rows_named("h")), list(picture.rows_named("other"))) == ([], [0])
    assert Hosts(Draft(picture)).busy("io_ops").tolist() == [8]
    assert free_of(picture, "other") == 16


def rows_of(picture: Picture) -> dict[str, object]:
    columns = picture.columns
    (row,) = range(columns.rows)
    arrays = {name: each[row] for name, each in vars(columns).items() if isinstance(each, np.ndarray)}
    names = {"zone name": columns.zones.names[columns.zone[row]], "kind": columns.kinds[row]}
    profile = {"its profile": columns.profiles.names[columns.profile[row]]}
    projects = {"its projects": columns.project_sets.names[columns.projects[row]]}
    codes = dict.fromkeys(("zone", "profile", "projects"), 0)
    return arrays | names | profile | projects | codes


@pytest.mark.parametrize(
    "news",
    [
        {"io_ops": 8},
        {"instances": 3},
        {"up": False},
        {"setting": HostSetting(mode="draining", number=2)},
        {"setting": HostSetting(mode="down", number=2)},
        {"failed_builds": 2},
        {"kind": NODE},
        {"kind": NODE, "projects": ("shop",)},
        {"availability_zone": "az2"},
        {"hypervisor_type": "KVM"},
        {"hypervisor_version": 9},
        {"supports": (Supported(architecture="x86_64"),)},
        {"capabilities": {"cpu": "fast"}},
        {"report_refused": "too many"},
        {"told": 7, "must_clean": True, "sequence": 2},
    ],
    ids=str,
)
def test_a_host_that_changes_ends_in_the_picture_as_if_it_had_always_been_so(news: dict[str, object]) -> None:
    before = a_host("h", availability_zone="az1")
    after = structs.replace(before, **news)
    picture, fresh = (a_picture(a_state("h"), hosts=(each,)) for each in (before, after))

    picture.put_hosts([after])

    assert rows_of(picture) == rows_of(fresh)
    assert picture.registered(0) == after


def test_hundreds_of_hosts_and_traits_find_room() -> None:
    states = [
        a_state(f"h{number}", {"VCPU": ROOMY, f"CUSTOM_{number % 3}": ROOMY}, traits=(f"CUSTOM_T{number}",))
        for number in range(300)
    ]
    picture = a_picture(*states)

    hosts = Hosts(Draft(picture))

    assert len(picture) == 300
    assert hosts.free("VCPU").tolist() == [16] * 300
    assert hosts.free("CUSTOM_1").sum() == 1600
    for number in (0, 63, 64, 299):
        assert np.flatnonzero(hosts.with_all((f"CUSTOM_T{number}",))).tolist() == [number]
    assert not hosts.with_all(("CUSTOM_T0", "CUSTOM_T299")).any()
    assert not hosts.with_all(("CUSTOM_NOBODY",)).any()


@pytest.mark.parametrize("salt", [0, 1, 2**63, -1])
def test_preferences_are_the_same_every_time_and_know_new_hosts(salt: int) -> None:
    picture = a_picture(a_state("a"), a_state("b"))
    before = picture.preferences(salt).values.tolist()

    picture.apply([a_state("c")])

    assert picture.preferences(salt).values.tolist()[:2] == before
    assert len(set(picture.preferences(salt).values.tolist())) == 3


def test_preferences_of_hosts_that_came_and_went_are_those_of_all_hosts() -> None:
    picture = a_picture(*(a_state(f"h{number}", internal=number) for number in range(1, 20)))
    picture.preferences(1)

    for number in range(20, 40):
        picture.prune([number - 19])
        picture.apply([a_state(f"h{number}", internal=number), a_state(f"i{number}", internal=100 + number)])
        known, anew = picture.preferences(1), preferences_of(picture.columns.ids, 1)
        assert known.values.tolist() == anew.values.tolist()
        assert known.order.tolist() == anew.order.tolist()


def test_a_choice_tells_what_its_tree_was_beside_its_amounts() -> None:
    state = a_state("h1", vcpus(16), traits=("CUSTOM_A",))
    picture = a_picture(state)
    (first,) = choose(picture, [a_spec()], PLUGINS, 0)

    picture.apply([structs.replace(state, shape=2, revision=2, inventories=vcpus(32))])
    (grown,) = choose(picture, [a_spec()], PLUGINS, 0)
    picture.apply([structs.replace(state, shape=3, revision=3, traits=("CUSTOM_B",))])
    (other,) = choose(picture, [a_spec()], PLUGINS, 0)

    assert isinstance(first, Chosen)
    assert isinstance(grown, Chosen)
    assert isinstance(other, Chosen)
    assert first.choice.fingerprint == grown.choice.fingerprint == tree_fingerprint([state])
    assert other.choice.fingerprint != first.choice.fingerprint


def test_a_picture_knows_what_it_lacks_of_the_revisions_that_there_are() -> None:
    first, second = a_state("h1", internal=1, revision=4), a_state("h2", internal=2, revision=4)
    picture = a_picture(first, second)
    known = picture.trees.internals()

    assert picture.trees.behind({1: 4, 2: 3}, known) == []
    assert picture.trees.behind({1: 5, 2: 4}, known) == [1]
    assert picture.trees.behind({1: 4, 2: 4, 3: 1}, known) == [3]
    assert picture.trees.behind({1: 4}, known) == [2]
    # A host that was added while the revisions were read is missing, and a removed one is still there.
    assert picture.trees.behind({1: 4}, {1}) == []
    picture.prune([2])
    assert picture.trees.behind({1: 4, 2: 4}, known) == []


def test_what_placement_answers_replaces_what_contradicts_it() -> None:
    true = a_state("h", vcpus(16, used=2), internal=5, revision=3)
    lies: list[ProviderState | ProviderUsage] = [
        structs.replace(true, revision=2**40, inventories=vcpus(1)),
        # As late as the true one, so no later revision would show it.
        structs.replace(true, inventories=vcpus(1)),
        structs.replace(true, internal=2**40, revision=1, inventories=vcpus(1)),
        usage_of(true, 16, 2**40),
        usage_of(true, 16, 2**40, base=2**40),
    ]
    for lie in lies:
        picture = a_picture(a_state("h", vcpus(16), internal=5), hosts=(a_host("h"),))
        if isinstance(lie, ProviderState):
            picture.apply([lie])
        else:
            picture.use([lie])
        assert free_of(picture, "h") != 14

        picture.apply_read([true], picture.trees.known_now())

        assert free_of(picture, "h") == 14, lie
        assert picture.use([usage_of(true, 3, 4, base=3)])
        assert free_of(picture, "h") == 13, lie


def test_what_is_told_while_placement_is_asked_is_no_contradiction() -> None:
    picture = a_picture(a_state("h", vcpus(16), internal=5), a_state("g", internal=6))
    before = picture.trees.known_now()
    picture.use([usage_of(a_state("h", internal=5), 4, 9)])
    picture.prune([6])

    picture.apply_read([a_state("h", vcpus(16), internal=5, revision=2), a_state("g", internal=6)], before)

    assert free_of(picture, "h") == 12
    assert list(picture.rows_named("g")) == [1]
    assert not picture.has_provider(provider("g"))


def test_which_metrics_are_kept_follows_from_the_order_in_which_they_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not from the order of a set, which is another one in each process."""
    monkeypatch.setattr(columns, "METRIC_NAMES_MAX", 3)
    picture = a_picture(a_state("h"))

    picture.measure(provider("h"), dict.fromkeys(("zeta", "eta", "theta", "iota", "kappa", "mu"), 1.0))

    assert [*picture.columns.metrics] == ["zeta", "eta", "theta"]


def test_a_host_of_another_cell_with_the_name_of_one_that_is_down_does_not_make_it_up() -> None:
    down, false = a_host("h1", cell="c2", up=False), structs.replace(a_host("new"), name="H1")
    picture = a_picture(hosts=(down, false))

    assert not picture.is_up("c2", "h1")
    assert picture.is_up("c1", "h1")
    assert picture.clashes() == {"h1": ["c1", "c2"]}
    assert [*picture.rows_named("c2/h1")] == [picture.row_of(provider("h1"))]
    assert len([*picture.rows_named("h1")]) == 2

    picture.remove_hosts([provider("new")])

    assert picture.clashes() == {}
    assert picture.cells_named("H1") == ["c2"]
