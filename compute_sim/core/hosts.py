"""The size of a simulated host, and how faults change it."""

from collections.abc import Iterable

from msgspec import Struct, structs

from bus.message import ProviderId
from bus.messages.hosts import HostFacts
from bus.messages.placement import Ratio
from compute_sim.core.faults import Changes, Fault, is_on


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
    traits: frozenset[str] = frozenset({"COMPUTE_NODE", "HW_CPU_X86_AVX2"})


class Host(Struct, frozen=True):
    name: str
    size: HostSize = HostSize()
    availability_zone: str = ""
    hypervisor_type: str = "QEMU"
    hypervisor_version: int = 8_000_000


class Load(Struct, frozen=True):
    """The number of attempts on a host, and of those that are being built."""

    instances: int = 0
    io_ops: int = 0


def size_at(size: HostSize, faults: Iterable[Fault], at_s: float) -> HostSize:
    """The host's size with the changes that are active."""
    for change in faults:
        if isinstance(change, Changes) and is_on(change, at_s):
            size = structs.replace(
                size,
                vcpus=max(0, size.vcpus + change.vcpus),
                ram_mb=max(0, size.ram_mb + change.ram_mb),
                disk_gb=max(0, size.disk_gb + change.disk_gb),
                traits=(size.traits | frozenset(change.traits_gained)) - frozenset(change.traits_lost),
            )
    return size


def facts_of(id_: ProviderId, host: Host, load: Load) -> HostFacts:
    return HostFacts(
        id=id_,
        name=host.name,
        instances=load.instances,
        io_ops=load.io_ops,
        availability_zone=host.availability_zone,
        hypervisor_type=host.hypervisor_type,
        hypervisor_version=host.hypervisor_version,
    )
