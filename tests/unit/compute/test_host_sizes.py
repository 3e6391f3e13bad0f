"""Sizes of simulated hosts in words, as an operator gives them."""

import pytest
from msgspec import structs

from laboratory.computes.hosts import HostSize, gpu, in_cells, pci_function, read_host_size, virtual_functions


def test_what_is_not_named_is_as_usual() -> None:
    assert read_host_size("") == HostSize()
    assert read_host_size("vcpus=64, vcpu_ratio=2") == HostSize(vcpus=64, vcpu_ratio=2.0)


def test_a_host_has_cells_dedicated_cpus_pages_and_devices() -> None:
    devices = "device=vf:8:net0,device=pci:10de:20b0,device=gpu:A40-4Q:4"
    assert read_host_size(f"numa_nodes=2,pcpus=16,pages=2048:8192,pages=1048576:4096,{devices}") == HostSize(
        numa_nodes=2,
        pcpus=16,
        pages=((2048, 8192), (1_048_576, 4096)),
        devices=(
            virtual_functions(8, "net0"),
            pci_function("10de", "20b0"),
            gpu("A40-4Q", 4),
        ),
    )


def test_a_host_with_some_of_everything() -> None:
    assert read_host_size("vcpus=64,cells,disk_gb=10") == structs.replace(
        in_cells(HostSize(vcpus=64)), disk_gb=10
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("vcpus", "host_size has 'vcpus', must be cells or NAME=VALUE"),
        ("cpus=4", "host_size has 'cpus', must be one of device, disk_gb"),
        ("vcpus=-1", "host_size has vcpus='-1'"),
        ("vcpus=many", "host_size has vcpus='many'"),
        ("vcpus=8, vcpus=9", "host_size has vcpus twice"),
        ("vcpus=99999999999", "host_size has vcpus='99999999999'"),
        ("vcpu_ratio=nan", "host_size has vcpu_ratio='nan'"),
        ("vcpu_ratio=0", "host_size has vcpu_ratio='0'"),
        ("numa_nodes=65", "host_size has numa_nodes=65, must be 0 to 64"),
        ("pages=2048", "host_size has pages='2048', must be KIB:MB"),
        ("pages=2048:1", "1 MB are no whole number of pages of 2048 KiB"),
        ("pages=2048:2,pages=2048:4", "host_size has pages of 2048 KiB twice"),
        ("device=tpu:1", "host_size has device='tpu:1', must be pci:VENDOR:PRODUCT"),
        (",".join(["device=pci:10de:20b0"] * 257), "host_size has 257 devices, must be at most 256"),
    ],
)
def test_a_wrong_size_is_named(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem.replace("(", r"\(")):
        read_host_size(text)
