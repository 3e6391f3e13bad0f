"""The simulated Ironic's state machine and its conductor: success, failures, locks, power, scripts."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from laboratory.ironic import (
    IronicScript,
    RequestRefused,
    SimulatedNode,
    available_nodes,
    states,
)
from laboratory.ironic.node import after_event
from laboratory.ironic.script import BmcSilent, Doubles, Work, WorkFails
from laboratory.ironic.script import Delays as LateNotifications
from tests.unit.ironic_sim.worlds import World

INSTANCE = "11111111-2222-3333-4444-555555555555"
AGENT: Mapping[str, Any] = {
    "driver": "redfish",
    "deploy_interface": "direct",
    "instance_info": {"image_source": "http://x/i"},
}


def a_world(script: IronicScript | None = None, count: int = 1, **fields: Any) -> World:
    return World(available_nodes(count, **fields), script=script)


def fails(work: Work, **fields: Any) -> IronicScript:
    return IronicScript(faults=(WorkFails(work=work, reason="because", **fields),))


def refused(ask: Callable[[], object], status: int) -> str:
    with pytest.raises(RequestRefused) as caught:
        ask()
    assert caught.value.status == status
    return caught.value.text


@pytest.mark.parametrize(
    ("state", "event", "after", "target", "status"),
    [
        ("enroll", "manage", "verifying", "manageable", "start"),
        ("verifying", "done", "manageable", None, "end"),
        ("verifying", "fail", "enroll", None, "error"),
        ("manageable", "provide", "cleaning", "available", "start"),
        ("manageable", "clean", "cleaning", "manageable", "start"),
        ("cleaning", "wait", "clean wait", "available", "success"),
        ("clean wait", "resume", "cleaning", "available", "success"),
        ("cleaning", "done", "available", None, "end"),
        ("cleaning", "manage", "manageable", None, "end"),
        ("cleaning", "fail", "clean failed", "available", "error"),
        ("clean wait", "abort", "clean failed", "available", "end"),
        ("clean failed", "manage", "manageable", None, "success"),
        ("available", "manage", "manageable", None, "success"),
        ("available", "deploy", "deploying", "active", "start"),
        ("deploying", "wait", "wait call-back", "active", "success"),
        ("wait call-back", "resume", "deploying", "active", "success"),
        ("deploying", "done", "active", None, "end"),
        ("deploying", "fail", "deploy failed", "active", "error"),
        ("deploy failed", "delete", "deleting", "available", "start"),
        ("active", "delete", "deleting", "available", "start"),
        ("active", "rebuild", "deploying", "active", "start"),
        ("deleting", "clean", "cleaning", "available", "success"),
        ("deleting", "fail", "error", None, "error"),
        ("error", "delete", "deleting", "available", "start"),
        ("manageable", "adopt", "adopting", "active", "start"),
        ("adopting", "fail", "adopt failed", "active", "error"),
        ("active", "rescue", "rescuing", "rescue", "start"),
        ("rescue", "unrescue", "unrescuing", "active", "start"),
    ],
)
def test_an_event_leads_to_a_state_with_a_target_and_is_announced_by_its_status(
    state: str, event: str, after: str, target: str | None, status: str
) -> None:
    before = None if state in states.STABLE else "available"
    node = SimulatedNode(uuid="u", provision_state=state, target_provision_state=before)

    new, said = after_event(node, event, 0.0)

    assert (new.provision_state, new.target_provision_state, said.status) == (after, target, status)
    assert (said.previous_state, said.previous_target) == (state, before)


@pytest.mark.parametrize("state", states.ALL)
def test_an_order_that_is_not_possible_in_a_state_is_refused_and_nothing_is_said(state: str) -> None:
    world = a_world(
        provision_state=state, target_provision_state="active" if state not in states.STABLE else None
    )
    for target, event in states.VERBS.items():
        if states.state_after(state, event) is None:
            refused(partial(world.ironic.provision, "node-00000", target), 400)

    assert world.said == []
    assert world.state("node-00000") == state


def test_a_tear_down_that_fails_is_an_error_and_can_be_tried_again() -> None:
    world = a_world(fails("tear down"), provision_state="active", instance_uuid=INSTANCE)
    world.do(world.ironic.provision("node-00000", "deleted"))

    assert world.state("node-00000") == "error"
    # The notification is written before the instance is removed from the row.
    assert world.said[-1].data["instance_uuid"] == INSTANCE
    assert world.node("node-00000").instance_uuid is None

    world.ironic.script = IronicScript()
    world.do(world.ironic.provision("node-00000", "deleted"))
    assert world.state("node-00000") == "available"


def test_an_agent_that_never_calls_fails_the_deploy() -> None:
    world = a_world(fails("deploy wait"), **AGENT)
    world.do(world.ironic.provision("node-00000", "active"))

    assert world.state("node-00000") == "deploy failed"
    assert world.event_types()[-1] == "node.provision_set.error"


def test_power_is_not_changed_while_a_node_is_cleaned_and_a_silent_bmc_fails_it() -> None:
    world = a_world(provision_state="manageable")
    assert isinstance(world.ironic.provision("node-00000", "provide"), SimulatedNode)
    refused(lambda: world.ironic.set_power("node-00000", "power on"), 400)
    world.settle()
    world.ironic.script = IronicScript(faults=(BmcSilent(),))
    assert isinstance(world.ironic.set_power("node-00000", "power on"), SimulatedNode)
    world.pass_s(1.5)

    assert world.node("node-00000").power_state == "error"
    assert world.event_types()[-1] == "node.power_set.error"
    assert world.said[-1].routing_key == "ironic_versioned_notifications.error"


def test_scripted_silence_of_a_share_of_bmcs_sets_and_clears_maintenance() -> None:
    world = a_world(IronicScript(seed=3, faults=(BmcSilent(share=0.2, after_s=10, for_s=100),)), count=100)
    world.pass_s(61)
    silent = [node.uuid for node in world.ironic.nodes.values() if node.maintenance]
    assert 10 <= len(silent) <= 30
    world.pass_s(60)

    assert not any(node.maintenance for node in world.ironic.nodes.values())
    assert world.event_types() == ["node.power_state_corrected.success"] * 2 * len(silent)


def test_notifications_may_come_twice_and_late_with_the_time_at_which_they_were_said() -> None:
    world = a_world(
        IronicScript(faults=(Doubles(for_s=5, after_s=0), LateNotifications(late_s=7.0))), count=1
    )
    assert isinstance(world.ironic.set_maintenance("node-00000", is_on=True), SimulatedNode)
    world.pass_s(6.5)
    assert world.said == []
    world.settle()
    late = [each.body for each in world.said]
    world.ironic.script = IronicScript()
    world.do(world.ironic.set_maintenance("node-00000", is_on=False))

    assert len(late) == 4
    assert len(set(late)) == 2
    assert max(each.message["timestamp"] for each in world.said[:4]) < world.said[4].message["timestamp"]
