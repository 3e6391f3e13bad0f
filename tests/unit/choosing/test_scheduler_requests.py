"""read_request: what one instance needs, or the field that makes no sense."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import structs

from bus.messages.build import BuildInstance
from engine.flavors import Flavor, InstanceId, PortRequest, RequestId, VolumeRequest
from engine.requests import InstanceSpec, RequestProblem, read_request
from engine.requests.spec import GranularGroup, needs_of
from tests.contracts.placement_orders import VOCABULARY, aggregate, an_id

REQUEST = RequestId(an_id("request"))
SMALL = Flavor(name="small", vcpus=2, ram_mb=4096, root_gb=20)


def a_build(extra_specs: Mapping[str, str] | None = None, **other: Any) -> BuildInstance:
    flavor = structs.replace(SMALL, extra_specs=dict(extra_specs or {}))
    return structs.replace(BuildInstance(request_id=REQUEST, flavor=flavor), **other)


def the_spec(build: BuildInstance, scopes: frozenset[str] = frozenset()) -> InstanceSpec:
    spec = read_request(build, VOCABULARY, scopes)
    assert isinstance(spec, InstanceSpec), spec
    return spec


def the_rejection(build: BuildInstance) -> RequestProblem:
    rejected = read_request(build, VOCABULARY)
    assert isinstance(rejected, RequestProblem), rejected
    assert rejected.reason
    return rejected


def test_a_flavor_asks_for_its_processors_memory_and_disk() -> None:
    assert the_spec(a_build()).amounts == (("DISK_GB", 20), ("MEMORY_MB", 4096), ("VCPU", 2))


def test_disk_is_root_and_ephemeral_and_swap_rounded_up_to_gigabytes() -> None:
    flavor = structs.replace(SMALL, root_gb=10, ephemeral_gb=5, swap_mb=1025)

    assert dict(the_spec(a_build(flavor=flavor)).amounts)["DISK_GB"] == 17


def test_extra_specs_override_and_add_and_strip() -> None:
    spec = the_spec(a_build({"resources:VCPU": "8", "resources:VGPU": "1", "resources:DISK_GB": "0"}))

    assert spec.amounts == (("MEMORY_MB", 4096), ("VCPU", 8), ("VGPU", 1))


def test_traits_come_from_flavor_and_image_each_once_and_in_order() -> None:
    build = a_build(
        {
            "trait:STORAGE_DISK_SSD": "required",
            "trait:CUSTOM_GOLD": "required",
            "trait:CUSTOM_OLD": "forbidden",
        },
        image_properties={"trait:HW_CPU_X86_VMX": "required", "trait:CUSTOM_GOLD": "required"},
    )

    spec = the_spec(build)

    assert spec.required == ("CUSTOM_GOLD", "HW_CPU_X86_VMX", "STORAGE_DISK_SSD")
    assert spec.forbidden == ("CUSTOM_OLD",)


def test_zone_hosts_and_count_are_carried_along() -> None:
    build = a_build(availability_zone="z1", hosts=("Host-2", "host-1"), ignore_hosts=("HOST-9",), count=3)

    spec = the_spec(build)

    assert (spec.availability_zone, spec.count) == ("z1", 3)
    assert (spec.hosts, spec.ignore_hosts) == (("host-1", "host-2"), ("host-9",))


def test_keys_that_plugins_read_are_left_to_them() -> None:
    spec = the_spec(a_build({"acme:rack": "7"}), scopes=frozenset({"acme"}))

    assert spec.extra_specs == (("acme:rack", "7"),)


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
    ],
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
    read = read_request(a_build({key: "1"}), VOCABULARY, frozenset({scope}))
    assert isinstance(read, InstanceSpec)
    assert read.extra_specs == ((key, "1"),)


def test_a_trait_both_required_and_forbidden_is_refused() -> None:
    build = a_build({"trait:CUSTOM_X": "forbidden"}, image_properties={"trait:CUSTOM_X": "required"})

    assert the_rejection(build).value == "CUSTOM_X"


def test_a_suffix_makes_a_granular_group_of_amounts_and_traits() -> None:
    spec = the_spec(
        a_build(
            {
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
        )
    )

    assert spec.groups == (
        GranularGroup(
            "1", (("VGPU", 1),), ("CUSTOM_FAST",), ("CUSTOM_OLD",), preferred=(("CUSTOM_NEAR", 2.5),)
        ),
        GranularGroup("_NET", (("CUSTOM_VF", 2),)),
        GranularGroup("_ROOT", (), ("CUSTOM_NUMA",)),
    )
    assert (spec.isolates, spec.same_subtree) == (True, (("_ROOT", "1"),))
    assert spec.required == ("CUSTOM_GOLD",)
    assert dict(spec.amounts) == {"VCPU": 2, "MEMORY_MB": 4096, "DISK_GB": 20, "VGPU": 1, "CUSTOM_VF": 2}


def test_a_class_that_groups_ask_for_is_not_taken_from_the_flavors_sizes_too() -> None:
    spec = the_spec(
        a_build(
            {"resources1:VCPU": "1", "resources2:VCPU": "1", "resources:VGPU": "1", "group_policy": "none"}
        )
    )

    assert dict(spec.amounts) == {"VCPU": 2, "MEMORY_MB": 4096, "DISK_GB": 20, "VGPU": 1}
    assert dict(needs_of(spec).outside_of_groups) == {"MEMORY_MB": 4096, "DISK_GB": 20, "VGPU": 1}


def test_traits_outside_of_groups_are_refused_where_all_resources_are_in_groups() -> None:
    flavor = Flavor(name="x", vcpus=2, extra_specs={"resources1:VCPU": "2", "trait:CUSTOM_X": "required"})

    assert the_rejection(a_build(flavor=flavor)).field == "flavor.extra_specs.trait:CUSTOM_X"


def test_preferences_have_weights_and_those_of_flavor_and_image_add_up() -> None:
    spec = the_spec(
        a_build(
            {
                "trait:CUSTOM_A": "preferred",
                "trait:CUSTOM_B": "preferred:-3",
                "resources:VGPU": "preferred:2",
            },
            image_properties={"trait:CUSTOM_A": "preferred:0.5"},
        )
    )

    assert spec.preferred == (("CUSTOM_A", 1.5), ("CUSTOM_B", -3.0))
    assert spec.preferred_classes == (("VGPU", 2.0),)
    assert "VGPU" not in dict(spec.amounts)


@pytest.mark.parametrize(
    ("specs", "properties"),
    [
        ({"hw:cpu_policy": "dedicated"}, {}),
        ({}, {"hw_cpu_policy": "dedicated"}),
        ({"hw:cpu_policy": "dedicated"}, {"hw_cpu_policy": "shared"}),
    ],
)
def test_a_dedicated_policy_asks_for_dedicated_processors(
    specs: Mapping[str, str], properties: Mapping[str, str]
) -> None:
    spec = the_spec(a_build(specs, image_properties=dict(properties)))

    assert dict(spec.amounts) == {"PCPU": 2, "MEMORY_MB": 4096, "DISK_GB": 20}


A_PORT = PortRequest(
    id="p-1", resources={"CUSTOM_BANDWIDTH": 5}, physical_network="net.1", vnic_type="direct"
)
A_VOLUME = VolumeRequest(
    id="v-1", resources={"DISK_GB": 3}, required=("CUSTOM_FAST",), forbidden=("CUSTOM_OLD",)
)


def test_ports_and_volumes_are_groups_of_their_own_beside_the_flavors_sizes() -> None:
    spec = the_spec(a_build({"resources1:VGPU": "1"}, port_requests=(A_PORT,), volume_requests=(A_VOLUME,)))

    assert spec.groups == (
        GranularGroup("1", (("VGPU", 1),)),
        GranularGroup(
            "port p-1", (("CUSTOM_BANDWIDTH", 5),), ("CUSTOM_PHYSNET_NET_1", "CUSTOM_VNIC_TYPE_DIRECT")
        ),
        GranularGroup("volume v-1", (("DISK_GB", 3),), ("CUSTOM_FAST",), ("CUSTOM_OLD",)),
    )
    assert dict(spec.amounts) == {
        "VCPU": 2,
        "MEMORY_MB": 4096,
        "DISK_GB": 23,
        "VGPU": 1,
        "CUSTOM_BANDWIDTH": 5,
    }


def test_aggregates_are_asked_for_and_forbidden_in_any_order() -> None:
    a, b, c = (aggregate(name) for name in "abc")

    one = the_spec(a_build(member_of=((a, b), (c,)), forbidden_aggregates=(a, b)))
    other = the_spec(a_build(member_of=((c,), (b, a, b)), forbidden_aggregates=(b, a)))

    assert one == other
    assert {frozenset(any_of) for any_of in one.member_of} == {frozenset((a, b)), frozenset((c,))}
    assert set(one.forbidden_aggregates) == {a, b}


@pytest.mark.parametrize(
    ("build", "field", "value"),
    [
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
    ],
)
def test_nonsense_about_ports_and_volumes_is_refused_by_its_field(
    build: BuildInstance, field: str, value: str
) -> None:
    rejected = the_rejection(build)

    assert (rejected.field, str(rejected.value)) == (field, value)


@pytest.mark.parametrize(
    ("policy", "required", "forbidden"),
    [
        ("prefer", (), ()),
        ("require", ("HW_CPU_HYPERTHREADING",), ()),
        ("isolate", (), ("HW_CPU_HYPERTHREADING",)),
    ],
)
def test_a_thread_policy_is_a_trait(
    policy: str, required: tuple[str, ...], forbidden: tuple[str, ...]
) -> None:
    dedicated = {"hw:cpu_policy": "dedicated"}
    by_flavor = the_spec(a_build({**dedicated, "hw:cpu_thread_policy": policy}))
    by_image = the_spec(a_build(dedicated, image_properties={"hw_cpu_thread_policy": policy}))

    assert (by_flavor.required, by_flavor.forbidden) == (required, forbidden)
    assert by_image == by_flavor


@pytest.mark.parametrize(
    ("build", "field", "limit"),
    [
        (a_build({f"resources:CUSTOM_{n}": "1" for n in range(401)}), "flavor.extra_specs", 400),
        (
            a_build(image_properties={f"trait:CUSTOM_{n}": "required" for n in range(401)}),
            "image_properties",
            400,
        ),
        (a_build(hosts=tuple(f"h{n}" for n in range(1_001))), "hosts", 1_000),
        (a_build(ignore_hosts=tuple(f"h{n}" for n in range(1_001))), "ignore_hosts", 1_000),
    ],
)
def test_what_takes_a_pass_over_all_hosts_each_is_counted(
    build: BuildInstance, field: str, limit: int
) -> None:
    rejected = the_rejection(build)

    assert (rejected.field, str(rejected.value)) == (field, str(limit + 1))
    assert str(limit) in rejected.reason
