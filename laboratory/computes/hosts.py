"""Simulated hosts: their size, as `--host-size` and MOOR_COMPUTE_HOST_SIZE name it, their devices, and how faults change them."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import Meta, Struct, structs

from compute_sim.core.hosts import Host
from engine.hosts import Supported
from engine.inventories import INTEGER_MAX, Ratio
from engine.places import why_no_place
from laboratory.computes.faults import Changes, Fault, is_on

VIRTUAL_FUNCTIONS = "SRIOV_NET_VF"
DIRECT_PORTS = "CUSTOM_VNIC_TYPE_DIRECT"
_NOT_IN_NAMES = re.compile("[^A-Z0-9_]")


class Device(Struct, frozen=True):
    """A device: how much it gives of each class, and its traits."""

    gives: Mapping[str, int]
    traits: frozenset[str] = frozenset()


def pci_function(vendor: str, product: str, *traits: str) -> Device:
    """A function that a guest gets as a whole. Its class is named after the two ids, as in Nova."""
    return Device({f"CUSTOM_PCI_{vendor.upper()}_{product.upper()}": 1}, frozenset(traits))


def virtual_functions(count: int, network: str) -> Device:
    """The virtual functions of a network card: each of so many guests gets one."""
    traits = frozenset({f"CUSTOM_PHYSNET_{_in_names(network)}", DIRECT_PORTS})
    return Device({VIRTUAL_FUNCTIONS: count}, traits)


def gpu(kind: str, count: int) -> Device:
    """A GPU that gives so many instances of one type."""
    return Device({"VGPU": count}, frozenset({f"CUSTOM_{_in_names(kind)}"}))


def _in_names(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name.upper())


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
    # CPUs beside `vcpus`, each for one instance alone, and memory in huge pages beside `ram_mb`: the KiB of a page, and MB. Each NUMA node
    # has its part of them. Devices are in the NUMA nodes by turns; without NUMA nodes they are below the root.
    pcpus: int = 0
    pages: tuple[tuple[int, int], ...] = ()
    devices: tuple[Device, ...] = ()
    traits: frozenset[str] = frozenset({"COMPUTE_NODE", "HW_CPU_X86_AVX2"})


class SimulatedHost(Host, frozen=True, kw_only=True):
    # Its domains, the largest first (engine/places.py).
    place: str = ""
    size: HostSize = HostSize()
    metrics: Mapping[str, float] = {}


_HOSTS_PER_DOMAIN = re.compile(r"\{([1-9][0-9]{0,5})\}", re.ASCII)


def read_places(text: str) -> str:
    """Places of simulated hosts, as a setting says them: `dc1/row{80}/rack{20}` has a new rack after each 20 hosts. Raises ValueError."""
    if text and (why := why_no_place(_place_at(text, 1))):
        raise ValueError(
            f"compute_place has {text!r}, must be a place such as dc1/row{{80}}/rack{{20}}: {why}"
        )
    return text


def _place_at(pattern: str, number: int) -> str:
    return _HOSTS_PER_DOMAIN.sub(lambda found: str((number - 1) // int(found[1]) + 1), pattern)


def equal_hosts(
    cell: str, count: int, size: HostSize | None = None, place: str = ""
) -> tuple[SimulatedHost, ...]:
    """Hosts of one size, named after their cell, in three availability zones, at places by this pattern."""
    return tuple(
        SimulatedHost(
            name=f"{cell}-host-{number:05d}",
            size=size or HostSize(),
            availability_zone=f"az{number % 3 + 1}",
            place=_place_at(place, number),
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


# The name of a size with some of everything (`in_cells`).
CELLS = "cells"
FORM = "cells or NAME=VALUE,... such as vcpus=64,ram_mb=262144,numa_nodes=2,pcpus=16,pages=2048:8192,device=vf:8:net0"
NUMA_NODES_MAX, DEVICES_MAX = 64, 256
# The sizes of the pages that processors have, in KiB.
_PAGES = re.compile(r"(?P<kib>[1-9][0-9]{0,7}):(?P<mb>[1-9][0-9]{0,9})", re.ASCII)
_DEVICES: Mapping[str, tuple[re.Pattern[str], Callable[..., Device]]] = {
    "pci:VENDOR:PRODUCT": (re.compile(r"pci:([0-9a-fA-F]{4}):([0-9a-fA-F]{4})"), pci_function),
    "vf:COUNT:NETWORK": (
        re.compile(r"vf:([1-9][0-9]{0,2}):([\w-]{1,100})", re.ASCII),
        lambda count, network: virtual_functions(int(count), network),
    ),
    "gpu:TYPE:COUNT": (
        re.compile(r"gpu:([\w-]{1,100}):([1-9][0-9]{0,3})", re.ASCII),
        lambda kind, count: gpu(kind, int(count)),
    ),
}
_NUMBER_TYPES = {int: Annotated[int, Meta(ge=0, le=INTEGER_MAX)], float: Ratio}
_NUMBERS = {
    name: _NUMBER_TYPES[kind] for name, kind in get_type_hints(HostSize).items() if kind in _NUMBER_TYPES
}


def read_host_size(text: str) -> HostSize:
    """The size that this text names; the usual one for an empty text."""
    size, named = HostSize(), set[str]()
    for entry in filter(None, text.split(",")):
        name, equals, value = entry.partition("=")
        if entry.strip() == CELLS:
            size = in_cells(size)
            continue
        if not equals:
            raise ValueError(f"host_size has {entry!r}, must be {FORM}")
        name = name.strip()
        if name in named:
            raise ValueError(f"host_size has {name} twice: each number may be there once")
        if name in _NUMBERS:
            named.add(name)
        size = structs.replace(size, **_change(size, name, value.strip()))
    if size.numa_nodes > NUMA_NODES_MAX:
        raise ValueError(f"host_size has numa_nodes={size.numa_nodes}, must be 0 to {NUMA_NODES_MAX}")
    if len(size.devices) > DEVICES_MAX:
        raise ValueError(f"host_size has {len(size.devices)} devices, must be at most {DEVICES_MAX}")
    return size


def _change(size: HostSize, name: str, value: str) -> Mapping[str, Any]:
    match name:
        case "pages":
            return {"pages": (*size.pages, _pages(size, value))}
        case "device":
            return {"devices": (*size.devices, _device(value))}
        case _ if name in _NUMBERS:
            return {name: _number(name, value)}
    known = ", ".join(sorted({*_NUMBERS, "pages", "device"}))
    raise ValueError(f"host_size has {name!r}, must be one of {known}")


def _number(name: str, value: str) -> float:
    try:
        number: float = msgspec.convert(value, _NUMBERS[name], strict=False)
    except msgspec.ValidationError as wrong:
        raise ValueError(f"host_size has {name}={value!r}: {wrong}") from wrong
    return number


def _pages(size: HostSize, value: str) -> tuple[int, int]:
    found = _PAGES.fullmatch(value)
    if found is None:
        raise ValueError(f"host_size has pages={value!r}, must be KIB:MB such as 2048:8192")
    kib, mb = int(found["kib"]), int(found["mb"])
    if any(kib == known for known, _ in size.pages):
        raise ValueError(f"host_size has pages of {kib} KiB twice: each size may be there once")
    if mb * 1024 % kib:
        raise ValueError(f"host_size has pages={value}: {mb} MB are no whole number of pages of {kib} KiB")
    return kib, mb


def _device(value: str) -> Device:
    for form, make in _DEVICES.values():
        if found := form.fullmatch(value):
            return make(*found.groups())
    raise ValueError(f"host_size has device={value!r}, must be {' or '.join(_DEVICES)}")
