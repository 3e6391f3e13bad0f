"""Writes the domain of a guest: what its plan says, and nothing that libvirt would have to choose."""

from collections import Counter
from collections.abc import Set as AbstractSet
from typing import Literal, cast
from uuid import UUID
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from bus.messages.cell import AdoptGuest
from compute_sim.core.trees import Allocations, CannotReshape, ProviderTree
from compute_sim.libvirt.core.guest_hardware import X86
from compute_sim.libvirt.core.layout import VIRTUAL_PORT, HostLayout
from compute_sim.libvirt.core.machine import (
    attribute,
    child,
    cpus_in,
    cpus_in_words,
    kib_in,
    number_in,
    pci_address,
    read_xml,
    text_at,
    uuid_in,
)
from compute_sim.libvirt.core.planning import NoPlan
from compute_sim.libvirt.core.plans import (
    DomainCell,
    ForeignGuest,
    ForeignMemory,
    GuestDisk,
    GuestMetadata,
    GuestNic,
    GuestPlan,
    PlannedFunction,
    PlannedMediated,
    add_metadata,
    metadata_xml,
    read_metadata,
)
from engine.guests import HUGE_PAGES, SMALL_PAGES

_TARGETS = {"virtio": "vd", "scsi": "sd", "sata": "sd", "usb": "sd", "ide": "hd"}


def domain_xml(plan: GuestPlan) -> str:
    """The domain as libvirt defines it; `held_by` reads back from it what the guest holds."""
    domain = Element("domain", type=plan.domain_type)
    _text(domain, "name", plan.domain)
    _text(domain, "uuid", str(plan.instance))
    add_metadata(domain, plan)
    _text(domain, "memory", str(plan.memory_mb), unit="MiB")
    _add_memory_backing(domain, plan)
    _add_cpus(domain, plan)
    _add_numatune(domain, plan)
    _add_os(domain, plan)
    if plan.arch in X86:
        features = SubElement(domain, "features")
        SubElement(features, "acpi")
        SubElement(features, "apic")
    _add_guest_cpu(domain, plan)
    SubElement(domain, "clock", offset="utc")
    for event, action in (("poweroff", "destroy"), ("reboot", "restart"), ("crash", "destroy")):
        _text(domain, f"on_{event}", action)
    _add_devices(domain, plan)
    indent(domain)
    return tostring(domain, encoding="unicode")


def _text(parent: Element, tag: str, text: str, **attributes: str) -> Element:
    element = SubElement(parent, tag, attributes)
    element.text = text
    return element


def _add_memory_backing(domain: Element, plan: GuestPlan) -> None:
    if not plan.page_kib:
        return
    backing = SubElement(domain, "memoryBacking")
    page = SubElement(SubElement(backing, "hugepages"), "page", size=str(plan.page_kib), unit="KiB")
    if plan.cells:
        page.set("nodeset", cpus_in_words(range(len(plan.cells))))


def _add_cpus(domain: Element, plan: GuestPlan) -> None:
    _text(domain, "vcpu", str(len(plan.pins)), placement="static")
    tune = SubElement(domain, "cputune")
    for number, pins in enumerate(plan.pins):
        SubElement(tune, "vcpupin", vcpu=str(number), cpuset=cpus_in_words(pins))
    if plan.emulator:
        SubElement(tune, "emulatorpin", cpuset=cpus_in_words(plan.emulator))


def _add_numatune(domain: Element, plan: GuestPlan) -> None:
    nodes = [cell.host_cell for cell in plan.cells if cell.host_cell is not None]
    allowed = sorted({*nodes, *plan.memory_cells})
    if not allowed:
        return
    tune = SubElement(domain, "numatune")
    SubElement(tune, "memory", mode="strict", nodeset=cpus_in_words(allowed))
    for number, node in enumerate(nodes):
        SubElement(tune, "memnode", cellid=str(number), mode="strict", nodeset=str(node))


def _add_os(domain: Element, plan: GuestPlan) -> None:
    os = SubElement(domain, "os")
    if plan.firmware:
        os.set("firmware", plan.firmware)
    type_ = _text(os, "type", "hvm", arch=plan.arch)
    if plan.machine_type:
        type_.set("machine", plan.machine_type)
    for tag, text in (("kernel", plan.kernel), ("initrd", plan.ramdisk), ("cmdline", plan.cmdline)):
        if text:
            _text(os, tag, text)
    if not plan.kernel:
        SubElement(os, "boot", dev="hd")


def _add_guest_cpu(domain: Element, plan: GuestPlan) -> None:
    if not plan.cpu_mode and plan.topology is None and not plan.cells:
        return
    cpu = SubElement(domain, "cpu")
    if plan.cpu_mode:
        cpu.set("mode", plan.cpu_mode)
    if (shape := plan.topology) is not None:
        sizes = {"sockets": shape.sockets, "cores": shape.cores, "threads": shape.threads}
        SubElement(cpu, "topology", {name: str(size) for name, size in sizes.items()})
    if plan.cells:
        numa = SubElement(cpu, "numa")
        for number, cell in enumerate(plan.cells):
            SubElement(
                numa,
                "cell",
                id=str(number),
                cpus=cpus_in_words(cell.cpus),
                memory=str(cell.memory_mb),
                unit="MiB",
            )


def _add_devices(domain: Element, plan: GuestPlan) -> None:
    devices = SubElement(domain, "devices")
    names: Counter[str] = Counter()
    for disk in plan.disks:
        prefix = _TARGETS.get(disk.bus, "vd")
        _add_disk(devices, disk, prefix + _letters(names[prefix]))
        names[prefix] += 1
    if any(disk.bus == "scsi" for disk in plan.disks):
        SubElement(devices, "controller", type="scsi", index="0", model="virtio-scsi")
    for nic in plan.nics:
        interface = SubElement(devices, "interface", type=nic.kind)
        SubElement(interface, "mac", address=nic.mac)
        SubElement(interface, "source", {nic.kind: nic.source})
        SubElement(interface, "model", type=nic.model or "virtio")
    for function in plan.functions:
        hostdev = SubElement(devices, "hostdev", mode="subsystem", type="pci", managed="yes")
        SubElement(SubElement(hostdev, "source"), "address", _address(function.address))
    for mediated in plan.mediated:
        hostdev = SubElement(devices, "hostdev", mode="subsystem", type="mdev", model="vfio-pci")
        SubElement(SubElement(hostdev, "source"), "address", uuid=str(mediated.uuid))
    if plan.video:
        SubElement(SubElement(devices, "video"), "model", type=plan.video)
    if plan.console_log:
        serial = SubElement(devices, "serial", type="file")
        SubElement(serial, "source", path=plan.console_log, append="on")
        SubElement(serial, "target", port="0")


def _letters(number: int) -> str:
    """a, b, ..., z, aa, ab, ..."""
    text = ""
    while number >= 0:
        text = chr(ord("a") + number % 26) + text
        number = number // 26 - 1
    return text


def _add_disk(devices: Element, disk: GuestDisk, target: str) -> None:
    element = SubElement(devices, "disk", type="file", device=disk.device)
    SubElement(element, "driver", name="qemu", type=disk.format)
    SubElement(element, "source", file=disk.path)
    SubElement(element, "target", dev=target, bus=disk.bus or "virtio")
    if disk.device == "cdrom":
        SubElement(element, "readonly")


def _address(text: str) -> dict[str, str]:
    """0000:81:00.1 as libvirt's attributes."""
    domain, bus, rest = text.split(":")
    slot, function = rest.split(".")
    return {"domain": f"0x{domain}", "bus": f"0x{bus}", "slot": f"0x{slot}", "function": f"0x{function}"}


# Reads a domain back: what a guest of ours holds, or what a foreign guest takes of the machine.


def held_by(text: str) -> GuestPlan | ForeignGuest:
    """What the guest of this domain holds: of its plan, what others must leave alone, and its files. Or what it takes if it is none of ours."""
    domain = read_xml(text, "domain")
    metadata = read_metadata(domain)
    return _foreign(domain) if metadata is None else _plan(domain, metadata)


def as_foreign(text: str) -> ForeignGuest:
    """What a domain takes of the machine, if it is a guest of another compute there."""
    return _foreign(read_xml(text, "domain"))


def _plan(domain: Element, ours: GuestMetadata) -> GuestPlan:
    known = {each.uuid: each for each in ours.mediated}
    return GuestPlan(
        instance=ours.instance,
        attempt=ours.attempt,
        cell=ours.cell,
        share=ours.share,
        name=ours.name,
        domain=domain.findtext("name") or "",
        domain_type=attribute(domain, "type"),
        arch=attribute(child(domain, "os/type"), "arch"),
        memory_mb=kib_in(child(domain, "memory")) // 1024,
        page_kib=_page_kib(domain),
        pins=_pins(domain),
        dedicated=ours.dedicated,
        emulator=_cpus(domain.find("cputune/emulatorpin")),
        cells=_cells(domain),
        functions=_functions(domain),
        # One that is not in the metadata was added to the domain by hand.
        mediated=tuple(known.get(uuid) or PlannedMediated(uuid, "", "") for uuid in _mediated(domain)),
        disks=tuple(map(_disk, domain.findall("devices/disk"))),
        nics=_nics(domain),
        kernel=domain.findtext("os/kernel") or "",
        ramdisk=domain.findtext("os/initrd") or "",
    )


def _foreign(domain: Element) -> ForeignGuest:
    return ForeignGuest(
        name=text_at(domain, "name"),
        uuid=uuid_in(text_at(domain, "uuid"), domain),
        pins=_pins(domain),
        memory=_memory(domain),
        functions=tuple(each.address for each in _functions(domain)),
        mediated=tuple(_mediated(domain)),
        macs=tuple(attribute(each, "address") for each in domain.findall("devices/interface/mac")),
    )


def _pins(domain: Element) -> tuple[tuple[int, ...], ...]:
    vcpu = domain.find("vcpu")
    count = 1 if vcpu is None else number_in(vcpu.text, vcpu, "the count")
    anywhere = _cpus(vcpu)
    pinned = {
        number_in(attribute(each, "vcpu"), each, "the vcpu"): _cpus(each)
        for each in domain.findall("cputune/vcpupin")
    }
    return tuple(pinned.get(number, anywhere) for number in range(count))


def _cpus(element: Element | None, name: str = "cpuset") -> tuple[int, ...]:
    return () if element is None else cpus_in(element, name)


def _cells(domain: Element) -> tuple[DomainCell, ...]:
    nodes = {
        number_in(attribute(each, "cellid"), each, "the cellid"): _cpus(each, "nodeset")
        for each in domain.findall("numatune/memnode")
    }
    return tuple(
        DomainCell(
            _cpus(cell, "cpus"),
            _kib(cell, "memory") // 1024,
            # The host's cell, where it has exactly one.
            where[0] if len(where := nodes.get(number, ())) == 1 else None,
        )
        for number, cell in enumerate(domain.findall("cpu/numa/cell"))
    )


def _kib(element: Element, name: str) -> int:
    """The amount of memory that an attribute has, in the unit that another one names."""
    amount = Element(element.tag, unit=element.get("unit", "KiB"))
    amount.text = attribute(element, name)
    return kib_in(amount)


def _page_kib(domain: Element) -> int:
    page = domain.find("memoryBacking/hugepages/page")
    return 0 if page is None else _kib(page, "size")


def _memory(domain: Element) -> tuple[ForeignMemory, ...]:
    kib = _page_kib(domain)
    cells = _cells(domain)
    if cells and all(cell.host_cell is not None for cell in cells):
        return tuple(
            ForeignMemory(cell.memory_mb, kib, (cell.host_cell,))
            for cell in cells
            if cell.host_cell is not None
        )
    memory = domain.find("memory")
    where = _cpus(domain.find("numatune/memory"), "nodeset")
    return () if memory is None else (ForeignMemory(-(-kib_in(memory) // 1024), kib, where),)


def _functions(domain: Element) -> tuple[PlannedFunction, ...]:
    found = []
    for device in domain.findall("devices/*"):
        address = device.find("source/address")
        if address is None or address.get("domain") is None:
            continue
        if device.tag == "hostdev":
            found.append(PlannedFunction(pci_address(address)))
        elif device.tag == "interface" and device.get("type") == "hostdev":
            found.append(PlannedFunction(pci_address(address), attribute(child(device, "mac"), "address")))
    return tuple(found)


def _mediated(domain: Element) -> list[UUID]:
    return [
        uuid_in(attribute(child(device, "source/address"), "uuid"), device)
        for device in domain.findall("devices/hostdev")
        if device.get("type") == "mdev"
    ]


def _disk(disk: Element) -> GuestDisk:
    source, driver, target = disk.find("source"), disk.find("driver"), disk.find("target")
    format_ = "raw" if driver is not None and driver.get("type") == "raw" else "qcow2"
    return GuestDisk(
        path="" if source is None else source.get("file", ""),
        format=cast("Literal['qcow2', 'raw']", format_),
        device="cdrom" if disk.get("device") == "cdrom" else "disk",
        bus="" if target is None else target.get("bus", ""),
    )


def _nics(domain: Element) -> tuple[GuestNic, ...]:
    found = []
    for each in domain.findall("devices/interface"):
        kind = each.get("type")
        if kind not in ("network", "bridge"):
            continue
        model = each.find("model")
        found.append(
            GuestNic(
                mac=attribute(child(each, "mac"), "address"),
                source=attribute(child(each, "source"), kind),
                kind=cast("Literal['network', 'bridge']", kind),
                model="" if model is None else model.get("type", ""),
            )
        )
    return tuple(found)


# A guest that another cloud has built on this host becomes one of ours: its domain stays as it is, and says from now on whose it is.


def adopted(text: str, order: AdoptGuest, layout: HostLayout) -> str | NoPlan:
    """The metadata by which this domain is the guest of the order from now on (libvirt sets it under `NAMESPACE`).

    It is refused if its claim says something else than the domain: then the host's settings differ from those that the other
    cloud had, or the claim was read wrong.
    """
    domain = as_foreign(text)
    if domain.uuid != order.instance:
        return NoPlan(
            f"domain {domain.name} has the uuid {domain.uuid}, and is not instance {order.instance}"
        )
    # Its emulator's threads may be pinned, too.
    emulator = _cpus(read_xml(text, "domain").find("cputune/emulatorpin"))
    dedicated = _dedicated(domain, emulator, layout)
    functions = [
        each for each in domain.functions if any(each in devices.functions for devices in layout.devices)
    ]
    for what, given, classes in (
        (f"dedicated CPUs ({cpus_in_words(dedicated) or 'none'})", len(dedicated), ("PCPU",)),
        (
            f"offered functions ({', '.join(functions) or 'none'})",
            len(functions),
            ("CUSTOM_PCI_", VIRTUAL_PORT),
        ),
        ("mediated devices", len(domain.mediated), ("VGPU",)),
    ):
        if (claimed := _claimed(order, classes)) != given:
            return NoPlan(f"domain {domain.name} has {given} {what}, and {claimed} are claimed for it")
    for what, given, classes in (
        ("processors", len(domain.pins), ("VCPU", "PCPU")),
        ("MB of memory", sum(each.mb for each in domain.memory), (SMALL_PAGES, HUGE_PAGES)),
    ):
        if (claimed := _claimed(order, classes)) < given:
            return NoPlan(f"domain {domain.name} has {given} {what}, and only {claimed} are claimed for it")
    exist = {each.uuid: each for each in layout.mediated}
    return metadata_xml(
        GuestMetadata(
            instance=order.instance,
            attempt=order.attempt,
            cell=order.cell,
            name=order.name,
            share=order.share,
            dedicated=dedicated,
            mediated=tuple(
                PlannedMediated(uuid, exist[uuid].type, exist[uuid].parent)
                for uuid in domain.mediated
                if uuid in exist
            ),
        )
    )


def _claimed(order: AdoptGuest, classes: tuple[str, ...]) -> int:
    return sum(each.amount for each in order.share.amounts if each.resource.startswith(classes))


def _dedicated(domain: ForeignGuest, emulator: tuple[int, ...], layout: HostLayout) -> tuple[int, ...]:
    """The dedicated CPUs of the host that this guest is pinned to, its emulator's too."""
    offered = {cpu for cell in layout.cells for cpu in cell.dedicated}
    pinned = [pins for pins in (*domain.pins, emulator) if pins and offered.issuperset(pins)]
    return tuple(sorted({cpu for pins in pinned for cpu in pins}))


# Which guests keep a host from another shape: their CPUs, pages or cells are at a place of the machine, and cannot be told to be
# elsewhere.


def bound_guests(
    new: ProviderTree, allocations: Allocations, celled: AbstractSet[int] = frozenset()
) -> CannotReshape | None:
    """The refusal of a new shape, if it moves dedicated CPUs or huge pages that a consumer has, or anything of an instance in
    `celled`: its guest has NUMA cells of its own, and each is bound to one of the host's.
    """
    for consumer in sorted(allocations):
        for each in allocations[consumer]:
            provider = new.providers.get(each.provider)
            has_it = provider is not None and each.resource in provider.inventories
            is_bound = (
                consumer.int in celled or each.resource == "PCPU" or each.resource.startswith(HUGE_PAGES)
            )
            if not has_it and is_bound:
                return CannotReshape(
                    f"{consumer} is bound to its {each.amount} {each.resource}: the shape can change when it has left the host"
                )
    return None
