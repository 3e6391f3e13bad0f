"""Tests wait by `until` and `wait_for`: a loop of their own would have another patience, and would not say what was there instead."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
POLLS = re.compile(r"sleep\(|while .*:\s+pass")
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
# Functions whose loops sleep, and that wait for nothing to become true.
MAY_SLEEP = {
    "adversity/test_campaigns_under_kills.py: boots": "load",
    "adversity/test_campaigns_under_kills.py: test_a_keeper_that_stood_still_for_longer_than_its_lease_grants_nothing_twice": "a process stands still for longer than its lease",
    "adversity/test_campaigns_under_kills.py: test_keepers_and_schedulers_are_killed_in_the_middle_of_a_campaign": "kills at random moments",
    "adversity/test_database_limits.py: end_sessions": "a fault that is made again and again",
    "adversity/test_lost_hosts.py: someone": "a person who answers again and again",
    "adversity/test_quota_stress.py: operate": "orders between other work",
    "deploy/systemctl_stand_in.py: _stop": "a program that cannot import tests.waiting",
    "libvirt/killed_compute.py: _keep_breaking": "a fault that is made again and again",
    "nova/switch.py: _boot": "load",
    "nova/switch.py: switch": "a kill at a random moment",
    "stories/metal/test_hostile_ironic.py: talk": "load",
    "stories/keeping/test_campaigns.py: test_a_budget_holds_and_a_change_counts_from_the_next_grant_on": "it looks all the time",
    "stories/metal/test_ring.py: _watch": "simulated time: it looks all the time",
    "stories/metal/test_ring.py: run": "simulated time: faults at random moments",
    "unit/brokers/test_unix_socket.py: test_a_broker_with_an_alarm_is_waited_for": "its time stands still",
    "unit/bus/test_parts.py: scenario": "simulated time",
    "unit/ironic/test_deployer.py: test_orders_that_are_doubled_and_out_of_order_leave_at_most_the_last_attempt": "orders at random moments",
    "waiting.py: until": "the one way to wait",
    "waiting.py: wait_for": "and the one without an event loop",
}


def test_no_other_loop_of_the_tests_sleeps_until_something_is_so() -> None:
    found = set()
    for path in TESTS.rglob("*.py"):
        name, text = str(path.relative_to(TESTS)), path.read_text()
        # The time of the simulation is its own, and costs nothing.
        if POLLS.search(text) and not name.startswith("simulation/"):
            functions = [each for each in ast.walk(ast.parse(text)) if isinstance(each, FUNCTIONS)]
            found |= {f"{name}: {each.name}" for each in functions if any(map(_polls, _inside(each)))}

    assert found == MAY_SLEEP.keys()


def _polls(loop: ast.AST) -> bool:
    """Does it sleep, or only give the event loop a turn, or not even that?"""
    if not isinstance(loop, ast.For | ast.While):
        return False
    calls = [ast.unparse(each) for each in _inside(loop) if isinstance(each, ast.Call)]
    sleeps = [each for each in calls if each.startswith(("asyncio.sleep(", "time.sleep("))]
    if any(each != "asyncio.sleep(0)" for each in sleeps):
        return True
    does = ast.unparse(loop.body[0])
    is_read = isinstance(loop, ast.While) and "read" in ast.unparse(loop.test)
    return isinstance(loop, ast.While) and does in ("await asyncio.sleep(0)", "pass") and not is_read


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """What is in it, without the functions in it."""
    for each in ast.iter_child_nodes(node):
        if not isinstance(each, FUNCTIONS):
            yield each
            yield from _inside(each)
