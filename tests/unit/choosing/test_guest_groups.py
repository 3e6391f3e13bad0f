"""What a flavor and an image ask of a guest's processors, memory and devices, as groups of the request."""

from collections.abc import Mapping

import os_resource_classes
import pytest
from msgspec import structs

from bus.messages.build import BuildInstance
from engine.flavors import Flavor, PortRequest
from engine.inventories import Vocabulary
from engine.requests import Alternative, InstanceSpec, RequestProblem, read_alternatives, read_request
from engine.requests.spec import GranularGroup, with_size_kept
from tests.narrowing import must_be
from tests.unit.choosing.test_scheduler_requests import a_build

VOCABULARY = Vocabulary(frozenset(os_resource_classes.STANDARDS), frozenset({"HW_CPU_HYPERTHREADING"}))
CELL = ("HW_NUMA_ROOT",)
DEDICATED = {"hw:cpu_policy": "dedicated"}


def the_spec(build: BuildInstance) -> InstanceSpec:
    return must_be(InstanceSpec, read_request(build, VOCABULARY))


def alternatives_of(build: BuildInstance) -> tuple[Alternative, ...] | RequestProblem:
    return read_alternatives(build, lambda each: read_request(each, VOCABULARY))


def test_each_guest_cell_is_a_group_at_a_cell_of_the_host() -> None:
    spec = the_spec(a_build({"hw:numa_nodes": "2"}))

    each = (("MEMORY_MB", 2048), ("VCPU", 1))
    assert spec.groups == (
        GranularGroup("guest cell 0", each, CELL),
        GranularGroup("guest cell 1", each, CELL),
    )
    assert spec.cells == ("guest cell 0", "guest cell 1")
    assert dict(spec.amounts) == {"VCPU": 2, "MEMORY_MB": 4096, "DISK_GB": 20}


def test_a_guest_of_one_cell_may_stand_on_a_host_without_cells() -> None:
    spec = the_spec(
        a_build({**DEDICATED, "hw:emulator_threads_policy": "isolate", "hw:mem_page_size": "2MB"})
    )

    assert spec.groups == (
        GranularGroup("guest cell 0", (("CUSTOM_MEMORY_MB_PAGES_2048", 4096), ("PCPU", 3))),
    )
    assert dict(spec.amounts) == {"PCPU": 3, "CUSTOM_MEMORY_MB_PAGES_2048": 4096, "DISK_GB": 20}


@pytest.mark.parametrize(
    ("specs", "near"),
    [
        ({}, "legacy"),
        ({"hw:pci_numa_affinity_policy": "required"}, "required"),
        ({"hw:pci_numa_affinity_policy": "socket"}, "required"),
        ({"hw:pci_numa_affinity_policy": "preferred"}, "preferred"),
    ],
)
def test_devices_of_a_guest_with_cells_are_near_them(specs: Mapping[str, str], near: str) -> None:
    bandwidth = PortRequest(id="slow", resources={"NET_BW_EGR_KILOBIT_PER_SEC": 1})
    function = PortRequest(id="fast", resources={"SRIOV_NET_VF": 1}, vnic_type="direct")
    own = structs.replace(function, id="own", numa_affinity_policy="preferred")
    devices = {
        "resources_GPU:VGPU": "1",
        "resources_NET:NET_BW_EGR_KILOBIT_PER_SEC": "5",
        "group_policy": "none",
    }
    ports = (bandwidth, function, own)

    spec = the_spec(a_build({**DEDICATED, **specs, **devices}, port_requests=ports))
    plain = the_spec(a_build({**specs, **devices}, port_requests=ports))

    assert spec.near == (("_GPU", near), ("port fast", near), ("port own", "preferred"))
    assert (plain.near, plain.cells) == ((), ())


def test_a_trait_of_a_guest_with_cells_needs_nothing_outside_of_them() -> None:
    specs = {"trait:CUSTOM_X": "required", "resources:DISK_GB": "0"}

    assert the_spec(a_build({**DEDICATED, **specs})).required == ("CUSTOM_X",)
    rejected = must_be(
        RequestProblem,
        read_request(a_build({**DEDICATED, **specs, "trait:CUSTOM_Y": "preferred"}), VOCABULARY),
    )
    assert rejected.field == "flavor.extra_specs.trait:CUSTOM_Y"


@pytest.mark.parametrize(
    ("size", "image", "ram_mb", "classes"),
    [
        ("large", {}, 4096, ["CUSTOM_MEMORY_MB_PAGES_1048576", "CUSTOM_MEMORY_MB_PAGES_2048"]),
        ("large", {}, 4000, ["CUSTOM_MEMORY_MB_PAGES_2048"]),
        ("any", {}, 4000, ["CUSTOM_MEMORY_MB_PAGES_2048", "MEMORY_MB"]),
        ("any", {}, 4001, ["MEMORY_MB"]),
        ("any", {"hw_mem_page_size": "large"}, 4000, ["CUSTOM_MEMORY_MB_PAGES_2048"]),
        ("large", {"hw_mem_page_size": "any"}, 4000, ["CUSTOM_MEMORY_MB_PAGES_2048", "MEMORY_MB"]),
        ("large", {"hw_mem_page_size": "1GB"}, 4096, ["CUSTOM_MEMORY_MB_PAGES_1048576"]),
        ("small", {}, 4096, ["MEMORY_MB"]),
    ],
)
def test_an_open_page_size_is_an_alternative_for_each_size(
    size: str, image: Mapping[str, str], ram_mb: int, classes: list[str]
) -> None:
    flavor = Flavor(name="db", vcpus=2, ram_mb=ram_mb, extra_specs={"hw:mem_page_size": size})
    build = structs.replace(a_build(image_properties=dict(image)), flavor=flavor)

    found = must_be(tuple, alternatives_of(build))
    assert [
        next(name for name in dict(each.spec.amounts) if name.startswith(("MEM", "CUSTOM_MEM")))
        for each in found
    ] == classes
    # The flavor of an instance says which size it got: read again, it leaves nothing open.
    for each in found:
        again = must_be(tuple, alternatives_of(structs.replace(build, flavor=each.flavor)))
        assert [one.spec for one in again] == [each.spec]


@pytest.mark.parametrize(
    ("size", "had", "kept"),
    [
        ("large", "1048576", "1048576"),
        ("large", "small", "2048"),
        ("any", "2048", "2048"),
        ("any", None, "small"),
        ("2MB", "1048576", "2MB"),
    ],
)
def test_a_resize_to_a_flavor_that_leaves_the_size_open_keeps_the_size(
    size: str, had: str | None, kept: str
) -> None:
    before = Flavor(vcpus=1, ram_mb=1024, extra_specs={} if had is None else {"hw:mem_page_size": had})
    after = Flavor(vcpus=2, ram_mb=2048, extra_specs={"hw:mem_page_size": size})

    assert with_size_kept(after, before, {}).extra_specs == {"hw:mem_page_size": kept}
