"""The simulated Ironic's state machine and its conductor: success, failures, locks, power, scripts."""

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from laboratory.ironic import (
    IronicScript,
    IronicSimSettings,
    RequestRefused,
    SimulatedIronic,
    SimulatedNode,
    WorkDurations,
    available_nodes,
    states,
)
from laboratory.ironic.node import after_event
from laboratory.ironic.script import Away, BmcSilent, Doubles, Loses, NodeLocked, Work, WorkFails
from laboratory.ironic.script import Delays as LateNotifications
from laboratory.ironic.work import ProvisionOrder
from tests.ironic_clients.allocations import Allocation, Allocations
from tests.ironic_clients.nodes import create, delete
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


def test_manual_cleaning_keeps_manageable_as_its_target_until_it_is_over() -> None:
    node = SimulatedNode(uuid="u", provision_state="cleaning", target_provision_state="manageable")

    waits, _ = after_event(node, "wait", 0.0)
    failed, _ = after_event(waits, "fail", 0.0)

    assert (waits.target_provision_state, failed.target_provision_state) == ("manageable", "manageable")


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


def test_a_deploy_that_fails_keeps_the_instance_until_it_is_torn_down() -> None:
    world = a_world(fails("deploy"))
    world.do(world.ironic.patch("node-00000", [{"op": "add", "path": "/instance_uuid", "value": INSTANCE}]))
    world.do(world.ironic.provision("node-00000", "active"))

    node = world.node("node-00000")
    assert (node.provision_state, node.instance_uuid, node.last_error) == (
        "deploy failed",
        INSTANCE,
        "because",
    )
    assert (node.maintenance, node.reservation) == (False, None)

    world.ironic.script = IronicScript()
    world.do(world.ironic.provision("node-00000", "deleted"))
    node = world.node("node-00000")
    assert (node.provision_state, node.instance_uuid, node.last_error) == ("available", None, None)


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


def test_a_clean_step_that_fails_sets_maintenance_and_a_timeout_does_not() -> None:
    failed = a_world(fails("clean"), provision_state="manageable")
    timed_out = a_world(fails("clean wait"), provision_state="manageable", **AGENT)
    for world in (failed, timed_out):
        world.do(world.ironic.provision("node-00000", "provide"))

    ends = [
        (each.provision_state, each.maintenance, each.fault)
        for each in (failed.node("node-00000"), timed_out.node("node-00000"))
    ]
    assert ends == [("clean failed", True, "clean failure"), ("clean failed", False, None)]


def test_a_node_with_an_agent_waits_for_its_call_without_a_lock() -> None:
    world = a_world(**AGENT)
    assert isinstance(world.ironic.provision("node-00000", "active"), SimulatedNode)
    assert world.node("node-00000").reservation == "ironic-sim-1"
    world.pass_s(1.5)
    assert (world.state("node-00000"), world.node("node-00000").reservation) == ("wait call-back", None)
    world.settle()

    assert world.state("node-00000") == "active"
    assert world.event_types() == [
        "node.provision_set.start",
        "node.power_set.start",
        "node.power_set.end",
        "node.provision_set.success",
        "node.provision_set.success",
        "node.provision_set.end",
    ]


def test_an_agent_that_never_calls_fails_the_deploy() -> None:
    world = a_world(fails("deploy wait"), **AGENT)
    world.do(world.ironic.provision("node-00000", "active"))

    assert world.state("node-00000") == "deploy failed"
    assert world.event_types()[-1] == "node.provision_set.error"


def test_cleaning_is_aborted_only_while_it_waits() -> None:
    world = a_world(provision_state="manageable", **AGENT)
    assert isinstance(world.ironic.provision("node-00000", "provide"), SimulatedNode)
    refused(lambda: world.ironic.provision("node-00000", "abort"), 409)
    world.pass_s(1.5)
    world.do(world.ironic.provision("node-00000", "abort"))

    assert world.state("node-00000") == "clean failed"
    assert world.event_types()[-1] == "node.provision_set.end"


def test_a_retired_node_is_not_offered_again_after_its_instance() -> None:
    world = a_world(provision_state="active", retired=True)
    world.do(world.ironic.provision("node-00000", "deleted"))
    assert world.state("node-00000") == "manageable"
    assert "retired" in refused(lambda: world.ironic.provision("node-00000", "provide"), 400)


def test_a_node_in_maintenance_is_not_deployed_but_torn_down() -> None:
    world = a_world(maintenance=True)
    for target in ("active", "deploy"):
        refused(partial(world.ironic.provision, "node-00000", target), 400)

    other = a_world(maintenance=True, provision_state="active")
    other.do(other.ironic.provision("node-00000", "deleted"))
    assert other.state("node-00000") == "available"


def test_a_locked_node_refuses_changes_and_says_so_on_the_bus() -> None:
    world = a_world()
    assert isinstance(world.ironic.provision("node-00000", "active"), SimulatedNode)
    world.said.clear()

    asks: list[Callable[[], object]] = [
        lambda: world.ironic.provision("node-00000", "deleted"),
        lambda: world.ironic.set_power("node-00000", "power off"),
        lambda: world.ironic.attach_vif("node-00000", "vif-1"),
        lambda: world.ironic.set_maintenance("node-00000", is_on=True),
        lambda: world.ironic.set_traits("node-00000", ["CUSTOM_A"]),
        lambda: world.ironic.patch("node-00000", [{"op": "add", "path": "/owner", "value": "p"}]),
    ]
    for ask in asks:
        refused(ask, 409)

    # The API refuses a patch while there is a target, so there is no notification.
    assert world.event_types() == [
        "node.maintenance_set.start",
        "node.maintenance_set.error",
        "node.update.start",
        "node.update.error",
    ]
    assert (world.node("node-00000").maintenance, world.node("node-00000").traits) == (False, ())


def test_adopting_inspecting_and_rescuing_end_where_they_should() -> None:
    world = a_world(provision_state="manageable")
    ways = (
        (ProvisionOrder(target="inspect"), "manageable"),
        (ProvisionOrder(target="adopt"), "active"),
        (ProvisionOrder(target="rescue", rescue_password="p"), "rescue"),  # noqa: S106 - no secret
        (ProvisionOrder(target="unrescue"), "active"),
        (ProvisionOrder(target="rebuild"), "active"),
        (ProvisionOrder(target="deleted"), "available"),
    )
    for order, end in ways:
        world.do(world.ironic.provision("node-00000", order))
        assert world.state("node-00000") == end, order


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


def test_a_silence_of_the_bus_loses_all_notifications_and_no_state() -> None:
    silence = Loses(event_types=("*",), after_s=10, for_s=10)
    world = a_world(IronicScript(faults=(silence,)), count=3)
    world.do(world.ironic.set_maintenance("node-00000", is_on=True))
    world.pass_s(10)
    world.do(world.ironic.set_maintenance("node-00001", is_on=True))
    world.pass_s(10)
    world.do(world.ironic.set_maintenance("node-00002", is_on=True))

    assert [each.data["name"] for each in world.said] == ["node-00000"] * 2 + ["node-00002"] * 2
    assert world.node("node-00001").maintenance
    assert (world.ironic.published, world.ironic.lost) == (4, 2)


def test_ends_are_lost_with_a_probability_that_the_seed_decides() -> None:
    def lost(seed: int) -> tuple[list[str], int]:
        world = a_world(IronicScript(seed=seed, faults=(Loses(probability=0.3),)), count=100)
        for node in [*world.ironic.nodes.values()]:
            world.do(
                world.ironic.provision(node.uuid, "manage"), world.ironic.provision(node.uuid, "provide")
            )
        return [each.data["name"] for each in world.said], world.ironic.lost

    first, again, other = lost(1), lost(1), lost(2)

    assert first == again
    assert first[0] != other[0]
    assert 15 <= first[1] <= 45


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


def test_no_two_notifications_have_the_same_time() -> None:
    world = a_world(count=50)
    for node in [*world.ironic.nodes.values()]:
        assert isinstance(world.ironic.set_maintenance(node.uuid, is_on=True), SimulatedNode)

    times = [each.message["timestamp"] for each in world.said]
    assert times == sorted(set(times))


def test_a_scripted_lock_ends() -> None:
    world = a_world(IronicScript(faults=(NodeLocked(for_s=5, after_s=0),)))
    refused(lambda: world.ironic.provision("node-00000", "active"), 409)
    world.pass_s(6)
    world.do(world.ironic.provision("node-00000", "active"))

    assert world.state("node-00000") == "active"


def test_work_that_a_newer_order_replaced_does_not_end() -> None:
    delays = WorkDurations(agent_call_s=100.0)
    world = World(available_nodes(1, **AGENT), IronicSimSettings(delays=delays))
    assert isinstance(world.ironic.provision("node-00000", "active"), SimulatedNode)
    world.pass_s(1.5)
    world.do(world.ironic.provision("node-00000", "deleted"))

    assert world.state("node-00000") == "available"


def test_ironic_is_away_by_script_or_by_order() -> None:
    world = a_world(IronicScript(faults=(Away(after_s=10, for_s=10, refuses=True),)))
    seen = [(world.ironic.away is not None, world.ironic.refuses_connections)]
    world.pass_s(15)
    seen.append((world.ironic.away is not None, world.ironic.refuses_connections))
    world.pass_s(10)
    world.ironic.go_away(5)
    seen.append((world.ironic.away is not None, world.ironic.refuses_connections))
    world.ironic.come_back()
    seen.append((world.ironic.away is not None, world.ironic.refuses_connections))

    assert seen == [(False, False), (True, True), (True, False), (False, False)]


def test_a_probability_beyond_one_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"probability is 2, must be 0\.\.1"):
        Loses(probability=2)


def test_maintenance_that_is_patched_off_takes_its_fault_with_it() -> None:
    world = a_world(fails("clean"), provision_state="manageable")
    world.do(world.ironic.provision("node-00000", "provide"))
    operation = {"op": "replace", "path": "/maintenance", "value": False}
    world.do(world.ironic.patch("node-00000", [operation]))

    node = world.node("node-00000")
    assert (node.maintenance, node.maintenance_reason, node.fault) == (False, None, None)
    # The first notification has only the requested change.
    assert [each.data["fault"] for each in world.said[-2:]] == ["clean failure", None]


@pytest.mark.parametrize(
    "fields",
    [
        {"power_state": None},
        {"provision_state": "manageable"},
        {"maintenance": True},
        {"instance_uuid": INSTANCE},
        {"resource_class": "gold"},
        {"traits": ("CUSTOM_B",)},
    ],
)
def test_a_node_that_does_not_fit_is_not_allocated(fields: Mapping[str, Any]) -> None:
    unfit = available_nodes(1, name="unfit", **{"traits": ("CUSTOM_A",), **fields})
    world = World([*unfit, *available_nodes(1, name="fit", traits=("CUSTOM_A",))])
    asked = Allocation(uuid=INSTANCE[::-1], resource_class="baremetal", traits=("CUSTOM_A",))
    allocations = Allocations(world.ironic)
    allocations.create(asked)
    world.settle()

    found = allocations.find(asked.uuid)
    assert found is not None
    assert found.node_uuid == world.node("fit-00000").uuid


def test_an_allocation_takes_a_node_without_a_word_of_the_node_and_ends_with_its_instance() -> None:
    world = a_world()
    allocations = Allocations(world.ironic)
    allocations.create(Allocation(uuid=INSTANCE, resource_class="baremetal"))
    world.settle()
    node = world.node("node-00000")
    assert node.instance_uuid == node.allocation_uuid == INSTANCE
    assert world.event_types() == ["allocation.create.start", "allocation.create.end"]

    world.do(world.ironic.provision("node-00000", "active"))
    refused(lambda: allocations.delete(INSTANCE), 409)
    world.do(world.ironic.provision("node-00000", "deleted"))

    assert allocations.find(INSTANCE) is None
    assert world.node("node-00000").allocation_uuid is None


@pytest.mark.parametrize(
    ("status", "fields"),
    [
        (400, {}),
        (400, {"driver": "nope"}),
        (400, {"driver": "fake-hardware", "provision_state": "active"}),
        (409, {"driver": "fake-hardware", "name": "node-00000"}),
    ],
)
def test_a_node_that_cannot_be_is_not_created(status: int, fields: Mapping[str, Any]) -> None:
    world = a_world()

    refused(lambda: create(world.ironic, fields), status)
    assert len(world.ironic.nodes) == 1


def test_an_instance_on_a_node_keeps_it_from_being_deleted_unless_in_maintenance() -> None:
    world = a_world(instance_uuid=INSTANCE)

    refused(lambda: delete(world.ironic, "node-00000"), 409)
    world.do(world.ironic.set_maintenance("node-00000", is_on=True))
    delete(world.ironic, "node-00000")

    assert not world.ironic.nodes


def test_an_absence_may_end_while_somebody_asks_for_it() -> None:
    """By this clock each question takes time."""
    times_s = itertools.count()
    ironic = SimulatedIronic((), lambda: float(next(times_s)), lambda *_: None)
    for for_s in range(1, 8):
        ironic.go_away(for_s, refuses=True)
        while ironic.refuses_connections:
            pass
