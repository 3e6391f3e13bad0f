"""Two and four scheduler processes on the real servers choose at the same time, each by its own picture.

The sizes are small here; `several_schedulers.py` runs the same at their whole size.
"""

import pytest

from tests.adversity.several_schedulers import APART, PROJECT, Size, run, unexplained

pytestmark = [pytest.mark.rabbitmq, pytest.mark.postgresql]

CONFLICTS_MAX = 0.02


async def test_few_claims_of_two_schedulers_that_spread_conflict() -> None:
    # Each scheduler alone spreads evenly. So a host gets at most 22, even if neither hears of the other. Builds under way do not
    # count: they are told late, and one of them would count more than all CPUs.
    found = await run(Size(schedulers=2, hosts=8, boots=160, capacity=24, io_ops_weight=0.0))

    assert found.ends == {"active": 160}
    assert found.conflict_share < CONFLICTS_MAX, found
    assert found.looks >= 160
    assert found.problems == ()


async def test_the_limit_of_instances_is_kept_at_every_commit_when_four_schedulers_burst() -> None:
    found = await run(Size(schedulers=4, hosts=4, boots=100, instances_max=10))

    assert found.ends == {"active": 40, "error": 60}
    assert found.most_consumers == 10
    assert found.looks >= 40
    assert found.problems == ()


async def test_no_two_members_kept_apart_share_a_host_at_any_commit_while_spawns_fail() -> None:
    # More members than hosts: some end in error, whatever fails.
    found = await run(Size(schedulers=4, hosts=12, boots=16, failing=0.3), group=APART)

    assert found.ends["active"] + found.ends["error"] == 16
    assert found.ends["error"] >= 4
    assert unexplained(found) == []
    assert found.most_members == 1, found
    assert found.looks >= found.ends["active"]
    assert found.problems == ()


async def test_a_quota_is_kept_at_every_commit_by_four_schedulers_and_two_placement_workers() -> None:
    size = Size(schedulers=4, placements=2, hosts=8, boots=120, capacity=24, failing=0.05, limit=60)
    found = await run(size, project=PROJECT)

    assert found.most_of_project == 60, found
    # An instance may also end in error because its spawns failed, after the last boot was refused.
    failed = [state for state in found.states if state.state == "error" and state not in found.refused]
    assert 60 - len(failed) <= found.ends["active"] <= 60
    assert len(found.refused) >= 50
    reason = "over the quota of project shop: instances limit 60, used 60, asked 1"
    assert {state.reason for state in found.refused} == {reason}
    assert found.problems == ()
