"""A RequestSpec of Nova becomes the needs by which we choose; what cannot be honoured is refused by its path and its value."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any
from uuid import UUID

import pytest

from engine.flavors import Flavor, Image
from engine.inventories import AggregateId, GroupId, ServerGroup
from engine.requests import InstanceSpec
from engine.requests.spec import GranularGroup
from nova_bridge.envelope import RefusedError, read_envelope
from nova_bridge.request_spec import NovaRequest, NovaRequestReader
from tests.plugins import standard_plugins
from tests.unit.nova.recorded import (
    CELL,
    DEVICE,
    DEVICES,
    INSTANCE,
    NAMES,
    an_object,
    args_of,
    body_of,
    device_groups,
    devices_of,
    enveloped,
    message_in,
    pci,
    port,
)
from tests.unit.scheduler.lone_scheduler import LoneScheduler

OTHER, THIRD = UUID(int=7), UUID(int=8)
GROUP = UUID(int=9)
AGGREGATES = [str(UUID(int=number)) for number in (21, 22, 23)]

PLUGINS = standard_plugins()
READER = NovaRequestReader(LoneScheduler(plugins=PLUGINS).spec_of, PLUGINS.image_keys)


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


def test_traits_and_classes_that_are_called_after_secrets_are_asked_for() -> None:
    specs = {"trait:CUSTOM_SECRET_ENCLAVE": "required", "resources:CUSTOM_TOKEN_RING": "2"}
    message = message_in(body_of("select_destinations")) | {"args": asked(flavor={"extra_specs": specs})}

    spec = READER.read(read_envelope(enveloped(message)).args, NAMES).spec

    assert (spec.required, dict(spec.amounts)["CUSTOM_TOKEN_RING"]) == (("CUSTOM_SECRET_ENCLAVE",), 2)


AGGREGATE_IDS = [AggregateId(UUID(each)) for each in AGGREGATES]
SIZES: dict[str, object] = {"vcpus": 4, "memory_mb": 512, "root_gb": 10, "ephemeral_gb": 5, "swap": 1500}
PORT_1 = GranularGroup("port port-1", (("NET_BW_EGR_KILOBIT_PER_SEC", 1000),), ("CUSTOM_PHYSNET_NORTH",))
TRIED = an_object(
    "ComputeNodeList",
    "1.17",
    objects=[
        an_object("ComputeNode", "1.19", host="ironic", hypervisor_hostname="node-2"),
        an_object("ComputeNode", "1.19", host="rhost0001", hypervisor_hostname="rhost0001.example.org"),
    ],
)
# Fields of the spec, of its flavor, and properties of its image; what they mean.
READ: dict[str, tuple[tuple[dict[str, object], ...], dict[str, object]]] = {
    "all sizes": (({}, SIZES), {"spec.amounts": (("DISK_GB", 17), ("MEMORY_MB", 512), ("VCPU", 4))}),
    "on a volume": (
        ({"is_bfv": True, "image": None}, SIZES),
        {
            "spec.amounts": (("DISK_GB", 7), ("MEMORY_MB", 512), ("VCPU", 4)),
            "build.image": None,
            "spec.image": "",
        },
    ),
    "resources and traits": (
        (
            {},
            {
                "extra_specs": {
                    "resources:VCPU": "2",
                    "trait:HW_CPU_X86_AVX2": "required",
                    "resources1:CUSTOM_FPGA": "2",
                    "capabilities:hypervisor_type": "QEMU",
                }
            },
        ),
        {
            "spec.amounts": (("CUSTOM_FPGA", 2), ("DISK_GB", 1), ("MEMORY_MB", 64), ("VCPU", 2)),
            "spec.required": ("HW_CPU_X86_AVX2",),
            "spec.groups": (GranularGroup("1", (("CUSTOM_FPGA", 2),)),),
            "spec.extra_specs": (("capabilities:hypervisor_type", "QEMU"),),
        },
    ),
    "bare metal": (
        (
            {},
            {
                "extra_specs": dict.fromkeys(
                    ("resources:VCPU", "resources:MEMORY_MB", "resources:DISK_GB"), "0"
                )
                | {"resources:CUSTOM_GOLD": "1"}
            },
        ),
        {"spec.amounts": (("CUSTOM_GOLD", 1),), "spec.is_for_nodes": True},
    ),
    "for computes alone": (
        (
            {},
            {"extra_specs": {"quota:disk_read_bytes_sec": "1", "hw_rng:allowed": "true"}},
            {"hw_rng_model": "virtio", "hw_qemu_guest_agent": True},
        ),
        {"spec.required": (), "spec.extra_specs": (), "spec.image_properties": ()},
    ),
    "traits of keys": (
        (
            {},
            {"extra_specs": {"os:secure_boot": "required", "hw:maxphysaddr_mode": "emulate"}},
            {
                "hw_firmware_stateless": True,
                "traits_required": ["HW_CPU_X86_SGX"],
                "os_secure_boot": "optional",
            },
        ),
        {
            "spec.required": (
                "COMPUTE_ADDRESS_SPACE_EMULATED",
                "COMPUTE_SECURITY_STATELESS_FIRMWARE",
                "COMPUTE_SECURITY_UEFI_SECURE_BOOT",
                "HW_CPU_X86_SGX",
            )
        },
    ),
    "properties for filters": (
        ({}, {}, {"hw_architecture": "x86_64", "os_distro": "debian"}),
        {"spec.image_properties": (("hw_architecture", "x86_64"), ("os_distro", "debian"))},
    ),
    # The second host may be discovered before a host is chosen.
    "zone and ignored hosts": (
        ({"availability_zone": "north", "ignore_hosts": ["RHOST0002", "gone"]},),
        {"spec.availability_zone": "north", "spec.ignore_hosts": ("gone", "rhost0002")},
    ),
    "forced host": (
        ({"force_hosts": ["RHost0001", "rhost0002"]},),
        {"spec.hosts": ("rhost0001", "rhost0002"), "is_forced": True},
    ),
    "forced node": (
        ({"force_hosts": ["ironic"], "force_nodes": ["node-2"]},),
        {"spec.hosts": ("node-2",), "is_forced": True},
    ),
    "forced service": (({"force_hosts": ["ironic"]},), {"spec.hosts": ("node-1", "node-2")}),
    "destination": (
        ({"requested_destination": a_destination(host="rhost0001", node="rhost0001.example.org")},),
        {"spec.hosts": ("rhost0001",), "is_forced": False},
    ),
    "destination node": (
        ({"requested_destination": a_destination(host=None, node="node-1")},),
        {"spec.hosts": ("node-1",)},
    ),
    "cell and aggregates": (
        (
            {
                "requested_destination": a_destination(
                    cell=an_object("CellMapping", "1.1", uuid=str(CELL), name="cell1", disabled=False),
                    aggregates=[f"{AGGREGATES[0]},{AGGREGATES[1]}", AGGREGATES[2]],
                    forbidden_aggregates=[AGGREGATES[1]],
                    allow_cross_cell_move=False,
                )
            },
        ),
        {
            "spec.cell": "c1",
            "spec.member_of": (tuple(AGGREGATE_IDS[:2]), (AGGREGATE_IDS[2],)),
            "spec.forbidden_aggregates": (AGGREGATE_IDS[1],),
        },
    ),
    "tried hosts": (
        ({"retry": an_object("SchedulerRetries", "1.1", num_attempts=2, hosts=TRIED)},),
        {"spec.ignore_hosts": ("node-2", "rhost0001")},
    ),
    "server group": (
        ({"instance_group": a_group(), "scheduler_hints": {"group": [str(GROUP)]}},),
        {
            "spec.server_group": ServerGroup(id=GroupId(GROUP), policy="anti-affinity", max_per_host=2),
            "group.members": (INSTANCE,),
            "group.hosts": ("rhost0002",),
        },
    ),
    "hints": (
        ({"scheduler_hints": {"same_host": [str(OTHER)], "different_host": [str(THIRD)]}},),
        {"build.same_host": (OTHER,), "build.different_host": (THIRD,)},
    ),
    "rebuild": (
        (
            {
                "scheduler_hints": {"_nova_check_type": ["rebuild"]},
                "force_hosts": ["rhost0001"],
                "force_nodes": ["rhost0001.example.org"],
                "numa_topology": an_object("InstanceNUMATopology", cells=[]),
                "pci_requests": pci(devices_of(), devices_of(alias=None)),
            },
            {"extra_specs": {"hw:cpu_policy": "dedicated", "pci_passthrough:alias": "nic:1"}},
        ),
        {"is_rebuild": True, "is_forced": False, "spec.hosts": ("rhost0001",)},
    ),
    "ports": (
        (
            {
                "requested_resources": [
                    port(),
                    port("port-2", resources={"NET_PACKET_RATE_KILOPACKET_PER_SEC": 5}, required_traits=[]),
                ],
                "request_level_params": an_object(
                    "RequestLevelParams", "1.1", root_required=[], same_subtree=[["port-1", "port-2"]]
                ),
            },
        ),
        {
            "spec.groups": (
                PORT_1,
                GranularGroup("port port-2", (("NET_PACKET_RATE_KILOPACKET_PER_SEC", 5),)),
            ),
            "spec.same_subtree": (("port port-1", "port port-2"),),
        },
    ),
    "device profile": (
        (
            {"requested_resources": [port("device_profile_0", resources={"FPGA": 1}, required_traits=[])]},
            {"extra_specs": {"accel:device_profile": "crypto"}},
        ),
        {
            "spec.required": ("COMPUTE_ACCELERATORS",),
            "spec.groups": (GranularGroup("port device_profile_0", (("FPGA", 1),)),),
        },
    ),
    "devices of an alias": (
        (
            {
                "pci_requests": pci(devices_of(2, numa_policy="required")),
                "requested_resources": [*device_groups(2, required_traits=["CUSTOM_FAST"]), port()],
            },
            {"extra_specs": {"pci_passthrough:alias": "nic:2", "hw:pci_numa_affinity_policy": "required"}},
        ),
        {
            "spec.groups": (
                GranularGroup(f"port {DEVICES}-0", ((DEVICE, 1),), ("CUSTOM_FAST",)),
                GranularGroup(f"port {DEVICES}-1", ((DEVICE, 1),), ("CUSTOM_FAST",)),
                PORT_1,
            ),
            "spec.isolates": False,
            "spec.extra_specs": (),
        },
    ),
}


@pytest.mark.parametrize("case", READ)
def test_what_a_request_asks_for_is_read(case: str) -> None:
    changes, means = READ[case]
    request = read(*changes, instances=(INSTANCE, OTHER))

    assert (request.instances, request.spec.count) == ((INSTANCE, OTHER), 2)
    assert {each: attrgetter(each)(request) for each in means} == means


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


# A later Nova's object at each place of a request, as the fields of its RequestSpec, and the path of what is new in it.
OF_LATER: tuple[tuple[Callable[[object], dict[str, object]], str], ...] = (
    (lambda novel: {"novel": novel}, "novel"),
    (lambda novel: {"instance_group": a_group(novel=novel)}, "instance_group.novel"),
    (lambda novel: {"requested_destination": a_destination(novel=novel)}, "requested_destination.novel"),
    (lambda novel: {"requested_resources": [port(novel=novel)]}, "requested_resources[0].novel"),
    (
        lambda novel: {"request_level_params": an_object("RequestLevelParams", "1.9", novel=novel)},
        "request_level_params.novel",
    ),
    (lambda novel: {"scheduler_hints": {"novel": novel}}, "scheduler_hints.novel"),
)
NOTHING: tuple[object, ...] = (
    None,
    False,
    0,
    0.0,
    "",
    [],
    {},
    an_object("NovelList", objects=[], source=None),
)
SOMETHING: tuple[object, ...] = (
    True,
    1,
    "x",
    ["x"],
    [None],
    {"a": 1},
    an_object("NovelList", objects=[{}], source=None),
)


@pytest.mark.parametrize("place", OF_LATER, ids=[path for _, path in OF_LATER])
def test_a_new_field_of_a_later_nova_is_refused_only_if_it_asks_for_something(
    place: tuple[Callable[[object], dict[str, object]], str],
) -> None:
    fields, path = place
    for novel in NOTHING:
        assert READER.read(asked(fields(novel)), NAMES) == READER.read(asked(fields(None)), NAMES), novel
    for novel in SOMETHING:
        refused = refusal(asked(fields(novel)))
        assert (refused.field, "this field is unknown here" in refused.reason) == (f"spec_obj.{path}", True)


@pytest.mark.parametrize("name", ["RequestSpec", "Flavor", "ImageMeta"])
def test_a_later_minor_version_of_an_object_is_read_and_another_major_one_is_refused(name: str) -> None:
    args = asked()
    spec = args["spec_obj"]
    data = spec["nova_object.data"]
    at, value = {"RequestSpec": ("", spec), "Flavor": (".flavor", data["flavor"])}.get(
        name, (".image", data["image"])
    )
    value["nova_object.version"] = "1.99"
    assert READER.read(args, NAMES) == READER.read(asked(), NAMES)

    value["nova_object.version"] = "2.0"
    assert refusal(args).field == f"spec_obj{at}.nova_object.version"


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
