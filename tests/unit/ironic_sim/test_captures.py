"""The captured scenarios, repeated on the simulated Ironic: it publishes the same messages as the real one, field for
field.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from laboratory.ironic import IronicScript, IronicSimSettings, SimulatedNode, WorkDurations
from laboratory.ironic.node import COMMON_FIELDS
from laboratory.ironic.script import BmcSilent, Loses, NodeLocked, WorkFails
from laboratory.ironic.work import ProvisionOrder
from tests.ironic_clients.allocations import Allocation, Allocations
from tests.ironic_clients.nodes import create, delete, remove_trait, switch_at_the_node
from tests.unit.ironic_sim.worlds import CAPTURES, Notification, World, captured, plain

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


def create_without_class(said: list[Notification]) -> World:
    world = World()
    created(world, uuid_of(said), None)
    return world


def create_with_class(said: list[Notification]) -> World:
    world = World()
    created(
        world,
        uuid_of(said),
        GOLD,
        driver_info={"username": "u", "password": "p"},
        extra={"rack": "r1"},
        name="node-gold-1",
        properties={
            "cpus": 8,
            "memory_mb": 65536,
            "local_gb": 480,
            "cpu_arch": "x86_64",
            "capabilities": "boot_mode:uefi",
        },
    )
    return world


def manage_from_enroll(said: list[Notification]) -> World:
    world = world_with(uuid_of(said), "enroll")
    world.do(world.ironic.provision(uuid_of(said), "manage"))
    return world


def inspect(said: list[Notification]) -> World:
    world = world_with(uuid_of(said), "manageable")
    world.do(world.ironic.provision(uuid_of(said), "inspect"))
    return world


def provide(said: list[Notification]) -> World:
    uuid = uuid_of(said)
    world = world_with(uuid, "manageable", GOLD)
    world.do(world.ironic.set_traits(uuid, ["CUSTOM_GPU"]))
    world.said.clear()
    world.do(world.ironic.provision(uuid, "provide"))
    return world


def maintenance(said: list[Notification]) -> World:
    uuid = uuid_of(said)
    world = world_with(uuid, "available", GOLD)
    world.do(world.ironic.set_traits(uuid, ["CUSTOM_GPU"]))
    world.said.clear()
    for is_on in (True, True, False, False):
        world.do(world.ironic.set_maintenance(uuid, is_on=is_on, reason="disk swap" if is_on else None))
    return world


def maintenance_by_patch(said: list[Notification]) -> World:
    uuid = uuid_of(said)
    world = world_with(uuid, "available")
    for is_on in (True, False):
        world.do(world.ironic.patch(uuid, [{"op": "replace", "path": "/maintenance", "value": is_on}]))
    return world


def power(said: list[Notification]) -> World:
    uuid = uuid_of(said)
    world = world_with(uuid, "available")
    for target in ("power on", "power on", "rebooting", "power off"):
        world.do(world.ironic.set_power(uuid, target))
    return world


def deploy_as_nova(said: list[Notification]) -> World:
    uuid = uuid_of(said)
    world = world_with(uuid, "available", GOLD)
    world.do(world.ironic.patch(uuid, [add("instance_uuid", "11111111-2222-3333-4444-555555555555")]))
    info = {"root_gb": 10, "display_name": "vm1", "traits": [], "image_url": "http://x/secret"}
    world.do(world.ironic.patch(uuid, [add("instance_info", info)]))
    world.do(world.ironic.provision(uuid, "active"))
    return world


def undeploy(said: list[Notification]) -> World:
    uuid = uuid_of(said)
    world = world_with(uuid, "available", GOLD)
    world.do(world.ironic.patch(uuid, [add("instance_uuid", said[0].data["instance_uuid"])]))
    world.do(world.ironic.provision(uuid, "active"))
    world.said.clear()
    world.do(world.ironic.provision(uuid, "deleted"))
    return world


def undeploy_without_cleaning(said: list[Notification]) -> World:
    uuid = uuid_of(said)
    world = World(settings=IronicSimSettings(cleans=False))
    created(world, uuid)
    world.bring(uuid, "active")
    world.do(world.ironic.provision(uuid, "deleted"))
    return world


def clean_failed(said: list[Notification]) -> World:
    uuid = uuid_of(said)
    world = world_with(uuid, "manageable")
    world.ironic.script = IronicScript(faults=(WorkFails(work="clean"),))
    step = {"interface": "bios", "step": "apply_configuration", "args": {"settings": [{"bogus": "x"}]}}
    world.do(world.ironic.provision(uuid, ProvisionOrder(target="clean", clean_steps=(step,))))
    world.do(world.ironic.set_maintenance(uuid, is_on=False))
    world.do(world.ironic.provision(uuid, "manage"))
    return world


def manage_from_available(said: list[Notification]) -> World:
    world = world_with(uuid_of(said), "available")
    world.do(world.ironic.provision(uuid_of(said), "manage"))
    return world


def groups_shards_owners(said: list[Notification]) -> World:
    uuid = uuid_of(said)
    world = world_with(uuid, "available")
    for operations in (
        [add("shard", "shard-1")],
        [add("owner", "project-a")],
        [add("lessee", "project-b")],
        [add("description", "a node"), add("extra/k", "v"), add("name", "named-node")],
        [add("properties/cpus", 16), add("properties/capabilities", "a:b")],
        [add("conductor_group", "rack1")],
    ):
        world.do(world.ironic.patch(uuid, operations))
    assert world.refused(lambda: world.ironic.patch(uuid, [add("conductor_group", "no-such-group")])) == 400
    world.do(world.ironic.patch(uuid, [{"op": "remove", "path": "/lessee"}]))
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


def node_delete(said: list[Notification]) -> World:
    world = World()
    first, second, third = dict.fromkeys(str(each.data["uuid"]) for each in said)
    created(world, first)
    world.said.clear()
    world.do(delete(world.ironic, first))
    for uuid, orders in ((second, ["manage"]), (third, ["manage", "provide"])):
        created(world, uuid)
        for order in orders:
            world.do(world.ironic.provision(uuid, order))
        world.do(delete(world.ironic, uuid))
    return world


def node_delete_refused(said: list[Notification]) -> World:
    uuid = uuid_of(said)
    world = world_with(uuid, "active")
    assert world.refused(lambda: delete(world.ironic, uuid)) == 409
    world.do(world.ironic.set_maintenance(uuid, is_on=True))
    world.do(delete(world.ironic, uuid))
    assert world.ironic.node(uuid) is None
    return world


def bad_requests(said: list[Notification]) -> World:
    uuid = uuid_of(said)
    world = world_with(uuid, "available")
    ironic = world.ironic
    asks: list[Callable[[], object]] = [
        lambda: ironic.patch(uuid, [{"op": "replace", "path": "/driver", "value": "nope"}]),
        lambda: ironic.provision(uuid, "rescue"),
        lambda: ironic.set_traits(uuid, ["NOT_VALID"]),
        lambda: remove_trait(ironic, uuid, "CUSTOM_NONE"),
        lambda: create(ironic, {"driver": "fake-hardware", "uuid": uuid}),
        lambda: ironic.patch(uuid, [add("instance_uuid", "not-a-uuid")]),
    ]
    assert [*map(world.refused, asks)] == [400, 400, 400, 404, 409, 400]
    return world


def full_lifecycle(said: list[Notification]) -> World:
    uuid, world = uuid_of(said), World()
    created(world, uuid, GOLD, name="lifecycle-1")
    for order in ("manage", "inspect", "provide"):
        world.do(world.ironic.provision(uuid, order))
    world.do(world.ironic.set_maintenance(uuid, is_on=True, reason="check"))
    world.do(world.ironic.set_maintenance(uuid, is_on=False))
    world.do(world.ironic.patch(uuid, [add("instance_uuid", "51111111-2222-3333-4444-555555555555")]))
    for order in ("active", "deleted"):
        world.do(world.ironic.provision(uuid, order))
    world.do(delete(world.ironic, uuid))
    return world


def agent_never_calls(said: list[Notification]) -> World:
    uuid = uuid_of(said)
    world = world_with(uuid, "manageable", deploy_interface="custom-agent")
    world.do(world.ironic.set_power(uuid, "power off"))
    world.said.clear()
    world.ironic.script = IronicScript(faults=(WorkFails(work="clean wait"),))
    world.do(world.ironic.provision(uuid, "provide"))
    world.do(world.ironic.set_maintenance(uuid, is_on=False))
    world.do(world.ironic.provision(uuid, "manage"))
    return world


REDFISH = {
    "bios_interface": "no-bios",
    "boot_interface": "redfish-virtual-media",
    "console_interface": "no-console",
    "deploy_interface": "ramdisk",
    "driver": "redfish",
    "firmware_interface": "no-firmware",
    "inspect_interface": "no-inspect",
    "management_interface": "redfish",
    "network_interface": "noop",
    "power_interface": "redfish",
    "raid_interface": "no-raid",
    "rescue_interface": "no-rescue",
    "storage_interface": "noop",
    "vendor_interface": "no-vendor",
}


def unreachable_bmc(said: list[Notification]) -> World:
    uuid, world = uuid_of(said), World()
    info = {"redfish_address": "http://127.0.0.1:8998", "redfish_system_id": "/redfish/v1/Systems/x"}
    created(world, uuid, driver_info=info, **REDFISH)
    world.ironic.script = IronicScript(faults=(BmcSilent(nodes=(uuid,)),))
    assert isinstance(world.ironic.provision(uuid, "manage"), SimulatedNode)
    world.pass_s(30)
    return world


def silent_bmc(said: list[Notification]) -> World:
    uuid = uuid_of(said)
    fields = {field: said[0].data[field] for field in COMMON_FIELDS}
    world = World([SimulatedNode(**{**fields, "traits": ()})])
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
    "01": create_without_class,
    "02": create_with_class,
    "05": manage_from_enroll,
    "06": inspect,
    "07": provide,
    "08": maintenance,
    "09": maintenance_by_patch,
    "12": power,
    "13": deploy_as_nova,
    "16": undeploy,
    "17": undeploy_without_cleaning,
    "20": clean_failed,
    "26": manage_from_available,
    "27": groups_shards_owners,
    "29": allocation,
    "30": node_delete,
    "31": node_delete_refused,
    "32": bad_requests,
    "37": full_lifecycle,
    "41": agent_never_calls,
    "70": unreachable_bmc,
    "71": silent_bmc,
}


@pytest.mark.parametrize("number", SCENARIOS)
def test_a_captured_scenario_is_published_as_the_real_ironic_published_it(number: str) -> None:
    expected = captured(number)

    world = SCENARIOS[number](expected)

    assert world.event_types() == [each.event_type.removeprefix("baremetal.") for each in expected]
    assert plain(world.said) == plain(expected)


def test_each_captured_scenario_is_done_here() -> None:
    numbers = {path.name[:2] for path in CAPTURES.glob("*.jsonl")}

    assert numbers == {*SCENARIOS, "90"}


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
            assert world.refused(partial(ironic.set_traits, uuid, ["CUSTOM_GOLD"])) == 409
            ironic.script = IronicScript()
        world.do(ironic.set_traits(uuid, ["CUSTOM_GOLD"]))
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
        assert plain(of_node(world.said, uuid)) == plain(of_node(expected, uuid))


def test_a_body_is_written_byte_for_byte_as_ironic_writes_json() -> None:
    world = world_with("11111111-2222-3333-4444-555555555555", "enroll", name="n1", extra={"é": '"'})
    world.do(world.ironic.provision("n1", "manage"))

    assert world.said
    for said in world.said:
        assert said.body == json.dumps({"oslo.version": "2.0", "oslo.message": json.dumps(said.message)})
