"""A RequestSpec of Nova becomes the needs by which we choose; what cannot be honoured is refused by its path and its value."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from engine.flavors import Flavor, Image
from engine.inventories import AggregateId, GroupId, ServerGroup
from engine.requests import InstanceSpec
from engine.requests.spec import GranularGroup
from nova_bridge.demands import TRAITS
from nova_bridge.envelope import RefusedError
from nova_bridge.request_spec import NovaRequest, NovaRequestReader
from scheduler_worker.requests.reading import RequestReader
from scheduler_worker.wiring import STANDARD
from tests.plugins import standard_plugins
from tests.unit.nova.recorded import (
    CELL,
    DEVICE,
    DEVICES,
    INSTANCE,
    NAMES,
    an_object,
    args_of,
    device_groups,
    devices_of,
    pci,
    port,
)

OTHER, THIRD = UUID(int=7), UUID(int=8)
GROUP = UUID(int=9)
AGGREGATES = [str(UUID(int=number)) for number in (21, 22, 23)]

PLUGINS = standard_plugins()
OURS = RequestReader(STANDARD, timedelta(days=1), PLUGINS)
READER = NovaRequestReader(OURS.spec_of, PLUGINS.image_keys)


def asked(
    spec: Mapping[str, object] | None = None,
    flavor: Mapping[str, object] | None = None,
    properties: Mapping[str, object] | None = None,
    args: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """The recorded arguments, with these fields changed of the spec, its flavor, and the properties of its image."""
    changed = args_of()
    data = changed["spec_obj"]["nova_object.data"]
    data["flavor"]["nova_object.data"].update(flavor or {})
    data["image"]["nova_object.data"]["properties"]["nova_object.data"].update(properties or {})
    data.update(spec or {})
    return changed | dict(args or {})


def read(*changes: Mapping[str, object], instances: tuple[UUID, ...] = (INSTANCE,)) -> NovaRequest:
    args = asked(*changes) | {"instance_uuids": [str(each) for each in instances]}
    return READER.read(args, NAMES)


def refusal(args: dict[str, Any]) -> RefusedError:
    with pytest.raises(RefusedError) as refused:
        READER.read(args, NAMES)
    return refused.value


def a_group(**fields: object) -> dict[str, Any]:
    plain: dict[str, object] = {
        "id": 3,
        "uuid": str(GROUP),
        "name": "web",
        "policy": "anti-affinity",
        "policies": ["anti-affinity"],
        "_rules": {"max_server_per_host": "2"},
        "members": [str(INSTANCE)],
        "hosts": ["rhost0002"],
    }
    return an_object("InstanceGroup", "1.11", **plain | fields)


def a_destination(**fields: object) -> dict[str, Any]:
    return an_object("Destination", "1.4", **fields)


def test_the_recorded_request_is_read_as_the_same_request_of_ours() -> None:
    request = READER.read(args_of(), NAMES)

    assert request.instances == (INSTANCE,)
    assert request.spec == InstanceSpec(
        amounts=(("DISK_GB", 1), ("MEMORY_MB", 64), ("VCPU", 1)),
        project="p1",
        flavor="b1",
        image="155d900f-4e14-4e4c-a73d-069cbf4541e6",
    )
    assert request.build.flavor == Flavor(name="b1", vcpus=1, ram_mb=64, root_gb=1)
    assert request.build.image == Image(source="155d900f-4e14-4e4c-a73d-069cbf4541e6")
    assert (request.build.project, request.build.user) == ("p1", "u1")
    assert request.wants_alternates
    assert (request.is_forced, request.is_rebuild, request.group) == (False, False, None)


def test_a_request_for_several_is_read_for_each_of_them() -> None:
    request = read(instances=(INSTANCE, OTHER, THIRD))

    assert request.instances == (INSTANCE, OTHER, THIRD)
    assert request.spec.count == 3


def test_all_sizes_of_a_flavor_count_and_a_volume_has_the_root_disk() -> None:
    sizes = {"vcpus": 4, "memory_mb": 512, "root_gb": 10, "ephemeral_gb": 5, "swap": 1500}

    assert read({}, sizes).spec.amounts == (("DISK_GB", 17), ("MEMORY_MB", 512), ("VCPU", 4))
    assert read({"is_bfv": True}, sizes).spec.amounts == (("DISK_GB", 7), ("MEMORY_MB", 512), ("VCPU", 4))


def test_resources_and_traits_of_extra_specs_are_asked_for() -> None:
    specs = {
        "resources:VGPU": "1",
        "trait:HW_CPU_X86_AVX2": "required",
        "resources1:CUSTOM_FPGA": "2",
        "capabilities:hypervisor_type": "QEMU",
    }

    spec = read({}, {"extra_specs": specs}).spec

    assert ("VGPU", 1) in spec.amounts
    assert spec.required == ("HW_CPU_X86_AVX2",)
    assert spec.groups == (GranularGroup("1", (("CUSTOM_FPGA", 2),)),)
    assert spec.extra_specs == (("capabilities:hypervisor_type", "QEMU"),)


def test_a_flavor_of_bare_metal_asks_for_its_class_alone() -> None:
    specs = {
        "resources:VCPU": "0",
        "resources:MEMORY_MB": "0",
        "resources:DISK_GB": "0",
        "resources:CUSTOM_GOLD": "1",
    }

    spec = read({}, {"extra_specs": specs}).spec

    assert spec.amounts == (("CUSTOM_GOLD", 1),)
    assert spec.is_for_nodes


def test_keys_that_computes_alone_read_ask_nothing_of_a_host() -> None:
    specs = {"quota:disk_read_bytes_sec": "1", "hw_rng:allowed": "true", "hw:watchdog_action": "reset"}
    properties = {"hw_rng_model": "virtio", "hw_qemu_guest_agent": True, "img_config_drive": "optional"}

    assert read({}, {"extra_specs": specs}, properties).spec == read().spec


def test_keys_of_which_nova_makes_traits_require_them() -> None:
    request = read(
        {},
        {"extra_specs": {"os:secure_boot": "required", "hw:maxphysaddr_mode": "emulate"}},
        {"hw_firmware_stateless": True, "traits_required": ["HW_CPU_X86_SGX"], "os_secure_boot": "optional"},
    )

    assert request.spec.required == (
        "COMPUTE_ADDRESS_SPACE_EMULATED",
        "COMPUTE_SECURITY_STATELESS_FIRMWARE",
        "COMPUTE_SECURITY_UEFI_SECURE_BOOT",
        "HW_CPU_X86_SGX",
    )


def test_properties_that_filters_read_are_told_to_them() -> None:
    properties = {"hw_architecture": "x86_64", "img_hv_type": "kvm", "os_distro": "debian"}

    spec = read({}, {}, properties).spec

    assert dict(spec.image_properties) == properties


def test_a_property_that_no_filter_reads_is_left_to_the_compute() -> None:
    reader = NovaRequestReader(OURS.spec_of, PLUGINS.image_keys - {"os_distro"})

    assert reader.read(asked({}, {}, {"os_distro": "debian"}), NAMES).spec.image_properties == ()


def test_an_instance_on_a_volume_may_have_no_image() -> None:
    request = read({"image": None, "is_bfv": True})

    assert request.build.image is None
    assert request.spec.image == ""


def test_zone_and_ignored_hosts_are_honoured() -> None:
    spec = read({"availability_zone": "north", "ignore_hosts": ["RHOST0002", "gone"]}).spec

    assert spec.availability_zone == "north"
    # The second one may be discovered before a host is chosen.
    assert spec.ignore_hosts == ("gone", "rhost0002")


@pytest.mark.parametrize(
    ("fields", "hosts"),
    [
        ({"force_hosts": ["rhost0001"]}, ("rhost0001",)),
        ({"force_hosts": ["RHost0001", "rhost0002"]}, ("rhost0001", "rhost0002")),
        ({"force_nodes": ["rhost0001.example.org"]}, ("rhost0001",)),
        ({"force_hosts": ["ironic"]}, ("node-1", "node-2")),
        ({"force_hosts": ["ironic"], "force_nodes": ["node-2"]}, ("node-2",)),
    ],
)
def test_a_forced_host_is_the_only_one(fields: dict[str, object], hosts: tuple[str, ...]) -> None:
    request = read(fields)

    assert request.spec.hosts == hosts
    assert request.is_forced


@pytest.mark.parametrize(
    ("fields", "hosts"),
    [
        ({"host": "rhost0002"}, ("rhost0002",)),
        ({"host": "rhost0001", "node": "rhost0001.example.org"}, ("rhost0001",)),
        ({"host": None, "node": "node-1"}, ("node-1",)),
        ({"host": "ironic"}, ("node-1", "node-2")),
        ({}, ()),
    ],
)
def test_a_requested_destination_is_the_only_one(fields: dict[str, object], hosts: tuple[str, ...]) -> None:
    request = read({"requested_destination": a_destination(**fields)})

    assert request.spec.hosts == hosts
    assert not request.is_forced


def test_cell_and_aggregates_of_a_destination_are_honoured() -> None:
    mapping = an_object(
        "CellMapping", "1.1", uuid=str(CELL), name="cell1", transport_url="***", disabled=False
    )
    destination = a_destination(
        cell=mapping,
        aggregates=[f"{AGGREGATES[0]},{AGGREGATES[1]}", AGGREGATES[2]],
        forbidden_aggregates=[AGGREGATES[1]],
        allow_cross_cell_move=False,
    )

    spec = read({"requested_destination": destination}).spec

    ids = [AggregateId(UUID(each)) for each in AGGREGATES]
    assert spec.cell == "c1"
    assert spec.member_of == ((ids[0], ids[1]), (ids[2],))
    assert spec.forbidden_aggregates == (ids[1],)


def test_hosts_that_were_tried_are_not_tried_again() -> None:
    tried = [
        an_object("ComputeNode", "1.19", host="ironic", hypervisor_hostname="node-2"),
        an_object("ComputeNode", "1.19", host="rhost0001", hypervisor_hostname="rhost0001.example.org"),
    ]
    nodes = an_object("ComputeNodeList", "1.17", objects=tried)

    spec = read({"retry": an_object("SchedulerRetries", "1.1", num_attempts=2, hosts=nodes)}).spec

    assert spec.ignore_hosts == ("node-2", "rhost0001")


def test_a_server_group_is_joined_with_its_rule() -> None:
    request = read({"instance_group": a_group(), "scheduler_hints": {"group": [str(GROUP)]}})

    joined = ServerGroup(id=GroupId(GROUP), policy="anti-affinity", max_per_host=2)
    assert request.spec.server_group == joined
    assert request.group is not None
    assert request.group.members == (INSTANCE,)
    assert request.group.hosts == ("rhost0002",)


def test_hints_about_other_instances_are_kept_for_their_hosts() -> None:
    request = read({"scheduler_hints": {"same_host": [str(OTHER)], "different_host": [str(THIRD)]}})

    assert request.build.same_host == (OTHER,)
    assert request.build.different_host == (THIRD,)


def test_a_rebuild_keeps_its_devices_and_asks_the_filters_of_its_host() -> None:
    request = read(
        {
            "scheduler_hints": {"_nova_check_type": ["rebuild"]},
            "force_hosts": ["rhost0001"],
            "force_nodes": ["rhost0001.example.org"],
            "numa_topology": an_object("InstanceNUMATopology", cells=[]),
            "pci_requests": pci(devices_of(), devices_of(alias=None)),
        },
        {
            "extra_specs": {
                "hw:cpu_policy": "dedicated",
                "pci_passthrough:alias": "nic:1",
                "accel:device_profile": "crypto",
            }
        },
    )

    assert request.is_rebuild
    assert not request.is_forced
    assert request.spec.hosts == ("rhost0001",)


def test_groups_of_ports_come_on_top_of_the_flavor_for_each_instance() -> None:
    level = an_object("RequestLevelParams", "1.1", root_required=[], same_subtree=[["port-1", "port-2"]])
    ports = [port(), port("port-2", resources={"NET_PACKET_RATE_KILOPACKET_PER_SEC": 5}, required_traits=[])]

    request = read(
        {"requested_resources": ports, "request_level_params": level},
        instances=(INSTANCE, OTHER),
    )

    assert request.spec.groups == (
        GranularGroup("port port-1", (("NET_BW_EGR_KILOBIT_PER_SEC", 1000),), ("CUSTOM_PHYSNET_NORTH",)),
        GranularGroup("port port-2", (("NET_PACKET_RATE_KILOPACKET_PER_SEC", 5),)),
    )
    assert request.spec.same_subtree == (("port port-1", "port port-2"),)
    assert ("VCPU", 1) in request.spec.amounts


def test_the_groups_of_a_device_profile_need_a_host_with_accelerators() -> None:
    spec = read(
        {"requested_resources": [port("device_profile_0", resources={"FPGA": 1}, required_traits=[])]},
        {"extra_specs": {"accel:device_profile": "crypto"}},
    ).spec

    assert spec.required == ("COMPUTE_ACCELERATORS",)
    assert spec.groups == (GranularGroup("port device_profile_0", (("FPGA", 1),)),)


@pytest.mark.parametrize("policy", ["legacy", "required", "preferred"])
def test_each_device_of_an_alias_is_a_group_of_its_own(policy: str) -> None:
    request = read(
        {
            "pci_requests": pci(devices_of(2, numa_policy=policy)),
            "requested_resources": [*device_groups(2, required_traits=["CUSTOM_FAST"]), port()],
        },
        {"extra_specs": {"pci_passthrough:alias": "nic:2", "hw:pci_numa_affinity_policy": policy}},
        instances=(INSTANCE, OTHER),
    )

    device = ((DEVICE, 1),)
    assert request.spec.groups == (
        GranularGroup(f"port {DEVICES}-0", device, ("CUSTOM_FAST",)),
        GranularGroup(f"port {DEVICES}-1", device, ("CUSTOM_FAST",)),
        GranularGroup("port port-1", (("NET_BW_EGR_KILOBIT_PER_SEC", 1000),), ("CUSTOM_PHYSNET_NORTH",)),
    )
    assert not request.spec.isolates
    assert request.spec.extra_specs == ()


@pytest.mark.parametrize(
    ("args", "field", "value"),
    [
        ({"instance_uuids": None}, "instance_uuids", "null"),
        ({"instance_uuids": []}, "instance_uuids", "a list of 0"),
        ({"instance_uuids": ["x"]}, "instance_uuids[0]", "'x'"),
        ({"instance_uuids": [str(INSTANCE)] * 2}, "instance_uuids", "a list of 2"),
        (
            {"instance_uuids": [str(UUID(int=each)) for each in range(1001)]},
            "instance_uuids",
            "a list of 1001",
        ),
        ({"return_objects": False}, "return_objects", "False"),
        ({"return_alternates": 1}, "return_alternates", "1"),
        ({"filter_properties": {"a": 1}}, "filter_properties", "an object of 1 keys"),
        ({"spec_obj": None}, "spec_obj", "null"),
        ({"spec_obj": an_object("Flavor")}, "spec_obj.nova_object.name", "'Flavor'"),
        ({"spec_obj": an_object("RequestSpec", "2.0")}, "spec_obj.nova_object.version", "'2.0'"),
        ({"spec_obj": an_object("RequestSpec", "x")}, "spec_obj.nova_object.version", "'x'"),
        (
            {"spec_obj": an_object("RequestSpec") | {"nova_object.namespace": "cinder"}},
            "spec_obj.nova_object.namespace",
            "'cinder'",
        ),
        ({"spec_obj": an_object("RequestSpec") | {"nova_object.data": 1}}, "spec_obj", "1"),
        ({"spec_obj": an_object("RequestSpec")}, "spec_obj.flavor", "null"),
    ],
)
def test_a_wrong_argument_is_refused_with_its_value(args: dict[str, object], field: str, value: str) -> None:
    refused = refusal(asked(args=args))

    assert (refused.field, refused.value) == (field, value)


def _listed(name: str, *objects: object) -> dict[str, Any]:
    return an_object(name, objects=list(objects))


@pytest.mark.parametrize(
    ("fields", "field", "value"),
    [
        (
            {"numa_topology": an_object("InstanceNUMATopology", cells=[])},
            "numa_topology",
            "an object of 4 keys",
        ),
        ({"pci_requests": pci({})}, "pci_requests.requests[0].nova_object.name", "null"),
        ({"pci_requests": pci(devices_of(count=-1))}, "pci_requests.requests[0].count", "-1"),
        ({"pci_requests": pci(devices_of(request_id=None))}, "pci_requests.requests[0].request_id", "null"),
        ({"pci_requests": pci(devices_of())}, "pci_requests.requests[0].alias_name", "'nic'"),
        (
            {"pci_requests": pci(devices_of(2)), "requested_resources": device_groups(1)},
            "pci_requests.requests[0].alias_name",
            "'nic'",
        ),
        (
            {"pci_requests": pci(devices_of(alias=None)), "requested_resources": [port()]},
            "pci_requests.requests[0].requester_id",
            "'port-1'",
        ),
        ({"new_in_2027": ["x"]}, "new_in_2027", "a list of 1"),
        ({"flavor": None}, "flavor", "null"),
        ({"flavor": {}}, "flavor.nova_object.name", "null"),
        ({"is_bfv": "yes"}, "is_bfv", "'yes'"),
        ({"project_id": "Über"}, "project_id", "'Über'"),
        ({"availability_zone": 5}, "availability_zone", "5"),
        ({"availability_zone": "x" * 300}, "availability_zone", None),
        ({"force_hosts": ["gone"]}, "force_hosts", "'gone'"),
        ({"force_nodes": ["gone"]}, "force_nodes", "'gone'"),
        ({"force_hosts": ["rhost0001"], "force_nodes": ["node-1"]}, "force_hosts", "a list of 1"),
        ({"force_hosts": "rhost0001"}, "force_hosts", "'rhost0001'"),
        ({"ignore_hosts": [5]}, "ignore_hosts[0]", "5"),
        ({"requested_destination": a_destination(host="gone")}, "requested_destination.host", "'gone'"),
        ({"requested_destination": a_destination(node="gone")}, "requested_destination.node", "'gone'"),
        (
            {"requested_destination": a_destination(host="rhost0001", node="node-1")},
            "requested_destination.host",
            "'rhost0001'",
        ),
        (
            {"requested_destination": a_destination(allow_cross_cell_move=True)},
            "requested_destination.allow_cross_cell_move",
            "True",
        ),
        (
            {"requested_destination": a_destination(cell=an_object("CellMapping", uuid=str(OTHER)))},
            "requested_destination.cell.uuid",
            f"'{OTHER}'",
        ),
        (
            {"requested_destination": a_destination(aggregates=["a,b"])},
            "requested_destination.aggregates[0]",
            "'a'",
        ),
        (
            {"requested_destination": a_destination(forbidden_aggregates=["a"])},
            "requested_destination.forbidden_aggregates",
            "'a'",
        ),
        ({"requested_destination": a_destination(rack="r1")}, "requested_destination.rack", "'r1'"),
        ({"retry": an_object("SchedulerRetries", hosts=[])}, "retry.hosts", "a list of 0"),
        (
            {"retry": an_object("SchedulerRetries", hosts=_listed("ComputeNodeList", {}))},
            "retry.hosts.objects[0].nova_object.name",
            "null",
        ),
        ({"retry": an_object("SchedulerRetries", reason="x")}, "retry.reason", "'x'"),
        ({"instance_group": a_group(policy="close")}, "instance_group.policy", "'close'"),
        (
            {"instance_group": a_group(policy=None, policies=["close"])},
            "instance_group.policies",
            "a list of 1",
        ),
        ({"instance_group": a_group(uuid="x")}, "instance_group.uuid", "'x'"),
        ({"instance_group": a_group(members=["x"])}, "instance_group.members", "'x'"),
        ({"instance_group": a_group(_rules={"racks": "2"})}, "instance_group._rules.racks", "'2'"),
        (
            {"instance_group": a_group(_rules={"max_server_per_host": "0"})},
            "instance_group._rules.max_server_per_host",
            "'0'",
        ),
        ({"scheduler_hints": {"group": ["g"]}}, "scheduler_hints.group", "a list of 1"),
        (
            {"scheduler_hints": {"same_host": [str(OTHER)] * 101}},
            "scheduler_hints.same_host",
            "a list of 101",
        ),
        ({"scheduler_hints": {"query": ["[]"]}}, "scheduler_hints.query", "a list of 1"),
        ({"scheduler_hints": {"same_host": ["x"]}}, "scheduler_hints.same_host", "'x'"),
        (
            {"scheduler_hints": {"_nova_check_type": ["move"]}},
            "scheduler_hints._nova_check_type",
            "a list of 1",
        ),
        ({"requested_resources": [port(None)]}, "requested_resources[0].requester_id", "null"),
        ({"requested_resources": [port("a,b")]}, "requested_resources[0].requester_id", "'a,b'"),
        (
            {"requested_resources": [port(resources={})]},
            "requested_resources[0].resources",
            "an object of 0 keys",
        ),
        (
            {"requested_resources": [port(resources={"VGPU": -1})]},
            "requested_resources[0].resources.VGPU",
            "-1",
        ),
        (
            {"requested_resources": [port(resources={"NOVEL": 1})]},
            "requested_resources[0].resources.NOVEL",
            "'NOVEL'",
        ),
        (
            {"requested_resources": [port(required_traits=["NOVEL"])]},
            "requested_resources[0].required_traits",
            "'NOVEL'",
        ),
        (
            {"requested_resources": [port(use_same_provider=False)]},
            "requested_resources[0].use_same_provider",
            "False",
        ),
        ({"requested_resources": [port(in_tree=str(OTHER))]}, "requested_resources[0].in_tree", f"'{OTHER}'"),
        (
            {"requested_resources": [port(aggregates=[AGGREGATES])]},
            "requested_resources[0].aggregates",
            "a list of 1",
        ),
        ({"requested_resources": [port()] * 17}, "requested_resources", "a list of 17"),
        ({"requested_resources": [port(), port()]}, "requested_resources[1].requester_id", "'port-1'"),
        (
            {"request_level_params": an_object("RequestLevelParams", root_required=["OWNER_NOVA"])},
            "request_level_params.root_required",
            "a list of 1",
        ),
        (
            {"request_level_params": an_object("RequestLevelParams", same_subtree=[["port-9"]])},
            "request_level_params.same_subtree[0]",
            "'port-9'",
        ),
        (
            {"request_level_params": an_object("RequestLevelParams", same_subtree=["port-9"])},
            "request_level_params.same_subtree[0]",
            "'port-9'",
        ),
    ],
)
def test_what_a_spec_asks_for_in_vain_is_refused_with_its_value(
    fields: dict[str, object], field: str, value: str | None
) -> None:
    refused = refusal(asked(fields))

    assert refused.field == f"spec_obj.{field}"
    assert value is None or refused.value == value
    assert refused.reason


@pytest.mark.parametrize(
    ("flavor", "field", "value"),
    [
        ({"vcpus": None}, "vcpus", "null"),
        ({"vcpus": -1}, "vcpus", "-1"),
        ({"vcpus": True}, "vcpus", "True"),
        ({"memory_mb": 2**40}, "memory_mb", str(2**40)),
        ({"swap": 1.5}, "swap", "1.5"),
        ({"vcpus": 0, "memory_mb": 0, "root_gb": 0}, "", None),
        ({"name": 5}, "name", "5"),
        ({"racks": 2}, "racks", "2"),
        ({"extra_specs": []}, "extra_specs", "a list of 0"),
        ({"extra_specs": {"resources:VCPU": 2}}, "extra_specs.resources:VCPU", "2"),
        ({"extra_specs": {"resources:VCPU": "two"}}, "extra_specs.resources:VCPU", "'two'"),
        ({"extra_specs": {"trait:NOVEL": "required"}}, "extra_specs.trait:NOVEL", "'NOVEL'"),
        ({"extra_specs": {"mystery": "1"}}, "extra_specs.mystery", "'1'"),
        ({"extra_specs": {"hw:tpm_version": "2.0"}}, "extra_specs.hw:tpm_version", "'2.0'"),
        ({"extra_specs": {"hw:pmem": "6GB"}}, "extra_specs.hw:pmem", "'6GB'"),
        ({"extra_specs": {"hw:mem_encryption": "true"}}, "extra_specs.hw:mem_encryption", "'true'"),
        ({"extra_specs": {"pci_passthrough:alias": "gpu:1"}}, "extra_specs.pci_passthrough:alias", "'gpu:1'"),
        ({"extra_specs": {"accel:device_profile": "x"}}, "extra_specs.accel:device_profile", "'x'"),
        ({"extra_specs": {"capabilities:a": "<in>"}}, "extra_specs.capabilities:a", None),
    ],
)
def test_what_a_flavor_asks_for_in_vain_is_refused_with_its_value(
    flavor: dict[str, object], field: str, value: str | None
) -> None:
    refused = refusal(asked({}, flavor))

    assert refused.field == f"spec_obj.flavor.{field}".rstrip(".")
    assert value is None or refused.value == value


@pytest.mark.parametrize(
    ("properties", "field", "value"),
    [
        ({"hw_tpm_model": "tpm-tis"}, "hw_tpm_model", "'tpm-tis'"),
        ({"hw_mem_encryption": True}, "hw_mem_encryption", "'True'"),
        ({"novel": "x"}, "novel", "'x'"),
        ({"novel": ["x"]}, "novel", "a list of 1"),
        ({"img_hv_requested_version": "new"}, "img_hv_requested_version", "'new'"),
        ({"traits_required": ["NOVEL"]}, "traits_required", "'NOVEL'"),
        ({"traits_required": [5]}, "traits_required[0]", "5"),
    ],
)
def test_what_an_image_asks_for_in_vain_is_refused_with_its_value(
    properties: dict[str, object], field: str, value: str
) -> None:
    refused = refusal(asked({}, {}, properties))

    assert (refused.field, refused.value) == (f"spec_obj.image.properties.{field}", value)


def test_an_error_says_field_value_and_reason() -> None:
    told = str(refusal(asked({"force_hosts": ["gone"]})))

    assert told == "spec_obj.force_hosts is 'gone': no such host is known"


@pytest.mark.parametrize(("key", "value"), TRAITS)
def test_each_trait_that_nova_makes_of_a_key_is_known(key: str, value: str) -> None:
    of_image = {key: True if value == "True" else value} if "_" in key.partition(":")[0] else {}
    of_flavor = {} if of_image else {"extra_specs": {key: value}}

    assert read({}, of_flavor, of_image).spec.required == (TRAITS[key, value],)
