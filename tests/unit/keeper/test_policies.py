"""Which policy counts for a host or a guest, and what is wrong with one."""

from typing import Any

import pytest

from bus.messages.policies import KeepingPolicy, PolicyScope, PolicyState
from keeper.core.policies import PolicySubject, group_of, may_evacuate, rule_for, values_of, wrong_policy

GUEST = PolicySubject("c1", "dc/hall/r1", frozenset({"gold", "silver"}), "shop", "small")


def policy(scope: PolicyScope = "cloud", of: str = "", **says: Any) -> KeepingPolicy:
    return KeepingPolicy(scope=scope, of=of, **says)


def test_the_narrowest_that_says_something_counts() -> None:
    """Each of these is narrower than the one before; they are given in another order."""
    wide_to_narrow = [
        policy(after_s=1, restarts=1),
        policy("cell", "c1", after_s=2),
        policy("domain", "dc", after_s=3),
        policy("domain", "dc/hall", after_s=4),
        policy("aggregate", "silver", after_s=5),
        policy("aggregate", "gold", after_s=6),
        policy("project", "shop", restarts=2),
        policy("flavor", "small", restarts=3),
    ]
    for known in range(1, len(wide_to_narrow) + 1):
        rule = rule_for(reversed(wide_to_narrow[:known]), GUEST)
        assert (rule.after_s, rule.restarts) == (min(known, 6), max(1, known - 5))
    rule = rule_for(wide_to_narrow, GUEST)
    says = {each.field: (each.value, each.scope, each.of) for each in values_of(rule)}
    assert says["after_s"] == ("6", "aggregate", "gold")
    assert says["restarts"] == ("3", "flavor", "small")
    assert says["rehearse"] == ("no", "", "")


@pytest.mark.parametrize(
    ("scope", "of"),
    [
        ("cell", "c2"),
        ("domain", "dc/hall/r2"),
        ("domain", "dc/hall/r"),
        ("aggregate", "iron"),
        ("project", "bank"),
        ("flavor", "large"),
    ],
)
def test_one_for_others_does_not_count(scope: PolicyScope, of: str) -> None:
    assert rule_for([policy(scope, of, guests="evacuate")], GUEST).guests == "leave"


def test_who_says_that_no_fence_is_needed_takes_a_wider_fence_away_and_the_other_way_round() -> None:
    fenced, unfenced = policy(fence="power-off"), policy("aggregate", "gold", unfenced="leases")
    rule = rule_for([fenced, unfenced], GUEST)
    assert (rule.fence, rule.unfenced) == ("", "leases")
    narrower = rule_for([policy(unfenced="leases"), policy("cell", "c1", fence="ipmi")], GUEST)
    assert (narrower.fence, narrower.unfenced) == ("ipmi", "")


def test_lost_hosts_are_counted_by_the_domain_or_the_cell_that_the_limit_is_for() -> None:
    def group(*known: KeepingPolicy) -> str:
        return group_of(rule_for(known, GUEST), GUEST)

    assert group() == "cell c1"
    assert group(policy(lost_max=2, level=2)) == "domain dc/hall"
    assert group(policy(lost_max=2, level=2), policy("cell", "c1", lost_max=1)) == "cell c1"
    assert group(policy("domain", "dc/hall", lost_max=2)) == "domain dc/hall"
    assert group(policy("domain", "dc/hall", lost_max=2, level=3)) == "domain dc/hall/r1"
    assert group(policy("domain", "dc/hall", lost_max=2, level=1)) == "domain dc/hall"
    assert group_of(rule_for([policy(lost_max=2, level=4)], GUEST), GUEST) == "cell c1"


def test_keepers_look_for_lost_hosts_only_if_a_policy_has_guests_evacuated() -> None:
    assert not may_evacuate([PolicyState(policy=policy(guests="restart"))])
    assert may_evacuate(
        [PolicyState(policy=policy(restarts=1)), PolicyState(policy=policy(guests="evacuate"))]
    )


@pytest.mark.parametrize(
    ("wrong", "field", "value"),
    [
        (policy(guests="leave", of="c1"), "of", "c1"),
        (policy("cell", guests="leave"), "of", ""),
        (policy("domain", "dc//r1", guests="leave"), "of", "dc//r1"),
        (policy(), "guests", None),
        (policy("project", "shop", after_s=5), "after_s", 5),
        (policy("flavor", "small", rehearse=True), "rehearse", True),
        (policy(fence="a", unfenced="b"), "unfenced", "b"),
        (policy(fence_s=0), "fence_s", 0),
        (policy(level=2), "level", 2),
        (policy(restarts=101), "restarts", 101),
    ],
)
def test_what_is_wrong_is_named(wrong: KeepingPolicy, field: str, value: object) -> None:
    found = wrong_policy(wrong)
    assert found is not None
    assert (found[0], found[1]) == (f"policy.{field}", value)


def test_what_is_right_is_taken() -> None:
    assert wrong_policy(policy("project", "shop", guests="leave", restarts=0)) is None
    assert wrong_policy(policy(fence="", unfenced="leases", lost_max=0, level=0)) is None
