"""Steps of a balance when their turns come, and which members of groups are where their rules do not let them be."""

from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.build import InstanceDetails, Size
from bus.messages.hosts import ClassAmounts, HostUse
from bus.messages.keeping import CampaignState, CampaignWork
from bus.messages.planning import DrainedInstance
from bus.messages.projects import GroupState
from engine.goals import BalanceFigures
from engine.hosts import HostSetting, HostState
from engine.inventories import GroupId, PlaceRule
from keeper.core.balance import (
    GAINS_NOTHING,
    after_steps,
    broken_members,
    gain_between,
    judged,
    loaded,
    movable,
)
from keeper.core.campaigns import failed, staged
from tests.unit.keeper.test_emptying import CAMPAIGN, HOST, NOON, guest_id, guests, movement

EVEN = structs.replace(CAMPAIGN, work=CampaignWork(kind="balance", goal="even"))
FILL = structs.replace(CAMPAIGN, work=CampaignWork(kind="balance", goal="fill"))
GIVING = staged(HOST, "giving", NOON)
UP = HostState(id=HOST.id, name="h1", cell="c1", up=True)
GROUP = GroupId(UUID(int=7))


@pytest.mark.parametrize(
    ("campaign", "known", "told", "stage", "withdrawn"),
    [
        (EVEN, [movement(1), movement(2, "done")], UP, "giving", set()),
        (EVEN, [movement(1, "done")], UP, "done", set()),
        (EVEN, [movement(1, "withdrawn")], UP, "skipped", set()),
        (EVEN, [movement(1, "given_up", reason="full"), movement(2, "done")], UP, "failed", set()),
        (EVEN, [movement(1)], structs.replace(UP, up=False), "skipped", {1}),
        (EVEN, [movement(1)], None, "giving", set()),
        (
            EVEN,
            [movement(1), movement(2, "moving")],
            structs.replace(UP, setting=HostSetting(mode="draining")),
            "giving",
            {1},
        ),
        # Its host would not be empty.
        (FILL, [movement(1), movement(2, "withdrawn"), movement(3, "done")], UP, "done", {1}),
        (EVEN, [movement(1), movement(2, "withdrawn")], UP, "giving", set()),
        (FILL, [movement(1), movement(2, "given_up")], UP, "failed", {1}),
    ],
)
def test_a_host_gives_guests_until_its_steps_have_ended(
    campaign: CampaignState, known: list[Any], told: HostState | None, stage: str, withdrawn: set[int]
) -> None:
    after = after_steps(campaign, GIVING, known, told, NOON)
    assert after.host.stage == stage
    assert {*after.withdrawn} == {movement(each).id for each in withdrawn}
    assert after.host.left == sum(each.life in ("planned", "moving") for each in known) - len(withdrawn)


@pytest.mark.parametrize(
    ("step", "gain", "plan", "life", "reason", "to"),
    [
        (movement(1), 0.5, DrainedInstance(id=guest_id(1), to="h2"), "planned", "", "h2"),
        (movement(1), 0.0, DrainedInstance(id=guest_id(1), to="h2"), "withdrawn", GAINS_NOTHING, ""),
        (movement(1), 0.5, DrainedInstance(id=guest_id(1), reason="full"), "withdrawn", "full", ""),
        (movement(1), 0.5, None, "withdrawn", "no scheduler knows it", ""),
        (
            movement(1),
            0.5,
            DrainedInstance(id=guest_id(1), reason="busy: it moves"),
            "planned",
            "it moves",
            "",
        ),
    ],
)
def test_a_step_is_made_if_it_gains_something_and_finds_its_place(
    step: Any, gain: float, plan: DrainedInstance | None, *, life: str, reason: str, to: str
) -> None:
    after = judged(step, gain, plan, NOON)
    assert (after.life, after.reason, after.to) == (life, reason, to)


def test_a_step_is_tried_once_and_another_movement_three_times() -> None:
    step = failed(movement(1, "moving", wish="c1/h2"), "it was full", NOON)
    assert (step.life, step.reason) == ("given_up", "it was full")
    assert failed(movement(1, "moving"), "it was full", NOON).life == "planned"


def test_only_guests_whose_size_is_known_and_that_need_no_company_may_move() -> None:
    ((told, _),) = guests(1)
    size = Size(flavor="small", amounts={"VCPU": 1})
    whole = InstanceDetails(id=told.id, size=size)
    found = movable(structs.replace(told, cell="c1"), whole)
    assert found is not None
    assert (found.host, found.amounts) == ("c1/h1", {"VCPU": 1})
    assert movable(structs.replace(told, state="stopped"), whole) is not None
    assert movable(structs.replace(told, state="moving"), whole) is None
    assert movable(told, InstanceDetails(id=told.id)) is None
    assert movable(told, structs.replace(whole, policy="affinity")) is None


def test_nothing_comes_to_a_host_that_is_set_otherwise_or_that_a_campaign_has() -> None:
    use = HostUse(host=HOST.id, classes={"VCPU": ClassAmounts(used=2, capacity=8)})
    assert loaded(UP, use, is_free=True).takes
    assert not loaded(UP, use, is_free=False).takes
    for changed in ({"up": False}, {"must_clean": True}, {"setting": HostSetting(mode="draining")}):
        assert not loaded(structs.replace(UP, **changed), use, is_free=True).takes


def test_a_gain_is_a_part_of_what_is_to_be_gained() -> None:
    before, after = BalanceFigures(hosts=4, empty=1, spread=0.4), BalanceFigures(hosts=4, empty=2, spread=0.1)
    assert gain_between(before, after, EVEN.work) == pytest.approx(75)
    assert gain_between(before, after, FILL.work) == pytest.approx(100 / 3)
    assert gain_between(BalanceFigures(), after, EVEN.work) == 0


@pytest.mark.parametrize(
    ("group", "hosts", "broken"),
    [
        (GroupState(id=GROUP, policy="anti-affinity"), "h1 h1 h2", [2]),
        (GroupState(id=GROUP, policy="anti-affinity", max_per_host=2), "h1 h1 h2", []),
        (GroupState(id=GROUP, policy="soft-anti-affinity"), "h1 h1 h1", []),
        (
            GroupState(
                id=GROUP,
                policy="soft-anti-affinity",
                rules=(PlaceRule(level=1, policy="anti-affinity", max_members=1),),
            ),
            # h1 and h2 are in one rack, and h4 is in none.
            "h1 h2 h3 h4",
            [2, 4],
        ),
        (
            GroupState(id=GROUP, policy="soft-affinity", rules=(PlaceRule(level=1, policy="affinity"),)),
            "h1 h2 h3",
            [3],
        ),
    ],
)
def test_members_beyond_what_their_group_allows_are_broken(
    group: GroupState, hosts: str, broken: list[int]
) -> None:
    places = {"c1/h1": "r1", "c1/h2": "r1", "c1/h3": "r2"}
    members = [
        (
            structs.replace(told, cell="c1", host=host),
            InstanceDetails(id=told.id, group=GROUP, policy=group.policy),
        )
        for (told, _), host in zip(guests(*range(1, 1 + len(hosts.split()))), hosts.split(), strict=True)
    ]
    assert broken_members(members, {GROUP: group}, places) == [guest_id(each) for each in broken]


def test_of_members_too_many_those_with_the_least_priority_move() -> None:
    group = GroupState(id=GROUP, policy="anti-affinity")
    members = [
        (
            structs.replace(told, cell="c1"),
            InstanceDetails(id=told.id, group=GROUP, policy="anti-affinity", priority=priority),
        )
        for (told, _), priority in zip(guests(1, 2, 3), (0, 5, 1), strict=True)
    ]
    assert broken_members(members, {GROUP: group}, {}) == [guest_id(3), guest_id(1)]
    # A group that is not known has no broken rules.
    assert broken_members(members, {}, {}) == []
