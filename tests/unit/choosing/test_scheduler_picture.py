"""The picture: whatever order states come in, it ends as the last of them says."""

from itertools import permutations

import numpy as np
import pytest
from msgspec import structs

from engine.choosing.choosing import Chosen, choose
from engine.choosing.planning import plan
from engine.hosts import NODE, HostSetting, Supported
from engine.inventories import ProviderState, ProviderUsage, Share, tree_fingerprint
from engine.picture.picture import Picture
from engine.requests import InstanceSpec
from tests.contracts.placement_orders import DB, WEB, amounts, provider
from tests.plugins import standard_plugins
from tests.unit.choosing.scheduler_worlds import a_host, a_picture, a_spec, a_state, usage_of, vcpus

PLUGINS = standard_plugins()


def free_of(picture: Picture, name: str, resource: str = "VCPU") -> int:
    spec = InstanceSpec(amounts=((resource, 1),), hosts=(name.lower(),))
    return plan(picture, spec, standard_plugins(io_ops_max=0, instances_max=0)).fit


def a_share_of(name: str, vcpu: int) -> Share:
    return Share(host=provider(name), amounts=amounts(provider(name), VCPU=vcpu))


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


def test_a_provider_that_is_gone_stays_gone_when_its_past_comes_late() -> None:
    host = a_state("h")
    picture = a_picture(host, hosts=())

    picture.prune([host.internal])
    picture.apply([structs.replace(host, revision=5)])

    assert len(picture) == 0


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
