"""The hardware of a guest that is not claimed: its machine type, the buses of its disks, and what else its image asks for."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Literal
from uuid import UUID, uuid5

from msgspec import structs

from compute_sim.libvirt.core.layout import HostLayout, OfferedDevices
from compute_sim.libvirt.core.plans import (
    CpuTopology,
    GuestDisk,
    GuestOrder,
    GuestPlan,
    PlannedFunction,
    PlannedMediated,
    Taken,
)
from engine.inventories import ProviderId

# What an image's properties ask of the guest's hardware, beside its shape.


# By property, the words that it may have, and the trait that a host has which can give it.
DISK_BUSES = {
    "virtio": "COMPUTE_STORAGE_BUS_VIRTIO",
    "scsi": "COMPUTE_STORAGE_BUS_SCSI",
    "sata": "COMPUTE_STORAGE_BUS_SATA",
    "ide": "COMPUTE_STORAGE_BUS_IDE",
    "usb": "COMPUTE_STORAGE_BUS_USB",
}
NIC_MODELS = {
    "virtio": "COMPUTE_NET_VIF_MODEL_VIRTIO",
    "e1000": "COMPUTE_NET_VIF_MODEL_E1000",
    "e1000e": "COMPUTE_NET_VIF_MODEL_E1000E",
    "rtl8139": "COMPUTE_NET_VIF_MODEL_RTL8139",
}
VIDEO_MODELS = {
    "vga": "COMPUTE_GRAPHICS_MODEL_VGA",
    "cirrus": "COMPUTE_GRAPHICS_MODEL_CIRRUS",
    "qxl": "COMPUTE_GRAPHICS_MODEL_QXL",
    "virtio": "COMPUTE_GRAPHICS_MODEL_VIRTIO",
    "bochs": "COMPUTE_GRAPHICS_MODEL_BOCHS",
    "none": "COMPUTE_GRAPHICS_MODEL_NONE",
}
FIRMWARES = {"bios": "COMPUTE_FIRMWARE_BIOS", "efi": "COMPUTE_FIRMWARE_UEFI"}


X86 = ("x86_64", "i686")


class CannotGiveError(ValueError):
    """The host cannot give what the order asks for; the text says what and why."""


def asked_word(properties: Mapping[str, str], name: str, words: Mapping[str, str], default: str = "") -> str:
    value = properties.get(name, "")
    if not value:
        return default
    if value not in words:
        raise CannotGiveError(f"image_properties.{name} is {value!r}, must be one of {', '.join(words)}")
    return value


def asked_firmware(properties: Mapping[str, str], arch: str) -> Literal["", "efi"]:
    """The firmware by libvirt's name. A BIOS is what guests of x86 have if no other firmware is named."""
    match asked_word(properties, "hw_firmware_type", {"bios": "", "uefi": ""}):
        case "uefi":
            return "efi"
        case "bios" if arch not in X86:
            raise CannotGiveError(f"image_properties.hw_firmware_type is 'bios', which {arch} does not have")
        case _:
            return ""


def with_hardware(plan: GuestPlan, order: GuestOrder, layout: HostLayout) -> GuestPlan:
    properties = order.image_properties
    _check_texts(order)
    machine_type = _machine_type(order, layout)
    disk_bus = asked_word(properties, "hw_disk_bus", DISK_BUSES, "virtio")
    cdrom_bus = asked_word(properties, "hw_cdrom_bus", DISK_BUSES, _cdrom_bus(order, layout, machine_type))
    nic = asked_word(properties, "hw_vif_model", NIC_MODELS, "virtio")
    return structs.replace(
        plan,
        machine_type=machine_type,
        topology=_topology(order, len(plan.pins)),
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
    machine_type = order.image_properties.get("hw_machine_type", "")
    if machine_type and kind.machines and machine_type not in kind.machines:
        raise CannotGiveError(
            f"image_properties.hw_machine_type is {machine_type!r}, which libvirt does not know for {arch}; it knows {', '.join(kind.machines)}"
        )
    return machine_type


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
    for part in ("sockets", "cores", "threads"):
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


# Which PCI functions and mediated devices a guest gets of the providers that it claims them from.


Amounts = Mapping[str, int]


def planned_devices(
    order: GuestOrder, share: Mapping[ProviderId, Amounts], taken: Taken
) -> tuple[tuple[PlannedFunction, ...], tuple[PlannedMediated, ...]]:
    functions: list[PlannedFunction] = []
    mediated: list[PlannedMediated] = []
    new_ids = (uuid5(order.instance, f"mediated-{order.attempt}-{number}") for number in count())
    for devices in taken.layout.devices:
        for resource, amount in sorted(share.get(devices.provider, {}).items()):
            if devices.resource != resource:
                raise CannotGiveError(
                    f"{devices.name} gives no {resource} any more, and {amount} are claimed"
                )
            if devices.mediated_type:
                mediated += _mediated(devices, amount, taken, new_ids)
                continue
            functions += _functions(devices, amount, taken)
    return tuple(functions), tuple(mediated)


def _functions(devices: OfferedDevices, amount: int, taken: Taken) -> list[PlannedFunction]:
    why_not = {address: _why_taken(address, taken) for address in devices.functions}
    free = [address for address, why in why_not.items() if not why]
    if len(free) < amount:
        reasons = "; ".join(dict.fromkeys(why for why in why_not.values() if why))
        raise CannotGiveError(
            f"{devices.name} has {len(free)} free {devices.resource}, and {amount} are claimed{f': {reasons}' if reasons else ''}"
        )
    return [PlannedFunction(address) for address in free[:amount]]


def _why_taken(address: str, taken: Taken) -> str:
    """Who has this function, or one that excludes it; empty if nobody has."""
    function = next(each for each in taken.layout.functions if each.address == address)
    for each in (address, function.physical, *function.virtual):
        if owner := taken.functions.get(each):
            return f"{each} is {owner}'s"
    made = [(each.parent, each.uuid) for each in taken.layout.mediated]
    for parent, uuid in (*made, *((each.parent, each.uuid) for each in taken.to_be_made)):
        if parent == address and uuid in taken.mediated:
            return f"{address} makes a mediated device of {taken.mediated[uuid]}"
    return ""


def _mediated(
    devices: OfferedDevices, amount: int, taken: Taken, new_ids: Iterator[UUID]
) -> list[PlannedMediated]:
    can_make = [
        parent for parent in devices.parents for _ in range(_can_make(parent, devices.mediated_type, taken))
    ]
    made = [PlannedMediated(next(new_ids), devices.mediated_type, parent) for parent in can_make[:amount]]
    # Devices that exist and nobody has: somebody may just be about to use them, so they come last.
    made += [
        PlannedMediated(each.uuid, each.type, each.parent)
        for each in taken.layout.mediated
        if each.type == devices.mediated_type
        and each.parent in devices.parents
        and each.uuid not in taken.mediated
    ][: amount - len(made)]
    if len(made) < amount:
        raise CannotGiveError(
            f"{devices.name} can make {len(made)} devices of {devices.mediated_type}, and {amount} {devices.resource} are claimed"
        )
    return made


def _can_make(parent: str, mediated_type: str, taken: Taken) -> int:
    """How many devices of this type a GPU can make, beside those that other guests are about to have it make."""
    function = next(each for each in taken.layout.functions if each.address == parent)
    if parent in taken.functions:
        return 0
    soon = [each for each in taken.to_be_made if each.parent == parent]
    if any(each.type != mediated_type for each in soon):
        return 0
    available = sum(each.available for each in function.mediated_types if each.name == mediated_type)
    return max(0, available - len(soon))
