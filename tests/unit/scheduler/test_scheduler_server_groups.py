"""The choice of hosts for members of server groups."""

from collections import Counter

import pytest

from engine.choosing.choosing import Chosen, choose
from engine.inventories import (
    ConsumerId,
    GroupId,
    GroupMember,
    GroupPolicy,
    ServerGroup,
)
from engine.picture.picture import Picture
from engine.refusals import NoValidHost
from engine.requests import InstanceSpec
from tests.contracts.placement_orders import WEB, an_id, provider
from tests.plugins import standard_plugins
from tests.unit.choosing.scheduler_worlds import a_picture, a_state, vcpus

GROUP = GroupId(an_id("group"))
PLUGINS = standard_plugins()
SALT = 5


def a_spec(policy: GroupPolicy, max_per_host: int = 1, vcpu: int = 1) -> InstanceSpec:
    group = ServerGroup(id=GROUP, policy=policy, max_per_host=max_per_host)
    return InstanceSpec(amounts=(("VCPU", vcpu),), server_group=group)


def a_cloud(*used: int) -> Picture:
    """Hosts h0, h1 and so on of 16 VCPU each, with this much in use."""
    return a_picture(
        *[a_state(f"h{number}", vcpus(16, each), internal=number + 1) for number, each in enumerate(used)]
    )


def a_member(who: ConsumerId, host: str, group: GroupId = GROUP) -> GroupMember:
    return GroupMember(group=group, consumer=who, attempt=1, host=provider(host))


def hosts(outcomes: list[Chosen | NoValidHost]) -> list[str]:
    assert all(isinstance(each, Chosen) for each in outcomes), outcomes
    return [each.choice.name for each in outcomes if isinstance(each, Chosen)]


def chosen(picture: Picture, spec: InstanceSpec, instances: int) -> list[Chosen | NoValidHost]:
    return choose(picture, [spec] * instances, PLUGINS, SALT)


@pytest.mark.parametrize("max_per_host", [1, 2, 3])
def test_members_that_are_kept_apart_share_no_host_beyond_the_limit(max_per_host: int) -> None:
    picture = a_cloud(0, 4, 8, 12)
    picture.groups.join([a_member(WEB, "h2")])
    spec = a_spec("anti-affinity", max_per_host)

    outcomes = chosen(picture, spec, 4 * max_per_host)

    *placed, last = outcomes
    counts = Counter(hosts(placed))
    assert counts == {
        host: max_per_host - (host == "h2")
        for host in ("h0", "h1", "h2", "h3")
        if max_per_host > (host == "h2")
    }
    assert isinstance(last, NoValidHost)


def test_the_first_member_of_an_affinity_group_fixes_the_host_of_the_others_in_its_batch() -> None:
    # Without the group, each host would get one of these.
    outcomes = chosen(a_cloud(0, 0, 0), a_spec("affinity"), 3)

    assert len(set(hosts(outcomes))) == 1
    first, *others = outcomes
    assert isinstance(first, Chosen)
    assert len(first.alternates) == 2
    assert all(isinstance(each, Chosen) and not each.alternates for each in others)


def test_an_affinity_group_stays_on_its_host_and_the_refusal_names_it() -> None:
    picture = a_cloud(15, 0)
    picture.groups.join([a_member(WEB, "h0")])

    fits, too_large = (
        chosen(picture, a_spec("affinity"), 1),
        chosen(picture, a_spec("affinity", vcpu=2), 1),
    )

    assert hosts(fits) == ["h0"]
    (why,) = too_large
    assert isinstance(why, NoValidHost)
    assert [(step.step, step.removed) for step in why.steps] == [("affinity", 1), ("capacity", 1)]
    assert why.steps[0].example == f"h1: server group {GROUP} (affinity) is with instance {WEB} on h0"


def test_an_unanswered_choice_of_this_scheduler_counts_as_a_member() -> None:
    picture = a_cloud(0, 8)
    picture.groups.hold(a_member(WEB, "h0"))

    assert hosts(chosen(picture, a_spec("anti-affinity"), 1)) == ["h1"]
    picture.drop([(WEB, 1)])
    assert hosts(chosen(picture, a_spec("anti-affinity"), 1)) == ["h0"]


def test_soft_affinity_gathers_and_soft_anti_affinity_spreads() -> None:
    apart = chosen(a_cloud(0, 0, 0, 0), a_spec("soft-anti-affinity"), 8)
    together = chosen(a_cloud(0, 0, 0, 0), a_spec("soft-affinity"), 8)

    assert set(Counter(hosts(apart)).values()) == {2}
    assert max(Counter(hosts(together)).values()) >= 6
