"""Two and four scheduler processes on the real servers choose at the same time, each by its own picture.

The sizes are small here; `several_schedulers.py` runs the same at their whole size.
"""

import pytest

from tests.adversity.several_schedulers import Size, apart, limited, spread, unexplained

pytestmark = [pytest.mark.asyncio, pytest.mark.rabbitmq, pytest.mark.postgresql]

CONFLICTS_MAX = 0.02


async def test_few_claims_of_two_schedulers_that_spread_conflict() -> None:
    # Each scheduler alone spreads evenly. So a host gets at most 22, even if neither hears of the other. Builds under way do not
    # count: they are told late, and one of them would count more than all CPUs.
    run = await spread(Size(schedulers=2, hosts=8, boots=160, capacity=24, io_ops_weight=0.0))

    assert run.ends == {"active": 160}
    assert run.conflict_share < CONFLICTS_MAX, run
    assert run.looks >= 160
    assert run.problems == ()


async def test_the_limit_of_instances_is_kept_at_every_commit_when_four_schedulers_burst() -> None:
    run = await spread(Size(schedulers=4, hosts=4, boots=100, instances_max=10))

    assert run.ends == {"active": 40, "error": 60}
    assert run.most_consumers == 10
    assert run.looks >= 40
    assert run.problems == ()


async def test_no_two_members_kept_apart_share_a_host_at_any_commit_while_spawns_fail() -> None:
    # More members than hosts: some end in error, whatever fails.
    run = await apart(Size(schedulers=4, hosts=12, boots=16, failing=0.3))

    assert run.ends["active"] + run.ends["error"] == 16
    assert run.ends["error"] >= 4
    assert unexplained(run) == []
    assert run.most_members == 1, run
    assert run.looks >= run.ends["active"]
    assert run.problems == ()


async def test_a_quota_is_kept_at_every_commit_by_four_schedulers_and_two_placement_workers() -> None:
    run = await limited(
        Size(schedulers=4, placements=2, hosts=8, boots=120, capacity=24, failing=0.05), limit=60
    )

    assert run.most == 60, run
    # An instance may also end in error because its spawns failed, after the last boot was refused.
    failed = [state for state in run.states if state.state == "error" and state not in run.refused]
    assert 60 - len(failed) <= run.ends["active"] <= 60
    assert len(run.refused) >= 50
    reason = "over the quota of project shop: instances limit 60, used 60, asked 1"
    assert {state.reason for state in run.refused} == {reason}
    assert run.problems == ()
