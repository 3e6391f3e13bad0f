"""Two choices are compared by how hosts looked to our filters and weighers at one moment."""

import pytest

from engine.choosing.hosts import Occupant, what_if
from engine.choosing.planning import HostViews, reason_against, views_of
from engine.inventories import ProviderId, ResourceAmount
from engine.picture.picture import Picture
from engine.requests import InstanceSpec
from nova_bridge.shadow.notes import (
    ChoicesCompared,
    HostsPaired,
    compare_choices,
    reason_in_words,
)
from tests.contracts.placement_orders import consumer, provider
from tests.plugins import standard_plugins
from tests.unit.choosing.scheduler_worlds import a_picture, a_spec, a_state, vcpus

A, B, C = provider("a"), provider("b"), provider("c")
NAMES = {A: "a", B: "b", C: "c"}
PLUGINS = standard_plugins()


def cloud(**free: int) -> Picture:
    """Hosts with so many free processors of 16."""
    return a_picture(
        *[
            a_state(name, vcpus(16, 16 - each), internal=number)
            for number, (name, each) in enumerate(free.items(), 1)
        ]
    )


def views(picture: Picture, spec: InstanceSpec | None = None, instances: int = 1) -> HostViews:
    return views_of(what_if(picture), spec or a_spec(2), PLUGINS, salt=7, instances=instances)


def compared(ours: ProviderId | None, nova: ProviderId | None, seen: HostViews | None) -> ChoicesCompared:
    return compare_choices(HostsPaired(ours, nova), seen)


def test_hosts_are_equal_worse_or_better_by_our_weighers() -> None:
    seen = views(cloud(a=16, b=16, c=4))

    assert compared(A, B, seen) == ChoicesCompared("as_good")
    worse, better = compared(A, C, seen), compared(C, A, seen)
    assert (worse.verdict, better.verdict) == ("nova_worse", "nova_better")
    assert [(each.weigher, each.ours, each.nova) for each in worse.weighed] == [("cpu", 16, 4)]
    assert worse.weighed[0].ahead == pytest.approx(-better.weighed[0].ahead)
    said = reason_in_words(worse, HostsPaired(A, C), NAMES.__getitem__, why_filtered="")
    assert said.startswith("cpu 16 on a, 4 on c (+")


def test_a_host_that_our_filters_refuse_is_named_with_the_filter() -> None:
    picture = cloud(a=16, b=1)
    seen = views(picture)

    found = compared(A, B, seen)
    assert (found.verdict, found.filter) == ("filtered", "capacity")
    why = reason_against(what_if(picture), a_spec(2), PLUGINS, picture.row_of(B))
    said = reason_in_words(found, HostsPaired(A, B), NAMES.__getitem__, why_filtered=why)
    assert said == "capacity refuses b: VCPU asked 2, free 1 of 16"
    later = reason_in_words(found, HostsPaired(A, B), NAMES.__getitem__, why_filtered="")
    assert later == "capacity refuses b: it had when the request came, and has not any more"


def test_what_the_instance_holds_already_is_no_reason_against_its_host() -> None:
    picture = cloud(a=0, b=0)
    held = (ResourceAmount(provider=A, resource="VCPU", amount=2),)
    leaving = [Occupant(consumer("web"), A, held)]

    with_own = views_of(what_if(picture), a_spec(2), PLUGINS, salt=7)
    without = views_of(what_if(picture, gone=leaving), a_spec(2), PLUGINS, salt=7)
    assert [with_own.filter_against(with_own.row_of(each)) for each in (A, B)] == ["capacity"] * 2
    assert [without.filter_against(without.row_of(each)) for each in (A, B)] == ["", "capacity"]
    assert reason_against(what_if(picture, gone=leaving), a_spec(2), PLUGINS, picture.row_of(A)) == ""
