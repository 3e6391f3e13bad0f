"""Which hosts are lost, and what is done about them."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.keeping import CampaignHost, CampaignId, Movement, MovementId
from engine.flavors import InstanceId
from engine.hosts import HostSetting, HostState
from engine.inventories import ConsumerId, ProviderId
from keeper.core.policies import PolicyRule
from keeper.core.recovery import (
    Loss,
    Suspect,
    campaign_for,
    is_due,
    is_silent,
    losses,
    lost_host,
    question_about_all,
    rehearsed,
    taken_over,
)

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
RULE = PolicyRule(guests="evacuate", fence="power-off", lost_max=2)


def host(number: int = 1, **fields: Any) -> HostState:
    silent = {"up": False, "silent_since": NOON, "silent_in_cell": True, **fields}
    return HostState(id=ProviderId(UUID(int=number)), name=f"h{number}", cell="c1", **silent)


def suspect(number: int = 1, group: str = "cell c1", rule: PolicyRule = RULE, **fields: Any) -> Suspect:
    return Suspect(host(number, **fields), rule, group)


def test_a_host_is_silent_only_by_all_that_can_tell() -> None:
    assert is_silent(host())
    assert is_silent(host(setting=HostSetting(mode="draining")))


@pytest.mark.parametrize(
    "fields",
    [
        {"up": True},
        {"silent_since": None},
        {"silent_in_cell": False},
        {"kind": "ironic"},
        {"setting": HostSetting(mode="down")},
        {"setting": HostSetting(mode="dead")},
    ],
)
def test_one_that_is_heard_or_was_set_down_is_not_lost(fields: dict[str, Any]) -> None:
    assert not is_silent(host(**fields))


def test_a_host_is_lost_after_the_time_of_its_policy_but_never_before_its_rack_is_seen() -> None:
    soonest = timedelta(seconds=65)
    early, late = NOON + timedelta(seconds=64), NOON + timedelta(seconds=65)
    assert [is_due(suspect(), at, soonest) for at in (early, late)] == [False, True]
    slow = suspect(rule=structs.replace(RULE, after_s=120))
    assert [is_due(slow, NOON + timedelta(seconds=s), soonest) for s in (119, 120)] == [False, True]


def test_each_of_a_few_is_recovered_alone() -> None:
    some = [suspect(1), suspect(2)]
    assert losses(some, some, {}, ()) == [Loss((some[0],)), Loss((some[1],))]


def test_more_than_the_limit_are_one_question_also_about_those_that_are_not_due_yet() -> None:
    some = [suspect(each) for each in (1, 2, 3)]
    (loss,) = losses(some, some[:1], {}, ())
    assert [each.host.name for each in loss.hosts] == ["h1", "h2", "h3"]
    assert (loss.of, loss.why) == (
        "cell c1",
        "3 hosts of cell c1 were lost within an hour, and lost_max is 2",
    )


def test_those_that_were_lost_before_count_and_those_of_other_domains_do_not() -> None:
    due = [suspect(3)]
    before = [("cell c1", ProviderId(UUID(int=each))) for each in (1, 2)]
    assert losses(due, due, {}, before)[0].why.startswith("3 hosts of cell c1")
    assert losses(due, due, {}, before[:1]) == [Loss((due[0],))]
    others = [("domain r2", ProviderId(UUID(int=each))) for each in (1, 2)]
    assert losses(due, due, {}, others) == [Loss((due[0],))]
    # One that was lost an hour ago and is lost again counts once.
    again = [("cell c1", due[0].host.id), before[0]]
    assert losses(due, due, {}, again) == [Loss((due[0],))]


def test_a_domain_that_is_silent_as_a_whole_is_a_question_though_it_is_small() -> None:
    some = [suspect(1), suspect(2)]
    dead = {each.host.id: "domain r1" for each in some}
    (loss,) = losses(some, some, dead, ())
    assert (loss.of, loss.why) == ("domain r1", "all hosts of domain r1 are silent")
    assert loss.hosts == some


def test_one_question_has_all_if_the_limit_is_passed_by_whole_domains() -> None:
    some = [suspect(each) for each in (1, 2, 3)]
    dead = {each.host.id: "domain r1" for each in some[:2]}
    assert [each.of for each in losses(some, some, dead, ())] == ["cell c1"]


def test_two_racks_that_are_counted_apart_are_two_questions() -> None:
    rule = structs.replace(RULE, lost_max=0)
    some = [suspect(1, "domain r1", rule), suspect(2, "domain r2", rule)]
    assert {each.of for each in losses(some, some, {}, ())} == {"domain r1", "domain r2"}


def test_the_campaign_of_a_loss_empties_all_of_it_and_stops_at_no_failure() -> None:
    loss = Loss([suspect(1), suspect(2, rule=structs.replace(RULE, fence_s=300))], "too many", "cell c1")
    campaign = campaign_for(CampaignId(UUID(int=9)), "lost-c1", loss, NOON, 86_400)
    work = campaign.work
    assert (work.kind, work.by_policy, work.at_once, work.failures_max) == ("evacuate", True, 2, 3)
    assert (work.fence_s, work.reason, work.wait_s) == (300, "too many", 86_400)
    question = question_about_all(campaign, loss, NOON)
    assert (question.host_id, question.host) == (None, "cell c1")
    assert question.text == "Are these hosts lost? too many: h1, h2."
    many = Loss([suspect(each) for each in range(1, 31)], "too many", "cell c1")
    assert question_about_all(campaign, many, NOON).text.endswith(" and 10 more.")


@pytest.mark.parametrize(
    ("fields", "guests", "why", "said"),
    [
        ({}, 2, "", "it would be fenced by power-off, and 2 guests would be built anew elsewhere"),
        ({"fence": "", "unfenced": "leases"}, 2, "", "it would be not fenced, and 2 guests"),
        ({"fence": ""}, 2, "", "it would be asked about first, and 2 guests"),
        ({}, 2, "too many", "a person would be asked: too many"),
        ({}, 0, "too many", "nothing: its policies let no guest leave"),
    ],
)
def test_a_rehearsal_says_what_would_be(fields: dict[str, Any], guests: int, why: str, said: str) -> None:
    lost: CampaignHost = structs.replace(lost_host(suspect()), **fields)
    after = rehearsed(lost, guests, why, NOON)
    assert (after.stage, after.left) == ("skipped", guests)
    assert after.reason.startswith(f"rehearsal: {said}")


@pytest.mark.parametrize(
    ("life", "campaign", "after"),
    [
        ("planned", 1, "withdrawn"),
        ("granted", 9, "granted"),
        ("moving", 9, "moving"),
        ("given_up", 1, "given_up"),
    ],
)
def test_of_a_drain_what_goes_on_is_taken_over_and_what_is_planned_is_withdrawn(
    life: Any, campaign: int, after: str
) -> None:
    known = Movement(
        id=MovementId(UUID(int=1)),
        instance=InstanceId(ConsumerId(UUID(int=2))),
        campaign=CampaignId(UUID(int=1)),
        cause="campaign spring",
        cell="c1",
        host="h1",
        life=life,
    )
    new = campaign_for(CampaignId(UUID(int=9)), "lost-c1-h1", Loss((suspect(),)), NOON, 60)
    now = taken_over(known, new, "it is lost", NOON)
    assert (now.campaign, now.life) == (CampaignId(UUID(int=campaign)), after)
