"""Captured scenarios that no client ordered, repeated on the simulated Ironic: a daemon reads the same from both Ironics' messages."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from laboratory.ironic import IronicScript, IronicSimSettings, SimulatedNode, WorkDurations
from laboratory.ironic.script import BmcSilent, Loses, NodeLocked, WorkFails
from laboratory.ironic.work import IronicOrder
from tests.ironic_clients.allocations import Allocation, Allocations
from tests.ironic_clients.nodes import create, delete, set_traits, switch_at_the_node
from tests.unit.ironic_sim.worlds import Notification, World, captured, told

GOLD = "baremetal-gold"
Scenario = Callable[[list[Notification]], World]


def uuid_of(said: list[Notification], at: int = 0) -> str:
    return str(said[at].data["uuid"])


def created(world: World, uuid: str, resource_class: str | None = "baremetal", **fields: Any) -> None:
    node = {"driver": "fake-hardware", "uuid": uuid, **fields}
    if resource_class is not None:
        node["resource_class"] = resource_class
    assert isinstance(create(world.ironic, node), SimulatedNode)


def world_with(uuid: str, state: str, resource_class: str = "baremetal", **fields: Any) -> World:
    world = World()
    created(world, uuid, resource_class, **fields)
    if state != "enroll":
        world.bring(uuid, state)
    world.said.clear()
    return world


def add(field: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": f"/{field}", "value": value}


def clean_failed(said: list[Notification]) -> World:
    uuid = uuid_of(said)
    world = world_with(uuid, "manageable")
    world.ironic.script = IronicScript(faults=(WorkFails(work="clean"),))
    step = {"interface": "bios", "step": "apply_configuration", "args": {"settings": [{"bogus": "x"}]}}
    world.do(world.ironic.provision(uuid, IronicOrder(target="clean", clean_steps=(step,))))
    world.do(world.ironic.set_maintenance(uuid, is_on=False))
    world.do(world.ironic.provision(uuid, "manage"))
    return world


def allocation(said: list[Notification]) -> World:
    node = str(said[4].data["node_uuid"])
    world = world_with(node, "available", "alloc-class")
    world.do(world.ironic.set_power(node, "power off"))
    world.said.clear()
    first, second = uuid_of(said), uuid_of(said, 6)
    allocations = Allocations(world.ironic)
    allocations.create(Allocation(uuid=first, name="alloc-1", resource_class="alloc-class"))
    world.settle()
    assert world.node(node).instance_uuid == first
    allocations.patch_extra(first, [add("extra/x", 1)])
    allocations.delete(first)
    assert world.node(node).instance_uuid is None
    allocations.create(Allocation(uuid=second, name="alloc-2", resource_class="no-such-class"))
    world.settle()
    allocations.delete(second)
    return world


def unreachable_bmc(said: list[Notification]) -> World:
    uuid, world = uuid_of(said), World()
    created(world, uuid, driver="redfish")
    world.ironic.script = IronicScript(faults=(BmcSilent(nodes=(uuid,)),))
    assert isinstance(world.ironic.provision(uuid, "manage"), SimulatedNode)
    world.pass_s(30)
    return world


def silent_bmc(said: list[Notification]) -> World:
    uuid = uuid_of(said)
    data = said[0].data
    own = {field: data[field] for field in SimulatedNode.__struct_fields__ if field in data}
    world = World([SimulatedNode(**own)])
    switch_at_the_node(world.ironic, uuid)
    world.settle()
    world.ironic.script = IronicScript(faults=(BmcSilent(nodes=(uuid,)),))
    world.pass_s(61)
    node = world.node(uuid)
    assert (node.maintenance, node.fault, node.power_state) == (True, "power failure", None)
    world.ironic.script = IronicScript()
    world.pass_s(61)
    node = world.node(uuid)
    assert (node.maintenance, node.fault, node.power_state) == (False, None, "power off")
    return world


SCENARIOS: dict[str, Scenario] = {
    "20": clean_failed,
    "29": allocation,
    "70": unreachable_bmc,
    "71": silent_bmc,
}


@pytest.mark.parametrize("number", SCENARIOS)
def test_a_captured_scenario_is_published_as_the_real_ironic_published_it(number: str) -> None:
    expected = captured(number)

    world = SCENARIOS[number](expected)

    assert world.event_types() == [each.event_type.removeprefix("baremetal.") for each in expected]
    assert [*map(told, world.said)] == [*map(told, expected)]


def of_node(said: list[Notification], uuid: str) -> list[Notification]:
    return [each for each in said if each.data["uuid"] == uuid]


def test_twenty_nodes_whose_ends_of_verifying_are_lost_are_published_as_the_real_ironic_published_them() -> (
    None
):
    """As in the capture, one node's traits are first refused because the node is locked."""
    expected = captured("90")
    uuids = list(dict.fromkeys(str(each.data["uuid"]) for each in expected))
    world = World(
        settings=IronicSimSettings(delays=WorkDurations(verify_s=0, clean_s=0, deploy_s=0, tear_down_s=0))
    )
    ironic = world.ironic
    for uuid in uuids:
        theirs = of_node(expected, uuid)
        instance = next(each.data["instance_uuid"] for each in theirs if each.data["instance_uuid"])
        is_lost = not any(each.data.get("previous_provision_state") == "verifying" for each in theirs)
        is_locked = any(each.event_type.endswith("update.error") for each in theirs)
        created(world, uuid, GOLD, name=theirs[0].data["name"], properties=theirs[0].data["properties"])
        ironic.script = IronicScript(faults=(Loses(event_types=("*.provision_set.end",)),) if is_lost else ())
        world.do(ironic.provision(uuid, "manage"))
        ironic.script = IronicScript()
        world.do(ironic.set_power(uuid, "power off"))
        if is_locked:
            ironic.script = IronicScript(faults=(NodeLocked(),))
            assert world.refused(partial(set_traits, ironic, uuid, ["CUSTOM_GOLD"])) == 409
            ironic.script = IronicScript()
        world.do(set_traits(ironic, uuid, ["CUSTOM_GOLD"]))
        world.do(ironic.provision(uuid, "provide"))
        world.do(ironic.set_maintenance(uuid, is_on=True, reason="exercise"))
        world.do(ironic.set_maintenance(uuid, is_on=False))
        world.do(ironic.patch(uuid, [add("instance_uuid", instance)]))
        world.do(ironic.provision(uuid, "active"))
        world.do(ironic.provision(uuid, "deleted"))
        world.do(delete(ironic, uuid))

    assert ironic.lost == 19
    assert len(world.said) == len(expected)
    for uuid in uuids:
        theirs = [told(each) for each in of_node(expected, uuid)]
        assert [told(each) for each in of_node(world.said, uuid)] == theirs
