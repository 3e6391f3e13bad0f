"""Hosts in domains: which of them a request for a domain, or a group with rules, may have; why not the others; and how many fit."""

from collections.abc import Mapping

import numpy as np
import pytest
from msgspec import structs

from engine.choosing.choosing import Chosen, choose, more_alternates
from engine.choosing.planning import plan, reasons
from engine.choosing.plugin_settings import PluginSettings, chosen_plugins
from engine.flavors import Flavor
from engine.inventories import (
    GroupId,
    GroupMember,
    GroupPolicy,
    PlaceRule,
    ProviderState,
    ServerGroup,
    tree_fingerprint,
)
from engine.picture.picture import Picture
from engine.places import why_no_place
from engine.requests import Alternative, InstanceSpec
from tests.contracts.placement_orders import an_id, consumer, provider
from tests.unit.choosing.scheduler_worlds import a_picture, a_spec, a_state, vcpus

PLUGINS = chosen_plugins(PluginSettings())
GROUP = GroupId(an_id("ruled"))
PLACES = {
    "a1": "dc1/hall1/rack1",
    "a2": "dc1/hall1/rack1",
    "b1": "dc1/hall1/rack2",
    "c1": "dc1/hall2/rack3",
    "far": "dc1",
    "none": "",
}


def placed(name: str, place: str, revision: int = 1) -> ProviderState:
    state = a_state(name, vcpus(4), revision=revision, shape=revision)
    return structs.replace(state, place=place)


def cloud(members: Mapping[str, str]) -> Picture:
    """The hosts at these places, and the members of the group by their hosts."""
    picture = a_picture(*[placed(name, place) for name, place in PLACES.items()])
    picture.groups.join(
        GroupMember(group=GROUP, consumer=consumer(who), attempt=1, host=provider(host))
        for who, host in members.items()
    )
    return picture


def ruled(
    level: int, policy: GroupPolicy = "anti-affinity", most: int = 1, of: GroupPolicy = "soft-affinity"
) -> InstanceSpec:
    rule = PlaceRule(level=level, policy=policy, max_members=most)
    return structs.replace(a_spec(), server_group=ServerGroup(id=GROUP, policy=of, rules=(rule,)))


def moving(spec: InstanceSpec, who: str) -> InstanceSpec:
    return structs.replace(spec, mover=consumer(who))


def refusals(picture: Picture, spec: InstanceSpec) -> dict[str, str]:
    verdicts, _ = reasons(picture, (Alternative("", Flavor(), spec),), PLUGINS, step="", after="", limit=20)
    return {each.host: f"{each.step}: {each.reason}" if each.step else "" for each in verdicts}


@pytest.mark.parametrize(
    ("members", "spec", "open_hosts"),
    [
        ({}, structs.replace(a_spec(), place="dc1/hall1"), "a1 a2 b1"),
        ({}, structs.replace(a_spec(), place="dc1"), "a1 a2 b1 c1 far"),
        ({}, structs.replace(a_spec(), place="dc1/hall"), ""),
        ({}, ruled(3), "a1 a2 b1 c1"),
        ({}, ruled(3, "soft-anti-affinity"), "a1 a2 b1 c1 far none"),
        ({"x": "a1"}, ruled(3), "b1 c1"),
        ({"x": "a1"}, ruled(3, most=2), "a1 a2 b1 c1"),
        ({"x": "a1", "y": "a2"}, ruled(3, most=2), "b1 c1"),
        ({"x": "a1", "y": "a2"}, moving(ruled(3, most=2), "x"), "a1 a2 b1 c1"),
        ({"x": "a1"}, ruled(2, "affinity"), "a1 a2 b1"),
        ({"x": "a1"}, moving(ruled(2, "affinity"), "x"), "a1 a2 b1 c1"),
        ({"x": "a1", "y": "b1"}, moving(ruled(2, "affinity"), "x"), "a1 a2 b1"),
        # They are apart already: placement lets nobody join either half.
        ({"x": "a1", "y": "c1"}, ruled(2, "affinity"), ""),
        # Nobody knows the domain of a member on a host that the picture does not have.
        ({"x": "gone"}, ruled(2, "affinity"), ""),
        ({"x": "a1"}, ruled(3, of="affinity"), ""),
    ],
)
def test_these_hosts_are_open(members: Mapping[str, str], spec: InstanceSpec, open_hosts: str) -> None:
    picture = cloud(members)

    assert " ".join(name for name, why in refusals(picture, spec).items() if not why) == open_hosts
    (found,) = choose(picture, [spec], PLUGINS, 0)
    assert (found.choice.name in open_hosts.split()) if isinstance(found, Chosen) else not open_hosts


def test_reasons_name_the_rule_and_the_domain() -> None:
    told = refusals(cloud({"x": "a1"}), ruled(3))
    assert told["a2"] == (
        f"group rules: server group {GROUP} (anti-affinity in domains of level 3, at most 1) has 1 members in dc1/hall1/rack1"
    )
    assert told["far"].endswith("at most 1): the host's place has no such domain")
    asked = refusals(cloud({}), structs.replace(a_spec(), place="dc1/hall2"))
    assert (asked["a1"], asked["none"]) == (
        "place: asked 'dc1/hall2', is at 'dc1/hall1/rack1'",
        "place: asked 'dc1/hall2', and has no place",
    )


@pytest.mark.parametrize(
    ("members", "spec", "fit"),
    [
        ({}, ruled(3, most=2), 6),
        ({"x": "a1"}, ruled(3, most=2), 5),
        ({}, ruled(1, most=3), 3),
        ({}, ruled(2, "affinity"), 12),
        ({"x": "c1"}, ruled(2, "affinity"), 4),
        ({}, structs.replace(a_spec(), place="dc1/hall2"), 4),
    ],
)
def test_a_plan_says_how_many_fit_and_what_would_help(
    members: Mapping[str, str], spec: InstanceSpec, fit: int
) -> None:
    found = plan(cloud(members), spec, PLUGINS)

    assert found.fit == fit
    helps = {each.change for each in found.relaxations}
    assert helps & {"in any place", "without its server group"}


def test_soft_rules_prefer_domains_and_a_batch_spreads_over_them() -> None:
    spread = ruled(2, "soft-anti-affinity", of="soft-anti-affinity")
    found = choose(cloud({}), [structs.replace(spread, place="dc1/hall1")] * 3, PLUGINS, 0)
    assert {each.choice.name for each in found if isinstance(each, Chosen)} == {"a1", "a2", "b1"}
    halls = choose(cloud({"x": "a1"}), [structs.replace(spread, ignore_hosts=("far", "none"))], PLUGINS, 0)
    assert [each.choice.name for each in halls if isinstance(each, Chosen)] == ["c1"]
    together = choose(cloud({"x": "c1"}), [ruled(2, "soft-affinity")], PLUGINS, 0)
    assert [each.choice.name for each in together if isinstance(each, Chosen)] == ["c1"]
    batch = choose(cloud({}), [ruled(3)] * 5, PLUGINS, 0)
    assert len({each.choice.name for each in batch if isinstance(each, Chosen)}) == 3
    others = more_alternates(cloud({"x": "a1"}), ruled(3), PLUGINS, cell="c1", salt=0, count=9, start=0)
    assert {each.name for each in others} == {"b1", "c1"}


def test_a_host_that_is_placed_anew_is_in_its_new_domains() -> None:
    picture = cloud({"x": "a1"})
    spec = ruled(3)
    before = picture.columns.fingerprints[picture.row_of(provider("b1"))]
    choose(picture, [spec], PLUGINS, 0)

    picture.apply([placed("b1", "dc1/hall1/rack1", revision=2), placed("far", "dc2/hall1/rack9", revision=2)])

    assert " ".join(name for name, why in refusals(picture, spec).items() if not why) == "c1 far"
    assert picture.place_of(provider("far")) == "dc2/hall1/rack9"
    assert picture.columns.fingerprints[picture.row_of(provider("b1"))] != before
    assert tree_fingerprint([a_state("b1")]) == tree_fingerprint([placed("b1", "")])
    assert np.count_nonzero(picture.columns.domain(8)) == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", ""),
        ("dc1/hall_2/row-7/r.3", ""),
        ("/".join("d" * 8), ""),
        ("/".join("d" * 9), "at most 8 names, and this has 9"),
        ("/".join("d" * 300), "at most 255 characters, and this has 599"),
        ("d" * 64, "a place is names"),
        *[(each, "a place is names") for each in ("/dc1", "dc1/", "dc1//r", "dc 1", "dc1/\n", "dç1")],
    ],
)
def test_a_place_is_names_of_domains(text: str, why: str) -> None:
    assert (why in why_no_place(text)) if why else why_no_place(text) == ""
