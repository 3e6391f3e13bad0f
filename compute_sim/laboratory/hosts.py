"""Simulated hosts: their size, and how faults change it."""

from collections.abc import Iterable, Mapping

from msgspec import Struct, structs

from bus.messages.hosts import Supported
from bus.messages.placement import Ratio
from compute_sim.core.hosts import Host
from compute_sim.laboratory.devices import Device, gpu, pci_function, virtual_functions
from compute_sim.laboratory.faults import Changes, Fault, is_on

# What simulated hosts tell: they are plain x86 machines.
SUPPORTS = (Supported(architecture="x86_64", hypervisor_type="qemu", vm_mode="hvm"),)
CAPABILITIES: Mapping[str, str] = {"cpu_info:arch": "x86_64", "cpu_info:features": "aes avx avx2 sse4.2"}


class HostSize(Struct, frozen=True):
    vcpus: int = 32
    ram_mb: int = 131_072
    disk_gb: int = 2_000
    vcpus_reserved: int = 0
    ram_mb_reserved: int = 512
    disk_gb_reserved: int = 0
    vcpu_ratio: Ratio = 4.0
    ram_ratio: Ratio = 1.0
    disk_ratio: Ratio = 1.0
    # Each NUMA node has its part of the CPUs and memory; without NUMA nodes the host's root has them.
    numa_nodes: int = 0
    # The traits of each PCI device. Devices are in the NUMA nodes by turns; without NUMA nodes they are below the root.
    pci_devices: tuple[frozenset[str], ...] = ()
    # CPUs beside `vcpus`, each for one instance alone, and memory in huge pages beside `ram_mb`: the KiB of a page, and MB. Each NUMA node
    # has its part of them. Devices are in the NUMA nodes by turns.
    pcpus: int = 0
    pages: tuple[tuple[int, int], ...] = ()
    devices: tuple[Device, ...] = ()
    traits: frozenset[str] = frozenset({"COMPUTE_NODE", "HW_CPU_X86_AVX2"})

    @property
    def has_exclusive(self) -> bool:
        """Has it something that only one instance can have?"""
        return bool(self.pcpus or self.pages or self.devices or self.pci_devices)


class SimulatedHost(Host, frozen=True, kw_only=True):
    size: HostSize = HostSize()
    metrics: Mapping[str, float] = {}


def equal_hosts(cell: str, count: int, size: HostSize | None = None) -> tuple[SimulatedHost, ...]:
    """Hosts of one size, named after their cell, in three availability zones."""
    return tuple(
        SimulatedHost(
            name=f"{cell}-host-{number:05d}",
            size=size or HostSize(),
            availability_zone=f"az{number % 3 + 1}",
            supports=SUPPORTS,
            capabilities=CAPABILITIES,
        )
        for number in range(1, count + 1)
    )


def in_cells(size: HostSize) -> HostSize:
    """This size in two NUMA cells: a quarter of the CPUs are dedicated ones, and half of the memory is in huge pages. Each cell has a
    network card and a GPU; the functions of the first card are virtual ones, the second card is passed through whole.
    """
    pcpus, in_pages = size.vcpus // 4, size.ram_mb // 4
    return structs.replace(
        size,
        numa_nodes=2,
        vcpus=size.vcpus - pcpus,
        pcpus=pcpus,
        ram_mb=size.ram_mb - 2 * in_pages,
        pages=((2048, in_pages), (1048576, in_pages)),
        devices=(
            virtual_functions(8, "physnet0"),
            pci_function("8086", "10fb", "CUSTOM_PHYSNET_PHYSNET0"),
            gpu("nvidia_12", 2),
            gpu("nvidia_11", 4),
        ),
    )


def size_at(size: HostSize, faults: Iterable[Fault], at_s: float) -> HostSize:
    """The host's size, changed by the `Changes` faults that are active."""
    for change in faults:
        if isinstance(change, Changes) and is_on(change, at_s):
            size = structs.replace(
                size,
                vcpus=max(0, size.vcpus + change.vcpus),
                ram_mb=max(0, size.ram_mb + change.ram_mb),
                disk_gb=max(0, size.disk_gb + change.disk_gb),
                numa_nodes=size.numa_nodes if change.numa_nodes is None else change.numa_nodes,
                traits=(size.traits | frozenset(change.traits_gained)) - frozenset(change.traits_lost),
            )
    return size


def metrics_at(metrics: Mapping[str, float], faults: Iterable[Fault], at_s: float) -> Mapping[str, float]:
    """The host's metrics; those that an active `Changes` fault sets have its values."""
    for change in faults:
        if isinstance(change, Changes) and change.metrics and is_on(change, at_s):
            metrics = {**metrics, **change.metrics}
    return metrics
