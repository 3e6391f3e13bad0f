"""The shape of a guest: what a flavor and an image ask for, and what contradicts in them."""

from collections.abc import Mapping
from uuid import UUID

import pytest

from engine.flavors import Flavor
from engine.guests import (
    GuestCell,
    GuestShape,
    ShareDiffersError,
    cells_of,
    page_kib_of,
    read_guest,
)
from engine.inventories import ProviderId

ROOT, A, B, C = (ProviderId(UUID(int=number)) for number in range(4))


def read(
    specs: Mapping[str, str], image: Mapping[str, str] | None = None, vcpus: int = 4, ram_mb: int = 4096
) -> object:
    return read_guest(Flavor(vcpus=vcpus, ram_mb=ram_mb, extra_specs=dict(specs)), image or {})


def shape_of(specs: Mapping[str, str], image: Mapping[str, str] | None = None) -> GuestShape:
    shape = read(specs, image)
    assert isinstance(shape, GuestShape), shape
    return shape


DEDICATED = {"hw:cpu_policy": "dedicated"}
MIXED = {"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "^0"}
TWO = {"hw:numa_nodes": "2"}
NAMED = {
    **TWO,
    "hw:numa_cpus.0": "0-2",
    "hw:numa_cpus.1": "3",
    "hw:numa_mem.0": "1024",
    "hw:numa_mem.1": "3072",
}


@pytest.mark.parametrize(
    ("specs", "image", "cells"),
    [
        ({}, {}, ()),
        ({"hw:cpu_policy": "shared", "trait:CUSTOM_X": "required"}, {}, ()),
        ({"hw:pci_numa_affinity_policy": "required"}, {}, ()),
        ({"hw:numa_nodes": "1"}, {}, (GuestCell((0, 1, 2, 3), (), 4096),)),
        ({}, {"hw_numa_nodes": "1"}, (GuestCell((0, 1, 2, 3), (), 4096),)),
        ({"hw:mem_page_size": "small"}, {}, (GuestCell((0, 1, 2, 3), (), 4096),)),
        (DEDICATED, {}, (GuestCell((), (0, 1, 2, 3), 4096),)),
        ({}, {"hw_cpu_policy": "dedicated"}, (GuestCell((), (0, 1, 2, 3), 4096),)),
        (DEDICATED, {"hw_cpu_policy": "shared"}, (GuestCell((), (0, 1, 2, 3), 4096),)),
        (MIXED, {"hw_cpu_policy": "shared"}, (GuestCell((0,), (1, 2, 3), 4096),)),
        (
            {"hw:cpu_dedicated_mask": "1-3,^2"},
            {"hw_cpu_policy": "mixed"},
            (GuestCell((0, 2), (1, 3), 4096),),
        ),
        (TWO, {}, (GuestCell((0, 1), (), 2048), GuestCell((2, 3), (), 2048))),
        (NAMED, {}, (GuestCell((0, 1, 2), (), 1024), GuestCell((3,), (), 3072))),
        (
            TWO,
            {key.replace(":", "_"): value for key, value in NAMED.items() if key not in TWO},
            (GuestCell((0, 1, 2), (), 1024), GuestCell((3,), (), 3072)),
        ),
        ({**NAMED, **MIXED}, {}, (GuestCell((0,), (1, 2), 1024), GuestCell((), (3,), 3072))),
    ],
)
def test_cells_have_the_processors_and_the_memory_that_flavor_and_image_say(
    specs: Mapping[str, str], image: Mapping[str, str], cells: tuple[GuestCell, ...]
) -> None:
    assert shape_of(specs, image).cells == cells


@pytest.mark.parametrize(
    ("flavor", "image", "read_as"),
    [
        ("large", None, ("large", 0)),
        ("any", None, ("any", 0)),
        ("4", None, ("small", 0)),
        ("2048", None, ("sized", 2048)),
        ("2MB", None, ("sized", 2048)),
        ("2MiB", None, ("sized", 2048)),
        ("1G", None, ("sized", 1048576)),
        ("1GB", None, ("sized", 1048576)),
        ("large", "2048", ("sized", 2048)),
        ("any", "small", ("small", 0)),
        ("2048", "2MB", ("sized", 2048)),
    ],
)
def test_a_page_size_is_a_word_or_a_size(flavor: str, image: str | None, read_as: tuple[str, int]) -> None:
    shape = shape_of({"hw:mem_page_size": flavor}, {} if image is None else {"hw_mem_page_size": image})

    assert (shape.page_size, shape.page_kib) == read_as


def test_policies_of_threads_emulators_and_devices_are_read_from_both() -> None:
    by_flavor = shape_of(
        {
            **DEDICATED,
            "hw:cpu_thread_policy": "prefer",
            "hw:emulator_threads_policy": "isolate",
            "hw:pci_numa_affinity_policy": "required",
        },
        {"hw_cpu_thread_policy": "isolate", "hw_pci_numa_affinity_policy": "required"},
    )

    assert (by_flavor.thread_policy, by_flavor.emulator_threads, by_flavor.pci_affinity) == (
        "isolate",
        "isolate",
        "required",
    )
    assert shape_of({}, {"hw_pci_numa_affinity_policy": "socket"}).pci_affinity == "socket"


SPEC, IMAGE = "flavor.extra_specs.", "image_properties."


@pytest.mark.parametrize(
    ("specs", "image", "field", "value"),
    [
        ({"hw:cpu_policy": "often"}, {}, SPEC + "hw:cpu_policy", "often"),
        ({}, {"hw_cpu_policy": ""}, IMAGE + "hw_cpu_policy", ""),
        ({"hw:cpu_policy": "mixed"}, {}, SPEC + "hw:cpu_policy", "mixed"),
        ({}, {"hw_cpu_policy": "mixed"}, IMAGE + "hw_cpu_policy", "mixed"),
        ({"hw:cpu_policy": "shared"}, {"hw_cpu_policy": "mixed"}, IMAGE + "hw_cpu_policy", "mixed"),
        (MIXED, {"hw_cpu_policy": "dedicated"}, IMAGE + "hw_cpu_policy", "dedicated"),
        ({**DEDICATED, "hw:cpu_dedicated_mask": "1"}, {}, SPEC + "hw:cpu_dedicated_mask", "1"),
        ({**MIXED, "hw:cpu_dedicated_mask": "0-3"}, {}, SPEC + "hw:cpu_dedicated_mask", "0-3"),
        ({**MIXED, "hw:cpu_dedicated_mask": "4"}, {}, SPEC + "hw:cpu_dedicated_mask", "4"),
        ({**MIXED, "hw:cpu_dedicated_mask": "3-1"}, {}, SPEC + "hw:cpu_dedicated_mask", "3-1"),
        ({**MIXED, "hw:cpu_dedicated_mask": "x"}, {}, SPEC + "hw:cpu_dedicated_mask", "x"),
        ({**MIXED, "hw:cpu_dedicated_mask": ""}, {}, SPEC + "hw:cpu_dedicated_mask", ""),
        ({"hw:cpu_thread_policy": "prefer"}, {}, SPEC + "hw:cpu_thread_policy", "prefer"),
        ({"hw:emulator_threads_policy": "isolate"}, {}, SPEC + "hw:emulator_threads_policy", "isolate"),
        ({"hw:emulator_threads_policy": "both"}, {}, SPEC + "hw:emulator_threads_policy", "both"),
        ({"hw:numa_nodes": "0"}, {}, SPEC + "hw:numa_nodes", "0"),
        ({"hw:numa_nodes": "17"}, {}, SPEC + "hw:numa_nodes", "17"),
        ({"hw:numa_nodes": "two"}, {}, SPEC + "hw:numa_nodes", "two"),
        ({"hw:numa_nodes": "3"}, {}, SPEC + "hw:numa_nodes", "3"),
        (TWO, {"hw_numa_nodes": "2"}, IMAGE + "hw_numa_nodes", "2"),
        ({**TWO, "hw:numa_cpus.0": "0-3"}, {}, SPEC + "hw:numa_cpus.0", "0-3"),
        ({**NAMED, "hw:numa_cpus.2": "3"}, {}, SPEC + "hw:numa_cpus.2", "3"),
        ({**NAMED, "hw:numa_cpus.x": "3"}, {}, SPEC + "hw:numa_cpus.x", "3"),
        ({**NAMED, "hw:numa_cpus.1": "2-3"}, {}, SPEC + "hw:numa_cpus.1", "2-3"),
        ({**NAMED, "hw:numa_cpus.0": "0-1"}, {}, SPEC + "hw:numa_cpus.1", "3"),
        ({**NAMED, "hw:numa_cpus.0": "0-999999"}, {}, SPEC + "hw:numa_cpus.0", "0-999999"),
        ({**NAMED, "hw:numa_mem.1": "3000"}, {}, SPEC + "hw:numa_mem.1", "3000"),
        ({**NAMED, "hw:numa_mem.1": "1GB"}, {}, SPEC + "hw:numa_mem.1", "1GB"),
        (NAMED, {"hw_numa_cpus.0": "0"}, IMAGE + "hw_numa_cpus.0", "0"),
        ({"hw:numa_cpus.1": "0-3", "hw:numa_mem.1": "4096"}, {}, SPEC + "hw:numa_cpus.1", "0-3"),
        ({"hw:mem_page_size": "3000"}, {}, SPEC + "hw:mem_page_size", "3000"),
        ({"hw:mem_page_size": "huge"}, {}, SPEC + "hw:mem_page_size", "huge"),
        ({"hw:mem_page_size": "8GB"}, {}, SPEC + "hw:mem_page_size", "8GB"),
        ({}, {"hw_mem_page_size": "2048"}, IMAGE + "hw_mem_page_size", "2048"),
        ({"hw:mem_page_size": "1GB"}, {"hw_mem_page_size": "2048"}, IMAGE + "hw_mem_page_size", "2048"),
        ({"hw:pci_numa_affinity_policy": "near"}, {}, SPEC + "hw:pci_numa_affinity_policy", "near"),
        (
            {"hw:pci_numa_affinity_policy": "legacy"},
            {"hw_pci_numa_affinity_policy": "required"},
            IMAGE + "hw_pci_numa_affinity_policy",
            "required",
        ),
        ({**TWO, "resources:VCPU": "4"}, {}, SPEC + "resources:VCPU", "4"),
        ({**DEDICATED, "resources_X:PCPU": "4"}, {}, SPEC + "resources_X:PCPU", "4"),
        ({**TWO, "resources:MEMORY_MB": "1"}, {}, SPEC + "resources:MEMORY_MB", "1"),
    ],
)
def test_what_contradicts_is_named_by_field_and_value(
    specs: Mapping[str, str], image: Mapping[str, str], field: str, value: str
) -> None:
    problems = read(specs, image)

    assert isinstance(problems, tuple), problems
    assert (problems[0].field, problems[0].value) == (field, value)
    assert problems[0].reason


@pytest.mark.parametrize("vcpus", [0, 1_025, 2_147_483_647])
def test_a_guest_with_cells_has_a_number_of_processors_that_can_be_counted(vcpus: int) -> None:
    problems = read(TWO, vcpus=vcpus)

    assert isinstance(problems, tuple)
    assert (problems[0].field, problems[0].value) == ("flavor.vcpus", str(vcpus))


def test_a_share_says_which_guest_cell_is_on_which_host_cell() -> None:
    share = {
        ROOT: {"DISK_GB": 10},
        A: {"VCPU": 1, "MEMORY_MB": 3072},
        C: {"VCPU": 3, "MEMORY_MB": 1024, "CUSTOM_DEVICE": 1},
    }

    assert cells_of(shape_of(NAMED), share, {A: 0, B: 1, C: 2}) == (2, 0)
    assert page_kib_of(share) == 0


@pytest.mark.parametrize(
    "share",
    [
        {},
        {A: {"VCPU": 2, "MEMORY_MB": 2048}},
        {A: {"VCPU": 4, "MEMORY_MB": 4096}},
        {A: {"VCPU": 2, "MEMORY_MB": 2048}, B: {"VCPU": 2, "MEMORY_MB": 2047}},
        {each: {"VCPU": 2, "MEMORY_MB": 2048} for each in (A, B, C)},
        {A: {"VCPU": 2, "CUSTOM_MEMORY_MB_PAGES_2048": 2}, B: {"VCPU": 2, "CUSTOM_MEMORY_MB_PAGES_64": 2}},
    ],
)
def test_a_share_of_another_shape_is_no_share_of_this_one(
    share: Mapping[ProviderId, Mapping[str, int]],
) -> None:
    with pytest.raises(ShareDiffersError):
        cells_of(shape_of(TWO), share, {A: 0, B: 1, C: 2})
