"""read_request: what one instance needs, or the field that makes no sense."""

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import structs

from bus.messages.build import BuildInstance
from engine.flavors import Flavor, InstanceId, PortRequest, RequestId, VolumeRequest, Wait
from engine.requests import InstanceSpec, RequestProblem, priority_of, priority_of_wait, read_request
from engine.requests.spec import GranularGroup
from tests.contracts.placement_orders import VOCABULARY, aggregate, an_id
from tests.narrowing import must_be

REQUEST = RequestId(an_id("request"))
SMALL = Flavor(name="small", vcpus=2, ram_mb=4096, root_gb=20)


def a_build(extra_specs: Mapping[str, str] | None = None, **other: Any) -> BuildInstance:
    flavor = structs.replace(SMALL, extra_specs=dict(extra_specs or {}))
    return structs.replace(BuildInstance(request_id=REQUEST, flavor=flavor), **other)


def the_spec(build: BuildInstance, scopes: frozenset[str] = frozenset()) -> InstanceSpec:
    return must_be(InstanceSpec, read_request(build, VOCABULARY, scopes))


def the_rejection(build: BuildInstance) -> RequestProblem:
    rejected = must_be(RequestProblem, read_request(build, VOCABULARY))
    assert rejected.reason
    return rejected


SIZES = {"VCPU": 2, "MEMORY_MB": 4096, "DISK_GB": 20}
PINNED = {"PCPU": 2, "MEMORY_MB": 4096, "DISK_GB": 20}
DEDICATED = {"hw:cpu_policy": "dedicated"}
THREADS = "HW_CPU_HYPERTHREADING"
GRANULAR = {
    "resources1:VGPU": "1",
    "trait1:CUSTOM_FAST": "required",
    "trait1:CUSTOM_OLD": "forbidden",
    "trait1:CUSTOM_NEAR": "preferred:2.5",
    "resources_NET:CUSTOM_VF": "2",
    "trait_ROOT:CUSTOM_NUMA": "required",
    "group_policy": "isolate",
    "same_subtree": "_ROOT, 1",
    "trait:CUSTOM_GOLD": "required",
}
TRAITS = {f"trait:{each}": "required" for each in ("STORAGE_DISK_SSD", "CUSTOM_GOLD")}


A_PORT = PortRequest(
    id="p-1", resources={"CUSTOM_BANDWIDTH": 5}, physical_network="net.1", vnic_type="direct"
)
A_VOLUME = VolumeRequest(
    id="v-1", resources={"DISK_GB": 3}, required=("CUSTOM_FAST",), forbidden=("CUSTOM_OLD",)
)


@pytest.mark.parametrize(
    ("build", "read"),
    [
        (a_build(), {"amounts": SIZES}),
        (
            a_build(flavor=structs.replace(SMALL, root_gb=10, ephemeral_gb=5, swap_mb=1025)),
            {"amounts": SIZES | {"DISK_GB": 17}},
        ),
        (
            a_build({"resources:VCPU": "8", "resources:VGPU": "1", "resources:DISK_GB": "0"}),
            {"amounts": {"MEMORY_MB": 4096, "VCPU": 8, "VGPU": 1}},
        ),
        (
            a_build(
                {**TRAITS, "trait:CUSTOM_OLD": "forbidden"},
                image_properties={"trait:HW_CPU_X86_VMX": "required", "trait:CUSTOM_GOLD": "required"},
            ),
            {"required": ("CUSTOM_GOLD", "HW_CPU_X86_VMX", "STORAGE_DISK_SSD"), "forbidden": ("CUSTOM_OLD",)},
        ),
        (
            a_build(availability_zone="z1", hosts=("Host-2", "host-1"), ignore_hosts=("HOST-9",), count=3),
            {
                "availability_zone": "z1",
                "hosts": ("host-1", "host-2"),
                "ignore_hosts": ("host-9",),
                "count": 3,
            },
        ),
        (
            a_build(GRANULAR),
            {
                "groups": (
                    GranularGroup(
                        *("1", (("VGPU", 1),), ("CUSTOM_FAST",), ("CUSTOM_OLD",)),
                        preferred=(("CUSTOM_NEAR", 2.5),),
                    ),
                    GranularGroup("_NET", (("CUSTOM_VF", 2),)),
                    GranularGroup("_ROOT", (), ("CUSTOM_NUMA",)),
                ),
                "isolates": True,
                "same_subtree": (("_ROOT", "1"),),
                "required": ("CUSTOM_GOLD",),
                "amounts": SIZES | {"VGPU": 1, "CUSTOM_VF": 2},
            },
        ),
        # What groups ask for is not taken from the flavor's sizes, too.
        (
            a_build(
                {
                    "resources1:VCPU": "1",
                    "resources2:VCPU": "1",
                    "resources:VGPU": "1",
                    "group_policy": "none",
                }
            ),
            {"amounts": SIZES | {"VGPU": 1}},
        ),
        (
            a_build(
                {
                    "trait:CUSTOM_A": "preferred",
                    "trait:CUSTOM_B": "preferred:-3",
                    "resources:VGPU": "preferred:2",
                },
                image_properties={"trait:CUSTOM_A": "preferred:0.5"},
            ),
            {"preferred": (("CUSTOM_A", 1.5), ("CUSTOM_B", -3.0)), "preferred_classes": (("VGPU", 2.0),)},
        ),
        (a_build(DEDICATED), {"amounts": PINNED}),
        (a_build(image_properties={"hw_cpu_policy": "dedicated"}), {"amounts": PINNED}),
        (a_build(DEDICATED, image_properties={"hw_cpu_policy": "shared"}), {"amounts": PINNED}),
        *[
            (build, {"required": required, "forbidden": forbidden})
            for policy, required, forbidden in (
                ("prefer", (), ()),
                ("require", (THREADS,), ()),
                ("isolate", (), (THREADS,)),
            )
            for build in (
                a_build({**DEDICATED, "hw:cpu_thread_policy": policy}),
                a_build(DEDICATED, image_properties={"hw_cpu_thread_policy": policy}),
            )
        ],
        (
            a_build({"resources1:VGPU": "1"}, port_requests=(A_PORT,), volume_requests=(A_VOLUME,)),
            {
                "groups": (
                    GranularGroup("1", (("VGPU", 1),)),
                    GranularGroup(
                        *("port p-1", (("CUSTOM_BANDWIDTH", 5),)),
                        ("CUSTOM_PHYSNET_NET_1", "CUSTOM_VNIC_TYPE_DIRECT"),
                    ),
                    GranularGroup("volume v-1", (("DISK_GB", 3),), ("CUSTOM_FAST",), ("CUSTOM_OLD",)),
                ),
                "amounts": SIZES | {"DISK_GB": 23, "VGPU": 1, "CUSTOM_BANDWIDTH": 5},
            },
        ),
    ],
    ids=itertools.count(),
)
def test_what_a_request_asks_for(build: BuildInstance, read: dict[str, Any]) -> None:
    spec = the_spec(build)

    told = {name: getattr(spec, name) for name in read}
    assert told | ({"amounts": dict(spec.amounts)} if "amounts" in read else {}) == read


@pytest.mark.parametrize(
    ("build", "field", "value"),
    [
        (a_build(flavor=None), "flavor", ""),
        (a_build(flavor=structs.replace(SMALL, vcpus=-1)), "flavor.vcpus", "-1"),
        (a_build(flavor=structs.replace(SMALL, swap_mb=-1)), "flavor.swap_mb", "-1"),
        (a_build(flavor=structs.replace(SMALL, ram_mb=2**31)), "flavor.ram_mb", str(2**31)),
        (a_build(flavor=structs.replace(SMALL, root_gb=2**31 - 1, swap_mb=1)), "flavor", str(2**31)),
        (a_build(flavor=Flavor(name="nothing")), "flavor", "nothing"),
        (
            a_build({"resources:VCPU": "0", "resources:MEMORY_MB": "0", "resources:DISK_GB": "0"}),
            "flavor",
            "small",
        ),
        (a_build({"resources:NO_SUCH": "1"}), "flavor.extra_specs.resources:NO_SUCH", "NO_SUCH"),
        (a_build({"resources:CUSTOM_a b": "1"}), "flavor.extra_specs.resources:CUSTOM_a b", "CUSTOM_a b"),
        (a_build({"resources:VCPU": "-1"}), "flavor.extra_specs.resources:VCPU", "-1"),
        (a_build({"resources:VCPU": "2.5"}), "flavor.extra_specs.resources:VCPU", "2.5"),
        (a_build({"resources:VCPU": "٣"}), "flavor.extra_specs.resources:VCPU", "٣"),
        (a_build({"resources:VCPU": "2\n"}), "flavor.extra_specs.resources:VCPU", "2\n"),
        (a_build({"resources:VCPU": "2147483648"}), "flavor.extra_specs.resources:VCPU", "2147483648"),
        (a_build({"trait:NO_SUCH": "required"}), "flavor.extra_specs.trait:NO_SUCH", "NO_SUCH"),
        (a_build({"trait:CUSTOM_X": "wanted"}), "flavor.extra_specs.trait:CUSTOM_X", "wanted"),
        (a_build({"trait:CUSTOM_X": "preferred:"}), "flavor.extra_specs.trait:CUSTOM_X", "preferred:"),
        (a_build({"trait:CUSTOM_X": "preferred:nan"}), "flavor.extra_specs.trait:CUSTOM_X", "preferred:nan"),
        (
            a_build({"resources:VGPU": "preferred:2000000"}),
            "flavor.extra_specs.resources:VGPU",
            "preferred:2000000",
        ),
        (a_build({"resources1:VGPU": "preferred"}), "flavor.extra_specs.resources1:VGPU", "preferred"),
        (a_build({"resources1:NO_SUCH": "1"}), "flavor.extra_specs.resources1:NO_SUCH", "NO_SUCH"),
        (a_build({"resources 1:VCPU": "1"}), "flavor.extra_specs.resources 1:VCPU", "1"),
        (a_build({"group_policy": "both"}), "flavor.extra_specs.group_policy", "both"),
        (a_build({"same_subtree": "1,,2"}), "flavor.extra_specs.same_subtree", "1,,2"),
        (a_build({"same_subtree": "1"}), "flavor.extra_specs.same_subtree", "1"),
        (a_build({"resources1:VGPU": "1", "resources2:VGPU": "1"}), "flavor.extra_specs.group_policy", ""),
        (a_build({"trait1:CUSTOM_X": "forbidden"}), "flavor.extra_specs.trait1:CUSTOM_X", "forbidden"),
        (
            a_build({"trait1:CUSTOM_X": "required", "resources2:VGPU": "1"}),
            "flavor.extra_specs.trait1:CUSTOM_X",
            "required",
        ),
        (a_build({"resources1:VGPU": "0"}), "flavor.extra_specs.resources1:VGPU", "0"),
        (
            a_build({f"resources{number}:VGPU": "1" for number in range(33)} | {"group_policy": "none"}),
            "flavor.extra_specs",
            "33",
        ),
        (a_build({"hw:cpu_policy": "mixed"}), "flavor.extra_specs.hw:cpu_policy", "mixed"),
        (
            a_build({"hw:cpu_policy": "shared"}, image_properties={"hw_cpu_policy": "dedicated"}),
            "image_properties.hw_cpu_policy",
            "dedicated",
        ),
        (a_build({"hw:cpu_thread_policy": "require"}), "flavor.extra_specs.hw:cpu_thread_policy", "require"),
        (
            a_build({"hw:cpu_policy": "dedicated", "hw:cpu_thread_policy": "often"}),
            "flavor.extra_specs.hw:cpu_thread_policy",
            "often",
        ),
        (
            a_build(
                {"hw:cpu_policy": "dedicated", "hw:cpu_thread_policy": "isolate"},
                image_properties={"hw_cpu_thread_policy": "require"},
            ),
            "image_properties.hw_cpu_thread_policy",
            "require",
        ),
        (
            a_build(image_properties={"trait1:CUSTOM_X": "required"}),
            "image_properties.trait1:CUSTOM_X",
            "required",
        ),
        (a_build({"resource:VCPU": "1"}), "flavor.extra_specs.resource:VCPU", "1"),
        (a_build({"traits": "1"}), "flavor.extra_specs.traits", "1"),
        (a_build({"hw:numa_nodes": "3"}), "flavor.extra_specs.hw:numa_nodes", "3"),
        (a_build({"hw:numa_nodes": "2", "resources:VCPU": "2"}), "flavor.extra_specs.resources:VCPU", "2"),
        (a_build({"hw:watchdog": "reset"}), "flavor.extra_specs.hw:watchdog", "reset"),
        (a_build({"quota": "1"}), "flavor.extra_specs.quota", "1"),
        (a_build({"hw:tpm_version": "2.0"}), "flavor.extra_specs.hw:tpm_version", "2.0"),
        (
            a_build(image_properties={"trait:NO_SUCH": "required"}),
            "image_properties.trait:NO_SUCH",
            "NO_SUCH",
        ),
        (a_build(image_properties={"hw_rng_model": "virtio"}), "image_properties.hw_rng_model", "virtio"),
        (a_build(image_properties={"resources:VGPU": "1"}), "image_properties.resources:VGPU", "1"),
        (a_build(image_properties={"traits": "CUSTOM_X"}), "image_properties.traits", "CUSTOM_X"),
        (
            a_build({"trait:CUSTOM_X": "forbidden"}, image_properties={"trait:CUSTOM_X": "required"}),
            "flavor.extra_specs.trait:CUSTOM_X",
            "CUSTOM_X",
        ),
        (
            a_build(
                flavor=Flavor(vcpus=2, extra_specs={"resources1:VCPU": "2", "trait:CUSTOM_X": "required"})
            ),
            "flavor.extra_specs.trait:CUSTOM_X",
            "required",
        ),
        *[
            (build, field, str(limit + 1))
            for build, field, limit in (
                (a_build({f"resources:CUSTOM_{n}": "1" for n in range(401)}), "flavor.extra_specs", 400),
                (
                    a_build(image_properties={f"trait:CUSTOM_{n}": "required" for n in range(401)}),
                    "image_properties",
                    400,
                ),
                (a_build(hosts=tuple(f"h{n}" for n in range(1_001))), "hosts", 1_000),
                (a_build(ignore_hosts=tuple(f"h{n}" for n in range(1_001))), "ignore_hosts", 1_000),
            )
        ],
        # As many and as long as each may be, but not all together.
        (
            a_build({f"trait:CUSTOM_{'X' * 60}{n}": "required" for n in range(200)}),
            "flavor.extra_specs",
            "17891",
        ),
        (
            a_build(image_properties={f"trait:CUSTOM_{'X' * 60}{n}": "required" for n in range(200)}),
            "image_properties",
            "17891",
        ),
        (a_build(config_drive="\N{GRINNING FACE}" * 40_000), "config_drive", "160002"),
        (a_build(port_requests=(A_PORT,), count=2), "port_requests", "p-1"),
        (a_build(volume_requests=(A_VOLUME,), count=2), "volume_requests", "v-1"),
        (a_build(port_requests=(A_PORT, A_PORT)), "port_requests[1].id", "p-1"),
        (a_build(volume_requests=(structs.replace(A_VOLUME, id=""),)), "volume_requests[0].id", ""),
        (a_build(port_requests=(structs.replace(A_PORT, resources={}),)), "port_requests[0].resources", ""),
        (
            a_build(port_requests=(structs.replace(A_PORT, resources={"NO_SUCH": 1}),)),
            "port_requests[0].resources.NO_SUCH",
            "NO_SUCH",
        ),
        (
            a_build(volume_requests=(structs.replace(A_VOLUME, required=("NO_SUCH",)),)),
            "volume_requests[0].required",
            "NO_SUCH",
        ),
        (
            a_build(volume_requests=(structs.replace(A_VOLUME, required=("CUSTOM_OLD",)),)),
            "volume_requests[0].required",
            "CUSTOM_OLD",
        ),
        (
            a_build(port_requests=(structs.replace(A_PORT, physical_network="n" * 250),)),
            "port_requests[0].physical_network",
            "n" * 250,
        ),
        (a_build(count=0), "count", "0"),
        (a_build(count=1001), "count", "1001"),
        (a_build(instance_ids=(InstanceId(an_id("a")),), count=2), "instance_ids", "1"),
        (
            a_build(instance_ids=(InstanceId(an_id("a")),) * 2, count=2),
            "instance_ids[1]",
            str(an_id("a")),
        ),
        (a_build(deadline_s=0), "deadline_s", "0"),
        (a_build(deadline_s=86_401), "deadline_s", "86401"),
        (a_build(wait=Wait(for_s=0)), "wait.for_s", "0"),
        (a_build(wait=Wait(for_s=2_592_001)), "wait.for_s", "2592001"),
        (a_build(wait=Wait(for_s=1, priority=-1)), "wait.priority", "-1"),
        (a_build(wait=Wait(for_s=1, priority=101)), "wait.priority", "101"),
        (a_build(priority=-1001), "priority", "-1001"),
        *(
            (a_build({"moor:priority": each}), "flavor.extra_specs.moor:priority", each)
            for each in ("1001", "-1001", "", "high", "1.5", "+1", "٣", "1\n")
        ),
        (a_build(wait=Wait(for_s=1), count=2, all_or_nothing=True), "all_or_nothing", "true"),
    ],
    ids=itertools.count(),
)
def test_nonsense_is_refused_by_its_field_and_value(build: BuildInstance, field: str, value: str) -> None:
    rejected = the_rejection(build)

    assert (rejected.field, str(rejected.value)) == (field, value)


@pytest.mark.parametrize(
    "key",
    [
        "hw_rng:allowed",
        "quota:disk_read_bytes_sec",
        "hw:watchdog_action",
        "hw:cpu_max_sockets",
        "hw:cpu_cores",
    ],
)
def test_what_only_hosts_read_asks_for_nothing_unless_a_plugin_reads_it(key: str) -> None:
    plain, scope = the_spec(a_build()), key.partition(":")[0]

    assert the_spec(a_build({key: "1"})) == plain
    read = must_be(InstanceSpec, read_request(a_build({key: "1"}), VOCABULARY, frozenset({scope})))
    assert read.extra_specs == ((key, "1"),)


@pytest.mark.parametrize(
    ("build", "priority", "waits_with"),
    [
        (a_build(wait=Wait(for_s=1)), 0, 0),
        (a_build(priority=-1000, wait=Wait(for_s=1)), -1000, 0),
        (a_build({"moor:priority": "7"}, wait=Wait(for_s=1)), 7, 7),
        (a_build({"moor:priority": "7"}, priority=-3, wait=Wait(for_s=1)), -3, 0),
        (a_build({"moor:priority": "-7"}, priority=1000, wait=Wait(for_s=1)), 1000, 100),
        (a_build(priority=50, wait=Wait(for_s=1, priority=2)), 50, 2),
    ],
)
def test_a_priority_is_that_of_the_request_or_the_flavor_and_needs_nothing_of_a_host(
    build: BuildInstance, priority: int, waits_with: int
) -> None:
    assert the_spec(build) == the_spec(a_build())
    assert (priority_of(build), priority_of_wait(build)) == (priority, waits_with)


def test_aggregates_are_asked_for_and_forbidden_in_any_order() -> None:
    a, b, c = (aggregate(name) for name in "abc")

    one = the_spec(a_build(member_of=((a, b), (c,)), forbidden_aggregates=(a, b)))
    other = the_spec(a_build(member_of=((c,), (b, a, b)), forbidden_aggregates=(b, a)))

    assert one == other
    assert {frozenset(any_of) for any_of in one.member_of} == {frozenset((a, b)), frozenset((c,))}
    assert set(one.forbidden_aggregates) == {a, b}
