"""The simulated Ironic's conductor: failures, power, scripts. What succeeds is seen in the captured scenarios."""

from collections.abc import Callable
from typing import Any

import pytest

from laboratory.ironic import (
    IronicScript,
    RequestRefused,
    SimulatedNode,
    available_nodes,
)
from laboratory.ironic.script import BmcSilent, Doubles, Work, WorkFails
from laboratory.ironic.script import Delays as LateNotifications
from tests.unit.ironic_sim.worlds import World

INSTANCE = "11111111-2222-3333-4444-555555555555"


def a_world(script: IronicScript | None = None, count: int = 1, **fields: Any) -> World:
    return World(available_nodes(count, **fields), script=script)


def fails(work: Work, **fields: Any) -> IronicScript:
    return IronicScript(faults=(WorkFails(work=work, reason="because", **fields),))


def refused(ask: Callable[[], object], status: int) -> str:
    with pytest.raises(RequestRefused) as caught:
        ask()
    assert caught.value.status == status
    return caught.value.text


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


def test_ports_are_attached_where_one_is_free_and_leave_with_the_instance() -> None:
    world = a_world()
    ironic, node = world.ironic, "node-00000"
    ironic.attach_vif(node, "vif-1")
    refused(lambda: ironic.attach_vif(node, "vif-1"), 409)
    ironic.attach_vif(node, "vif-2")
    assert "no free port" in refused(lambda: ironic.attach_vif(node, "vif-3"), 400)
    ironic.detach_vif(node, "vif-1")
    refused(lambda: ironic.detach_vif(node, "vif-1"), 400)
    assert world.node(node).vifs == ("vif-2",)
    for target in ("active", "deleted"):
        world.do(ironic.provision(node, target))
    assert world.node(node).vifs == ()


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
