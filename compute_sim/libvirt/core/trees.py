"""The provider tree of a host: what it offers of its machine, less what runs there and is not the host's own."""

import re
from collections.abc import Iterable, Mapping, Sequence
from uuid import uuid5

import os_traits

from compute_sim.core.hosts import Host
from compute_sim.core.trees import ProviderTree, TreeProvider
from compute_sim.libvirt.core.guest_hardware import DISK_BUSES, FIRMWARES, NIC_MODELS, VIDEO_MODELS, X86
from compute_sim.libvirt.core.layout import (
    HostLayout,
    HostOffer,
    OfferedCell,
    OfferedDevices,
    in_proportion,
)
from compute_sim.libvirt.core.machine import HugePages, Machine
from compute_sim.libvirt.core.plans import (
    ForeignGuest,
    foreign_dedicated,
    foreign_devices,
    foreign_memory,
    foreign_shared,
)
from engine.guests import memory_class
from engine.hosts import Supported
from engine.inventories import ProviderId, ReportedInventory

NUMA_ROOT = "HW_NUMA_ROOT"
BANDWIDTHS = ("NET_BW_EGR_KILOBIT_PER_SEC", "NET_BW_IGR_KILOBIT_PER_SEC")
NORMAL_PORTS = "CUSTOM_VNIC_TYPE_NORMAL"


def tree_of(layout: HostLayout, foreign: Sequence[ForeignGuest] = ()) -> ProviderTree:
    """The tree as it is now."""
    providers = (
        _root(layout, foreign),
        *_cells(layout, foreign),
        *(_devices(layout, each, foreign) for each in layout.devices),
        # Of the host's ports on each network, as Neutron's agents report it.
        *(
            TreeProvider(
                id=ProviderId(uuid5(layout.root, f"network-{each.name}")),
                name=f"{layout.offer.name}:{each.name}",
                parent=layout.root,
                inventories=dict.fromkeys(BANDWIDTHS, ReportedInventory(total=each.kilobits)),
                traits=frozenset({each.trait, NORMAL_PORTS}),
            )
            for each in layout.offer.networks
        ),
    )
    return ProviderTree(layout.root, {each.id: each for each in providers})


def _root(layout: HostLayout, foreign: Sequence[ForeignGuest]) -> TreeProvider:
    offer = layout.offer
    inventories = {"DISK_GB": _inventory(offer.disk_gb, offer.disk_reserved_gb, offer.disk_ratio)}
    if layout.is_flat:
        inventories |= _of_cell(layout, layout.cells[0], _reserves(layout, foreign))
    return TreeProvider(
        id=layout.root,
        name=offer.name,
        inventories=_its_own(layout, inventories),
        traits=traits_of(layout.machine, offer),
        joins=layout.joins,
        place=offer.place,
    )


def _cells(layout: HostLayout, foreign: Sequence[ForeignGuest]) -> list[TreeProvider]:
    if layout.is_flat:
        return []
    reserves = _reserves(layout, foreign)
    return [
        TreeProvider(
            id=cell.provider,
            name=f"{layout.offer.name}_NUMA{cell.number}",
            parent=layout.root,
            inventories=_its_own(layout, _of_cell(layout, cell, reserves)),
            traits=frozenset({NUMA_ROOT}),
        )
        for cell in layout.cells
    ]


def _its_own(
    layout: HostLayout, inventories: Mapping[str, ReportedInventory]
) -> dict[str, ReportedInventory]:
    """The inventories that the host reports itself: those that are not empty, and whose class no pool shares."""
    return {
        resource: each
        for resource, each in inventories.items()
        if each.total and resource not in layout.pooled
    }


# What is reserved, by provider and class.
_Reserves = Mapping[tuple[ProviderId, str], int]


def _reserves(layout: HostLayout, foreign: Sequence[ForeignGuest]) -> _Reserves:
    offer, cells = layout.offer, layout.cells
    pinned = foreign_dedicated(layout, foreign)
    shared, memory = foreign_shared(layout, foreign), foreign_memory(layout, foreign)
    own_memory = in_proportion(offer.memory_reserved_mb, [cell.memory_mb for cell in cells])
    reserves: dict[tuple[ProviderId, str], int] = {}
    for cell, memory_mb in zip(cells, own_memory, strict=True):
        reserves[cell.provider, "VCPU"] = shared[cell.provider]
        reserves[cell.provider, "PCPU"] = len(pinned.intersection(cell.dedicated))
        # Foreign guests have the memory that the host does not offer, first.
        foreign_mb = max(0, memory[cell.provider] - cell.outside_mb)
        reserves[cell.provider, memory_class(0)] = memory_mb + foreign_mb
        for pages in cell.huge_pages:
            # The pages that are kept are for foreign guests, too.
            reserves[cell.provider, memory_class(pages.kib)] = max(
                offer.kept_mb(cell.number, pages.kib),
                foreign_memory(layout, foreign, pages.kib)[cell.provider],
            )
    return reserves


def _of_cell(layout: HostLayout, cell: OfferedCell, reserves: _Reserves) -> dict[str, ReportedInventory]:
    def inventory(resource: str, total: int, ratio: float = 1.0) -> ReportedInventory:
        return _inventory(total, reserves[cell.provider, resource], ratio)

    return {
        "VCPU": inventory("VCPU", len(cell.shared), layout.offer.cpu_ratio),
        "PCPU": inventory("PCPU", len(cell.dedicated)),
        memory_class(0): inventory(memory_class(0), cell.memory_mb, layout.offer.memory_ratio),
        **{
            memory_class(pages.kib): _pages(pages, reserves[cell.provider, memory_class(pages.kib)])
            for pages in cell.huge_pages
        },
    }


def _pages(pages: HugePages, reserved_mb: int) -> ReportedInventory:
    page_mb = max(1, pages.kib // 1024)
    return ReportedInventory(
        total=pages.mb,
        # Whole pages.
        reserved=min(pages.mb, -(-reserved_mb // page_mb) * page_mb),
        min_unit=page_mb,
        step_size=page_mb,
    )


def _devices(
    layout: HostLayout,
    devices: OfferedDevices,
    foreign: Sequence[ForeignGuest],
) -> TreeProvider:
    total = _total(layout, devices)
    inventory = _inventory(total, foreign_devices(layout, devices, foreign))
    return TreeProvider(
        id=devices.provider,
        name=devices.name,
        parent=devices.parent,
        inventories={devices.resource: inventory} if total else {},
        traits=devices.traits,
    )


def _total(layout: HostLayout, devices: OfferedDevices) -> int:
    """How many there are, those in use too."""
    if not devices.mediated_type:
        return len(devices.functions)
    exist = sum(
        1 for each in layout.mediated if each.type == devices.mediated_type and each.parent in devices.parents
    )
    return exist + sum(
        each.available
        for function in layout.functions
        if function.address in devices.parents
        for each in function.mediated_types
        if each.name == devices.mediated_type
    )


def _inventory(total: int, reserved: int, ratio: float = 1.0) -> ReportedInventory:
    # What is reserved cannot be more than the total, which matters when a host shrinks.
    return ReportedInventory(total=total, reserved=min(reserved, total), allocation_ratio=ratio)


# The traits of a host: what its CPU can do, and what guests of it may have.


HYPERTHREADS = "HW_CPU_HYPERTHREADING"
_KNOWN = frozenset(os_traits.get_traits())

# Where os-traits' name is not libvirt's name in capitals without dots and dashes.
_FEATURES = {
    "aes": ("HW_CPU_X86_AESNI",),
    "amd-no-ssb": ("HW_CPU_X86_AMD_NO_SSB",),
    "amd-ssbd": ("HW_CPU_X86_AMD_SSBD",),
    "amx-bf16": ("HW_CPU_X86_AMXBF16",),
    "bmi1": ("HW_CPU_X86_BMI",),
    "fma": ("HW_CPU_X86_FMA3",),
    "ibpb": ("HW_CPU_X86_AMD_IBPB",),
    "md-clear": ("HW_CPU_X86_INTEL_MD_CLEAR",),
    "pcid": ("HW_CPU_X86_INTEL_PCID",),
    "pclmuldq": ("HW_CPU_X86_CLMUL",),
    "pclmulqdq": ("HW_CPU_X86_CLMUL",),
    "pni": ("HW_CPU_X86_SSE3",),
    "rtm": ("HW_CPU_X86_TSX",),
    "sha-ni": ("HW_CPU_X86_SHA",),
    "spec-ctrl": ("HW_CPU_X86_INTEL_SPEC_CTRL",),
    "ssbd": ("HW_CPU_X86_INTEL_SSBD",),
    "svm": ("HW_CPU_X86_SVM", "HW_CPU_X86_AMD_SVM"),
    "virt-ssbd": ("HW_CPU_X86_AMD_VIRT_SSBD",),
    "vmx": ("HW_CPU_X86_VMX", "HW_CPU_X86_INTEL_VMX"),
}
_AVX512 = {"gfni", "vaes", "vpclmulqdq"}


def traits_of(machine: Machine, offer: HostOffer) -> frozenset[str]:
    """The traits of the host's root provider."""
    return frozenset(
        (
            "COMPUTE_NODE",
            *_KNOWN.intersection((f"HW_ARCH_{as_name(machine.arch)}",)),
            *_of_cpu(machine, offer),
            *_of_guests(machine, offer),
            *offer.traits,
        )
    )


def features_of(machine: Machine, offer: HostOffer) -> tuple[str, ...]:
    """What the CPU of a guest can do. Without KVM it is emulated, and the host's own CPU says nothing of it: it is as libvirt
    describes the mode host-model, or a plain one, whose features libvirt does not tell.
    """
    if offer.domain_type == "qemu":
        return machine.guest_cpu_features if offer.guest_cpu_mode else ()
    return tuple(sorted({*machine.cpu_features, *machine.guest_cpu_features}))


def as_name(text: str) -> str:
    return re.sub("[^A-Z0-9_]", "_", text.upper())


def _of_cpu(machine: Machine, offer: HostOffer) -> Iterable[str]:
    if machine.cpu_model:
        yield f"CUSTOM_CPU_MODEL_{as_name(machine.cpu_model)}"
    if any(len(threads) > 1 for cell in machine.cells for threads in cell.threads.values()):
        yield HYPERTHREADS
    for feature in features_of(machine, offer):
        yield from _of_feature(feature, machine.arch)


def _of_feature(feature: str, arch: str) -> tuple[str, ...]:
    """The traits of a feature: os-traits' where it has one, else one of our own."""
    prefix = "X86" if arch in X86 else as_name(arch)
    if prefix == "X86":
        if named := _FEATURES.get(feature):
            return named
        if feature in _AVX512:
            return (f"HW_CPU_X86_AVX512{feature.upper()}",)
    plain = f"HW_CPU_{prefix}_{re.sub('[^A-Z0-9]', '', feature.upper())}"
    return (plain,) if plain in _KNOWN else (f"CUSTOM_CPU_{prefix}_{as_name(feature)}",)


def _of_guests(machine: Machine, offer: HostOffer) -> Iterable[str]:
    """What guests may have, of that which a domain is built with if its image asks for it (guest_hardware.py)."""
    kinds = [kind for kind in machine.guests if offer.domain_type in kind.domain_types]
    yield from (trait for kind in kinds if (trait := f"COMPUTE_ARCH_{as_name(kind.arch)}") in _KNOWN)
    for name, words in (
        ("disk.bus", DISK_BUSES),
        ("video.modelType", VIDEO_MODELS),
        ("os.firmware", FIRMWARES),
    ):
        yield from (words[each] for each in machine.devices.get(name, ()) if each in words)
    if machine.devices:
        if machine.arch in X86:
            # A guest without other firmware has it; libvirt lists only what it can choose.
            yield FIRMWARES["bios"]
        # Older libvirts do not list the models of network cards; QEMU has these for long.
        yield from NIC_MODELS.values()
    if offer.devices:
        yield "COMPUTE_NET_VIF_MODEL_SRIOV"


# What a host tells of itself beside its tree: its hypervisor, its CPU, and the kinds of guests that it runs.


# A capability's value, as messages allow it.
_VALUE_MAX = 1024
_SUPPORTS_MAX = 64


def host_of(machine: Machine, offer: HostOffer, hypervisor_type: str, hypervisor_version: int) -> Host:
    """The host's description. Type and version are what libvirt says of its hypervisor, such as QEMU and 7002000."""
    return Host(
        name=offer.name,
        availability_zone=offer.availability_zone,
        hypervisor_type=hypervisor_type,
        hypervisor_version=hypervisor_version,
        supports=tuple(
            Supported(architecture=kind.arch, hypervisor_type=offer.domain_type, vm_mode=kind.os_type)
            for kind in machine.guests
            if offer.domain_type in kind.domain_types
        )[:_SUPPORTS_MAX],
        capabilities={
            name: value
            for name, value in (
                ("cpu_info:arch", machine.arch),
                ("cpu_info:model", machine.cpu_model),
                ("cpu_info:vendor", machine.cpu_vendor),
                ("cpu_info:features", _as_words(features_of(machine, offer))),
                ("cpu_info:topology:sockets", str(machine.sockets)),
                ("cpu_info:topology:cores", str(machine.cores)),
                ("cpu_info:topology:threads", str(machine.threads)),
            )
            if value
        },
    )


def _as_words(features: tuple[str, ...]) -> str:
    """As many of them as a message may have; the root's traits have all."""
    text = " ".join(features)
    return text if len(text) <= _VALUE_MAX else text[:_VALUE_MAX].rpartition(" ")[0]
