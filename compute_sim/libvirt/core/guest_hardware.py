"""The hardware of a guest that is not claimed: its machine type, the buses of its disks, and what else its image asks for."""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct, structs

from compute_sim.libvirt.core.image_asks import (
    DISK_BUSES,
    NIC_MODELS,
    VIDEO_MODELS,
    X86,
    CannotGiveError,
    asked_firmware,
    asked_word,
)
from compute_sim.libvirt.core.layout import HostLayout
from compute_sim.libvirt.core.machine import GuestKind
from compute_sim.libvirt.core.orders import GuestOrder
from compute_sim.libvirt.core.plans import CpuTopology, GuestDisk, GuestNic

_PARTS = ("sockets", "cores", "threads")


class Hardware(Struct, frozen=True, kw_only=True):
    machine_type: str
    topology: CpuTopology | None
    disks: tuple[GuestDisk, ...]
    nics: tuple[GuestNic, ...]
    firmware: Literal["", "efi"]
    video: str


def hardware_of(order: GuestOrder, layout: HostLayout, cpus: int) -> Hardware:
    properties = order.image_properties
    _check_texts(order)
    machine_type = _machine_type(order, layout)
    disk_bus = asked_word(properties, "hw_disk_bus", DISK_BUSES, "virtio")
    cdrom_bus = asked_word(properties, "hw_cdrom_bus", DISK_BUSES, _cdrom_bus(order, layout, machine_type))
    nic = asked_word(properties, "hw_vif_model", NIC_MODELS, "virtio")
    return Hardware(
        machine_type=machine_type,
        topology=_topology(order, cpus),
        disks=_by_bus(
            structs.replace(each, bus=each.bus or (disk_bus if each.device == "disk" else cdrom_bus))
            for each in order.disks
        ),
        nics=tuple(structs.replace(each, model=each.model or nic) for each in order.nics),
        firmware=asked_firmware(properties, arch_of(order, layout)),
        video=asked_word(properties, "hw_video_model", VIDEO_MODELS),
    )


def _by_bus(disks: Iterable[GuestDisk]) -> tuple[GuestDisk, ...]:
    """As libvirt orders them: disks of one bus stand together."""
    buses: dict[str, list[GuestDisk]] = {}
    for disk in disks:
        buses.setdefault(disk.bus, []).append(disk)
    return tuple(disk for each in buses.values() for disk in each)


def _check_texts(order: GuestOrder) -> None:
    """XML has no control characters, and would change some of them."""
    texts = {
        "cmdline": order.cmdline,
        "kernel": order.kernel,
        "ramdisk": order.ramdisk,
        "domain": order.domain,
    }
    texts |= {f"disk {number}": disk.path for number, disk in enumerate(order.disks)}
    for field, text in texts.items():
        if wrong := next((char for char in text if not char.isprintable()), None):
            raise CannotGiveError(f"{field} is {text!r}: {wrong!r} cannot be written into a domain")


def arch_of(order: GuestOrder, layout: HostLayout) -> str:
    """The architecture that the image names, or else the machine's."""
    return order.image_properties.get("hw_architecture") or layout.machine.arch


def _machine_type(order: GuestOrder, layout: HostLayout) -> str:
    arch, domain_type = arch_of(order, layout), layout.offer.domain_type
    kind = layout.machine.guest_kind(arch, domain_type)
    if kind is None:
        raise CannotGiveError(f"this libvirt runs no {arch} guests of the type {domain_type}")
    of_image = order.image_properties.get("hw_machine_type", "")
    machine_type = of_image or order.machine_type
    if machine_type and not _has(kind, machine_type):
        field = "image_properties.hw_machine_type" if of_image else "the setting machine_type"
        raise CannotGiveError(
            f"{field} is {machine_type!r}, which libvirt does not know for {arch}; it knows {', '.join(kind.machines)}"
        )
    return machine_type


def _has(kind: GuestKind, machine_type: str) -> bool:
    return not kind.machines or machine_type in kind.machines


def _cdrom_bus(order: GuestOrder, layout: HostLayout, machine_type: str) -> str:
    """A bus that the machine type has. Without one libvirt takes `pc`, if it knows that."""
    arch = arch_of(order, layout)
    if arch not in X86:
        return "scsi"
    kind = layout.machine.guest_kind(arch, layout.offer.domain_type)
    is_modern = not machine_type and kind is not None and "pc" not in kind.machines and "q35" in kind.machines
    return "sata" if "q35" in machine_type or is_modern else "ide"


def _topology(order: GuestOrder, cpus: int) -> CpuTopology | None:
    """The sockets, cores and threads that the flavor or the image names; what they do not name is one, or sockets what is left."""
    asked: dict[str, int] = {}
    for part in _PARTS:
        value = order.flavor.extra_specs.get(f"hw:cpu_{part}") or order.image_properties.get(f"hw_cpu_{part}")
        if value is None:
            continue
        if not value.isascii() or not value.isdecimal() or not 0 < int(value) <= cpus:
            raise CannotGiveError(
                f"hw:cpu_{part} is {value!r}, must be a number from 1 to {cpus}, the guest's CPUs"
            )
        asked[part] = int(value)
    if not asked:
        return None
    cores, threads = asked.get("cores", 1), asked.get("threads", 1)
    sockets = asked.get("sockets", cpus // (cores * threads))
    if "cores" not in asked:
        cores = cpus // (sockets * threads) if "sockets" in asked else cores
    if sockets * cores * threads != cpus:
        raise CannotGiveError(
            f"{sockets} sockets of {cores} cores of {threads} threads are not the {cpus} CPUs of the guest"
        )
    return CpuTopology(sockets, cores, threads)
